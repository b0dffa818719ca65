"""What an agent works with: a repository that it views, searches, edits and tests, call by call.

`FileTools` holds a small repository in memory, where looking and editing are plain work on text, and runs code only to test it, in a
fresh place of the sandbox pool. `tasks.swe.shell` has the same tools, and a shell, over a repository that lives in a sandbox of its own.
"""

import json
import secrets
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

from cascade_rl.errors import ToolError
from cascade_rl.grade.patch import MAX_FILE_CHARS, PatchFault, check_path
from cascade_rl.records import ToolCall
from cascade_rl.sandbox.process import Job, Limits, Result, SandboxPool

MAX_FOUND = 50  # lines that a search shows
_SHOWN_FAILURES = 5


def tool(name: str, says: str = "", optional: Sequence[str] = (), /, **properties: str) -> dict[str, Any]:
    """A function schema in the OpenAI layout: `tool("view", "Shows a file.", path="string")`."""
    parameters = {
        "type": "object",
        "properties": {key: {"type": kind} for key, kind in properties.items()},
        "required": [key for key in properties if key not in optional],
    }
    return {"type": "function", "function": {"name": name, **({"description": says} if says else {}), "parameters": parameters}}


SEARCH = tool("search", "Lines of all files that hold a text.", text="string")
VIEW = tool("view", "A file, or its lines from first to last.", ("first", "last"), path="string", first="integer", last="integer")
EDIT = tool(
    "edit", "Replaces old, which must stand once in the file, by new; with an empty old, makes a file.",
    path="string", old="string", new="string",
)  # fmt: skip
TEST = tool("test", "Runs the tests that are there.")
TOOLS = (SEARCH, VIEW, EDIT, TEST)
# The same without words, and a view of whole files alone: for contexts of a few hundred tokens.
SHORT_TOOLS = (
    tool("search", text="string"),
    tool("view", path="string"),
    tool("edit", path="string", old="string", new="string"),
    tool("test"),
)


class RepositoryTools:
    """What all tools over a repository share: arguments checked, time counted, results cut.

    schemas: the tools that there are. max_chars: of one result. seconds: for all calls together; what comes later is refused, and the
    agent goes on without tools. timeout_s: of one call, after which the sandbox is taken for dead.
    """

    timeout_s = 120.0

    def __init__(self, schemas: Sequence[Mapping[str, Any]], max_chars: int, seconds: float) -> None:
        self.parameters = {schema["function"]["name"]: schema["function"]["parameters"] for schema in schemas}
        self.max_chars, self.seconds_left = max_chars, seconds

    async def call(self, call: ToolCall) -> str:
        """The result, cut to `max_chars`. Raises ToolError with what the agent may do about it."""
        if call.name not in self.parameters:
            raise ToolError(f"no tool {call.name[:40]}; tools: {', '.join(self.parameters)}")
        _check_arguments(call, self.parameters[call.name])
        if self.seconds_left <= 0:
            raise ToolError("the time for tools is used up; finish")
        does: dict[str, Callable[..., Awaitable[str]]] = {
            "search": self.search, "view": self.view, "edit": self.edit, "test": self.test, "patch": self.patch, "bash": self.bash,
        }  # fmt: skip
        await self.ready()
        begin = time.monotonic()
        try:
            return cut(await does[call.name](**call.arguments), self.max_chars)
        except PatchFault as fault:
            raise ToolError(str(fault)) from None
        finally:
            self.seconds_left -= time.monotonic() - begin

    async def view(self, path: str, first: int = 1, last: int | None = None) -> str:
        text = await self.read(check_path(path))
        if first <= 1 and last is None:
            return text or "(empty)"
        return "\n".join(text.split("\n")[max(0, first - 1) : last]) or "(no such lines)"

    async def edit(self, path: str, old: str, new: str) -> str:
        path = check_path(path)
        if not old:
            if path in await self.paths():
                raise ToolError(f"{path} is there already; say in old what to replace")
            await self.write(path, new)
            return "made"
        text = await self.read(path)
        if (num := text.count(old)) != 1:
            raise ToolError(f"old stands {num} times in {path}; it must stand once")
        edited = text.replace(old, new)
        if len(edited) > MAX_FILE_CHARS:
            raise ToolError(f"{path} would have more than {MAX_FILE_CHARS:,} characters")
        await self.write(path, edited)
        return "ok"

    async def search(self, text: str) -> str:
        if not text.strip():
            raise ToolError("nothing to search for")
        return "\n".join(await self.find(text)) or "nothing found"

    # --- what a kind of repository does ---------------------------------------------------------------------------------------------

    async def ready(self) -> None:
        """Before the first call, on nobody's time."""

    async def paths(self) -> Sequence[str]:
        raise NotImplementedError

    async def read(self, path: str) -> str:
        """A file's text. Raises ToolError."""
        raise NotImplementedError

    async def write(self, path: str, text: str) -> None:
        """Raises ToolError."""
        raise NotImplementedError

    async def find(self, text: str) -> list[str]:
        """`path:line: text` of the first lines that hold a text."""
        raise NotImplementedError

    async def test(self) -> str:
        raise NotImplementedError

    async def patch(self, patch: str) -> str:
        raise NotImplementedError

    async def bash(self, command: str) -> str:
        raise NotImplementedError

    async def close(self) -> None:
        pass


