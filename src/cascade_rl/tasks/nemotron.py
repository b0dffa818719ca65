r"""Rows of nvidia/Nemotron-Cascade-2-RL-data, and of any file in the layout of NeMo Gym.

    {"responses_create_params": {"input": [{"role": "user", "content": "..."}], "tools": [...]}, ...}

and beside it what the verdict needs. One file mixes several kinds of rows, told apart by what they have:

    instructions   instruction_id_list, kwargs                  every instruction must be followed
    choice         options, expected_answer                     the letter in \boxed{}
    schema         schema_str                                   one JSON value that the schema accepts; no word on its content
    math           question, expected_answer                    equal as mathematics
    calls          ground_truth: [{"name", "arguments"}]        these calls; `[]` is a request that no call may answer
    code           verifier_metadata.unit_tests                 a Python program that answers every input with its output
    prompts        none of these                                nothing: for distillation, which asks a teacher and no grader

A task takes one kind, so that a domain is a column of the matrix. Rows of its kind that its grader refuses are left out; what became
of all rows, those that have nothing to judge an answer by among them, is told by `notes`. None is ever graded 0 for it.
"""

import functools
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, get_args

from cascade_rl import strict_json
from cascade_rl.errors import DataError, GraderError, unknown
from cascade_rl.grade.answer import gold_answer, grade_answer_async
from cascade_rl.grade.choices import grade_choice
from cascade_rl.grade.extract import after_thinking, last_box
from cascade_rl.grade.instructions import compile_instructions, grade_instructions
from cascade_rl.grade.schema import compile_schema, grade_json
from cascade_rl.grade.toolcalls import grade_calls, grade_no_call
from cascade_rl.grade.unit_tests import ProgramTest, grade_program
from cascade_rl.protocols import Tools
from cascade_rl.records import Message, Reward, Rollout, ToolCall
from cascade_rl.sandbox.process import MB, Limits, shared_pool
from cascade_rl.tasks.code import CodeSettings, code_block
from cascade_rl.tasks.files import FileTask, Item, told
from cascade_rl.tasks.rows import conversation, read_placed

Kind = Literal["instructions", "choice", "schema", "math", "calls", "code", "prompts"]
DOMAINS: Mapping[str, str] = {
    "instructions": "if", "choice": "choice", "schema": "schema", "math": "math", "calls": "tools", "code": "code",
    "prompts": "chat",
}  # fmt: skip
# What the paper's reward does and ours does not, by kind.
DIFFERS: Mapping[str, str] = {
    "calls": "the calls of one answer are compared; the paper makes them in five databases, over several turns, and compares states",
    "prompts": "these rows have no verdict of their own: they can be distilled on or judged, and an rl stage on them alone is stopped",
}

_ANSWER = {"role": "assistant", "content": "x"}
_DECLINED = "There is nothing to be done for this with the tools that I have."
_SHOWN = 3  # rows named in a note
_POSITION = re.compile(r"^instruction \d+: ")  # one reason for all rows, wherever the instruction stands in them


@dataclass(frozen=True, kw_only=True)
class NemotronRL(CodeSettings, FileTask):
    """Settings: `take`, the kind of rows; `split = "train"` for all of them, since the set has no splits of its own.

    Instructions follow a row's `grading_mode`: "fraction" pays the share that is followed, anything else 1 for all and 0 otherwise.
    A choice whose mode is "strict_single_letter_boxed" must stand in a box. `calls` compares the calls of one answer with the ground
    truth, in any order. `code` runs the answer's last block in the sandbox, with the settings of all tasks that run code. `prompts` has no
    verdict: every rollout is unscored.
    """

    take: Kind
    name: str = "nemotron"

    reads_hub: ClassVar[bool] = True
    published: ClassVar[str] = "nvidia/Nemotron-Cascade-2-RL-data on the Hugging Face hub"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.take not in DOMAINS:
            raise DataError(unknown(f'task "{self.name}": take', self.take, get_args(Kind)))
        if not self.domain:
            object.__setattr__(self, "domain", DOMAINS[self.take])

    @property
    def differs(self) -> str:
        """What the paper's reward does and this one does not, in words; "" where they are the same."""
        return DIFFERS.get(self.take, "")

    @property
    def grades_elsewhere(self) -> bool:
        return self.take == "code"

    def items(self) -> Iterator[Item]:
        found = _read(self)
        if not found.items:
            raise DataError(
                f'task "{self.name}": {self.path} has no row of kind "{self.take}" that can be graded; {found.told()}'
            )
        yield from found.items

    def notes(self) -> tuple[str, ...]:
        """What became of the rows: how many of each kind, and which were left out, with the reason. Reads the data."""
        return (_read(self).told(),)

    async def grade(self, rollout: Rollout, tools: Tools | None = None) -> Reward:
        reference, answer = rollout.prompt.reference, rollout.answer
        if self.take == "prompts":
            return Reward(None, why="the row has nothing to judge an answer by")
        if self.take == "instructions":
            checks = compile_instructions(reference["ids"], reference["kwargs"])
            return grade_instructions(checks, answer, reference["scoring"])
        if self.take == "choice":
            verdict = grade_choice(answer, reference["letter"], reference["options"])
            if verdict.value and reference["boxed"] and last_box(after_thinking(answer)) is None:
                return Reward(0.0, {**verdict.parts, "correct": 0.0}, f"{verdict.why}; not in \\boxed{{}}, as asked")
            return verdict
        if self.take == "schema":
            return grade_json(answer, compile_schema(reference["schema"]), allow_fence=False)
        if self.take == "math":
            return await grade_answer_async(answer, reference["answer"])
        if self.take == "code":
            tests = [ProgramTest(*test) for test in reference["tests"]]
            limits = Limits(cpu_s=self.time_limit_s, memory_bytes=self.memory_mb * MB)
            code, pool = code_block(answer), shared_pool(self.sandbox)
            return (await grade_program(code, tests, limits, all_tests=self.partial, pool=pool)).reward(self.partial)
        message = told(rollout)
        if not reference["calls"]:
            return grade_no_call(message.tool_calls, message.content, rollout.format_errors)
        return grade_calls(message.tool_calls, [ToolCall(**call) for call in reference["calls"]], ordered=False)


