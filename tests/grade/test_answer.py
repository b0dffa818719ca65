"""Math answers: recorded cases, the fast path, hostile text, and the child processes behind it."""

import asyncio
import json
import subprocess
import sys
import time
from collections.abc import Iterator
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest

from cascade_rl.errors import GraderError
from cascade_rl.grade import answer as answers
from cascade_rl.grade import pool as pools
from cascade_rl.grade.answer import (
    final_answer,
    grade_answer,
    grade_answer_async,
    grade_answers,
    grade_number,
    normal,
    read_number,
)

CASES = [json.loads(line) for line in (Path(__file__).parents[1] / "data" / "math.jsonl").read_text().splitlines()]


@pytest.fixture(scope="module", autouse=True)
def _no_child_survives() -> Iterator[None]:
    yield
    pools.close_shared_pools()


@pytest.mark.parametrize("case", CASES, ids=[f"{n} {case['why']}" for n, case in enumerate(CASES)])
def test_recorded_cases(case: dict[str, Any]) -> None:
    assert grade_answer(case["pred"], case["gold"]).value == float(case["expected"])


def test_every_gold_is_right_and_an_empty_answer_is_not() -> None:
    golds = [case["gold"] for case in CASES]
    boxed = [gold if "boxed" in gold else f"So it is \\boxed{{{gold}}}." for gold in golds]
    assert [reward.value for reward in grade_answers(boxed, golds)] == [1.0] * len(golds)
    assert [reward.value for reward in grade_answers([""] * len(golds), golds)] == [0.0] * len(golds)


@pytest.mark.parametrize(
    ("gold", "text"),
    [
        ("1000000", "1,000,000"),
        ("18", r"\boxed{\$18.00}"),
        ("18", r"\boxed{18 \text{ dollars}}"),
        ("18", "18 dollars"),
        (r"\frac12", "0.5"),
        (r"-\frac{1}{2}", r"\frac{-1}{2}"),
        (r"3\frac{1}{2}", "3.5"),
        ("3.5", "3½"),
        ("1200", r"1.2 \times 10^{3}"),
        ("1/3", "0.333333"),
        ("50%", "0.5"),
        ("50", r"50\%"),
        ("90", r"90^\circ"),
        ("5", "x = 5"),
        ("-3", "−3"),
        ("17_8", "17_{8}"),
        ("blue", r"\text{Blue}"),
        ("12", "The answer is 12."),
        ("12", "6 and 6 make\n#### 12"),
        ("12", "<think>13</think>\n12"),
        ("4 \\text{ or } 5", "4 \\text{ or } 5"),
    ],
)
def test_fast_path_says_yes_without_a_child(monkeypatch: pytest.MonkeyPatch, gold: str, text: str) -> None:
    monkeypatch.setattr(answers, "_pool", lambda: pytest.fail("the fast path must decide this"))
    assert grade_answer(text, gold).value == 1


@pytest.mark.parametrize(
    ("gold", "text"),
    [
        ("5", "5.0000001"),
        ("1/3", "0.33333"),
        ("0.5", "0.500001"),
        ("1000000", "1000005"),
        ("17_8", "17_9"),
        ("hello", "olleh"),
        ("5", r"\boxed{5}\boxed{6}"),
        ("5", r"\boxed{6} or \boxed{5}"),
        ("5", r"\boxed{}"),
        ("5", r"\boxed{5"),
        ("5", "I think it is 5 or 6.\nPerhaps."),
        ("5", "<think>5"),
        ("5", "9" * 5000),
        ("x", "2^{10^{10^{10}}}"),
        ("5", "9^{9^{9}}"),
        ("5", "9!!!!!!"),
        ("5", "x^{99999999}"),
        ("2", r"\int_0^{10^9} e^{x^2} \sin(x^x) dx"),
        ("2", r"\sum_{k=1}^{10^9} \frac{1}{k^k}"),
        ("5", "(" * 20_000),
        ("5", "\\sqrt{" * 5_000 + "5" + "}" * 5_000),
    ],
)
def test_fast_path_says_no_without_a_child(monkeypatch: pytest.MonkeyPatch, gold: str, text: str) -> None:
    monkeypatch.setattr(answers, "_pool", lambda: pytest.fail("the fast path must decide this"))
    assert grade_answer(text, gold).value == 0


