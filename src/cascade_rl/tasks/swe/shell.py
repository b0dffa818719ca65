"""A repository that lives in a sandbox of its own: laid out, worked on with a shell and the other tools, and read back.

What an agent leaves there is hostile until it is closed: it is read as bytes, and only ever runs in another sandbox.
"""

import asyncio
import hashlib
import json
import os
import secrets
import time
import weakref
from collections.abc import Mapping, Sequence
from typing import Literal

from cascade_rl.errors import ToolError
from cascade_rl.grade.patch import PatchFault, apply_patch, check_path, patch_paths
from cascade_rl.records import ToolCall
from cascade_rl.sandbox.process import Job, ProcessSandbox, Result, SandboxFailed
from cascade_rl.tasks.swe.repository import Files, packed
from cascade_rl.tasks.swe.tools import EDIT, MAX_FOUND, SEARCH, VIEW, RepositoryTools, summary, tool

HOME = "/box/repo"
WAIT_S = 3_600.0  # for a turn, with hundreds of agents beside each other
MAX_CHANGED, MAX_CHANGED_BYTES = 300, 10_000_000

Runner = Literal["pytest", "plain"]

PATCH = tool("patch", "Applies a unified diff or search/replace blocks.", patch="string")
BASH = tool("bash", f"Runs a command in {HOME}; there is no network.", command="string")
TEST = tool("test", "Runs tests: all of them, or those of a file.", ("path",), path="string")
SHELL_TOOLS = (SEARCH, VIEW, EDIT, PATCH, TEST, BASH)

_GIT = (
    "command -v git >/dev/null || exit 0; git init -q && git add -A && "
    "git -c user.name=base -c user.email=base@localhost -c commit.gpgsign=false commit -q -m base"
)
# Path and hash of every regular file: what changed is read one by one afterwards.
_HASHES = f"""
import hashlib, json, os, stat
for folder, names, files in os.walk({HOME!r}) if not os.path.islink({HOME!r}) else ():
    names[:] = [name for name in names if name not in (".git", "__pycache__", ".pytest_cache")]
    for name in files:
        path = os.path.join(folder, name)
        try:
            if stat.S_ISREG(os.lstat(path).st_mode):
                with open(path, "rb") as file:
                    digest = hashlib.file_digest(file, "sha256").hexdigest()
                print(json.dumps([os.path.relpath(path, {HOME!r}), digest]))
        except OSError:
            pass
"""


_turns: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, asyncio.Semaphore] = weakref.WeakKeyDictionary()


def turns() -> asyncio.Semaphore:
    """As many commands at once as there are cores: with more beside each other, a limit on time would say more of the load than of them."""
    return _turns.setdefault(asyncio.get_running_loop(), asyncio.Semaphore(num_cores()))


def num_cores() -> int:
    return len(os.sched_getaffinity(0))


async def lay_out(sandbox: ProcessSandbox, files: Mapping[str, bytes], setup: str, timeout_s: float) -> None:
    """The files at HOME, then the setup command there. Raises SandboxFailed: no verdict follows from a place that could not be made."""
    result = (await sandbox.do(Job("unpack", path=HOME, stdin=packed(files)), timeout_s)).exit
    if result.ended == "exit" and result.exit_code == 0 and setup:
        result = await sandbox.run(in_home(setup), timeout_s=timeout_s)
    if result.ended != "exit" or result.exit_code != 0:
        last = result.stderr[-300:].decode(errors="replace").strip()
        raise SandboxFailed(f"the repository could not be set up: ended by {result.ended}, exit code {result.exit_code}: {last}")


def in_home(command: str) -> tuple[str, ...]:
    """argv of a shell command in the repository, with its errors among its output."""
    return "/bin/bash", "-c", f'exec 2>&1; cd {HOME} && eval "$1"', "bash", command


async def run_tests(sandbox: ProcessSandbox, runner: Runner, what: Sequence[str], word: str, timeout_s: float) -> Result:
    """Tests of the files as they are there; `what`: files, or ids for pytest."""
    return await sandbox.do(Job("tests" if runner == "plain" else "pytest", path=HOME, calls=tuple(what), word=word), timeout_s)


