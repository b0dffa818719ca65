"""Verdicts on code by running it: calls that must give a value, and programs that must answer their input.

The program under test runs in a sandbox and never learns what is expected of it. It can only say what its values or its output
are; they are compared here, as plain Python values of the built-in types. So an object that is equal to everything, a patched
`builtins`, a search through the interpreter's memory or a printed "PASSED" gains nothing: to pass, a program must know the answer.

    tests = [CallTest("add(1, 2)", 3), CallTest("add(-1, 1)", 0)]
    verdict = await grade_calls("def add(a, b):\\n    return a + b", tests)
    assert verdict.kind == "passed"
"""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from cascade_rl.errors import GraderError
from cascade_rl.records import ExecResult, Reward
from cascade_rl.sandbox.inside import values
from cascade_rl.sandbox.process import Job, Limits, SandboxFailed, SandboxPool, shared_pool

Kind = Literal["passed", "wrong answer", "error", "time", "memory", "output limit", "no code", "unscored"]
Check = Callable[[Any, Any], bool]  # (value, expected)
Checker = Callable[[str, str, str], bool]  # (stdin, expected stdout, stdout)

MAX_CODE_CHARS = 100_000
_SHOWN_CHARS = 80
_ENDED: dict[str, tuple[Kind, str]] = {
    "time": ("time", "still running at the time limit"),
    "memory": ("memory", "took more memory than it may"),
    "output": ("output limit", "wrote more than it may"),
}


def equal(value: Any, expected: Any) -> bool:
    """Python's own equality of plain values: 1 == True == 1.0, but "3" is not 3, a list is not a tuple, integers are exact."""
    return bool(value == expected)


@dataclass(frozen=True, slots=True)
class CallTest:
    """An expression to evaluate where the program's names are known, and what it must give: `CallTest("add(1, 2)", 3)`.

    expected: never leaves this process. check: how the two are compared, in this process.
    """

    call: str
    expected: Any
    check: Check = equal


@dataclass(frozen=True, slots=True)
class ProgramTest:
    """Standard input and what must come out: `ProgramTest("1 2\\\\n", "3\\\\n")`."""

    stdin: str
    stdout: str


@dataclass(frozen=True, slots=True)
class Verdict:
    """How code fared: `Verdict("wrong answer", "add(1, 2) gave 4", num_passed=0, num_tests=2)`.

    kind: "passed", or how the first test that failed did, or "unscored": the sandbox failed, twice. num_passed: tests known to
    pass; where testing stopped at the first failure, those before it.
    """

    kind: Kind
    why: str
    num_passed: int
    num_tests: int

    def reward(self, partial: bool = False) -> Reward:
        """1 when all tests pass, else 0; partial: the share of tests that pass. None when unscored."""
        if self.kind == "unscored":
            return Reward(None, why=self.why)
        share = self.num_passed / self.num_tests
        value = share if partial else float(self.kind == "passed")
        return Reward(value, {"tests_passed": share}, self.why if self.kind == "passed" else f"{self.kind}: {self.why}")


async def grade_calls(
    code: str,
    tests: Sequence[CallTest],
    limits: Limits | None = None,
    *,
    setup: str = "",
    all_tests: bool = False,
    pool: SandboxPool | None = None,
) -> Verdict:
    """Runs code once, then every call in the same process, in order.

    limits: of the whole run. setup: trusted code that runs after the program's. all_tests: go on after a failure (for partial
    credit). Raises GraderError without tests, SandboxError where this machine cannot isolate programs.
    """
    if not tests:
        raise GraderError("unit tests: the list is empty; a program without tests has no verdict, so leave the row out")
    if missing := _no_code(code, len(tests)):
        return missing
    marks = _Marks(tests, all_tests)
    job = Job("calls", source=f"{code}\n\n{setup}", calls=tuple(test.call for test in tests))
    try:
        result = await (pool or shared_pool()).run(job, limits or Limits(), marks.add)
    except SandboxFailed as error:
        return Verdict("unscored", f"the sandbox failed twice: {error}", 0, len(tests))
    return marks.verdict(result.exit)


