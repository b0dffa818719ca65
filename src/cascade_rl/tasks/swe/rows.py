"""SWE-bench rows with repositories from local archives: an agent with a shell, or a patch at once; graded by the row's hidden tests.

A verdict runs in a fresh sandbox, after the agent's has ended: the repository as it was, the agent's changes but for tests and what
decides how tests run, then the row's test patch. Every FAIL_TO_PASS and PASS_TO_PASS test must be told as passed.
"""

import functools
import json
import logging
import secrets
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal

from cascade_rl.errors import DataError
from cascade_rl.grade.patch import PatchFault, apply_patch, check_path, patch_paths
from cascade_rl.grade.tests_passed import judge_tests
from cascade_rl.protocols import Tools
from cascade_rl.records import Message, Prompt, Reward, Rollout, ToolCall
from cascade_rl.sandbox.process import MB, Limits, ProcessSandbox, SandboxFailed
from cascade_rl.tasks.files import FileTask, Item, Row
from cascade_rl.tasks.swe.repository import find_repository, graded_files, load_repository, text_of
from cascade_rl.tasks.swe.shell import SHELL_TOOLS, WAIT_S, Runner, ShellTools, lay_out, run_tests, turns

log = logging.getLogger(__name__)

_TASK = "Solve the issue by changing the repository's source. Its tests are not yours to change.\n\n"
_FORMAT = (
    "\n\nAnswer with search/replace blocks (a line with the path, then\n<<<<<<< SEARCH\nold lines\n=======\nnew lines\n>>>>>>> REPLACE\n)"
    " or with a unified diff."
)


