"""An agent at nano scale: a tiny repository with one fault, an issue, four tools, hidden tests.

The repositories are those of `nano.repair`. There the files are in the prompt and a patch is the answer; here the prompt is the issue,
and the agent looks for the function, views its file, edits it, and may run the tests that are there.
"""

import random
from dataclasses import dataclass
from typing import Any

from cascade_rl.errors import RecipeError
from cascade_rl.protocols import Tools
from cascade_rl.records import Message, Prompt, Reward, Rollout, ToolCall
from cascade_rl.sandbox.process import MB, Limits, shared_pool
from cascade_rl.tasks.drawn import Draft
from cascade_rl.tasks.nano.repair import ISSUES, Broken, RepairTask, draw_repository
from cascade_rl.tasks.swe.calls import grade_files
from cascade_rl.tasks.swe.tools import SHORT_TOOLS, FileTools

TEST_PATH = "test_all.py"


@dataclass(frozen=True, kw_only=True)
class NanoAgent(RepairTask):
    """`"There is a bug in add."` asks for a search, a view, an edit, a run of the tests, and a word that it is done.

    The repositories are those of nano.repair. turns: assistant turns that a rollout may have. max_chars: of what a
    tool gives. agent_s: seconds for all tool calls of a rollout together.
    """

    turns: int = 8
    max_chars: int = 400
    agent_s: int = 60

    name: str = "swe.nano"

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 1 <= self.turns <= 1_000 or not 1 <= self.agent_s <= 3_600:
            raise RecipeError(f'task "{self.name}": turns {self.turns} must be 1 to 1,000 and agent_s {self.agent_s} 1 to 3,600')

    @property
    def max_turns(self) -> int:
        return self.turns

    def draw(self, rng: random.Random) -> Draft:
        broken = draw_repository(rng, self.max_files, self.max_functions, self.max_constant)
        question = f"Issue: {rng.choice(ISSUES).format(name=broken.name)}"
        files = {**broken.files, TEST_PATH: visible_tests(broken)}
        reference = {"files": files, **broken.tests}
        gold = tuple(self._demonstration(broken, files))
        return Draft([sorted(files.items()), broken.name], question, gold, reference, False, SHORT_TOOLS)

    def _demonstration(self, broken: Broken, files: dict[str, str]) -> list[Message]:
        """Calls with the results that the live tools give."""
        number, line = next(
            (n, line) for n, line in enumerate(broken.files[broken.path].split("\n"), 1) if line.startswith(f"def {broken.name}(")
        )
        num_tests = files[TEST_PATH].count("def test_")
        steps = (
            (ToolCall("search", {"text": f"def {broken.name}"}), f"{broken.path}:{number}: {line}"),
            (ToolCall("view", {"path": broken.path}), broken.files[broken.path]),
            (ToolCall("edit", {"path": broken.path, "old": broken.wrong, "new": broken.right}), "ok"),
            (ToolCall("test", {}), f"{num_tests} passed"),
        )
        told = [m for call, result in steps for m in (Message("assistant", tool_calls=(call,)), Message("tool", result))]
        return [*told, Message("assistant", "Fixed.")]

    def open_tools(self, prompt: Prompt) -> FileTools:
        limits = Limits(cpu_s=self.time_limit_s, memory_bytes=self.memory_mb * MB)
        files: dict[str, str] = prompt.reference["files"]
        return FileTools(
            files, SHORT_TOOLS, (TEST_PATH,), shared_pool(self.sandbox), limits, max_chars=self.max_chars, seconds=self.agent_s
        )

    async def grade(self, rollout: Rollout, tools: Tools | None = None) -> Reward:
        """1 when every hidden test passes in the files that the agent leaves, its test files apart; what it says counts nothing."""
        reference: dict[str, Any] = rollout.prompt.reference
        files = tools.files if isinstance(tools, FileTools) else reference["files"]
        source = {path: text for path, text in files.items() if path != TEST_PATH}
        if source == {path: text for path, text in reference["files"].items() if path != TEST_PATH}:
            return Reward(0.0, why="changed nothing")
        return await grade_files(self, source, reference["fail_to_pass"], reference["pass_to_pass"])


def visible_tests(broken: Broken) -> str:
    """The tests that pass before and after, as a file of the repository: one function of a call or two for each function."""
    tests: dict[str, list[str]] = {}
    modules = set()
    for call, value in broken.tests["pass_to_pass"]:
        module, _, rest = call.partition(".")
        lines = tests.setdefault(rest.partition("(")[0], [])
        if len(lines) < 2:
            modules.add(module)
            lines.append(f"    assert {call} == {value!r}")
    head = [f"import {module}" for module in sorted(modules)]
    return "\n".join([*head, *(line for name, lines in tests.items() for line in (f"def test_{name}():", *lines))])
