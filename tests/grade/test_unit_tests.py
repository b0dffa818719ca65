"""Verdicts on code, run for real: every attack of the data file, the comparisons, the limits."""

import asyncio
import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.sandbox.host import children, needs_sandbox

from cascade_rl.errors import GraderError
from cascade_rl.grade.unit_tests import CallTest, ProgramTest, Verdict, grade_calls, grade_program
from cascade_rl.sandbox.process import MB, Limits, SandboxPool

pytestmark = needs_sandbox

ROWS = [json.loads(line) for line in (Path(__file__).parents[1] / "data" / "code_adversarial.jsonl").read_text().splitlines()]
ADD = [CallTest("add(1, 2)", 3), CallTest("add(5, 7)", 12)]
QUICK = Limits(cpu_s=1, wall_s=1.5)
OURS = Limits(cpu_s=20, wall_s=30.0)  # where time is not what is tested


@pytest.fixture(scope="module")
def pool() -> Iterator[SandboxPool]:
    made = SandboxPool()
    yield made
    made.close()


def calls(pool: SandboxPool, code: str, tests: list[CallTest], limits: Limits = OURS, **options: Any) -> Verdict:
    return asyncio.run(grade_calls(code, tests, limits, pool=pool, **options))


def program(pool: SandboxPool, code: str, *tests: ProgramTest, limits: Limits = OURS, **options: Any) -> Verdict:
    return asyncio.run(grade_program(code, tests, limits, pool=pool, **options))


@pytest.mark.parametrize("row", ROWS, ids=[row["name"] for row in ROWS])
def test_attacks(pool: SandboxPool, row: dict[str, Any]) -> None:
    limits = QUICK if "time" in row["kinds"] else OURS
    if "program" in row:
        verdict = program(pool, row["code"], ProgramTest(*row["program"]), limits=limits)
    else:
        verdict = calls(pool, row["code"], [CallTest(call, value) for call, value in row["calls"]], limits)
    assert verdict.kind in row["kinds"], verdict
    assert verdict.reward().value == float(verdict.kind == "passed")


def test_a_program_that_copies_itself_is_asked_once(pool: SandboxPool) -> None:
    """The copy is quicker with its answers, which are others, than the process that was asked."""
    code = "import os, time\npid = os.fork()\nif pid:\n    time.sleep(0.3)\ndef add(a, b): return a + b if pid else 0\n"
    assert calls(pool, code, [CallTest("add(1, 2)", 3), CallTest("add(5, 7)", 12)], OURS).kind == "passed"


@pytest.mark.parametrize(
    ("returned", "expected", "right"),
    [
        ("10**400", 10**400, True),
        ("10**400 + 1", 10**400, False),
        ("2**53 + 1", float(2**53), False),
        ("1.0", 1, True),
        ("True", 1, True),
        ("'1'", 1, False),
        ("b'1'", "1", False),
        ("(1, 2)", [1, 2], False),
        ("[1, (2, {3})]", [1, (2, {3})], True),
        ("{1: {'a': None}}", {1: {"a": None}}, True),
        ("frozenset([1])", {1}, True),
        ("float('nan')", float("nan"), False),
        ("float('inf')", float("inf"), True),
        ("1 + 2j", 1 + 2j, True),
        ("'\\ud800'", "\ud800", True),
        ("__import__('collections').Counter('aab')", {"a": 2, "b": 1}, True),
        ("__import__('collections').OrderedDict(a=1)", {"a": 1}, True),
        ("range(3)", [0, 1, 2], False),
        ("object()", 3, False),
        ("{}.keys()", [], False),
        ("(lambda x: (x.append(x), x)[1])([])", [], False),
    ],
)
def test_values_cross_with_their_types(pool: SandboxPool, returned: str, expected: Any, right: bool) -> None:
    verdict = calls(pool, f"def f():\n    return {returned}", [CallTest("f()", expected)])
    assert (verdict.kind == "passed") == right, verdict
    assert verdict.kind in ("passed", "wrong answer")


@pytest.mark.parametrize(
    ("wrote", "expected", "tolerant", "exact"),
    [
        ("3\n", "3\n", True, True),
        ("3", "3\n", True, False),
        ("1  2 \r\n\n3\n\n", "1 2\n3\n", True, False),
        ("1 2 3\n", "1 2\n3\n", False, False),
        ("12\n", "1 2\n", False, False),
        ("3.0\n", "3\n", False, False),
        ("", "3\n", False, False),
    ],
)
def test_output_is_compared_with_or_without_white_space(
    pool: SandboxPool, wrote: str, expected: str, tolerant: bool, exact: bool
) -> None:
    code = f"import sys\nsys.stdout.write({wrote!r})"
    assert (program(pool, code, ProgramTest("", expected)).kind == "passed") == tolerant
    assert (program(pool, code, ProgramTest("", expected), exact=True).kind == "passed") == exact