@dataclass(frozen=True, kw_only=True)
class SWERows(FileTask):
    """Rows {"instance_id", "repo", "base_commit", "problem_statement", "patch", "test_patch", "FAIL_TO_PASS", "PASS_TO_PASS"}.

    archives: a folder with each row's repository at its base commit: a folder or archive named by instance_id, by
    OWNER__NAME-COMMIT, or by OWNER__NAME. answer: "tools", an agent's work, or "patch", with the files of the row's patch in the prompt.
    runner: "pytest", or "plain" for repositories whose tests are plain functions `test_*`. packages: folders of Python packages to show
    read-only in the sandbox, the one that holds pytest among them. setup: a command to run once in a fresh repository.
    turns: of an agent. max_chars: of a tool's result. max_prompt_chars: rows with longer prompts are left out.
    setup_s, command_s, agent_s, grade_s: seconds for setting up, for one command, for all of an agent's calls, for the tests.
    """

    archives: str
    answer: Literal["tools", "patch"] = "tools"
    runner: Runner = "pytest"
    packages: tuple[str, ...] = ()
    setup: str = ""
    turns: int = 50
    max_chars: int = 8_000
    max_prompt_chars: int = 100_000
    setup_s: int = 120
    command_s: int = 120
    agent_s: int = 1_200
    grade_s: int = 300
    memory_mb: int = 2_048
    disk_mb: int = 1_024
    name: str = "swe"
    domain: str = "swe"

    published: ClassVar[str] = "SWE-bench/SWE-bench_Verified on Hugging Face, as JSON Lines"
    metric: ClassVar[str] = "resolved"
    grades_elsewhere: ClassVar[bool] = True

    def __post_init__(self) -> None:
        super().__post_init__()
        for key in (
            "turns",
            "max_chars",
            "max_prompt_chars",
            "setup_s",
            "command_s",
            "agent_s",
            "grade_s",
            "memory_mb",
            "disk_mb",
        ):
            if getattr(self, key) < 1:
                raise DataError(f'task "{self.name}": {key} {getattr(self, key)} must be at least 1')

    @property
    def max_turns(self) -> int:
        return self.turns if self.answer == "tools" else 1

    @property
    def grade_timeout_s(self) -> float:
        """A verdict waits for its turn, sets a fresh sandbox up and runs the tests there; twice where a sandbox fails."""
        return WAIT_S + 2 * (self.setup_s + self.grade_s)

    def items(self) -> Iterator[Item]:
        for row in self.rows(Path(self.path)):
            issue, patch, test_patch = row.text("problem_statement").strip(), row.text("patch"), row.text("test_patch")
            reference = {
                "instance_id": row.text("instance_id"),
                "archive": str(self._archive(row)),
                "fail_to_pass": _tests(row, "FAIL_TO_PASS"),
                "pass_to_pass": _tests(row, "PASS_TO_PASS"),
                "test_patch": test_patch,
            }
            if not reference["fail_to_pass"]:
                raise DataError(f'{row.where}: "FAIL_TO_PASS" is empty; an issue without a failing test has no verdict')
            _check_test_patch(row.where, test_patch)
            asked, gold = self._asked(row, issue, patch, Path(reference["archive"]))
            if len(asked) > self.max_prompt_chars:
                continue
            thinking = "" if self.thinking else None
            if self.answer == "patch":
                told: tuple[Message, ...] = (Message("assistant", gold, thinking=thinking),)
            else:
                call = ToolCall("patch", {"patch": gold})
                told = (
                    Message("assistant", tool_calls=(call,), thinking=thinking), Message("tool", "ok"),
                    Message("assistant", "Done.", thinking=thinking),
                )  # fmt: skip
            tools = SHELL_TOOLS if self.answer == "tools" else ()
            yield Item([row.text("repo"), issue], (Message("user", asked),), reference, told, tools)

    def _archive(self, row: Row) -> Path:
        repo, commit = row.text("repo").replace("/", "__"), row.text("base_commit")
        try:
            return find_repository(Path(self.archives).expanduser(), (row.text("instance_id"), f"{repo}-{commit}", repo))
        except DataError as error:
            raise DataError(f"{row.where}: {error}") from None

    def _asked(self, row: Row, issue: str, patch: str, archive: Path) -> tuple[str, str]:
        """The prompt's text, and the gold patch, which must apply."""
        try:
            paths = patch_paths(patch)
            files = text_of(load_repository(archive), paths)
            apply_patch(files, patch)
        except PatchFault as fault:
            raise DataError(f'{row.where}: "patch" does not apply to {archive}: {fault}') from None
        if self.answer == "tools":
            return f"{_TASK}{issue}", patch
        listing = "\n\n".join(f"# {path}\n{text}" for path, text in files.items())
        return f"{_TASK}{listing}\n\n# Issue\n{issue}{_FORMAT}", patch

    def open_tools(self, prompt: Prompt) -> Tools | None:
        if self.answer == "patch":
            return None
        repository = load_repository(Path(prompt.reference["archive"]))
        return ShellTools(
            self._sandbox(), repository, setup=self.setup, setup_s=self.setup_s, command_s=self.command_s, seconds=self.agent_s,
            max_chars=self.max_chars, runner=self.runner,
        )  # fmt: skip

    def _sandbox(self) -> ProcessSandbox:
        limits = Limits(
            cpu_s=max(self.command_s, self.grade_s, self.setup_s), memory_bytes=self.memory_mb * MB, disk_bytes=self.disk_mb * MB,
            output_bytes=16 * MB, num_processes=256, num_files=1_024,
        )  # fmt: skip
        return ProcessSandbox(limits, packages=self.packages)

    async def grade(self, rollout: Rollout, tools: Tools | None = None) -> Reward:
        """1 when every expected test passes, else 0; parts: the share of each list. Unscored: a sandbox failed."""
        reference: dict[str, Any] = rollout.prompt.reference
        pristine = load_repository(Path(reference["archive"]))
        try:
            left = await self._left(pristine, rollout, tools)
        except PatchFault as fault:
            return Reward(0.0, why=str(fault))
        hidden = patch_paths(reference["test_patch"])
        files = graded_files(pristine, left, hidden)
        if files == pristine:
            return Reward(0.0, why="changed nothing that is graded")
        tested = _tested(files, reference["test_patch"])
        try:
            return await self._verdict(tested, reference["fail_to_pass"], reference["pass_to_pass"])
        except SandboxFailed as error:
            log.warning("a sandbox failed (%s); once more in a fresh one", error)
        try:
            return await self._verdict(tested, reference["fail_to_pass"], reference["pass_to_pass"])
        except SandboxFailed as error:
            return Reward(None, why=f"the sandbox failed twice: {error}")

    async def _verdict(self, files: Mapping[str, bytes], fail_to_pass: Sequence[str], pass_to_pass: Sequence[str]) -> Reward:
        """The hidden tests in a fresh sandbox. Raises SandboxFailed."""
        paths, word = sorted({test.partition("::")[0] for test in (*fail_to_pass, *pass_to_pass)}), secrets.token_hex(16)
        sandbox = self._sandbox()
        async with turns():
            try:
                await lay_out(sandbox, files, self.setup, self.setup_s)
                result = await run_tests(sandbox, self.runner, paths, word, self.grade_s)
            finally:
                await sandbox.close()
        return judge_tests(result, word, fail_to_pass, pass_to_pass)

    async def _left(self, pristine: Mapping[str, bytes], rollout: Rollout, tools: Tools | None) -> Mapping[str, bytes]:
        """The repository as the rollout leaves it; the agent's sandbox ends here, before a hidden test is laid anywhere."""
        if isinstance(tools, ShellTools):
            try:
                return await tools.left() if tools.is_used else pristine
            finally:
                await tools.close()
        if self.answer == "tools":
            return pristine
        texts = text_of(pristine, patch_paths(rollout.answer))
        edited = apply_patch(texts, rollout.answer)
        kept = {path: data for path, data in pristine.items() if path not in texts}
        return kept | {path: text.encode("utf-8", errors="surrogatepass") for path, text in edited.items()}


def _check_test_patch(where: str, text: str) -> None:
    try:
        fault = "" if [check_path(path) for path in patch_paths(text)] else "no edit in it"
    except PatchFault as found:
        fault = str(found)
    if fault:
        raise DataError(f'{where}: "test_patch" is no patch: {fault}; expected a unified diff')


def _tested(files: Mapping[str, bytes], test_patch: str) -> dict[str, bytes]:
    """The files with the row's own tests. A test patch that does not apply is the row's fault, not the model's."""
    texts = text_of(files, patch_paths(test_patch))
    patched = apply_patch(texts, test_patch)
    kept = {path: data for path, data in files.items() if path not in texts}
    return kept | {path: text.encode("utf-8") for path, text in patched.items()}


@functools.lru_cache(maxsize=4096)
def _parsed(text: str) -> tuple[Any, ...]:
    return tuple(json.loads(text))


def _tests(row: Row, key: str) -> list[str]:
    """A list of test ids, or the same as JSON text, as published."""
    value = row.values.get(key)
    try:
        tests = list(_parsed(value)) if isinstance(value, str) else value
    except (ValueError, TypeError, RecursionError):
        tests = None
    if not isinstance(tests, list) or not all(isinstance(test, str) and test for test in tests):
        raise DataError(f'{row.where}: "{key}" is {str(value)[:80]!r}; expected a list of test ids')
    return tests
