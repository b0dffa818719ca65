"""How verdicts on pairs become base scores, by hand; what is added for being short."""

import pytest

from cascade_rl.grade.judge.concise import length_adjustment, shortest_bonus
from cascade_rl.grade.judge.pairs import Comparison, agreement, base_scores, pair_scores, pair_up, silent_share
from cascade_rl.grade.judge.verdict import Verdict


def test_all_pairs_are_compared_once_each_answer_first_about_as_often_as_second() -> None:
    assert pair_up(3, "all", False) == [(0, 1), (2, 0), (1, 2)]
    pairs = pair_up(16, "all", False)
    assert len(pairs) == 120
    assert len({frozenset(pair) for pair in pairs}) == 120
    assert {sum(first == i for first, _ in pairs) for i in range(16)} <= {7, 8}


def test_in_both_orders_each_pair_comes_the_other_way_round_too() -> None:
    assert pair_up(3, "circular", True) == [(0, 1), (1, 0), (1, 2), (2, 1), (2, 0), (0, 2)]
    assert len(pair_up(16, "all", True)) == len(set(pair_up(16, "all", True))) == 240


def test_a_circle_of_two_is_one_pair_and_of_one_none() -> None:
    assert pair_up(2, "circular", False) == [(0, 1)]
    assert pair_up(1, "circular", True) == pair_up(1, "all", True) == pair_up(0, "circular", False) == []


def test_the_tie_rule_adds_what_the_ranking_is_from_its_middle() -> None:
    assert pair_scores(Verdict(4, 2, 6)) == (4, 2)  # no tie: the ranking is not asked
    assert pair_scores(Verdict(3, 3, 1)) == (5.5, 0.5)
    assert pair_scores(Verdict(3, 3, 4)) == (2.5, 3.5)


def test_base_scores_are_means_over_an_answers_verdicts() -> None:
    compared = [
        Comparison(0, 1, Verdict(4, 2, 2)),
        Comparison(2, 0, Verdict(3, 3, 2)),  # 2 gets 4.5, 0 gets 1.5
        Comparison(1, 2, "no line with a ranking"),
    ]
    assert base_scores(4, compared) == [(4 + 1.5) / 2, 2.0, 4.5, None]
    assert silent_share(4, compared) == [0.0, 0.5, 0.5, 0.0]


def test_a_missing_verdict_is_not_neutral() -> None:
    """As 3.0 and 3.5 it would pull both answers towards the middle."""
    compared = [Comparison(0, 1, Verdict(5, 1, 1)), Comparison(1, 0, "HTTP 500")]
    assert base_scores(2, compared) == [5.0, 1.0]


def test_equal_texts_get_the_same_whatever_the_judge_prefers() -> None:
    assert base_scores(2, [Comparison(0, 1, Verdict(5, 2, 1), same=True)]) == [3.5, 3.5]
    assert base_scores(2, [Comparison(0, 1, Verdict(4, 4, 1), same=True)]) == [4.0, 4.0]


def test_agreement_with_other_scores() -> None:
    judged, rule = [5.0, 3.0, 3.0, None], [1.0, 0.5, 1.0, 0.0]
    # 0 against 1: the same order. 0 against 2: the rule tells nothing. 1 against 2: left open by the judge, one half.
    assert agreement(judged, rule) == [1.0, 0.75, 0.5, None]
    assert agreement([1.0], [1.0]) == [None]


def test_the_length_adjustment_by_hand() -> None:
    # w = 1, 2/3, 0; their mean is 5/9
    assert length_adjustment([10, 20, 40]) == pytest.approx([0.5 * 4 / 9, 0.5 * 1 / 9, -0.5 * 5 / 9])
    assert sum(length_adjustment([3, 9, 4, 8])) == pytest.approx(0)
    assert length_adjustment([7, 7]) == [0.0, 0.0]
    assert length_adjustment([]) == []


def test_the_bonus_is_for_the_shortest_if_it_is_good_enough() -> None:
    # the 0.8 quantile of 1, 2, 3, 4, 5 is 4.2
    assert shortest_bonus([5, 9, 9, 9, 9], [5, 1, 2, 3, 4]) == [0.5, 0, 0, 0, 0]
    assert shortest_bonus([9, 9, 9, 9, 5], [5, 1, 2, 3, 4]) == [0.0] * 5
    assert shortest_bonus([5, 5, 9], [4, 4, 1]) == [0.5, 0.5, 0]
    assert shortest_bonus([5, 5], [4, 4]) == [0.0, 0.0]  # nobody is short


def test_constant_rewards_stay_constant_to_rounding() -> None:
    assert max(length_adjustment([7] * 7)) - min(length_adjustment([7] * 7)) == 0
