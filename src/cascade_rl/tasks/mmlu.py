"""MMLU: multiple-choice questions of school and university subjects."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from string import ascii_uppercase
from typing import ClassVar

from cascade_rl.errors import DataError
from cascade_rl.grade.choices import grade_choice
from cascade_rl.protocols import Tools
from cascade_rl.records import Message, Reward, Rollout
from cascade_rl.tasks.files import FileTask, Item, Row

_ASK = "Which option is right? Put its letter, and nothing else, in \\boxed{}."


@dataclass(frozen=True, kw_only=True)
class MMLU(FileTask):
    """Rows {"question", "choices": [texts], "answer": index or letter}, one JSON object a line."""

    name: str = "mmlu"
    domain: str = "choice"

    published: ClassVar[str] = "hendrycks/test on GitHub, or cais/mmlu on the Hugging Face hub, as JSON Lines"

    def items(self) -> Iterator[Item]:
        for row in self.rows(Path(self.path)):
            question, choices = row.text("question").strip(), row.need("choices", list)
            if not 2 <= len(choices) <= len(ascii_uppercase) or not all(isinstance(choice, str) for choice in choices):
                raise DataError(f'{row.where}: "choices" must be 2 to {len(ascii_uppercase)} texts')
            letters = ascii_uppercase[: len(choices)]
            options = "\n".join(f"{letter}. {choice.strip()}" for letter, choice in zip(letters, choices, strict=True))
            gold = _gold(row, letters)
            yield Item(
                key=[question, choices],
                messages=(Message("user", f"{question}\n\n{options}\n\n{_ASK}"),),
                reference={"letter": gold, "options": letters},
                gold=(Message("assistant", f"\\boxed{{{gold}}}", thinking="" if self.thinking else None),),
            )

    async def grade(self, rollout: Rollout, tools: Tools | None = None) -> Reward:
        reference = rollout.prompt.reference
        return grade_choice(rollout.answer, reference["letter"], reference["options"])


def _gold(row: Row, letters: str) -> str:
    answer = row.values.get("answer")
    if isinstance(answer, int) and not isinstance(answer, bool) and 0 <= answer < len(letters):
        return letters[answer]
    if isinstance(answer, str) and len(answer) == 1 and answer in letters:
        return answer
    raise DataError(
        f'{row.where}: "answer" is {answer!r}; expected an index from 0 to {len(letters) - 1} or a letter of {letters}'
    )
