"""MBPP: short Python functions to write from a sentence and one example; graded by running all of a row's tests in a sandbox."""

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from cascade_rl.errors import DataError
from cascade_rl.protocols import Tools
from cascade_rl.records import Message, Reward, Rollout, Split
from cascade_rl.tasks.code import CodeSettings, call_tests, code_block, parse_code
from cascade_rl.tasks.files import FileTask, Item, Row


@dataclass(frozen=True, kw_only=True)
class MBPP(CodeSettings, FileTask):
    """Rows {"text", "code", "task_id", "test_list", ...}; the published splits by task_id (1 to 10, examples, are train).

    The prompt shows the first test; reference = {"name", "tests", "setup"} holds all of them. What a test expects must be a
    literal, since it is compared outside of the sandbox: a row with a test of another form (one of the 974 published) is left out.
    """

    time_limit_s: int = 10  # the slowest reference solution takes 2.5 to 5 s, by the processor
    name: str = "mbpp"
    domain: str = "code"

    published: ClassVar[str] = "google-research/google-research on GitHub, mbpp/mbpp.jsonl"

    def items(self) -> Iterator[Item]:
        for row in self.rows(Path(self.path)):
            tests = row.need("test_list", list)
            if not tests or not all(isinstance(test, str) and test.strip() for test in tests):
                raise DataError(f'{row.where}: "test_list" must hold one or more tests as text')
            text, code = row.text("text").strip(), row.text("code").replace("\r\n", "\n").strip()
            number, name = row.need("task_id", int), _asked_name(row, code, tests[0])
            if call_tests(tuple(tests)) is None:
                continue
            asked = f"{text}\nYour code should pass this test:\n\n{tests[0].strip()}\n\nAnswer with one block of Python code."
            setup = (row.values.get("test_setup_code") or "").replace("\r\n", "\n")
            yield Item(
                key=text,
                messages=(Message("user", asked),),
                reference={"name": name, "tests": tests, "setup": setup},
                gold=(Message("assistant", f"```python\n{code}\n```", thinking="" if self.thinking else None),),
                split=_own_split(number),
            )

    async def grade(self, rollout: Rollout, tools: Tools | None = None) -> Reward:
        """1 when all tests pass, else 0 (see `partial`)."""
        reference = rollout.prompt.reference
        tests = call_tests(tuple(reference["tests"]))
        assert tests is not None, "items() takes no other rows"
        return await self.run_tests(code_block(rollout.answer), tests, reference["setup"])


def _own_split(task_id: int) -> Split:
    if 11 <= task_id <= 510:
        return "test"
    return "dev" if 511 <= task_id <= 600 else "train"


def _asked_name(row: Row, code: str, test: str) -> str:
    """The function that the first test calls and the gold code defines."""
    gold, asked = parse_code(code), parse_code(test)
    if gold is None or asked is None:
        raise DataError(f'{row.where}: "{"code" if gold is None else "test_list"}" is not Python')
    calls = [node.func.id for node in ast.walk(asked) if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)]
    defined = {node.name for node in gold.body if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)}
    names = [name for name in calls if name in defined]
    if not names:
        raise DataError(f'{row.where}: the first test calls {", ".join(calls) or "nothing"}, which "code" does not define')
    return names[0]
