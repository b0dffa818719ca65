"""What the tasks with long prompts share: facts put into a document of a given length, the one that answers at a given depth.

A subclass asks (facts, a question, its answers) and fills (the sentences between the facts); here they become a prompt. The question
and the facts that answer it decide the split, so no split holds a question of another one, whatever else its document holds.
"""

import functools
import random
from collections.abc import Sequence, Set
from dataclasses import dataclass
from typing import Any, ClassVar

from cascade_rl.errors import RecipeError, unknown
from cascade_rl.records import Message, Split
from cascade_rl.tasks.drawn import Draft, DrawnTask, split_of

KINDS = ("needle", "needles", "hop", "count", "sum")
MOST_LENGTH = 1_000_000
_TRIES = 500  # for a question of the split that is wanted
WHOLE = ("count", "sum")  # questions about facts all over the document: they have no depth


@dataclass(frozen=True, slots=True)
class Asked:
    """A question: `Asked(("The code of Mia is 12.",), ("The code of Tom is 34.",), "What is the code of Mia?", ("12",), ("34",))`.

    needed: the facts that answer it, in the order of the reasoning. others: facts of the same form that do not. answers: all of
    them must be said. wrong: values that must not be. working: what the reasoning says after the needed facts. subjects: whom and
    what its facts are about, which no other question of the same document may be.
    """

    needed: tuple[str, ...]
    others: tuple[str, ...]
    question: str
    answers: tuple[str, ...]
    wrong: tuple[str, ...] = ()
    working: str = ""
    subjects: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class DocumentTask(DrawnTask):
    """A document with a question at its end.

    kinds     what is asked, each as often as the others: "needle" (one fact), "needles" (several), "hop" (two that must be joined),
              "count" and "sum" (of facts all over the document).
    lengths   of the document, each as often as the others; in the task's unit, and about: no sentence is cut.
    depths    where the first fact of the answer stands, each as often as the others: 0 is the start of the document and 1 its end.
              All other facts stand anywhere.
    num_others   facts of the same form that do not answer.
    num_questions  questions about each document, each a prompt of its own; the facts of one are others to the next. They follow each
               other, and `rl` and `distill` keep them together, so that a document is read, and trained on, once for all of them.
    """

    kinds: tuple[str, ...] = KINDS
    lengths: tuple[int, ...] = (1000, 2000)
    depths: tuple[float, ...] = (0.0, 0.25, 0.5, 0.75, 1.0)
    num_others: int = 2
    num_questions: int = 1

    domain: str = "long"
    most_others: ClassVar[int] = 3
    most_questions: ClassVar[int] = 4

    def __post_init__(self) -> None:
        super().__post_init__()
        where = f'task "{self.name}"'
        for name in ("kinds", "lengths", "depths"):
            object.__setattr__(self, name, tuple(getattr(self, name)))
            if not getattr(self, name):
                raise RecipeError(f"{where}: {name} is empty; expected at least one")
        for kind in self.kinds:
            if kind not in KINDS:
                raise RecipeError(unknown(f"{where}: kind of question", kind, KINDS))
        if not all(1 <= length <= MOST_LENGTH for length in self.lengths):
            raise RecipeError(f"{where}: lengths {list(self.lengths)} must be 1 to {MOST_LENGTH:,}")
        if not all(0 <= depth <= 1 for depth in self.depths):
            raise RecipeError(f"{where}: depths {list(self.depths)} must be between 0 (the start) and 1 (the end)")
        if self.num_others > self.most_others:
            raise RecipeError(f"{where}: num_others {self.num_others} must be at most {self.most_others}")

        if not 1 <= self.num_questions <= self.most_questions:
            raise RecipeError(f"{where}: num_questions {self.num_questions} must be 1 to {self.most_questions}")

    def ask(self, kind: str, rng: random.Random, num_others: int, taken: Set[str]) -> Asked:
        """A question of a kind, with so many facts that do not answer it, about nobody and nothing that is taken."""
        raise NotImplementedError

    def fill(self, length: int, split: Split, rng: random.Random) -> Sequence[str]:
        """Sentences of about so many units in all, from what belongs to the split."""
        raise NotImplementedError

    def measure(self, sentence: str) -> int:
        """The units of a sentence."""
        raise NotImplementedError

    def write(self, document: str, question: str) -> str:
        """The prompt's text."""
        return f"{document}\n{question}"

    def drafts(self, rng: random.Random, split: Split) -> Sequence[Draft]:
        """The questions of one document; none where one that was drawn is of another split."""
        length, kinds = rng.choice(self.lengths), [rng.choice(self.kinds) for _ in range(self.num_questions)]
        depths = [rng.choice(self.depths) for _ in kinds]
        asked: list[Asked] = []
        for kind in kinds:
            taken = {subject for one in asked for subject in one.subjects}
            asked.append(self._ask_of(split, kind, rng, 0 if asked else self.num_others, taken))
        document = functools.cache(lambda: self._document(length, asked, kinds, depths, split, rng))
        together = {"document": f"{rng.getrandbits(32):08x}"} if len(asked) > 1 else {}

        def draft(kind: str, depth: float, one: Asked) -> Draft:
            thinking = " ".join(filter(None, (*one.needed, one.working))) if self.thinking else None
            return Draft(
                key=_key(one),
                question=lambda: self.write(document(), one.question),
                gold=(Message("assistant", " and ".join(one.answers) + ".", thinking=thinking),),
                reference={"answers": list(one.answers), "wrong": list(one.wrong)},
                thinking=self.thinking,
                facets={"kind": kind, "length": length} | ({} if kind in WHOLE else {"depth": depth}) | together,
            )

        return [draft(*told) for told in zip(kinds, depths, asked, strict=True)]

    def _ask_of(self, split: Split, kind: str, rng: random.Random, num_others: int, taken: Set[str]) -> Asked:
        """A question of the split; after many tries one of another, which is then left out."""
        asked = self.ask(kind, rng, num_others, taken)
        for _ in range(_TRIES):
            if split_of(_key(asked)) == split:
                break
            asked = self.ask(kind, rng, num_others, taken)
        return asked

    def _document(
        self, length: int, asked: Sequence[Asked], kinds: Sequence[str], depths: Sequence[float], split: Split, rng: random.Random
    ) -> str:
        facts = [(fact, None) for one in asked for fact in one.others]
        for one, kind, depth in zip(asked, kinds, depths, strict=True):
            at = None if kind in WHOLE else depth
            facts += [(fact, None if number else at) for number, fact in enumerate(one.needed)]
        sentences = self.fill(max(0, length - sum(self.measure(fact) for fact, _ in facts)), split, rng)
        places = [rng.randint(0, len(sentences)) if depth is None else round(depth * len(sentences)) for _, depth in facts]
        return insert(sentences, [fact for fact, _ in facts], places)


def _key(asked: Asked) -> list[Any]:
    """What makes it the same question."""
    return [sorted(asked.needed), asked.question]


def insert(sentences: Sequence[str], facts: Sequence[str], places: Sequence[int]) -> str:
    """The text with each fact before the sentence of its place (the number of sentences: at the end); equal places keep the order.

    `insert(["A.", "B."], ["x.", "y."], [2, 0])` is "y. A. B. x."
    """
    before: dict[int, list[str]] = {}
    for fact, place in zip(facts, places, strict=True):
        before.setdefault(place, []).append(fact)
    parts: list[str] = []
    for number in range(len(sentences) + 1):
        parts += before.get(number, ())
        parts += sentences[number : number + 1]
    return " ".join(parts)
