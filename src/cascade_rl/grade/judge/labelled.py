"""A verdict compared with a label: the reward that trains a judge, and what says how far to trust it."""

from cascade_rl.grade.judge.verdict import NEUTRAL, SCORES, Label, Verdict, distance, parse_pair, parse_point
from cascade_rl.records import Reward

SURENESS = {0.5: "unsure", 1.5: "sure", 2.5: "certain"}  # by the distance of the ranking from its middle


def grade_verdict(text: str, label: Label, *, agreement: bool, format_weight: float, ranking_weight: float) -> Reward:
    """The reward of a judge's answer against a label, with parts that say where it is right.

    agreement=False: the paper's -C1 I_format - |P_h1 - G_h1| - |P_h2 - G_h2| - C2 |P_r - G_r|, moved and shrunk to [0, 1]: the label
    itself gets 1, an answer that is no verdict 0. Advantages that are normalised in a group do not feel the change of scale.
    agreement=True: 1 where the verdict prefers what the label prefers (on a tie: where it gives equal scores), else 0.

    Parts: parsed; of what could be parsed: agreement, the same as agreement_first and agreement_second by which answer the label
    prefers, prefers_first (its mean over pairs in both orders is 0.5 without a bias of position), agreement_unsure, _sure and _certain
    by how far its ranking went (calibration), score_error and ranking_error.
    """
    verdict = parse_pair(text)
    if isinstance(verdict, str):
        return Reward(0.0, {"parsed": 0.0}, verdict)
    agrees = agree(verdict, label)
    worst = format_weight + distance(None, label, ranking_weight)
    value = agrees if agreement else 1 - distance(verdict, label, ranking_weight) / worst
    told = f"scores {verdict.first} and {verdict.second}, ranking {verdict.ranking}"
    wanted = f"the label says {_or_dash(label.first)} and {_or_dash(label.second)}, ranking {_or_dash(label.ranking)}"
    return Reward(value, _parts(verdict, label, agrees), f"{told}; {wanted}")


def grade_point(text: str, score: int, *, agreement: bool, format_weight: float) -> Reward:
    """The same for a judge that scores one answer: -C1 I_format - |s - S|, moved and shrunk to [0, 1]; or 1 where the score is the label's.

    Parts: parsed, and of what could be parsed exact and score_error.
    """
    told = parse_point(text)
    if isinstance(told, str):
        return Reward(0.0, {"parsed": 0.0}, told)
    error, exact = abs(told - score), float(told == score)
    worst = format_weight + max(abs(value - score) for value in SCORES)
    parts = {"parsed": 1.0, "exact": exact, "score_error": float(error)}
    return Reward(exact if agreement else 1 - error / worst, parts, f"score {told}; the label says {score}")


def agree(verdict: Verdict, label: Label) -> float:
    """1 or 0: whether both prefer the same answer; a tie is agreed with by equal scores."""
    if not label.preference:
        return float(verdict.first == verdict.second)
    return float((verdict.preference > 0) == (label.preference > 0))


def _parts(verdict: Verdict, label: Label, agrees: float) -> dict[str, float]:
    parts = {"parsed": 1.0, "agreement": agrees, "prefers_first": float(verdict.preference > 0)}
    if label.preference:
        parts["agreement_first" if label.preference > 0 else "agreement_second"] = agrees
        parts[f"agreement_{SURENESS[abs(verdict.ranking - NEUTRAL)]}"] = agrees
    if label.first is not None and label.second is not None:
        parts["score_error"] = (abs(verdict.first - label.first) + abs(verdict.second - label.second)) / 2
    if label.ranking is not None:
        parts["ranking_error"] = abs(verdict.ranking - label.ranking)
    return parts


def _or_dash(value: float | None) -> str:
    return "–" if value is None else f"{value:g}"