class _Marks:
    """Compares results as they arrive. Every line is hostile: it may be anything."""

    def __init__(self, tests: Sequence[CallTest], all_tests: bool) -> None:
        self.tests = tests
        self.all_tests = all_tests
        self.num_seen = self.num_passed = 0
        self.failure: tuple[Kind, str] | None = None

    def add(self, number: int, line: bytes) -> bool:
        """Takes result `number`; True when nothing more needs to be seen."""
        if number == 0:  # of the first try, or of another one after the sandbox failed
            self.num_seen, self.num_passed, self.failure = 0, 0, None
        if number >= len(self.tests):
            return True
        failure = _mark(self.tests[self.num_seen], line)
        self.num_seen += 1
        self.num_passed += failure is None
        self.failure = self.failure or failure
        return self.num_seen == len(self.tests) or (failure is not None and not self.all_tests)

    def verdict(self, end: ExecResult) -> Verdict:
        num_tests = len(self.tests)
        if self.failure is None and self.num_seen < num_tests:
            self.failure = _ENDED.get(end.ended) or ("error", f"ended without a result, {_ending(end)}")
        if self.failure is None:
            return Verdict("passed", f"all {num_tests} tests pass", num_tests, num_tests)
        return Verdict(*self.failure, self.num_passed, num_tests)


def _mark(test: CallTest, line: bytes) -> tuple[Kind, str] | None:
    """What is wrong with a result; None when it is right."""
    try:
        told = json.loads(line)
        if "error" in told:
            kinds: dict[str, Kind] = {"memory": "memory", "value": "wrong answer"}
            return kinds.get(told.get("kind"), "error"), f"{test.call[:_SHOWN_CHARS]}: {str(told['error'])[:200]}"
        value = values.decode(told["value"])
    except (ValueError, TypeError, LookupError, AttributeError, RecursionError):
        return "error", f"{test.call[:_SHOWN_CHARS]}: a result that cannot be read"
    return None if test.check(value, test.expected) else ("wrong answer", f"{test.call[:_SHOWN_CHARS]} gave {_shown(value)}")


async def grade_program(
    code: str,
    tests: Sequence[ProgramTest],
    limits: Limits | None = None,
    *,
    exact: bool = False,
    checker: Checker | None = None,
    all_tests: bool = False,
    pool: SandboxPool | None = None,
) -> Verdict:
    """Runs code as a script once for each test, in fresh places; it must end with exit code 0 and the right output.

    limits: of each run. exact: byte for byte; otherwise white space between words and at the ends of lines, and empty lines, do
    not count. checker: decides instead, in this process. all_tests, errors: as `grade_calls`.
    """
    if not tests:
        raise GraderError("unit tests: the list is empty; a program without tests has no verdict, so leave the row out")
    if missing := _no_code(code, len(tests)):
        return missing
    num_passed, first = 0, None
    for test in tests:
        job = Job("program", source=code, stdin=test.stdin.encode(errors="surrogateescape"))
        try:
            result = await (pool or shared_pool()).run(job, limits or Limits())
        except SandboxFailed as error:
            return Verdict("unscored", f"the sandbox failed twice: {error}", num_passed, len(tests))
        failure = _judge_output(test, result.exit, exact, checker)
        num_passed += failure is None
        first = first or failure
        if failure is not None and not all_tests:
            break
    return Verdict(*(first or ("passed", f"all {len(tests)} tests pass")), num_passed, len(tests))


def _judge_output(test: ProgramTest, end: ExecResult, exact: bool, checker: Checker | None) -> tuple[Kind, str] | None:
    if failed := _ENDED.get(end.ended):
        return failed
    if end.exit_code != 0:
        return ("memory" if _last_line(end.stderr).startswith("MemoryError") else "error"), _ending(end)
    output = end.stdout.decode(errors="surrogateescape")
    if checker is not None:
        right = checker(test.stdin, test.stdout, output)
    else:
        right = output == test.stdout if exact else _words(output) == _words(test.stdout)
    return None if right else ("wrong answer", f"for input {_shown(test.stdin)} wrote {_shown(output)}")


def _words(text: str) -> list[list[str]]:
    return [words for line in text.splitlines() if (words := line.split())]


def _no_code(code: str, num_tests: int) -> Verdict | None:
    if not code.strip():
        return Verdict("no code", "the answer holds no code", 0, num_tests)
    if len(code) > MAX_CODE_CHARS:
        return Verdict("no code", f"{len(code):,} characters of code; at most {MAX_CODE_CHARS:,} are run", 0, num_tests)
    return None


def _ending(end: ExecResult) -> str:
    last = _last_line(end.stderr)
    return f"exit code {end.exit_code}" + (f": {last[:200]}" if last else "")


def _last_line(stderr: bytes) -> str:
    lines = stderr[-2000:].decode(errors="replace").strip().splitlines()
    return lines[-1] if lines else ""


def _shown(value: Any) -> str:
    try:
        text = repr(value)
    except ValueError:  # an integer of more digits than Python writes down
        return f"a value of type {type(value).__name__}"
    return text if len(text) <= _SHOWN_CHARS else text[: _SHOWN_CHARS - 3] + "..."