@pytest.mark.parametrize(
    ("gold", "text", "right"),
    [
        (r"6\sqrt2", r"\sqrt{72}", True),
        ("(x+1)^2", "x^2+2x+1", True),
        ("(x+1)^2", "x^2+2x+2", False),
        ("2x-y+1=0", "y=2x+1", True),
        ("x^2+y^2=4", "y^2+x^2-4=0", True),
        ("x=x+1", "x=x+2", False),
        ("0=1", "1=2", False),
        ("x<3", "2x<6", True),
        ("x<3", "-x>-3", True),
        ("x<3", r"x\le 3", False),
        ("x<3", "x>3", False),
        ("-2<x<2", "(-2,2)", True),
        (r"\pm 3", "3,-3", True),
        (r"\{1/3, 2\}", r"\{2, 0.3333333\}", True),
        ("1,2", "1,2,3", False),
        ("x+1", "f(x)=x+1", True),
        (r"\frac{\sqrt3}{2}", "0.8660254", True),
        (r"\sin^2 x+\cos^2 x", "1", True),
        (r"\begin{pmatrix}1/2\\2\end{pmatrix}", r"\begin{pmatrix}0.5\\2\end{pmatrix}", True),
        (r"\begin{pmatrix}1\\2\end{pmatrix}", r"\begin{pmatrix}1&2\end{pmatrix}", False),
        ("10^{15}+1", "10^{15}", False),
        ("x", r"\frac{5}{0}", False),
        ("x", "{" * 300, False),
        ("x", r"\frac{", False),
        ("4", r"4\sqrt(2)", False),
        (r"4\sqrt{2}", r"4\sqrt(2)", True),
        (r"4\sqrt{2}", r"\sqrt{32} \text{ meters}", True),
        (r"4\sqrt{2}", r"\sqrt{31} \text{ cm}^2", False),
    ],
)
def test_symbolic_verdicts(gold: str, text: str, right: bool) -> None:
    assert grade_answer(text, gold).value == float(right)