def kind_of(row: Mapping[str, Any]) -> Kind:
    """What a row can be judged by. A tool prompt with `ground_truth: []` has a signal: no call."""
    if row.get("instruction_id_list"):
        return "instructions"
    if row.get("options") and row.get("expected_answer"):
        return "choice"
    if row.get("schema_str"):
        return "schema"
    if row.get("question") and row.get("expected_answer"):
        return "math"
    if row.get("ground_truth") is not None:
        return "calls"
    metadata = row.get("verifier_metadata")
    return "code" if isinstance(metadata, Mapping) and metadata.get("unit_tests") else "prompts"


@dataclass(frozen=True)
class _Found:
    """A file as a task sees it.

    kinds: how many rows of each kind. no_signal: places of rows that have none. left_out: reason -> places of rows of the task's own
    kind that cannot be graded.
    """

    items: tuple[Item, ...]
    kinds: Mapping[str, int]
    no_signal: tuple[str, ...]
    left_out: Mapping[str, Sequence[str]]

    def told(self) -> str:
        counts = ", ".join(f"{number:,} {kind}" for kind, number in sorted(self.kinds.items()) if kind != "prompts")
        text = f"{sum(self.kinds.values()):,} rows: {counts or 'none with anything to judge an answer by'}"
        if self.no_signal:
            text += f"; {len(self.no_signal):,} have nothing to judge an answer by: {_some(self.no_signal)}"
        if self.left_out:
            common = sorted(self.left_out.items(), key=lambda entry: -len(entry[1]))
            reasons = [f"{len(places):,} x {reason} ({places[0]})" for reason, places in common]
            text += f"; {sum(map(len, self.left_out.values())):,} cannot be graded and are left out: {_some(reasons)}"
        return text


def _some(told: Sequence[str]) -> str:
    return ", ".join(told[:_SHOWN]) + (f" and {len(told) - _SHOWN:,} more" if len(told) > _SHOWN else "")


@functools.lru_cache(maxsize=8)
def _read(task: NemotronRL) -> _Found:
    kinds: Counter[str] = Counter()
    items: list[Item] = []
    no_signal: list[str] = []
    left_out: dict[str, list[str]] = {}
    for where, row in read_placed(task.path, task.split or "train"):
        kind = kind_of(row)
        kinds[kind] += 1
        if kind == "prompts":
            no_signal.append(where)
        if kind != task.take:
            continue
        try:
            items.append(_item(row, where, kind, task.thinking))
        except (DataError, GraderError) as error:
            reason = _POSITION.sub("", str(error).removeprefix(f"{where}: ").partition(";")[0])
            left_out.setdefault(reason, []).append(where)
    return _Found(tuple(items), kinds, tuple(no_signal), left_out)


def _item(row: Mapping[str, Any], where: str, kind: Kind, thinking: bool) -> Item:
    """A row as a prompt. Raises DataError or GraderError with what is wrong."""
    params = _json(row.get("responses_create_params"), f"{where}: responses_create_params")
    asked = params.get("input") if isinstance(params, Mapping) else None
    if isinstance(asked, str):
        asked = [{"role": "user", "content": asked}]
    if not isinstance(asked, list) or not asked:
        raise DataError(f'{where}: "responses_create_params" has no "input"; expected a list of messages')
    messages = conversation({"messages": [*(_message(m, where) for m in asked), _ANSWER]}, where)[0][:-1]
    tools = tuple(_tool(tool, where) for tool in params.get("tools") or ()) if kind in ("calls", "schema") else ()
    reference, gold = _REFERENCES[kind](row, where)
    if gold is not None and thinking:
        gold = Message(gold.role, gold.content, "", gold.tool_calls)
    key = [[[m.role, m.content] for m in messages], tools]
    return Item(key, messages, reference, gold=() if gold is None else (gold,), tools=tools)


