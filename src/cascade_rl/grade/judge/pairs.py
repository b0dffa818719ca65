"""From verdicts on pairs to one base score for each answer: which pairs are judged, and how their verdicts add up."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations

from cascade_rl.grade.judge.verdict import NEUTRAL, Verdict


@dataclass(frozen=True, slots=True)
class Comparison:
    """Answers `first` and `second` of a group as they were shown, and the verdict, or the reason why there is none.

    same: whether both say the same. Then a preference is the judge's whim: both get the mean of its scores.
    """

    first: int
    second: int
    verdict: Verdict | str
    same: bool = False


def pair_up(num: int, pairs: str, both_orders: bool) -> list[tuple[int, int]]:
    """The (first, second) places of a group of `num` answers that are compared.

    pairs: "all", num (num - 1) / 2 of them, or "circular", each answer with the next. both_orders: each pair also the other way
    round; without it the order alternates, so that each answer is shown first about as often as second.
    """
    if pairs == "circular" and num > 2:
        chosen = [(i, (i + 1) % num) for i in range(num)]  # each is first once and second once
    else:
        chosen = [(i, j) if (i + j) % 2 else (j, i) for i, j in combinations(range(num), 2)]
    return [order for i, j in chosen for order in ([(i, j), (j, i)] if both_orders else [(i, j)])]


def pair_scores(verdict: Verdict) -> tuple[float, float]:
    """What a verdict is worth to the first and to the second answer.

    Their helpfulness; on a tie 3.5 - ranking is added to the first and taken from the second (arXiv 2603.19220 on RLHF), so a
    ranking of 1 parts equals by five points.
    """
    lean = NEUTRAL - verdict.ranking if verdict.first == verdict.second else 0.0
    return verdict.first + lean, verdict.second - lean


def base_scores(num: int, comparisons: Sequence[Comparison]) -> list[float | None]:
    """The mean of what each answer's verdicts are worth to it; None where not one of its comparisons has a verdict."""
    worth: list[list[float]] = [[] for _ in range(num)]
    for comparison in comparisons:
        if isinstance(comparison.verdict, Verdict):
            told = pair_scores(comparison.verdict)
            told = (sum(told) / 2,) * 2 if comparison.same else told
            worth[comparison.first].append(told[0])
            worth[comparison.second].append(told[1])
    return [sum(values) / len(values) if values else None for values in worth]


def silent_share(num: int, comparisons: Sequence[Comparison]) -> list[float]:
    """For each answer the share of its comparisons that have no verdict (0 for an answer without comparisons)."""
    asked, silent = [0] * num, [0] * num
    for comparison in comparisons:
        for place in (comparison.first, comparison.second):
            asked[place] += 1
            silent[place] += isinstance(comparison.verdict, str)
    return [missing / total if total else 0.0 for missing, total in zip(silent, asked, strict=True)]


def agreement(scores: Sequence[float | None], others: Sequence[float | None]) -> list[float | None]:
    """For each answer: among the answers that `others` tells apart from it, the share that `scores` orders the same way.

    An order that `scores` leaves open counts one half. None where there is nothing to compare with.
    """
    shares: list[float | None] = []
    for i, (score, other) in enumerate(zip(scores, others, strict=True)):
        told = [
            0.5 if score == scores[j] else float((score > scores[j]) == (other > others[j]))  # type: ignore[operator]
            for j in range(len(scores))
            if j != i and None not in (score, other, scores[j], others[j]) and other != others[j]
        ]
        shares.append(sum(told) / len(told) if told else None)
    return shares