def test_a_checker_decides_in_this_process(pool: SandboxPool) -> None:
    def any_root(stdin: str, expected: str, stdout: str) -> bool:
        return float(stdout) ** 2 == float(stdin)

    test = ProgramTest("9\n", "3\n")
    assert program(pool, "print(-int(input()) // 3)", test, checker=any_root).kind == "passed"
    assert program(pool, "print(2)", test, checker=any_root).kind == "wrong answer"


def test_stops_at_the_first_failure_unless_all_are_asked_for(pool: SandboxPool) -> None:
    code = "import time\ndef f(x):\n    time.sleep(20 if x == 2 else 0)\n    return x % 2"
    tests = [CallTest("f(1)", 1), CallTest("f(0)", 1), CallTest("f(2)", 0)]
    verdict = calls(pool, code, tests)  # would wait for 20 seconds
    assert (verdict.kind, verdict.num_passed, verdict.num_tests) == ("wrong answer", 1, 3)
    tests[2] = CallTest("f(3)", 1)
    verdict = calls(pool, code, tests, all_tests=True)
    assert (verdict.kind, verdict.num_passed) == ("wrong answer", 2)
    assert verdict.reward().value == 0.0
    assert verdict.reward(partial=True).value == pytest.approx(2 / 3)


def test_a_value_told_before_the_time_limit_does_not_save_the_rest(pool: SandboxPool) -> None:
    code = "def f(x):\n    while x: pass\n    return 0"
    verdict = calls(pool, code, [CallTest("f(0)", 0), CallTest("f(1)", 0)], QUICK)
    assert (verdict.kind, verdict.num_passed) == ("time", 1)


def test_memory_limits_hold_for_all_processes_together(pool: SandboxPool) -> None:
    hold = (
        "import os, time\nfor i in range(6):\n    if os.fork() == 0:\n"
        "        x = bytearray(40 << 20)\n        time.sleep(30)\n        os._exit(0)\ntime.sleep(30)"
    )
    verdict = program(pool, hold, ProgramTest("", ""), limits=Limits(cpu_s=20, wall_s=20.0, memory_bytes=150 * MB))
    assert verdict.kind == "memory"


def test_files_are_limited(pool: SandboxPool) -> None:
    code = "open('big', 'wb').write(b'x' * (40 << 20))"
    assert program(pool, code, ProgramTest("", "")).kind == "error"
    many = "for i in range(8):\n    open(f'/tmp/{i}', 'wb').write(b'x' * (8 << 20))"
    assert program(pool, many, ProgramTest("", "")).kind == "error"


def test_a_script_is_run_as_python_runs_one(pool: SandboxPool) -> None:
    code = (
        "import sys, threading, atexit, time\nprint(__name__, sys.argv[1:], sys.stdin.read())\n"
        "threading.Thread(target=lambda: (time.sleep(0.05), print('thread'))).start()\natexit.register(print, 'end')"
    )
    assert program(pool, code, ProgramTest("in", "__main__ [] in\nthread\nend")).kind == "passed"


def test_verdicts_do_not_depend_on_chance(pool: SandboxPool) -> None:
    code = "import random\nprint(random.random(), hash('a'), list({'a', 'b', 'c'}))"
    wrote = {program(pool, code, ProgramTest("", "-"), exact=True).why for _ in range(3)}
    assert len(wrote) == 1


def test_bad_arguments_are_refused(pool: SandboxPool) -> None:
    with pytest.raises(GraderError, match="list is empty"):
        calls(pool, "x = 1", [])
    with pytest.raises(GraderError, match="list is empty"):
        program(pool, "x = 1")
    assert calls(pool, "#" * 200_000, ADD).kind == "no code"
    assert calls(pool, " \n", ADD).kind == "no code"


def test_a_sandbox_killed_from_outside_is_replaced_and_then_unscored() -> None:
    """Once: the run is tried again and scored. Each time: unscored, and the next one is scored again."""
    pool = SandboxPool(size=1)
    code = "import time\ndef add(a, b):\n    time.sleep(0.3)\n    return a + b"

    async def grade_while_killing(num_kills: int) -> Verdict:
        grading = asyncio.ensure_future(grade_calls(code, ADD, OURS, pool=pool))
        killed: set[int] = set()
        while not grading.done():
            await asyncio.sleep(0.01)
            for server in list(pool._alive):
                inner = children(server.process.pid)
                if len(inner) >= 3 and server.process.pid not in killed and len(killed) < num_kills:
                    killed.add(server.process.pid)
                    os.kill(inner[0], signal.SIGKILL)
        return await grading

    try:
        assert asyncio.run(grade_while_killing(1)).kind == "passed"
        verdict = asyncio.run(grade_while_killing(2))
        assert verdict.kind == "unscored"
        assert verdict.reward().value is None
        assert calls(pool, code, ADD).kind == "passed"
    finally:
        pool.close()
