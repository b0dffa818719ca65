"""Advantages: how much better than its group a rollout was. Plain functions of one group's rewards, in float64.

A reward may be None (unscored): it is left out of the group's statistics and gets no advantage. A group teaches nothing when
fewer than two rollouts are scored, or when all scores are equal up to rounding; then every advantage is None. None means "does not
train"; an advantage of 0.0 trains and adds nothing but its tokens to the count.
"""

import math
from collections.abc import Callable, Mapping, Sequence

MIN_SPREAD = 1e-6  # seven times 0.1 in float32 has a spread of 8e-9, and must count as equal

Advantages = list[float | None]


def has_signal(rewards: Sequence[float | None]) -> bool:
    """At least two scored rewards, and max - min of them above rounding."""
    scored = [float(reward) for reward in rewards if reward is not None]
    return len(scored) >= 2 and max(scored) - min(scored) > MIN_SPREAD


def group_normalised(rewards: Sequence[float | None]) -> Advantages:
    """(r - mean) / std over the group, std of the population: GRPO (arXiv 2402.03300), Eq. 1 of arXiv 2603.19220.

    Rewards 1, 0, 0, 1 give 1, -1, -1, 1.
    """
    return _over_group(rewards, lambda reward, scored, mean, std: (reward - mean) / std)


def mean_centred(rewards: Sequence[float | None]) -> Advantages:
    """r - mean: no division by the std, so that easy and hard prompts are not weighed up (Dr. GRPO, arXiv 2503.20783).

    Rewards 1, 0, 0, 0 give 0.75, -0.25, -0.25, -0.25.
    """
    return _over_group(rewards, lambda reward, scored, mean, std: reward - mean)


def leave_one_out(rewards: Sequence[float | None]) -> Advantages:
    """r minus the mean of the *other* rewards: an unbiased baseline (RLOO, arXiv 2402.14740). Rewards 1, 0, 0 give 1, -0.5, -0.5."""
    return _over_group(rewards, lambda reward, scored, mean, std: (reward - mean) * len(scored) / (len(scored) - 1))


def _over_group(
    rewards: Sequence[float | None], advantage: Callable[[float, Sequence[float], float, float], float]
) -> Advantages:
    if not has_signal(rewards):
        return [None] * len(rewards)
    scored = [float(reward) for reward in rewards if reward is not None]
    mean = math.fsum(scored) / len(scored)
    std = math.sqrt(math.fsum((reward - mean) ** 2 for reward in scored) / len(scored))
    return [None if reward is None else advantage(float(reward), scored, mean, std) for reward in rewards]


ADVANTAGES: Mapping[str, Callable[[Sequence[float | None]], Advantages]] = {
    "group_normalised": group_normalised,
    "mean_centred": mean_centred,
    "leave_one_out": leave_one_out,
}