def _json(value: Any, where: str) -> Any:
    """A value that a table may hold as JSON text."""
    if not isinstance(value, str):
        return value
    try:
        return strict_json.loads(value)
    except strict_json.JsonFault as fault:
        raise DataError(f"{where} is text but not JSON ({fault})") from None


def _message(entry: Any, where: str) -> dict[str, Any]:
    """A message of the Responses layout in that of chats: its parts are input_text or output_text."""
    if not isinstance(entry, Mapping) or "role" not in entry:
        kind = entry.get("type") if isinstance(entry, Mapping) else entry
        raise DataError(f"{where}: its input holds {str(kind)[:40]!r}; only messages can be asked, not turns of tools")
    content = entry.get("content")
    if isinstance(content, list):
        content = [{"type": "text", "text": part.get("text")} if isinstance(part, Mapping) else part for part in content]
    return {"role": entry["role"], "content": content}


def _tool(tool: Any, where: str) -> dict[str, Any]:
    function = tool.get("function", tool) if isinstance(tool, Mapping) else {}
    if not isinstance(function.get("name"), str):
        raise DataError(f"{where}: a tool without a name")
    kept = {key: function[key] for key in ("name", "description", "parameters") if function.get(key) is not None}
    return {"type": "function", "function": {"parameters": {"type": "object", "properties": {}}, **kept}}


# --- references: what the grader needs, JSON values only, and the gold answer where the row tells one -------------------------


def _instructions(row: Mapping[str, Any], where: str) -> tuple[Any, Message | None]:
    ids, kwargs = row["instruction_id_list"], _json(row.get("kwargs"), f"{where}: kwargs")
    given = [_json(each, f"{where}: kwargs") or {} for each in kwargs or [{}] * len(ids)]
    if not all(isinstance(each, Mapping) for each in given):
        raise DataError(f'{where}: "kwargs" must hold one object for each instruction')
    compile_instructions(ids, given)
    scoring = "fraction" if row.get("grading_mode") == "fraction" else "all"
    return {"ids": list(ids), "kwargs": given, "scoring": scoring}, None


def _choice(row: Mapping[str, Any], where: str) -> tuple[Any, Message]:
    letters = [letter for option in row["options"] for letter in option]
    gold = str(row["expected_answer"]).strip()
    grade_choice("", gold, letters)  # refuses a gold that is no option
    boxed = row.get("grading_mode") == "strict_single_letter_boxed"
    return {"letter": gold, "options": letters, "boxed": boxed}, Message("assistant", f"\\boxed{{{gold}}}")


def _schema(row: Mapping[str, Any], where: str) -> tuple[Any, None]:
    if (kind := row.get("schema_type", "json")) != "json":
        raise DataError(f'{where}: schema_type "{kind}"; only "json" can be graded')
    if row.get("response_mode") == "tool_call":
        raise DataError(f"{where}: asks for its JSON in a tool call; only JSON as the answer can be graded")
    schema = _json(row["schema_str"], f"{where}: schema_str")
    compile_schema(schema, f"{where}: schema_str")
    return {"schema": schema}, None


def _math(row: Mapping[str, Any], where: str) -> tuple[Any, Message]:
    gold = gold_answer(str(row["expected_answer"]))
    return {"answer": gold}, Message("assistant", f"\\boxed{{{gold}}}")


def _calls(row: Mapping[str, Any], where: str) -> tuple[Any, Message]:
    truth = _json(row["ground_truth"], f"{where}: ground_truth")
    calls: list[dict[str, Any]] = []
    for i, call in enumerate(truth):
        arguments = _json(call.get("arguments") or {}, f"{where}: arguments of ground_truth[{i}]")
        if not isinstance(call.get("name"), str) or not isinstance(arguments, Mapping):
            raise DataError(f"{where}: ground_truth[{i}] is {str(call)[:80]!r}; expected a name, and an object of arguments")
        calls.append({"name": call["name"], "arguments": dict(arguments)})
    gold = tuple(ToolCall(call["name"], call["arguments"]) for call in calls)
    return {"calls": calls}, Message("assistant", "" if gold else _DECLINED, tool_calls=gold)


def _code(row: Mapping[str, Any], where: str) -> tuple[Any, None]:
    tests = _json(row["verifier_metadata"]["unit_tests"], f"{where}: unit_tests")
    inputs, outputs = tests.get("inputs"), tests.get("outputs")
    if not inputs or not outputs or len(inputs) != len(outputs):
        raise DataError(f'{where}: "unit_tests" must hold as many outputs as inputs, and one at least')
    if not all(isinstance(text, str) for text in (*inputs, *outputs)):
        raise DataError(f'{where}: "unit_tests" must hold inputs and outputs as texts')
    return {"tests": [list(pair) for pair in zip(inputs, outputs, strict=True)]}, None


def _prompts(row: Mapping[str, Any], where: str) -> tuple[Any, None]:
    return None, None


_REFERENCES = {
    "instructions": _instructions, "choice": _choice, "schema": _schema, "math": _math, "calls": _calls, "code": _code,
    "prompts": _prompts,
}  # fmt: skip
