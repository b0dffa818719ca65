"""What the records refuse, so that no faulty one travels."""

import math

import numpy as np
import pytest

from cascade_rl.records import Group, Message, Prompt, Reward, Rollout, Sample, Turn

PROMPT = Prompt("t/train/0", "t", "toy", "train", (Message("user", "?"),))
ROLLOUT = Rollout(PROMPT, (Turn((1,), (2,), (-1.0,), "stop"),), (Message("assistant", "x"),), "stop")


@pytest.mark.parametrize("num", [1, 2, 4])
def test_a_group_has_one_reward_for_each_rollout(num: int) -> None:
    """One score for three rollouts is an error that names the task, never spread over them (invariant 9)."""
    with pytest.raises(ValueError, match=rf'task "t": grader gave {num} rewards for 3 rollouts of prompt t/train/0'):
        Group(PROMPT, (ROLLOUT,) * 3, (Reward(1.0),) * num)
    assert len(Group(PROMPT, (ROLLOUT,) * 3, (Reward(1.0),) * 3).rewards) == 3


def test_a_reward_is_finite_or_says_why_there_is_none() -> None:
    assert Reward(0.0).value == 0.0
    for value in (math.nan, math.inf):
        with pytest.raises(ValueError, match="must be finite"):
            Reward(value)
    with pytest.raises(ValueError, match="needs a reason"):
        Reward(None)


def test_log_probs_and_masks_fit_their_tokens() -> None:
    with pytest.raises(AssertionError, match="one log-prob per sampled token"):
        Turn((1,), (2, 3), (-1.0,), "stop")
    with pytest.raises(AssertionError, match="nothing predicts the first token"):
        Sample(np.array([1, 2], np.int32), np.array([True, True]))
