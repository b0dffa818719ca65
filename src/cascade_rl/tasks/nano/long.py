"""Documents of one or two thousand tokens of the nano world, with a question at their end."""

import random
import re
from collections.abc import Sequence, Set
from dataclasses import dataclass

from cascade_rl.errors import RecipeError
from cascade_rl.protocols import Tools
from cascade_rl.records import Reward, Rollout, Split
from cascade_rl.tasks.documents import Asked, DocumentTask
from cascade_rl.tasks.nano.needle import codes, filler, hop, judge_values
from cascade_rl.tasks.nano.words import NAMES, THINGS

_PIECES = re.compile(r"[a-z]+|[A-Z]|[0-9]|[.?]")  # what the nano tokenizer makes tokens of, about
_MERGED = 0.915  # a few pairs of words of the small talk are one token
_MOST_SUMMED = 9


@dataclass(frozen=True, kw_only=True)
class LongTask(DocumentTask):
    """`nano.needle` for long documents: the same facts and small talk, `lengths` in tokens of the nano model (within 5%).

    num_needles: facts that a question for several asks for. "count" and "sum" ask about two or three facts of one person.
    """

    num_train: int = 1_000
    num_needles: int = 2
    kinds: tuple[str, ...] = ("needle", "needles", "hop")

    name: str = "nano.long"

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 2 <= self.num_needles <= 8:
            raise RecipeError(f'task "{self.name}": num_needles {self.num_needles} must be 2 to 8')
        each = self.num_needles if "needles" in self.kinds else 1
        if self.num_questions * each + self.num_others > len(NAMES):
            raise RecipeError(
                f'task "{self.name}": {self.num_questions} questions about {each} of the people each, with num_others ='
                f" {self.num_others}, need more than the {len(NAMES)} people there are; ask for less"
            )

    def ask(self, kind: str, rng: random.Random, num_others: int, taken: Set[str]) -> Asked:
        names = [name for name in NAMES if name not in taken]
        if kind in ("needle", "needles"):
            num = 1 if kind == "needle" else self.num_needles
            facts, question, answers = codes(rng, num, num_others, names)
            return Asked(tuple(facts[:num]), tuple(facts[num:]), question, tuple(answers), subjects=_subjects(facts))
        if kind == "hop":
            num = 1 + num_others
            facts, question, answers, _ = hop(rng, num, names, taken)
            others = (*facts[1:num], *facts[num + 1 :])
            return Asked((facts[0], facts[num]), others, question, tuple(answers), subjects=_subjects(facts))
        return _gifts(kind, rng, names, num_others)

    def fill(self, length: int, split: Split, rng: random.Random) -> Sequence[str]:
        sentences: list[str] = []
        pieces = length / _MERGED
        while pieces > 0:
            sentences.append(filler(rng))
            pieces -= self.measure(sentences[-1])
        return sentences

    def measure(self, sentence: str) -> int:
        return len(_PIECES.findall(sentence))

    def judge(self, rollout: Rollout, answer: str, tools: Tools | None) -> Reward:
        return judge_values(answer, rollout.prompt.reference["answers"])


def _subjects(facts: Sequence[str]) -> tuple[str, ...]:
    """Whom and what facts of the form "The code of Mia is 12." are about."""
    return tuple(fact.split()[3] for fact in facts)


def _gifts(kind: str, rng: random.Random, names: Sequence[str], num_others: int) -> Asked:
    """What one person gets in two or three places, among what others get."""
    thing = rng.choice(THINGS)
    person, *others = rng.sample(names, 1 + num_others)
    numbers = _numbers(rng)
    needed = tuple(f"{person} gets {number} {thing}s." for number in numbers)
    apart = tuple(f"{other} gets {rng.randint(2, _MOST_SUMMED)} {thing}s." for other in others)
    if kind == "count":
        question = f"How many times does {person} get {thing}s?"
        return Asked(needed, apart, question, (str(len(numbers)),), subjects=(person, *others))
    working = f"{'+'.join(map(str, numbers))}={sum(numbers)}."
    return Asked(
        needed, apart, f"How many {thing}s does {person} get in all?", (str(sum(numbers)),), (), working, (person, *others)
    )


def _numbers(rng: random.Random) -> list[int]:
    return rng.sample(range(2, _MOST_SUMMED + 1), rng.choice((2, 3)))
