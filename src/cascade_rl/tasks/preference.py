"""Preference pairs of a file: what a judge is trained on and measured by."""

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Literal, get_args

from cascade_rl import strict_json
from cascade_rl.errors import DataError, RecipeError
from cascade_rl.grade.judge.labelled import grade_point, grade_verdict
from cascade_rl.grade.judge.template import load_template, pair_question, point_question
from cascade_rl.grade.judge.verdict import NEUTRAL, SCORES, Label, demonstration, ranking_of, write_pair, write_point
from cascade_rl.protocols import Task, Tools
from cascade_rl.records import Message, Reward, Rollout, Split
from cascade_rl.tasks.files import FileTask, Item, Row
from cascade_rl.tasks.rows import conversation

_SHOWN = 3  # places named in a note
_Pair = tuple[tuple[Message, ...], str, str, Label]  # the conversation, answer 1, answer 2, label
_Made = tuple[tuple[Message, ...], dict[str, Any], tuple[Message, ...]]  # question, reference, gold
_FIRST, _SECOND = 2.0, 5.0  # "better", where a label says only which


@dataclass(frozen=True, kw_only=True)
class Preference(FileTask):
    """Rows in one of three layouts, as JSON Lines, or a .json file with one list:

    TRL         {"prompt": text or messages, "chosen": text or messages, "rejected": ...}
    HelpSteer3  {"context": messages, "response1": text, "response2": text, "overall_preference": -3 (1 far better) ... 3}
    LLMBar      {"input": text, "output_1": text, "output_2": text, "label": 1 or 2}

    A pair of two equal answers has no better one: it is left out, and told of.
    A row in TRL's layout may say `"helpfulness": [5, 2]`, the scores of both (equal ones: a tie), and any row its `"split"`: "train",
    "dev" or "test". So does what a stage of kind `pairs` writes.

    path, stage: the file, or the stage that makes it, an earlier one of the recipe.
    mode: "pair": both answers are compared; "point": each answer is scored by itself, which takes rows with scores.
    both_orders: each pair comes twice, the second time with its answers exchanged, in one split: a judge of position learns nothing.
    reward: "distance", the paper's, or "agreement", 1 where the preference is right; format_weight, ranking_weight: its C1 and C2.
    template: "full", "brief", "examples", or a text file.
    thinking: whether the judge reasons first. Without it a pair's demonstration (for SFT) is its bare verdict; with it there is none,
    since nobody knows the reasons.
    """

    path: str = ""
    stage: str = ""
    thinking: bool = True
    mode: Literal["pair", "point"] = "pair"
    both_orders: bool = True
    reward: Literal["distance", "agreement"] = "distance"
    format_weight: float = 10.0
    ranking_weight: float = 1.0
    template: str = "full"
    name: str = "preference"
    domain: str = "judge"

    published: ClassVar[str] = "nvidia/HelpSteer3 on the Hugging Face hub, princeton-nlp/LLMBar on GitHub, or your own pairs"
    metric: ClassVar[str] = "agreement"

    file: Path | None = field(default=None, repr=False)  # of the stage named above, once it is done

    def __post_init__(self) -> None:
        super().__post_init__()
        if bool(self.path) == bool(self.stage):
            raise RecipeError(
                f'task "{self.name}": needs either path = "FILE" or stage = "NAME", one of kind pairs, and not both'
            )
        load_template(self.template, self.mode, f'task "{self.name}"')

    @property
    def place(self) -> str:
        return str(self.file or self.path)

    def items(self) -> Iterator[Item]:
        template = load_template(self.template, self.mode, f'task "{self.name}"')
        for row, pair in self.pairs():
            if pair[1] == pair[2]:
                continue
            key = [[message.role, message.content] for message in pair[0]]
            split: Split | None = own if (own := row.values.get("split")) in get_args(Split) else None
            made = self._points(row, template, *pair) if self.mode == "point" else self._pairs(template, *pair)
            for asked, reference, gold in made:
                yield Item(key=key, messages=asked, reference=reference, gold=gold, split=split)

    def notes(self) -> tuple[str, ...]:
        """What became of the pairs that nothing can be learnt from. Reads the data."""
        if waits(self):
            return ()
        pairs = self.pairs()
        equal = [row.where for row, (_, first, second, _) in pairs if first == second]
        if not equal:
            return ()
        shown = ", ".join(equal[:_SHOWN]) + (", ..." if len(equal) > _SHOWN else "")
        return (
            f"{len(equal):,} of {len(pairs):,} pairs have two equal answers, of which none is better, and are left out: {shown}",
        )

    def _pairs(self, template: str, messages: Sequence[Message], first: str, second: str, label: Label) -> Iterator[_Made]:
        orders = [(first, second, label), (second, first, swapped(label))]
        for one, two, told in orders if self.both_orders else orders[:1]:
            reference = {"first": told.first, "second": told.second, "ranking": told.ranking}
            gold = self._gold(messages, (one, two), write_pair(demonstration(told)))
            yield pair_question(template, messages, one, two), reference, gold

    def _points(
        self, row: Row, template: str, messages: Sequence[Message], first: str, second: str, label: Label
    ) -> Iterator[_Made]:
        if label.first is None or label.second is None:
            raise DataError(f'{row.where}: has no scores, "helpfulness", which mode = "point" is about; take mode = "pair"')
        for answer, score in ((first, label.first), (second, label.second)):
            gold = self._gold(messages, (answer,), write_point(score))
            yield point_question(template, messages, answer), {"score": score}, gold

    @property
    def demonstrates(self) -> bool:
        """Whether its pairs can be trained on by imitation: a bare verdict without thinking, or one with its reasons."""
        return not self.thinking or type(self).reasons is not Preference.reasons

    def reasons(self, messages: Sequence[Message], answers: Sequence[str]) -> str | None:
        """What a careful judge thinks of the two answers (in mode "point": of the one), where a subclass knows it."""
        return None

    def _gold(self, messages: Sequence[Message], answers: Sequence[str], verdict: str) -> tuple[Message, ...]:
        reasons = self.reasons(messages, answers) if self.thinking else None
        return () if self.thinking and reasons is None else (Message("assistant", verdict, thinking=reasons),)

    def pairs(self) -> list[tuple[Row, _Pair]]:
        """The rows, each with what `read_pair` reads of it. Raises DataError with the place of a faulty one."""
        try:
            return [(row, read_pair(row)) for row in self.pair_rows()]
        except DataError as error:
            if self.file is None:
                raise
            raise DataError(
                f'{error}. Stage "{self.stage}" made this file whole, so it was damaged since; delete it, and the same command makes'
                " it anew"
            ) from None

    def pair_rows(self) -> list[Row]:
        """The rows as they stand in the file; `read_pair` reads them."""
        if self.stage and self.file is None:
            raise DataError(
                f'task "{self.name}": its pairs are made by stage "{self.stage}" of a run; outside of that run give their file:'
                f" --set tasks.{self.name}.stage= --set tasks.{self.name}.path=RUN/stages/NN-{self.stage}-FINGERPRINT/pairs.jsonl"
            )
        path = Path(self.place)
        if self.file is not None and path.is_file() and not path.read_bytes().strip():
            raise DataError(f'task "{self.name}": {path} has no rows')  # of its own data, a task says where to get them
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
        if self.mode == "point":
            score = rollout.prompt.reference["score"]
            return grade_point(rollout.answer, score, agreement=self.reward == "agreement", format_weight=self.format_weight)
        return grade_verdict(
            rollout.answer, Label(**rollout.prompt.reference), agreement=self.reward == "agreement",
            format_weight=self.format_weight, ranking_weight=self.ranking_weight,
        )  # fmt: skip


