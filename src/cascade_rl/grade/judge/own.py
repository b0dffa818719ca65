"""Pairs of a policy's own answers: which two are worth comparing, and what their verdicts are worth as scores from 1 to 5."""

import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations

from cascade_rl.grade.judge.verdict import SCORES


@dataclass(frozen=True, slots=True)
class Scored:
    """An answer and how helpful its task's grader finds it: `Scored("Hi Mia! ...", 5, of="mopd", why="all rules kept")`.

    of: the stage whose checkpoint said it.
    """

    text: str
    score: int
    of: str = ""
    why: str = ""


Pair = tuple[Scored, Scored]  # the better one first; of equals either


def score_of(value: float, worst: float, best: float) -> int:
    """A reward as a score from 1 (`worst` or below) to 5 (`best` or above): `score_of(0.75, 0.0, 1.0)` is 4."""
    share = min(1.0, max(0.0, (value - worst) / (best - worst)))
    return SCORES.start + round(share * (len(SCORES) - 1))


def different(answers: Sequence[Scored]) -> list[Scored]:
    """The answers without repetitions and without empty ones, which no judge is shown."""
    found: dict[str, Scored] = {}
    for answer in answers:
        found.setdefault(answer.text, answer)
    found.pop("", None)
    return list(found.values())


def unequal(answers: Sequence[Scored], most: int, rng: random.Random) -> list[Pair]:
    """At most so many pairs of different scores, the better answer first; those that were used least come first."""
    pairs = [(a, b) if a.score > b.score else (b, a) for a, b in combinations(different(answers), 2) if a.score != b.score]
    rng.shuffle(pairs)
    chosen: list[Pair] = []
    used: Counter[str] = Counter()
    while pairs and len(chosen) < most:
        pair = min(pairs, key=lambda pair: used[pair[0].text] + used[pair[1].text])
        pairs.remove(pair)
        chosen.append(pair)
        used.update(answer.text for answer in pair)
    return chosen


def equal(answers: Sequence[Scored], rng: random.Random) -> Pair | None:
    """Two different answers of the same score, where there are any."""
    pairs = [pair for pair in combinations(different(answers), 2) if pair[0].score == pair[1].score]
    return rng.choice(pairs) if pairs else None
