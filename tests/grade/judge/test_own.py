"""Which two of a policy's answers make a pair, by hand."""

import random

import pytest

from cascade_rl.grade.judge.own import Scored, different, equal, score_of, unequal

A, B, C = Scored("a", 5), Scored("b", 1), Scored("c", 3)


@pytest.mark.parametrize(
    "value, score", [(0.0, 1), (0.25, 2), (0.5, 3), (0.75, 4), (1.0, 5), (-3.0, 1), (2.0, 5), (0.12, 1), (0.13, 2)]
)
def test_a_reward_as_a_score(value: float, score: int) -> None:
    assert score_of(value, 0.0, 1.0) == score
    assert score_of(1 + 4 * value, 1.0, 5.0) == score


def test_repetitions_and_empty_answers_make_no_pair() -> None:
    assert different([A, Scored("", 1), B, Scored("a", 5, of="other")]) == [A, B]
    assert unequal([A, Scored("a", 1)], 9, random.Random(0)) == []
    assert unequal([A, Scored("", 1)], 9, random.Random(0)) == []


def test_the_better_one_comes_first() -> None:
    for order in ([A, B, C], [B, C, A], [C, B, A]):
        assert set(unequal(order, 9, random.Random(1))) == {(A, B), (A, C), (C, B)}


def test_of_many_pairs_those_of_unused_answers_come_first() -> None:
    right, wrong = [Scored(f"r{i}", 5) for i in range(3)], [Scored(f"w{i}", 1) for i in range(3)]
    for seed in range(20):
        chosen = unequal(right + wrong, 3, random.Random(seed))
        assert len({answer for pair in chosen for answer in pair}) == 6


def test_equals_are_of_one_score_and_different_words() -> None:
    assert equal([A, B, C], random.Random(0)) is None
    assert equal([A, Scored("a", 5)], random.Random(0)) is None
    assert equal([A, B, Scored("d", 1)], random.Random(0)) == (B, Scored("d", 1))
