"""MBPP: short Python functions to write from a sentence and one example.

This task does not execute anything yet, so it gives no verdict: every reward is None, with the reason. `parts` says whether the
answer holds Python that parses and defines the function asked for; that is form, not correctness.
"""

import ast
import re
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from cascade_rl.errors import DataError
from cascade_rl.protocols import Tools
from cascade_rl.records import Message, Reward, Rollout, Split
from cascade_rl.tasks.files import FileTask, Item, Row

MAX_CODE_CHARS = 50_000
_FENCE = re.compile(r"```[ \t]*(?:python|py)?[ \t]*\n(.*?)```", re.DOTALL | re.IGNORECASE)


@dataclass(frozen=True, kw_only=True)
class MBPP(FileTask):
    """Rows {"text", "code", "task_id", "test_list", ...}; the published splits by task_id (1 to 10, examples, are train).

    The prompt shows the first test; reference = {"name", "tests", "setup"} holds all of them.
    """

    name: str = "mbpp"
    domain: str = "code"

    published: ClassVar[str] = "google-research/google-research on GitHub, mbpp/mbpp.jsonl"

    def items(self) -> Iterator[Item]:
        for row in self.rows(Path(self.path)):
            tests = row.need("test_list", list)
            if not tests or not all(isinstance(test, str) and test.strip() for test in tests):
                raise DataError(f'{row.where}: "test_list" must hold one or more tests as text')
            text, code = row.text("text").strip(), row.text("code").replace("\r\n", "\n").strip()
            number = row.need("task_id", int)
            asked = f"{text}\nYour code should pass this test:\n\n{tests[0].strip()}\n\nAnswer with one block of Python code."
            setup = row.values.get("test_setup_code") or ""
            yield Item(
                key=text,
                messages=(Message("user", asked),),
                reference={"name": _asked_name(row, code, tests[0]), "tests": tests, "setup": setup},
                gold=(Message("assistant", f"```python\n{code}\n```", thinking="" if self.thinking else None),),
                split=_own_split(number),
            )

    async def grade(self, rollout: Rollout, tools: Tools | None = None) -> Reward:
        """Unscored: whether code is right shows only when its tests run, which this task does not do yet."""
        tree = parse_code(code_block(rollout.answer))
        defines = tree is not None and rollout.prompt.reference["name"] in defined_names(tree)
        parts = {"parses": float(tree is not None), "defines": float(defines)}
        return Reward(None, parts, "code is not executed yet: no sandbox to run its tests in")


def _own_split(task_id: int) -> Split:
    if 11 <= task_id <= 510:
        return "test"
    return "dev" if 511 <= task_id <= 600 else "train"


def code_block(answer: str) -> str:
    """The last fenced block of an answer, or the whole answer where there is none."""
    blocks = _FENCE.findall(answer)
    return blocks[-1] if blocks else answer


def parse_code(code: str) -> ast.Module | None:
    """The syntax tree of non-empty Python of a reasonable size, else None. Nothing is run."""
    if not code.strip() or len(code) > MAX_CODE_CHARS:
        return None
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # an invalid escape in model code is not our warning
        try:
            return ast.parse(code)
        except (SyntaxError, ValueError, RecursionError, MemoryError):
            return None


def defined_names(tree: ast.Module) -> set[str]:
    """Names of the functions and classes that a module defines at its top level."""
    return {node.name for node in tree.body if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef))}


def _asked_name(row: Row, code: str, test: str) -> str:
    """The function that the first test calls and the gold code defines."""
    gold, asked = parse_code(code), parse_code(test)
    if gold is None or asked is None:
        raise DataError(f'{row.where}: "{"code" if gold is None else "test_list"}" is not Python')
    calls = [node.func.id for node in ast.walk(asked) if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)]
    names = [name for name in calls if name in defined_names(gold)]
    if not names:
        raise DataError(f'{row.where}: the first test calls {", ".join(calls) or "nothing"}, which "code" does not define')
    return names[0]