@pytest.mark.parametrize(
    "unit",
    [
        "\\boxed{",
        "\\boxed{1}",
        "{",
        "}",
        "answer is ",
        "#### ",
        "\n#### 1",
        " ",
        "$",
        "\\text{",
        "<think>",
        "1,",
        "\\",
        "½",
        "9",
        "√(",
    ],
)
def test_megabytes_of_hostile_text_are_quick(unit: str) -> None:
    started = time.perf_counter()
    assert grade_answer(unit * (1_000_000 // len(unit)), "7").value == 0
    assert grade_answer("\\boxed{" + unit * (100_000 // len(unit)) + "}", "7").value == 0
    assert time.perf_counter() - started < 5


@pytest.mark.parametrize(
    "text",
    [
        'answer text: \\pi__import__("os").system("touch FILE")',
        '\\boxed{__import__("os").system("touch FILE")}',
        '\\boxed{\\pi + open("FILE", "w").write("x")}',
        "\\boxed{\\immediate\\write18{touch FILE}}",
    ],
)
def test_an_answer_that_is_code_is_never_run(tmp_path: Path, text: str) -> None:
    file = tmp_path / "ran"
    assert grade_answer(text.replace("FILE", str(file)), r"\pi").value != 1
    assert grade_answer(text.replace("FILE", str(file)), "0").value != 1
    assert not file.exists()


def test_a_comparison_without_end_is_unscored_and_the_next_one_is_scored() -> None:
    endless = r"\boxed{\frac{\left(x^{999999}+1\right)^{999999}}{y^{99999}-\left(1+y\right)^{99999}}+\binom{999999}{499999}}"
    started = time.perf_counter()
    reward = grade_answer(endless, "(x+y)^{999}")
    assert reward.value is None
    assert "CPU time" in reward.why or "memory" in reward.why or "failed" in reward.why
    assert time.perf_counter() - started < 30
    assert grade_answer(r"\sqrt{8}", r"2\sqrt{2}").value == 1


def test_no_gold_is_a_configuration_error() -> None:
    for gold in ("", "  ", r"\boxed{}", "$$"):
        with pytest.raises(GraderError, match="is empty"):
            grade_answer("5", gold)


def test_async_gives_the_same_verdicts_in_order() -> None:
    async def both() -> list[float | None]:
        rewards = await asyncio.gather(
            grade_answer_async(r"\sqrt{8}", r"2\sqrt{2}"),
            grade_answer_async("4", "5"),
            grade_answer_async(r"\sqrt{9}", r"2\sqrt{2}"),
        )
        return [reward.value for reward in rewards]

    assert asyncio.run(both()) == [1.0, 0.0, 0.0]


@pytest.mark.parametrize(
    ("text", "gold", "value"),
    [
        (r"16 - 7 = 9, so \boxed{18}", "18", 1),
        ("#### 1,234", "1234", 1),
        (r"\boxed{18.0}", "18", 1),
        (r"\boxed{\$18}", "18", 1),
        (r"\boxed{18 \text{ eggs}}", "18", 1),
        (r"\boxed{-3}", "-3", 1),
        (r"\boxed{18.0001}", "18", 0),
        (r"\boxed{9+9}", "18", 0),
        (r"\boxed{17}\boxed{18}", "18", 0),
        (r"\boxed{eighteen}", "18", 0),
        (r"\boxed{" + "1" * 100_000 + "}", "18", 0),
        ("18 or 19", "18", 0),
        ("", "18", 0),
    ],
)
def test_strict_numbers(text: str, gold: str, value: int) -> None:
    assert grade_number(text, gold).value == value


def test_a_gold_that_is_no_number_raises_in_numeric_mode() -> None:
    with pytest.raises(GraderError, match="is not a number"):
        grade_number("5", "five")


@pytest.mark.parametrize(
    ("written", "value"),
    [
        ("1,234.50", Fraction(2469, 2)),
        (".5", Fraction(1, 2)),
        ("+7", Fraction(7)),
        ("{7}", Fraction(7)),
        (r"2\frac{3}{4}", Fraction(11, 4)),
        (r"-2\frac{3}{4}", Fraction(-11, 4)),
        ("3/0", None),
        ("1,23", None),
        ("1.2.3", None),
        ("--3", None),
        ("", None),
        (".", None),
    ],
)
def test_read_number(written: str, value: Fraction | None) -> None:
    number = read_number(normal(written))
    assert (number.value if number else None) == value


@pytest.mark.parametrize(
    ("text", "found"),
    [
        (r"a \boxed{\frac{1}{2}} b", r"\frac{1}{2}"),
        (r"\boxed{\{1\}}", r"\{1\}"),
        (r"\boxed{x} then \boxed{y}", "y"),
        (r"\boxed{\boxed{3}}", r"\boxed{3}"),
        (r"set \{1, { and \boxed{5}", "5"),
        ("The answer is: **12**.", "12"),
        ("Long\ntext", None),
        ("  7 ", "7"),
        ("", None),
    ],
)
def test_final_answer(text: str, found: str | None) -> None:
    assert final_answer(text) == found


# --- the pool ------------------------------------------------------------------------------------------------------------------

CHILD = """
import json, os, sys, time
print("ready", flush=True)
for line in sys.stdin:
    order = json.loads(line)
    if order == "sleep": time.sleep(60)
    if order == "die": os._exit(3)
    if order == "half": print('{"a"', flush=True); continue
    print(json.dumps([order, os.getpid()]), flush=True)
"""


@pytest.fixture
def pool(tmp_path: Path) -> Iterator[pools.Pool]:
    script = tmp_path / "child.py"
    script.write_text(CHILD)
    made = pools.Pool(script, size=1, timeout_s=1.0)
    yield made
    made.close()


def test_children_start_when_asked_and_serve_again(pool: pools.Pool) -> None:
    assert not pool._alive
    first, second = pool.ask("a"), pool.ask("b")
    assert (first[0], second[0]) == ("a", "b")
    assert first[1] == second[1]


@pytest.mark.parametrize(("order", "cause"), [("sleep", "timed out"), ("die", "died"), ("half", "died")])
def test_a_failed_child_is_replaced(pool: pools.Pool, order: str, cause: str) -> None:
    _, before = pool.ask("a")
    with pytest.raises(pools.ChildFailed, match=cause):
        pool.ask(order)
    _, after = pool.ask("b")
    assert before != after
    assert len(pool._alive) == 1


def test_a_child_that_dies_while_idle_is_replaced(pool: pools.Pool) -> None:
    pool.ask("a")
    (child,) = pool._alive
    child.process.kill()
    child.process.wait()
    assert pool.ask("b")[0] == "b"
    assert len(pool._alive) == 1


def test_a_child_that_cannot_start_is_said(tmp_path: Path) -> None:
    script = tmp_path / "broken.py"
    script.write_text("import no_such_module")
    pool = pools.Pool(script, size=1, timeout_s=1.0)
    with pytest.raises(pools.ChildFailed, match="did not start"):
        pool.ask("a")
    assert not pool._alive


def test_a_closed_pool_has_no_children_and_starts_none(pool: pools.Pool) -> None:
    pool.ask("a")
    (child,) = pool._alive
    pool.close()
    assert child.process.returncode is not None
    with pytest.raises(pools.ChildFailed):
        pool.ask("b")


def test_time_out_gets_one_more_try_then_is_unscored(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    class Slow:
        def ask(self, request: Any) -> Any:
            asked.append(request)
            raise pools.ChildFailed("timed out")

    monkeypatch.setattr(answers, "_pool", Slow)
    reward = grade_answer(r"\sqrt{8}", r"2\sqrt{2}")
    assert reward.value is None
    assert "timed out" in reward.why
    assert len(asked) == 2


def test_a_program_that_ends_leaves_no_child() -> None:
    program = (
        "import os\n"
        "from cascade_rl.grade.answer import grade_answer, _pool\n"
        "assert grade_answer(r'\\sqrt{8}', r'2\\sqrt{2}').value == 1\n"
        "print(*[c.process.pid for c in _pool()._alive])\n"
    )
    done = subprocess.run([sys.executable, "-W", "error", "-c", program], capture_output=True, text=True, timeout=120, check=True)
    assert done.stderr == ""
    pids = [int(pid) for pid in done.stdout.split()]
    assert len(pids) == 1
    assert not Path(f"/proc/{pids[0]}").exists()
