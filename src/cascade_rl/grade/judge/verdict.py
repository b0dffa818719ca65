"""What a judge's words mean: helpfulness scores from 1 to 5 and a ranking from 1 to 6, or no verdict with the reason.

The last lines of an answer are the verdict. A number that is missing, out of range or told twice is no verdict; it is never replaced by
a neutral one.
"""

import re
from dataclasses import dataclass

SCORES = range(1, 6)
RANKINGS = range(1, 7)
NEUTRAL = 3.5  # the middle of the ranking
_NUMBER = r"[\s*_`]*[:=][\s*_`]*([0-9]+)(?:[ ]?/[ ]?[56])?[\s*_`.]*"
_START = r"(?im)^[\s*_`#>-]*"
_LINES = {
    "score 1": re.compile(_START + r"score[ _]1" + _NUMBER + "$"),
    "score 2": re.compile(_START + r"score[ _]2" + _NUMBER + "$"),
    "ranking": re.compile(_START + r"ranking" + _NUMBER + "$"),
    "score": re.compile(_START + r"score" + _NUMBER + "$"),
}


@dataclass(frozen=True, slots=True)
class Verdict:
    """`Verdict(4, 2, 2)`: the first answer has helpfulness 4, the second 2, and the first is better."""

    first: int
    second: int
    ranking: int

    @property
    def preference(self) -> float:
        """Above 0 where the first answer is preferred, below 0 where the second is: by the scores, on a tie by the ranking."""
        return float(self.first - self.second) or NEUTRAL - self.ranking


def parse_pair(text: str) -> Verdict | str:
    """The verdict on a pair, or why there is none: `parse_pair("Score 1: 4\\nScore 2: 2\\nRanking: 2")` is Verdict(4, 2, 2)."""
    told = []
    for name, known in (("score 1", SCORES), ("score 2", SCORES), ("ranking", RANKINGS)):
        value = _read(text, name, known)
        if isinstance(value, str):
            return value
        told.append(value)
    return Verdict(*told)


def parse_point(text: str) -> int | str:
    """The score of a single answer, or why there is none: `parse_point("Score: 4")` is 4."""
    return _read(text, "score", SCORES)


def _read(text: str, name: str, known: range) -> int | str:
    found = _LINES[name].findall(text[-2_000:])  # a verdict stands at the end; what is longer is not read
    if len(found) != 1:
        return f"{len(found) or 'no'} lines with a {name}" if found else f"no line with a {name}"
    value = int(found[0]) if len(found[0]) < 3 else -1
    return value if value in known else f"{name} {found[0][:8]} is not in {known.start} to {known.stop - 1}"


def write_pair(verdict: Verdict) -> str:
    """The text that `parse_pair` reads."""
    return f"Score 1: {verdict.first}\nScore 2: {verdict.second}\nRanking: {verdict.ranking}"


def write_point(score: int) -> str:
    """The text that `parse_point` reads."""
    return f"Score: {score}"


def ranking_of(first: float, second: float) -> int:
    """The ranking that two different scores come to: a lead of 1 is a little better, of 2 better, of 3 or more far better."""
    lead = min(3, max(1, round(abs(first - second))))
    return 4 - lead if first > second else 3 + lead


@dataclass(frozen=True, slots=True)
class Label:
    """What people (or a rule) said of a pair; None where only the ranking, or only the scores, are known.

    A ranking of 3.5 is a tie: 3 and 4 are equally right then.
    """

    first: int | None
    second: int | None
    ranking: float | None

    @property
    def preference(self) -> float:
        """As `Verdict.preference`; 0 for a tie."""
        if self.first is not None and self.second is not None and self.first != self.second:
            return float(self.first - self.second)
        return NEUTRAL - self.ranking if self.ranking is not None else 0.0


def demonstration(label: Label) -> Verdict:
    """A verdict that is as the label says, for a judge to imitate: `demonstration(Label(None, None, 2.0))` is Verdict(4, 2, 2).

    Where scores are not known, they are in the middle of the scale and as far apart as the ranking says. A tie is ranked 3, always: in a
    circle of comparisons each answer is shown first once, so that this costs nobody anything, while a ranking of 3 or 4 by whim
    would be worth half a point to one of two equals.
    """
    if label.ranking == NEUTRAL or (label.ranking is None and not label.preference):
        score = label.first if label.first is not None else 3
        return Verdict(score, label.second if label.second is not None else score, 3)
    first, second = label.first, label.second
    if first is None or second is None:
        assert label.ranking is not None, "a label has scores or a ranking"
        lead = round(abs(NEUTRAL - label.ranking) + 0.5)  # 1, 2 or 3
        better, worse = 3 + (lead + 1) // 2, 3 - lead // 2
        first, second = (better, worse) if label.ranking < NEUTRAL else (worse, better)
    return Verdict(first, second, ranking_of(first, second) if label.ranking is None else round(label.ranking))


def distance(verdict: Verdict | None, label: Label, ranking_weight: float = 1.0) -> float:
    """|P_h1 - G_h1| + |P_h2 - G_h2| + C2 |P_r - G_r| over what the label has (arXiv 2603.19220 on RLHF, after HelpSteer3).

    None, a verdict that could not be read, is as far off as a verdict can be: otherwise silence would be better than a bad guess.
    """
    total = 0.0
    for said, wanted, known, weight in (
        (None if verdict is None else verdict.first, label.first, SCORES, 1.0),
        (None if verdict is None else verdict.second, label.second, SCORES, 1.0),
        (None if verdict is None else verdict.ranking, label.ranking, RANKINGS, ranking_weight),
    ):
        if wanted is None:
            continue
        free = 0.5 if wanted == NEUTRAL else 0.0
        worst = max(abs(value - wanted) for value in known)
        total += weight * ((worst if said is None else abs(said - wanted)) - free)
    return total