class FileTools(RepositoryTools):
    """Tools over files in memory; `files` is their present state.

    test_paths: what `test` runs. limits: of a run of tests, on one of the sandboxes of `pool`.
    """

    def __init__(
        self, files: Mapping[str, str], schemas: Sequence[Mapping[str, Any]], test_paths: Sequence[str], pool: SandboxPool, limits: Limits,
        max_chars: int = 2_000, seconds: float = 300.0,
    ) -> None:  # fmt: skip
        super().__init__(schemas, max_chars, seconds)
        self.files = dict(files)
        self._test_paths, self._pool, self._limits = tuple(test_paths), pool, limits

    async def paths(self) -> Sequence[str]:
        return sorted(self.files)

    async def read(self, path: str) -> str:
        if path not in self.files:
            raise ToolError(f"no file {path[:60]}; files: {', '.join(sorted(self.files)[:20])}")
        return self.files[path]

    async def write(self, path: str, text: str) -> None:
        if sum(map(len, self.files.values())) + len(text) > MAX_FILE_CHARS:
            raise ToolError("the files would be too large together")
        self.files[path] = text

    async def find(self, text: str) -> list[str]:
        lines = (
            f"{path}:{number}: {line}"
            for path in sorted(self.files)
            for number, line in enumerate(self.files[path].split("\n"), 1)
            if text in line
        )
        return [line for line, _ in zip(lines, range(MAX_FOUND), strict=False)]

    async def test(self) -> str:
        """Of the files as they are: what an agent did to the tests is its own business here."""
        word = secrets.token_hex(8)
        job = Job("tests", files=tuple(self.files.items()), calls=self._test_paths, word=word)
        return summary(await self._pool.run(job, self._limits))


def _check_arguments(call: ToolCall, schema: Mapping[str, Any]) -> None:
    properties = schema["properties"]
    given = set(call.arguments)
    if given - set(properties) or set(schema["required"]) - given:
        raise ToolError(f"{call.name} takes {', '.join(properties) or 'no arguments'}")
    for key, value in call.arguments.items():
        kind = properties[key]["type"]
        right = isinstance(value, str) if kind == "string" else isinstance(value, int) and not isinstance(value, bool)
        if not right:
            raise ToolError(f"{key} must be {'a string' if kind == 'string' else 'an integer'}")


def cut(text: str, max_chars: int) -> str:
    """The text, or its two ends: of long output the end says most."""
    if len(text) <= max_chars:
        return text
    head = max_chars // 2
    return f"{text[:head]}\n... {len(text) - max_chars:,} characters ...\n{text[len(text) - (max_chars - head) :]}"


def summary(result: Result) -> str:
    """A run of tests in a few words for the agent: `"3 passed"`. Text, which no verdict is read from."""
    outcomes: list[dict[str, Any]] = []
    for line in result.lines:
        try:
            told = json.loads(line)
        except (ValueError, RecursionError):
            continue
        if isinstance(told, dict) and isinstance(told.get("id"), str) and told["id"] != "canary":
            outcomes.append(told)
    failed = [told for told in outcomes if told.get("outcome") != "passed"]
    if result.exit.ended != "exit":
        return f"ended by its {result.exit.ended} limit after {len(outcomes)} tests"
    if not failed:
        return f"{len(outcomes)} passed"
    shown = [f"{told['id']}: {told.get('why') or told.get('outcome')}" for told in failed[:_SHOWN_FAILURES]]
    return "\n".join([f"{len(failed)} of {len(outcomes)} failed", *shown])
