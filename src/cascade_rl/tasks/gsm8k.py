r"""GSM8K: word problems of primary school whose answer is one number."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from cascade_rl.errors import DataError
from cascade_rl.grade.answer import grade_number, normal, read_number
from cascade_rl.protocols import Tools
from cascade_rl.records import Message, Reward, Rollout, Split
from cascade_rl.tasks.files import FileTask, Item, Row, split_of

_CALCULATION = re.compile(r"<<[^<>]*>>")
_ASK = "Put the final number, and nothing else, in \\boxed{}."


@dataclass(frozen=True, kw_only=True)
class GSM8K(FileTask):
    r"""Rows {"question", "answer"}, the answer ending in "#### number". Graded strictly: one number, exactly equal.

    path: one file; or a folder with one file for train and one for test (`train.jsonl` or `gsm8k_train.jsonl`, and so on). Then
    test is the test split, and a fifth of train, by a hash of the question, is dev; a train question that is also in test is left
    out.
    """

    name: str = "gsm8k"
    domain: str = "math"

    published: ClassVar[str] = "openai/grade-school-math on GitHub, grade_school_math/data/{train,test}.jsonl"

    def items(self) -> Iterator[Item]:
        if not Path(self.path).is_dir():
            yield from (self._item(row, None) for row in self.rows(Path(self.path)))
            return
        test = [self._item(row, "test") for row in self.rows(self._file("test"))]
        kept_apart = {item.key for item in test}
        for row in self.rows(self._file("train")):
            item = self._item(row, "dev" if split_of(row.text("question").strip()) == "dev" else "train")
            if item.key not in kept_apart:
                yield item
        yield from test

    def _file(self, part: str) -> Path:
        named = [Path(self.path) / name for name in (f"{part}.jsonl", f"gsm8k_{part}.jsonl")]
        return next((path for path in named if path.is_file()), named[0])

    def _item(self, row: Row, split: Split | None) -> Item:
        question, solution = row.text("question").strip(), row.text("answer")
        steps, marker, number = solution.rpartition("####")
        if not marker or read_number(normal(number)) is None:
            raise DataError(f'{row.where}: "answer" must end in "#### number", but ends in {solution[-40:]!r}')
        worked = _CALCULATION.sub("", steps).strip()
        final = f"\\boxed{{{number.strip()}}}"
        gold = Message("assistant", final, thinking=worked) if self.thinking else Message("assistant", f"{worked}\n{final}")
        asked = (Message("user", f"{question}\n\n{_ASK}"),)
        return Item(key=question, messages=asked, reference=number.strip(), gold=(gold,), split=split)

    async def grade(self, rollout: Rollout, tools: Tools | None = None) -> Reward:
        return grade_number(rollout.answer, rollout.prompt.reference)
