"""Log-probs of whole samples under a policy, without gradients: of the stage's start, of the policy before its first update."""

from collections.abc import Sequence

import numpy as np

from cascade_rl.algo.batch import join
from cascade_rl.model.policy import Policy
from cascade_rl.records import Sample


def score_samples(policy: Policy, samples: Sequence[Sample], max_tokens: int, temperature: float = 1.0) -> list[np.ndarray]:
    """Float32 [T] for each sample, in order: the log-prob of every trained token at the temperature, 0 elsewhere."""
    told = [np.zeros(len(sample), dtype=np.float32) for sample in samples]
    order = sorted((i for i, sample in enumerate(samples) if sample.mask.any()), key=lambda i: -len(samples[i]))
    while order:
        room, members = max_tokens, []
        while order and (not members or len(samples[order[0]]) <= room):
            room -= len(samples[order[0]])
            members.append(order.pop(0))
        logps = policy.score(join([samples[i] for i in members]), temperature).float().cpu().numpy()
        for i, part in zip(members, np.split(logps, np.cumsum([samples[m].mask.sum() for m in members])[:-1]), strict=True):
            told[i][samples[i].mask] = part
    return told
