"""What a judge's words mean, by hand: every number that is missing, out of range or told twice is no verdict."""

import pytest

from cascade_rl.grade.judge.labelled import agree, grade_point, grade_verdict
from cascade_rl.grade.judge.verdict import (
    Label,
    Verdict,
    demonstration,
    distance,
    parse_pair,
    parse_point,
    ranking_of,
    write_pair,
    write_point,
)

GOOD = "Score 1: 4\nScore 2: 2\nRanking: 2"


@pytest.mark.parametrize(
    "text",
    [
        GOOD,
        "Both are fine.\n\n" + GOOD + "\n",
        "**Score 1:** 4\n**Score 2:** 2\n**Ranking:** 2",
        "score 1 = 4/5\nscore 2 = 2/5\nranking = 2 / 6",
        "- Score_1: 4.\n- Score_2: 2.\n- Ranking: 2.",
    ],
)
def test_a_verdict_is_read(text: str) -> None:
    assert parse_pair(text) == Verdict(4, 2, 2)


@pytest.mark.parametrize(
    "text, why",
    [
        ("", "no line with a score 1"),
        ("Score 1: 4\nScore 2: 2", "no line with a ranking"),
        (GOOD.replace("4", "6"), "score 1 6 is not in 1 to 5"),
        (GOOD.replace("Ranking: 2", "Ranking: 0"), "ranking 0 is not in 1 to 6"),
        (GOOD.replace("4", "4.5"), "no line with a score 1"),
        (GOOD.replace("4", "9" * 5000), "score 2"),  # its line is longer than what is read
        (GOOD.replace("4", "four"), "no line with a score 1"),
        (GOOD + "\n" + GOOD, "2 lines with a score 1"),
        ("I would say Score 1: 4 and Score 2: 2, Ranking: 2", "no line with a score 1"),
        ("Score 1: A\nScore 2: B\nRanking: C", "no line with a score 1"),
    ],
)
def test_what_is_no_verdict_says_why(text: str, why: str) -> None:
    told = parse_pair(text)
    assert isinstance(told, str)
    assert why in told or "no line" in told


def test_a_single_score() -> None:
    assert parse_point("It is short.\nScore: 3") == 3
    assert parse_point("Score: 0") == "score 0 is not in 1 to 5"
    assert parse_point("Score 1: 3") == "no line with a score"


def test_writing_is_reading_backwards() -> None:
    for verdict in (Verdict(1, 5, 6), Verdict(3, 3, 4), Verdict(5, 1, 1)):
        assert parse_pair(write_pair(verdict)) == verdict


def test_a_preference_is_by_scores_and_on_a_tie_by_the_ranking() -> None:
    assert Verdict(4, 2, 6).preference == 2
    assert Verdict(3, 3, 3).preference == 0.5
    assert Verdict(3, 3, 6).preference == -2.5
    assert [ranking_of(5, s) for s in (1, 2, 3, 4)] == [1, 1, 2, 3]
    assert [ranking_of(s, 5) for s in (1, 2, 3, 4)] == [6, 6, 5, 4]


def test_the_papers_distance_by_hand() -> None:
    label = Label(4, 2, 2.0)
    assert distance(Verdict(4, 2, 2), label) == 0
    assert distance(Verdict(3, 5, 4), label) == 1 + 3 + 2
    assert distance(Verdict(3, 5, 4), label, ranking_weight=0.5) == 1 + 3 + 1
    assert distance(None, label) == 3 + 3 + 4  # 4 against 1, 2 against 5, 2 against 6
    assert distance(Verdict(1, 1, 5), Label(None, None, 2.0)) == 3


def test_on_a_tie_both_middle_rankings_are_right() -> None:
    tie = Label(3, 3, 3.5)
    assert distance(Verdict(3, 3, 3), tie) == distance(Verdict(3, 3, 4), tie) == 0
    assert distance(Verdict(3, 3, 5), tie) == 1
    assert agree(Verdict(2, 2, 3), tie) == 1.0
    assert agree(Verdict(3, 2, 3), tie) == 0.0


@pytest.mark.parametrize(
    "label, verdict",
    [
        (Label(5, 2, 1.0), Verdict(5, 2, 1)),
        (Label(5, 2, None), Verdict(5, 2, 1)),
        (Label(2, 2, 3.5), Verdict(2, 2, 3)),
        (Label(None, None, 3.5), Verdict(3, 3, 3)),
        *((Label(None, None, float(ranking)), Verdict(*scores, ranking))
          for ranking, scores in ((1, (5, 2)), (2, (4, 2)), (3, (4, 3)), (4, (3, 4)), (5, (2, 4)), (6, (2, 5)))),
    ],
)  # fmt: skip
def test_a_demonstration_is_its_label_and_gets_full_marks(label: Label, verdict: Verdict) -> None:
    assert demonstration(label) == verdict
    assert ranking_of(verdict.first, verdict.second) == verdict.ranking or verdict.first == verdict.second
    if label.ranking is not None:
        assert reward(write_pair(verdict), label).value == 1.0


def reward(text: str, label: Label, agreement: bool = False):  # type: ignore[no-untyped-def]
    return grade_verdict(text, label, agreement=agreement, format_weight=10, ranking_weight=1)


def test_the_reward_is_one_for_the_label_itself_and_zero_for_no_verdict() -> None:
    label = Label(4, 2, 2.0)
    assert reward(GOOD, label).value == 1.0
    assert reward("Score 1: 3\nScore 2: 5\nRanking: 4", label).value == pytest.approx(1 - 6 / 20)  # C1 = 10 and 10 at worst
    broken = reward("it is fine", label)
    assert broken.value == 0.0
    assert broken.parts == {"parsed": 0.0}


def test_the_worst_verdict_is_better_than_none() -> None:
    label = Label(5, 1, 1.0)
    worst = reward("Score 1: 1\nScore 2: 5\nRanking: 6", label).value
    assert worst == pytest.approx(1 - 13 / 23)
    assert worst > 0.0


def test_the_reward_of_a_single_score() -> None:
    def value(text: str, agreement: bool = False) -> float | None:
        return grade_point(text, 4, agreement=agreement, format_weight=10).value

    assert value("Score: 4") == value("Score: 4", agreement=True) == 1.0
    assert value("Score: 2") == pytest.approx(1 - 2 / 13)  # C1 = 10 and 3 at worst
    assert value("Score: 2", agreement=True) == value("it is fine") == 0.0
    assert grade_point("Score: 2", 4, agreement=False, format_weight=10).parts == {
        "parsed": 1.0,
        "exact": 0.0,
        "score_error": 2.0,
    }
    assert parse_point(write_point(3)) == 3


def test_parts_tell_position_and_calibration() -> None:
    told = reward("Score 1: 2\nScore 2: 4\nRanking: 5", Label(3, 1, 2.0), agreement=True)
    assert told.value == 0.0
    assert told.parts == {
        "parsed": 1.0, "agreement": 0.0, "prefers_first": 0.0, "agreement_first": 0.0, "agreement_sure": 0.0,
        "score_error": 2.0, "ranking_error": 3.0,
    }  # fmt: skip
    right = reward("Score 1: 1\nScore 2: 5\nRanking: 6", Label(None, None, 5.0), agreement=True)
    assert right.value == 1.0
    assert {"agreement_second", "agreement_certain"} <= right.parts.keys()
    assert "score_error" not in right.parts