class ShellTools(RepositoryTools):
    """Tools over a repository in a sandbox of its own, which starts at the first call.

    setup_s, command_s, seconds: for laying it out, for one command, for all calls together. runner: what the tool `test` uses.
    """

    def __init__(
        self, sandbox: ProcessSandbox, repository: Mapping[str, bytes], *, setup: str, setup_s: float, command_s: float, seconds: float,
        max_chars: int, runner: Runner = "pytest",
    ) -> None:  # fmt: skip
        super().__init__(SHELL_TOOLS, max_chars, seconds)
        self.sandbox, self.repository = sandbox, repository
        self._runner: Runner = runner
        self._setup, self._setup_s, self._command_s = setup, setup_s, command_s
        self.timeout_s = WAIT_S + setup_s + command_s
        self._laid_out = False

    @property
    def is_used(self) -> bool:
        """Whether anything was called: else the repository is as it was, and no sandbox was started."""
        return self._laid_out

    async def call(self, call: ToolCall) -> str:
        """As every tool's, when its turn comes; setting up is not on the agent's time."""
        async with turns():
            await self._ready()
            begin = time.monotonic()
            try:
                return await super().call(call)
            finally:
                self.seconds_left -= time.monotonic() - begin

    async def _ready(self) -> None:
        if self._laid_out:
            return
        await lay_out(self.sandbox, self.repository, self._setup, self._setup_s)
        await self.sandbox.run(in_home(_GIT), timeout_s=self._setup_s)
        self._laid_out = True

    async def bash(self, command: str) -> str:
        seconds = max(1.0, min(self._command_s, self.seconds_left))
        result = await self.sandbox.run(in_home(command), timeout_s=seconds)
        text = (result.stdout + result.stderr).decode(errors="replace").rstrip()
        if result.ended != "exit":
            return f"{text}\n[ended by its {result.ended} limit]".strip()
        return (f"{text}\n[exit code {result.exit_code}]".strip() if result.exit_code else text) or "(no output)"

    async def test(self, path: str = "") -> str:
        paths = [check_path(path)] if path else ["."]
        if self._runner == "plain" and not path:
            paths = [path for path in await self.paths() if path.endswith(".py") and path.split("/")[-1].startswith("test_")]
        seconds = max(1.0, min(self._command_s, self.seconds_left))
        result = await run_tests(self.sandbox, self._runner, paths, secrets.token_hex(8), seconds)
        output = result.exit.stdout.decode(errors="replace").strip() if self._runner == "pytest" else ""
        return f"{output}\n{summary(result)}".strip()

    async def patch(self, patch: str) -> str:
        paths = [check_path(path) for path in patch_paths(patch)]
        before = {path: text for path in paths if (text := await self._read_if_there(path)) is not None}
        after = apply_patch(before, patch)
        for path in paths:
            if path not in after:
                await self.sandbox.run(("rm", "-f", f"{HOME}/{path}"), timeout_s=10.0)
            elif after[path] != before.get(path):
                await self.write(path, after[path])
        return "ok"

    async def _read_if_there(self, path: str) -> str | None:
        try:
            return await self.read(path)
        except ToolError:
            return None

    async def paths(self) -> Sequence[str]:
        return sorted(await self._hashes())

    async def read(self, path: str) -> str:
        try:
            return (await self.sandbox.read(f"{HOME}/{path}")).decode("utf-8")
        except (FileNotFoundError, UnicodeDecodeError) as error:
            raise ToolError(
                f"cannot read {path[:80]}: {'not text' if isinstance(error, UnicodeDecodeError) else 'no such file'}"
            ) from None

    async def write(self, path: str, text: str) -> None:
        try:
            await self.sandbox.write(f"{HOME}/{path}", text.encode("utf-8", errors="surrogatepass"))
        except OSError as error:
            raise ToolError(str(error)) from None

    async def find(self, text: str) -> list[str]:
        command = ("/usr/bin/grep", "-rnIF", "--exclude-dir=.git", "--max-count=20", "-e", text, ".")
        result = await self.sandbox.run(
            ("/bin/bash", "-c", f'cd {HOME} && exec "$@"', "bash", *command), timeout_s=self._command_s
        )
        found = []
        for line in result.stdout.decode(errors="replace").splitlines():
            path, _, rest = line.removeprefix("./").partition(":")
            number, colon, text = rest.partition(":")
            found += [(path, int(number), text)] if colon and number.isdecimal() else []
        return [f"{path}:{number}: {text}" for path, number, text in sorted(found)[:MAX_FOUND]]  # grep's order is the disk's

    async def _hashes(self) -> dict[str, str]:
        result = (await self.sandbox.do(Job("program", source=_HASHES), self._command_s)).exit
        found = {}
        for line in result.stdout.splitlines():
            try:
                path, digest = json.loads(line)
                found[check_path(path)] = str(digest)
            except (ValueError, TypeError, RecursionError):
                continue  # a name that no patch could have made
        return found

    async def left(self) -> Files:
        """All files as the agent leaves them, read back as bytes. Raises PatchFault: too many or too large changes."""
        hashes = await self._hashes()
        files: Files = {}
        changed: list[str] = []
        for path, digest in hashes.items():
            data = self.repository.get(path)
            if data is not None and hashlib.sha256(data).hexdigest() == digest:
                files[path] = data
            else:
                changed.append(path)
        if len(changed) > MAX_CHANGED:
            raise PatchFault(f"changed {len(changed)} files; at most {MAX_CHANGED} are looked at")
        size = 0
        for path in changed:
            try:
                files[path] = await self.sandbox.read(f"{HOME}/{path}")
            except FileNotFoundError:
                continue
            size += len(files[path])
            if size > MAX_CHANGED_BYTES:
                raise PatchFault(f"changed files of more than {MAX_CHANGED_BYTES:,} bytes")
        return files

    async def close(self) -> None:
        await asyncio.shield(self.sandbox.close())
