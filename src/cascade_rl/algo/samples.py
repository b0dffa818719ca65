"""From graded groups to what trains: token ids, the mask of sampled tokens, and each rollout's advantage on all of them."""

from collections.abc import Callable, Sequence

import numpy as np

from cascade_rl.records import Group, Rollout, Sample, Turn


def rollout_samples(rollout: Rollout, advantage: float) -> list[Sample]:
    """One sample, or one more for every fork; each sampled token is trained in exactly one of them.

    A turn that is no fork extends the sequence before it, so the sample is the plain concatenation of contexts and answers. The
    stop token is a sampled token. A sample of a fork starts with the fork's whole context, which is not trained again.
    """
    sequences: list[list[Turn]] = []
    for turn in rollout.turns:
        if turn.fork or not sequences:
            sequences.append([])
        sequences[-1].append(turn)
    return [_sample(turns, rollout, advantage) for turns in sequences]


def _sample(turns: Sequence[Turn], rollout: Rollout, advantage: float) -> Sample:
    token_ids, mask, logps = [], [], []
    for turn in turns:
        token_ids += [*turn.context_ids, *turn.answer_ids]
        mask += [False] * len(turn.context_ids) + [True] * len(turn.answer_ids)
        logps += [0.0] * len(turn.context_ids) + list(turn.logps)
    mask_T = np.array(mask, dtype=bool)
    return Sample(
        token_ids=np.array(token_ids, dtype=np.int32),
        mask=mask_T,
        logp_sampler=np.array(logps, dtype=np.float32),
        advantage=np.where(mask_T, advantage, 0.0).astype(np.float32),
        domain=rollout.prompt.domain,
        source=f"{rollout.prompt.id}#{rollout.index}",
    )


def to_samples(groups: Sequence[Group], advantages: Callable[[Sequence[float | None]], Sequence[float | None]]) -> list[Sample]:
    """The samples of all groups; a rollout whose advantage is None (unscored, or in a group without signal) gives none."""
    samples = []
    for group in groups:
        told = advantages([reward.value for reward in group.rewards])
        for rollout, advantage in zip(group.rollouts, told, strict=True):
            if advantage is not None:
                samples += rollout_samples(rollout, advantage)
    return samples
