"""What the tasks on published data sets share: reading the user's file, keeping splits apart, choosing prompts.

The data is the user's: a task is given a path, says where the set is published when nothing is there, and names file and line of
a row that is not as it should be. Nothing is read before `prompts` is called.
"""

import functools
import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, TypeVar, get_args

from cascade_rl import strict_json
from cascade_rl.errors import DataError, GraderError, unknown
from cascade_rl.protocols import Tools
from cascade_rl.records import Message, Prompt, Rollout, Split

Value = TypeVar("Value")

_SHARES: dict[Split, tuple[int, int]] = {"train": (0, 60), "dev": (60, 80), "test": (80, 100)}  # percent of all keys


@dataclass(frozen=True, slots=True)
class Row:
    """One line of a file; `where` is "file:line" for messages."""

    where: str
    values: Mapping[str, Any]

    def need(self, key: str, kind: type[Value]) -> Value:
        """The value of a key that must be there, with its type. Raises DataError."""
        if key not in self.values:
            raise DataError(f'{self.where}: key "{key}" is missing; the row has {", ".join(sorted(self.values)) or "none"}')
        value = self.values[key]
        if not isinstance(value, kind) or isinstance(value, bool) != (kind is bool):
            raise DataError(f'{self.where}: "{key}" is {str(value)[:80]!r}; expected {kind.__name__}')
        return value

    def text(self, key: str) -> str:
        """A string that says something. Raises DataError."""
        if not (text := self.need(key, str)).strip():
            raise DataError(f'{self.where}: "{key}" is empty; expected text')
        return text


@dataclass(frozen=True, slots=True)
class Item:
    """A row as a prompt without its place: `Item(key="2+3?", messages=(Message("user", "2+3?"),), reference="5")`.

    key: what makes two rows the same question; equal keys are never in two splits. split: the data's own, else None.
    """

    key: Any
    messages: tuple[Message, ...]
    reference: Any
    gold: tuple[Message, ...] = ()
    tools: tuple[Mapping[str, Any], ...] = ()
    split: Split | None = None


@dataclass(frozen=True, kw_only=True)
class FileTask:
    """Settings and behaviour of all tasks on published data; a subclass reads items and judges answers.

    path: the user's copy of the data.
    num_prompts: at most so many prompts of each split, spread evenly over the file, always the same ones; None for all.
    split: None keeps the data's own splits, or makes 60/20/20 by a hash of the question; "test" (or another) makes all rows of a
    set without splits of its own belong to that one, as for published scores.
    thinking: whether the answer starts in thinking mode.
    """

    path: str
    num_prompts: int | None = None
    split: Split | None = None
    thinking: bool = False
    name: str = ""
    domain: str = ""

    published: ClassVar[str] = ""
    reads_hub: ClassVar[bool] = False  # whether the path may be a hub id

    def __post_init__(self) -> None:
        if self.num_prompts is not None and self.num_prompts < 1:
            raise DataError(
                f'task "{self.name}": num_prompts {self.num_prompts} must be at least 1; leave it out for all prompts'
            )
        if self.split is not None and self.split not in get_args(Split):
            raise DataError(unknown(f'task "{self.name}": split', self.split, get_args(Split)))

    @property
    def place(self) -> str:
        """Where the data are, for messages."""
        return self.path

    @property
    def max_turns(self) -> int:
        return 1

    def open_tools(self, prompt: Prompt) -> Tools | None:
        return None

    def prompts(self, split: Split) -> Sequence[Prompt]:
        """The prompts of a split, read at first use. Raises DataError: no such file or split, or a faulty row."""
        if split not in get_args(Split):
            raise DataError(unknown(f'task "{self.name}": split', split, get_args(Split)))
        found = [prompt for prompt in _all_prompts(self) if prompt.split == split]
        if not found:
            raise DataError(f'task "{self.name}": {self.place} has no rows of split "{split}"; ask for another split')
        return evenly(found, self.num_prompts)

    def splits(self) -> list[Split]:
        """The splits that the rows make."""
        return list(dict.fromkeys(prompt.split for prompt in _all_prompts(self)))

    def items(self) -> Iterator[Item]:
        """All rows, in file order."""
        raise NotImplementedError

    def rows(self, path: Path) -> list[Row]:
        """The rows of a JSON Lines file. Raises DataError with file and line."""
        if not path.is_file():
            raise DataError(f'task "{self.name}": no file {path}; get the data set from {self.published} and give its path')
        rows = []
        try:
            text = path.read_text(encoding="utf-8")
        except UnicodeDecodeError as error:
            raise DataError(f"{path}: no text in UTF-8 ({error}); expected one JSON object a line") from None
        for number, line in enumerate(text.split("\n"), start=1):
            where = f"{path}:{number}"
            if not line.strip():
                continue
            try:
                values = strict_json.loads(line)
            except strict_json.JsonFault as fault:
                raise DataError(f"{where}: {fault}; expected one JSON object a line") from None
            if not isinstance(values, dict):
                raise DataError(f"{where}: a JSON {type(values).__name__}; expected one JSON object a line")
            rows.append(Row(where, values))
        if not rows:
            raise DataError(f'task "{self.name}": {path} has no rows; get the data set from {self.published}')
        return rows


def split_of(key: Any) -> Split:
    """60% train, 20% dev, 20% test, by a hash of what makes the question the same question."""
    digest = hashlib.sha256(json.dumps(key, sort_keys=True).encode()).digest()
    percent = int.from_bytes(digest[:8]) % 100
    return next(split for split, (low, high) in _SHARES.items() if low <= percent < high)


def evenly(values: Sequence[Value], most: int | None) -> Sequence[Value]:
    """At most so many values, spread evenly: `evenly("abcdefgh", 3)` gives a, c and f."""
    if most is None or most >= len(values):
        return tuple(values)
    return tuple(values[i * len(values) // most] for i in range(most))


@functools.lru_cache(maxsize=32)
def _all_prompts(task: FileTask) -> tuple[Prompt, ...]:
    prompts = []
    for number, item in enumerate(task.items()):
        split = item.split or task.split or split_of(item.key)
        prompts.append(
            Prompt(
                id=f"{task.name}/{split}/{number}",
                task=task.name,
                domain=task.domain,
                split=split,
                messages=item.messages,
                tools=item.tools,
                thinking=task.thinking,
                reference=item.reference,
                gold=item.gold,
            )
        )
    return tuple(prompts)


def told(rollout: Rollout) -> Message:
    """The last message of a rollout if the assistant wrote it, else an empty one."""
    last = rollout.messages[-1] if rollout.messages else None
    return last if last is not None and last.role == "assistant" else Message("assistant")


def faulty(where: str, error: GraderError) -> DataError:
    """A row that its grader refuses, as an error about the row."""
    return DataError(f"{where}: {error}")
