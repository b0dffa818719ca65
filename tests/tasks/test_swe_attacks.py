"""Every attack of the data file on the verdict of a repository task, run for real in the sandbox."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from tests.sandbox.host import needs_sandbox

from cascade_rl.errors import DataError, ToolError
from cascade_rl.protocols import gold_rollout
from cascade_rl.records import Message, Reward, ToolCall
from cascade_rl.tasks.swe.rows import SWERows

pytestmark = needs_sandbox

ROWS = [json.loads(line) for line in (Path(__file__).parents[1] / "data" / "swe_adversarial.jsonl").read_text().splitlines()]
CASES = [pytest.param(row, runner, id=f"{row['name']}-{runner}") for row in ROWS for runner in row["runners"]]
PACKAGES = str(Path(pytest.__file__).parents[1])

SOURCE = "def add(a, b):\n    return a - b  # wrong\n\n\ndef mul(a, b):\n    return a * b\n"
TESTS = "import calc\n\n\ndef test_mul():\n    assert calc.mul(2, 3) == 6\n"
TEST_PATCH = (
    "--- a/test_calc.py\n+++ b/test_calc.py\n@@ -3,3 +3,6 @@\n \n def test_mul():\n     assert calc.mul(2, 3) == 6\n"
    "+\n+def test_add():\n+    assert calc.add(2, 3) == 5, 'HIDDEN-TEST'\n"
)
PATCH = "--- a/calc.py\n+++ b/calc.py\n@@ -1,2 +1,2 @@\n def add(a, b):\n-    return a - b  # wrong\n+    return a + b\n"
ROW = {
    "instance_id": "calc__calc-1", "repo": "calc/calc", "base_commit": "abc", "problem_statement": "add(2, 3) gives -1.", "patch": PATCH,
    "test_patch": TEST_PATCH, "FAIL_TO_PASS": '["test_calc.py::test_add"]', "PASS_TO_PASS": ["test_calc.py::test_mul"],
}  # fmt: skip


def make_task(folder: Path, row: dict[str, Any] = ROW, **settings: Any) -> SWERows:
    repository = folder / "archives" / "calc__calc-1"
    (repository / ".git").mkdir(parents=True)
    (repository / ".git" / "HEAD").write_text("FUTURE-FIX of upstream")
    (repository / "calc.py").write_text(SOURCE)
    (repository / "test_calc.py").write_text(TESTS)
    (folder / "rows.jsonl").write_text(json.dumps(row) + "\n")
    return SWERows(path=str(folder / "rows.jsonl"), archives=str(folder / "archives"), split="train", **settings)


def play(task: SWERows, calls: list[tuple[str, dict[str, str]]], says: str = "All tests pass.") -> tuple[Reward, str]:
    """The verdict on an agent that makes these calls, and all that it saw."""

    async def played() -> tuple[Reward, str]:
        prompt = task.prompts("train")[0]
        tools = task.open_tools(prompt)
        assert tools is not None
        seen, messages = [], []
        for name, arguments in calls:
            call = ToolCall(name, arguments)
            try:
                seen.append(await tools.call(call))
            except ToolError as error:
                seen.append(f"Error: {error}")
            messages += [Message("assistant", tool_calls=(call,)), Message("tool", seen[-1])]
        rollout = gold_rollout(prompt, [*messages, Message("assistant", says)])
        try:
            return await task.grade(rollout, tools), "\n".join(seen)
        finally:
            await tools.close()

    return asyncio.run(played())


@pytest.mark.parametrize("row, runner", CASES)
def test_attacks(tmp_path: Path, row: dict[str, Any], runner: Any) -> None:
    task = make_task(tmp_path, runner=runner, packages=(PACKAGES,) if runner == "pytest" else ())
    reward, seen = play(task, row["calls"])
    assert reward.value == row["reward"], (reward, seen)
    assert not any(text in seen for text in row["never"]), seen
    assert not any(line.startswith("Error: ") for line in seen.splitlines()), seen  # the attack was carried out


@pytest.mark.parametrize("text", ["just words", "@@ -1 +1 @@\n-a\n+b\n", "--- a/../x.py\n+++ b/../x.py\n@@ -1 +1 @@\n-a\n+b\n"])
def test_a_row_whose_tests_are_no_patch_is_refused_by_its_place(tmp_path: Path, text: str) -> None:
    task = make_task(tmp_path, {**ROW, "test_patch": text})
    with pytest.raises(DataError, match=r'rows.jsonl:1.*"test_patch" is no patch'):
        task.prompts("train")
