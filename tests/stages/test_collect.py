"""What a step collects, by hand: overlong answers, shaping, and the figures that are logged."""

import pytest

from cascade_rl.records import Group, Message, Prompt, Reward, Rollout, Turn
from cascade_rl.stages.collect import overlong, soft_overlong, tally

PROMPT = Prompt("t/train/0", "t", "toy", "train", (Message("user", "?"),))


def group(*rewards: float | None, lengths: tuple[int, ...] = (), cut: tuple[int, ...] = ()) -> Group:
    rollouts = tuple(
        Rollout(
            PROMPT, (Turn((1,), (5,) * length, (-1.0,) * length, "length" if i in cut else "stop"),), (Message("assistant", "x"),),
            finish="length" if i in cut else "stop", index=i,
        )
        for i, length in enumerate(lengths or (3,) * len(rewards))
    )  # fmt: skip
    return Group(PROMPT, rollouts, tuple(Reward(r, why="?" if r is None else "") for r in rewards))


def values(told: Group) -> list[float | None]:
    return [reward.value for reward in told.rewards]


def test_overlong_rollouts_get_zero_or_are_masked() -> None:
    told = group(1.0, 1.0, None, cut=(1, 2))
    assert values(overlong(told, "zero")) == [1.0, 0.0, None]  # unscored stays unscored
    assert values(overlong(told, "mask")) == [1.0, None, None]


def test_soft_overlong_shaping_by_hand() -> None:
    told = group(1.0, 1.0, 1.0, None, lengths=(6, 8, 10, 10))
    assert values(soft_overlong(told, max_new_tokens=10, soft_tokens=4)) == [1.0, 0.5, 0.0, None]
    assert values(soft_overlong(told, max_new_tokens=10, soft_tokens=0)) == [1.0, 1.0, 1.0, None]


def test_figures_by_hand() -> None:
    told = tally([group(1.0, 1.0, cut=(0,)), group(0.0, 0.0), group(1.0, None)])
    assert told["reward"] == pytest.approx(3 / 5)
    assert (told["solve_all"], told["solve_none"]) == pytest.approx((2 / 3, 1 / 3))
    assert (told["unscored"], told["truncated"], told["mean_tokens"], told["entropy"]) == pytest.approx((1 / 6, 1 / 6, 3.0, 1.0))
