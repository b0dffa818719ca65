"""Small repositories that `cascade mutate` made: an agent's work in memory, or a patch at once; hidden tests compared outside."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal

from cascade_rl.errors import DataError
from cascade_rl.grade.patch import DIVIDE, REPLACE, SEARCH, PatchFault, apply_patch
from cascade_rl.protocols import Tools
from cascade_rl.records import Message, Prompt, Reward, Rollout, ToolCall
from cascade_rl.sandbox.process import MB, Limits, shared_pool
from cascade_rl.tasks.code import CodeSettings, call_tests
from cascade_rl.tasks.files import FileTask, Item
from cascade_rl.tasks.swe.calls import grade_calls_of_files
from cascade_rl.tasks.swe.tools import TOOLS, FileTools

TEST_PATH = "test_all.py"


@dataclass(frozen=True, kw_only=True)
class MadeRepositories(CodeSettings, FileTask):
    """Rows {"id", "issue", "files", "path", "old", "new", "modules", "fail_to_pass", "pass_to_pass"}: see `tasks.swe.make`.

    answer: "tools", an agent's work, or "patch", with all files in the prompt. turns, max_chars, agent_s: as of the task swe.nano.
    """

    answer: Literal["tools", "patch"] = "tools"
    turns: int = 12
    max_chars: int = 2_000
    agent_s: int = 120
    time_limit_s: int = 5
    name: str = "swe.made"
    domain: str = "swe"

    published: ClassVar[str] = "`cascade mutate MBPP.jsonl`"
    metric: ClassVar[str] = "resolved"

    def __post_init__(self) -> None:
        super().__post_init__()
        for key in ("turns", "max_chars", "agent_s"):
            if getattr(self, key) < 1:
                raise DataError(f'task "{self.name}": {key} {getattr(self, key)} must be at least 1')

    @property
    def max_turns(self) -> int:
        return self.turns if self.answer == "tools" else 1

    def items(self) -> Iterator[Item]:
        for row in self.rows(Path(self.path)):
            files = row.need("files", dict)
            tests: dict[str, list[str]] = {}
            for key in ("fail_to_pass", "pass_to_pass"):
                tests[key] = row.need(key, list)
                if call_tests(tuple(tests[key])) is None:
                    raise DataError(f'{row.where}: "{key}" must hold assertions of a call and a literal')
            modules, path = row.need("modules", list), row.text("path")
            files = {**files, TEST_PATH: visible_tests(modules, tests["pass_to_pass"])}
            reference = {"files": files, "modules": modules, **tests}
            issue, old, new = row.text("issue"), row.need("old", str), row.need("new", str)
            thinking = "" if self.thinking else None
            if self.answer == "patch":
                listing = "\n\n".join(f"# {name}\n{text}" for name, text in files.items() if name != TEST_PATH)
                asked = f"{listing}\n\n# Issue\n{issue}\n\nAnswer with a search/replace block or a unified diff."
                gold: tuple[Message, ...] = (
                    Message("assistant", f"{path}\n{SEARCH}\n{old}\n{DIVIDE}\n{new}\n{REPLACE}", thinking=thinking),
                )
            else:
                asked, gold = issue, tuple(_demonstration(path, files, old, new, thinking))
            yield Item(
                [sorted(files.items()), issue],
                (Message("user", asked),),
                reference,
                gold,
                TOOLS if self.answer == "tools" else (),
            )

    def open_tools(self, prompt: Prompt) -> FileTools | None:
        if self.answer == "patch":
            return None
        limits = Limits(cpu_s=self.time_limit_s, memory_bytes=self.memory_mb * MB)
        return FileTools(
            prompt.reference["files"], TOOLS, (TEST_PATH,), shared_pool(self.sandbox), limits, self.max_chars, self.agent_s
        )

    async def grade(self, rollout: Rollout, tools: Tools | None = None) -> Reward:
        """1 when every hidden test passes in the files as they are left, its test file apart."""
        reference: dict[str, Any] = rollout.prompt.reference
        files = dict(reference["files"])
        if isinstance(tools, FileTools):
            files = tools.files
        elif self.answer == "patch":
            try:
                files = apply_patch(files, rollout.answer)
            except PatchFault as fault:
                return Reward(0.0, why=str(fault))
        source = {path: text for path, text in files.items() if path != TEST_PATH}
        if source == {path: text for path, text in reference["files"].items() if path != TEST_PATH}:
            return Reward(0.0, why="changed nothing")
        tests = call_tests((*reference["fail_to_pass"], *reference["pass_to_pass"]))
        assert tests is not None, "items() takes no other rows"
        return await grade_calls_of_files(self, source, tests, imports(reference["modules"]))


def imports(modules: list[str]) -> str:
    """Each module's function has its name."""
    return "\n".join(f"from {module} import {module}" for module in modules)


def visible_tests(modules: list[str], tests: list[str]) -> str:
    """The tests that pass before and after, as plain test functions."""
    functions = [f"def test_{number}():\n    {test.strip()}" for number, test in enumerate(tests)]
    return "\n\n\n".join([imports(modules), *functions]) + "\n"


def _demonstration(path: str, files: dict[str, str], old: str, new: str, thinking: str | None) -> Iterator[Message]:
    """Calls with the results that the live tools give."""
    num_tests = files[TEST_PATH].count("def test_")
    steps = (
        (ToolCall("view", {"path": path}), files[path]),
        (ToolCall("edit", {"path": path, "old": old, "new": new}), "ok"),
        (ToolCall("test", {}), f"{num_tests} passed"),
    )
    for call, result in steps:
        yield Message("assistant", tool_calls=(call,), thinking=thinking)
        yield Message("tool", result)
    yield Message("assistant", "Done.", thinking=thinking)
