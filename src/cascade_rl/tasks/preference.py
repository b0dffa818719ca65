"""Preference pairs of a file: what a judge is trained on and measured by."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal

from cascade_rl import strict_json
from cascade_rl.errors import DataError
from cascade_rl.grade.judge.labelled import grade_verdict
from cascade_rl.grade.judge.template import load_template, pair_question
from cascade_rl.grade.judge.verdict import Label
from cascade_rl.protocols import Tools
from cascade_rl.records import Message, Reward, Rollout
from cascade_rl.tasks.files import FileTask, Item, Row
from cascade_rl.tasks.rows import conversation

_SHOWN = 3  # places named in a note
_FIRST, _SECOND = 2.0, 5.0  # "better", where a label says only which


@dataclass(frozen=True, kw_only=True)
class Preference(FileTask):
    """Rows in one of three layouts, as JSON Lines, or a .json file with one list:

    TRL         {"prompt": text or messages, "chosen": text or messages, "rejected": ...}
    HelpSteer3  {"context": messages, "response1": text, "response2": text, "overall_preference": -3 (1 far better) ... 3}
    LLMBar      {"input": text, "output_1": text, "output_2": text, "label": 1 or 2}

    A pair of two equal answers has no better one: it is left out, and told of.
    both_orders: each pair comes twice, the second time with its answers exchanged, in one split: a judge of position learns nothing.
    reward: "distance", the paper's, or "agreement", 1 where the preference is right; format_weight, ranking_weight: its C1 and C2.
    template: "full", "brief", "examples", or a text file.
    """

    thinking: bool = True
    both_orders: bool = True
    reward: Literal["distance", "agreement"] = "distance"
    format_weight: float = 10.0
    ranking_weight: float = 1.0
    template: str = "full"
    name: str = "preference"
    domain: str = "judge"

    published: ClassVar[str] = "nvidia/HelpSteer3 on the Hugging Face hub, princeton-nlp/LLMBar on GitHub, or your own pairs"
    metric: ClassVar[str] = "agreement"

    def __post_init__(self) -> None:
        super().__post_init__()
        load_template(self.template, "pair", f'task "{self.name}"')

    def items(self) -> Iterator[Item]:
        template = load_template(self.template, "pair", f'task "{self.name}"')
        for row in self._rows():
            messages, first, second, label = read_pair(row)
            if first == second:
                continue
            orders = [(first, second, label), (second, first, swapped(label))]
            for one, two, told in orders if self.both_orders else orders[:1]:
                reference = {"first": told.first, "second": told.second, "ranking": told.ranking}
                key = [[message.role, message.content] for message in messages]
                yield Item(key=key, messages=pair_question(template, messages, one, two), reference=reference)

    def notes(self) -> tuple[str, ...]:
        """What became of the pairs that nothing can be learnt from. Reads the data."""
        pairs = [(row.where, read_pair(row)) for row in self._rows()]
        equal = [where for where, (_, first, second, _) in pairs if first == second]
        if not equal:
            return ()
        shown = ", ".join(equal[:_SHOWN]) + (", ..." if len(equal) > _SHOWN else "")
        return (
            f"{len(equal):,} of {len(pairs):,} pairs have two equal answers, of which none is better, and are left out: {shown}",
        )

    def _rows(self) -> list[Row]:
        path = Path(self.path)
        if path.suffix != ".json" or not path.is_file():
            return self.rows(path)
        try:
            values = strict_json.loads(path.read_text(encoding="utf-8"))
        except (strict_json.JsonFault, UnicodeDecodeError) as fault:
            raise DataError(f"{path}: {fault}; expected a JSON list of objects") from None
        if not isinstance(values, list) or not values or not all(isinstance(value, dict) for value in values):
            raise DataError(f"{path}: expected a JSON list of objects, one for each pair")
        return [Row(f"{path}[{number}]", value) for number, value in enumerate(values)]

    async def grade(self, rollout: Rollout, tools: Tools | None = None) -> Reward:
        return grade_verdict(
            rollout.answer, Label(**rollout.prompt.reference), agreement=self.reward == "agreement",
            format_weight=self.format_weight, ranking_weight=self.ranking_weight,
        )  # fmt: skip


def swapped(label: Label) -> Label:
    """The label of the same pair in the other order: `swapped(Label(4, 2, 2.0))` is Label(2, 4, 5.0)."""
    return Label(label.second, label.first, None if label.ranking is None else 7 - label.ranking)


def read_pair(row: Row) -> tuple[tuple[Message, ...], str, str, Label]:
    """(the conversation, answer 1, answer 2, label) of a row. Raises DataError with its place."""
    values = row.values
    if "chosen" in values:
        return _conversation(row, "prompt"), _answer(row, "chosen"), _answer(row, "rejected"), Label(None, None, _FIRST)
    if "response1" in values:
        told = row.need("overall_preference", int)
        if not -3 <= told <= 3:
            raise DataError(f'{row.where}: "overall_preference" is {told}; expected -3 (answer 1 is far better) to 3')
        ranking = 3.5 + told + (-0.5 if told > 0 else 0.5 if told < 0 else 0.0)
        return _conversation(row, "context"), row.text("response1"), row.text("response2"), Label(None, None, ranking)
    if "output_1" in values:
        if (told := row.need("label", int)) not in (1, 2):
            raise DataError(f'{row.where}: "label" is {told}; expected 1 or 2, the better output')
        label = Label(None, None, _FIRST if told == 1 else _SECOND)
        return (Message("user", row.text("input")),), row.text("output_1"), row.text("output_2"), label
    raise DataError(
        f"{row.where}: has {', '.join(sorted(values)) or 'no keys'}; expected prompt, chosen and rejected, or context, response1,"
        " response2 and overall_preference, or input, output_1, output_2 and label"
    )


def _conversation(row: Row, key: str) -> tuple[Message, ...]:
    told = row.values.get(key)
    if isinstance(told, str) and told.strip():
        return (Message("user", told),)
    if not isinstance(told, list) or not told:
        raise DataError(f'{row.where}: "{key}" is {str(told)[:60]!r}; expected a text or a list of messages')
    messages, _, _ = conversation({"messages": [*told, {"role": "assistant", "content": "x"}]}, row.where)
    return tuple(messages[:-1])


def _answer(row: Row, key: str) -> str:
    told: Any = row.values.get(key)
    if isinstance(told, list) and told and isinstance(told[-1], Mapping):
        told = told[-1].get("content")
    if not isinstance(told, str) or not told.strip():
        raise DataError(f'{row.where}: "{key}" is {str(told)[:60]!r}; expected a text, or messages that end with the answer')
    return told
