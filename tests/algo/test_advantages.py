"""Advantages by hand, and the groups that must teach nothing."""

import numpy as np
import pytest

from cascade_rl.algo.advantages import ADVANTAGES, group_normalised, has_signal, leave_one_out, mean_centred


def test_by_hand() -> None:
    assert group_normalised([1.0, 0.0, 0.0, 1.0]) == [1.0, -1.0, -1.0, 1.0]
    assert group_normalised([3.0, 1.0, 2.0]) == pytest.approx([1.5**0.5, -(1.5**0.5), 0.0])
    assert mean_centred([1.0, 0.0, 0.0, 0.0]) == [0.75, -0.25, -0.25, -0.25]
    assert leave_one_out([1.0, 0.0, 0.0]) == pytest.approx([1.0, -0.5, -0.5])


@pytest.mark.parametrize("kind", ADVANTAGES)
def test_unscored_is_left_out_of_the_statistics_and_is_never_zero(kind: str) -> None:
    with_none = ADVANTAGES[kind]([1.0, None, 0.0, 0.0])
    assert with_none[1] is None
    assert [a for a in with_none if a is not None] == ADVANTAGES[kind]([1.0, 0.0, 0.0])
    assert with_none != ADVANTAGES[kind]([1.0, 0.0, 0.0, 0.0])


@pytest.mark.parametrize("kind", ADVANTAGES)
@pytest.mark.parametrize(
    "rewards",
    [[], [1.0], [None, None], [1.0, None], [0.0] * 4, [float(np.float32(0.1))] * 7, [0.1, 0.1 + 1e-9, 0.1], [1.0, 1.0 + 1e-7]],
)
def test_groups_without_signal_train_nothing(kind: str, rewards: list[float | None]) -> None:
    assert not has_signal(rewards)
    assert ADVANTAGES[kind](rewards) == [None] * len(rewards)


def test_a_score_of_zero_is_a_score() -> None:
    assert has_signal([0.0, 1.0])
    assert group_normalised([0.0, 1.0]) == [-1.0, 1.0]


@pytest.mark.parametrize("kind", ADVANTAGES)
def test_advantages_sum_to_zero_and_ignore_a_shift(kind: str) -> None:
    rewards = [0.2, 0.9, 0.4, 0.4, 1.0]
    told = ADVANTAGES[kind](rewards)
    assert sum(a for a in told if a is not None) == pytest.approx(0.0, abs=1e-12)
    assert ADVANTAGES[kind]([r + 5 for r in rewards]) == pytest.approx(told)