def linked(tasks: Mapping[str, Task], files: Mapping[str, Path]) -> dict[str, Task]:
    """The tasks; those that read the pairs of a stage, with its file. files: stage name -> file, of the stages that are done."""
    return {
        name: dataclasses.replace(task, file=files.get(task.stage)) if isinstance(task, Preference) and task.stage else task
        for name, task in tasks.items()
    }


def waits(task: Task) -> bool:
    """Whether the task has no prompts yet: the stage that makes its pairs is not done."""
    return isinstance(task, Preference) and bool(task.stage) and task.file is None


def swapped(label: Label) -> Label:
    """The label of the same pair in the other order: `swapped(Label(4, 2, 2.0))` is Label(2, 4, 5.0)."""
    return Label(label.second, label.first, None if label.ranking is None else 7 - label.ranking)


def read_pair(row: Row) -> _Pair:
    """(the conversation, answer 1, answer 2, label) of a row. Raises DataError with its place."""
    values = row.values
    if "chosen" in values:
        return _conversation(row, "prompt"), _answer(row, "chosen"), _answer(row, "rejected"), _scored(row)
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


def _scored(row: Row) -> Label:
    """The label of a row in TRL's layout: the first answer is better, by as much as both scores say, where it has them."""
    if (told := row.values.get("helpfulness")) is None:
        return Label(None, None, _FIRST)
    if not isinstance(told, list) or len(told) != 2 or not all(type(score) is int and score in SCORES for score in told):
        raise DataError(
            f'{row.where}: "helpfulness" is {str(told)[:60]}; expected the scores of chosen and rejected, 1 to 5 each'
        )
    chosen, rejected = told
    if chosen < rejected:
        raise DataError(f'{row.where}: "helpfulness" is {told}, so that the rejected answer is the better one; exchange them')
    return Label(chosen, rejected, NEUTRAL if chosen == rejected else ranking_of(chosen, rejected))


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
