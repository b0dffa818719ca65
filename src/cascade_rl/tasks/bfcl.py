"""BFCL: which functions to call, and with what arguments; and when not to call any."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal

from cascade_rl.errors import DataError, GraderError
from cascade_rl.grade.schema import compile_schema
from cascade_rl.grade.toolcalls import first_possible, grade_no_call, grade_possible
from cascade_rl.protocols import Tools
from cascade_rl.records import Message, Reward, Rollout
from cascade_rl.tasks.files import FileTask, Item, Row, faulty, told

Category = Literal["simple", "multiple", "parallel", "parallel_multiple", "irrelevance"]

_FILES: dict[str, tuple[str, ...]] = {"simple": ("simple", "simple_python")}  # other categories are named as their files
_TYPES = {"dict": "object", "float": "number", "tuple": "array", "any": None}
_DECLINED = "None of the functions I have can do this."


@dataclass(frozen=True, kw_only=True)
class BFCL(FileTask):
    """The single-turn categories of the Berkeley Function Calling Leaderboard.

    path: a folder with `BFCL_v*_<category>.json` and, for all but irrelevance, `possible_answer/` with files of the same names.
    A prompt of `irrelevance` is answered in words: no call, no try at one, and not nothing.
    """

    categories: tuple[Category, ...] = ("simple", "multiple", "parallel", "irrelevance")
    name: str = "bfcl"
    domain: str = "tools"

    published: ClassVar[str] = (
        "the bfcl-eval package, or ShishirPatil/gorilla on GitHub, berkeley-function-call-leaderboard/bfcl_eval/data"
    )

    def items(self) -> Iterator[Item]:
        if not Path(self.path).is_dir():
            raise DataError(f'task "{self.name}": no folder {self.path}; get the data set from {self.published}')
        for category in self.categories:
            file = self._file(category)
            answers = {} if category == "irrelevance" else self._answers(file)
            for row in self.rows(file):
                yield self._item(row, category, answers)

    def _file(self, category: str) -> Path:
        ends = _FILES.get(category, (category,))
        found = sorted(
            path for end in ends for path in Path(self.path).glob(f"BFCL_v[0-9]*_{end}.json") if _category(path) == end
        )
        if len(found) != 1:
            shown = ", ".join(path.name for path in found) or "none"
            raise DataError(
                f'task "{self.name}": expected one file BFCL_v*_{ends[-1]}.json in {self.path}, found {shown}'
                f"; get the data set from {self.published}, or leave the category out"
            )
        return found[0]

    def _answers(self, file: Path) -> dict[str, Row]:
        return {row.text("id"): row for row in self.rows(file.parent / "possible_answer" / file.name)}

    def _item(self, row: Row, category: str, answers: Mapping[str, Row]) -> Item:
        messages, functions = _messages(row), row.need("function", list)
        tools = tuple(_tool(row.where, function) for function in functions)
        possible: list[Any] = []
        gold = Message("assistant", _DECLINED, thinking="" if self.thinking else None)
        if category != "irrelevance":
            if (answer := answers.get(row.text("id"))) is None:
                raise DataError(f'{row.where}: no possible answer with id "{row.text("id")}"')
            possible = answer.need("ground_truth", list)
            try:
                calls = first_possible(possible, tools)
                verdict = grade_possible(calls, possible, tools)
            except GraderError as error:
                raise faulty(answer.where, error) from None
            gold = Message("assistant", thinking="" if self.thinking else None, tool_calls=calls)
            if verdict.value != 1:  # a row that no call can answer right
                raise DataError(f"{answer.where}: the possible answer contradicts the function's schema ({verdict.why})")
        return Item(
            key=[[message.content for message in messages], functions],
            messages=messages,
            tools=tools,
            reference={"category": category, "possible": possible},
            gold=(gold,),
        )

    async def grade(self, rollout: Rollout, tools: Tools | None = None) -> Reward:
        prompt, message = rollout.prompt, told(rollout)
        if prompt.reference["category"] == "irrelevance":
            return grade_no_call(message.tool_calls, message.content, rollout.format_errors)
        return grade_possible(message.tool_calls, prompt.reference["possible"], prompt.tools)


def _category(path: Path) -> str:
    return path.stem.split("_", 2)[2]


def _messages(row: Row) -> tuple[Message, ...]:
    turns = row.need("question", list)
    if len(turns) != 1 or not isinstance(turns[0], list) or not turns[0]:
        raise DataError(f'{row.where}: "question" must hold one turn of messages; multi-turn rows are not supported')
    messages = []
    for told_by in turns[0]:
        role, content = (told_by.get("role"), told_by.get("content")) if isinstance(told_by, dict) else (None, None)
        if role not in ("system", "user", "assistant") or not isinstance(content, str):
            raise DataError(
                f"{row.where}: message {str(told_by)[:80]!r} must have a role (system, user, assistant) and a content"
            )
        messages.append(Message(role, content))
    return tuple(messages)


def _tool(where: str, function: Any) -> dict[str, Any]:
    """A function of the data set in the OpenAI layout, with JSON Schema's names of types."""
    if (
        not isinstance(function, dict)
        or not isinstance(function.get("name"), str)
        or not isinstance(function.get("parameters"), dict)
    ):
        raise DataError(f'{where}: "function" must hold objects with a name and parameters')
    parameters = _json_schema(function["parameters"])
    try:
        compile_schema(parameters, f'{where}: parameters of "{function["name"]}"')
    except GraderError as error:
        raise DataError(str(error)) from None
    return {
        "type": "function",
        "function": {"name": function["name"], "description": function.get("description", ""), "parameters": parameters},
    }


def _json_schema(declared: Any) -> Any:
    """A schema in the data set's dialect (dict, float, tuple, any; "optional") as a JSON Schema."""
    if not isinstance(declared, dict):
        return declared
    schema = {key: value for key, value in declared.items() if key not in ("type", "optional", "properties", "items")}
    kind = declared.get("type")
    kind = _TYPES.get(kind, kind) if isinstance(kind, str) else kind
    if kind is not None:
        schema = {"type": kind, **schema}
    if isinstance(declared.get("properties"), dict):
        schema["properties"] = {name: _json_schema(inner) for name, inner in declared["properties"].items()}
    if "items" in declared:
        schema["items"] = _json_schema(declared["items"])
    return schema
