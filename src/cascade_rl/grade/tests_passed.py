"""The verdict on a run of a repository's own tests: every test that was expected must be told as passed, once, by a run that ended.

Never an exit code, never what was printed. The lines are claims of a process that also ran a model's code (see
`sandbox.inside.tests`): a line without the run's word is none, a test told twice, a run without its last line, or one in which the
test that must fail did not, is a failure of everything.
"""

import json
from collections.abc import Sequence
from typing import Any

from cascade_rl.errors import SandboxError
from cascade_rl.records import Reward
from cascade_rl.sandbox.inside.tests import CANARY
from cascade_rl.sandbox.process import Result

_SHOWN = 3


def judge_tests(result: Result, word: str, fail_to_pass: Sequence[str], pass_to_pass: Sequence[str]) -> Reward:
    """1 when all tests passed, else 0; parts: the share of each list. Raises SandboxError: the sandbox has no pytest."""
    assert fail_to_pass or pass_to_pass, "a verdict needs tests"
    outcomes, ended, why = _read(result.lines, word)
    if not why and result.exit.ended != "exit":
        why = f"ended by its {result.exit.ended} limit"
    if not why and not ended:
        why = f"ended before its tests were done (exit code {result.exit.exit_code})"
    if not why and outcomes.get(CANARY, ("", ""))[0] != "failed":
        why = "a test that must fail did not"
    if why:
        return Reward(0.0, {"fail_to_pass": 0.0, "pass_to_pass": 0.0}, why)
    shares = {}
    failed: list[str] = []
    for name, ids in (("fail_to_pass", fail_to_pass), ("pass_to_pass", pass_to_pass)):
        passed = [test for test in ids if outcomes.get(test, ("", ""))[0] == "passed"]
        failed += [test for test in ids if test not in passed]
        shares[name] = len(passed) / len(ids) if ids else 1.0
    if not failed:
        return Reward(1.0, shares, f"all {len(fail_to_pass) + len(pass_to_pass)} tests pass")
    shown = "; ".join(_told(test, outcomes) for test in failed[:_SHOWN])
    return Reward(0.0, shares, f"{len(failed)} of {len(fail_to_pass) + len(pass_to_pass)} tests do not pass: {shown}"[:380])


def _read(lines: Sequence[bytes], word: str) -> tuple[dict[str, tuple[str, str]], bool, str]:
    """Test -> (outcome, why); whether the last line came; what is wrong with all of it."""
    outcomes: dict[str, tuple[str, str]] = {}
    ended = False
    for number, line in enumerate(lines):
        told = _line(line)
        if told.get("word") != word:
            continue
        if "missing" in told and number == 0:
            raise SandboxError(
                f"sandbox: pytest cannot be imported there ({str(told['missing'])[:200]}); set packages to the folder that holds it, such"
                ' as packages = [".../site-packages"], or runner = "plain" for plain test functions'
            )
        if ended:
            return {}, False, "tells more after its end"
        ended = told.get("end") is True
        if isinstance(test := told.get("id"), str):
            if test in outcomes:
                return {}, False, f"tells {test[:80]!r} twice"
            outcomes[test] = (str(told.get("outcome")), str(told.get("why") or ""))
    return outcomes, ended, ""


def _line(line: bytes) -> dict[str, Any]:
    try:
        told = json.loads(line)
    except (ValueError, RecursionError):
        return {}
    return told if isinstance(told, dict) else {}


def _told(test: str, outcomes: dict[str, tuple[str, str]]) -> str:
    outcome, why = outcomes.get(test, ("was not run", ""))
    return f"{test[:80]}: {why[:80] or outcome}"
