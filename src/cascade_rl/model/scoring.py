"""Log-probs of whole samples under a policy, without gradients: of the stage's start, of the policy before its first update."""

from collections.abc import Sequence

import numpy as np

from cascade_rl.algo.batch import pack
from cascade_rl.model.policy import Policy
from cascade_rl.records import Sample


def score_samples(policy: Policy, samples: Sequence[Sample], max_tokens: int, temperature: float = 1.0) -> list[np.ndarray]:
    """Float32 [T] for each sample, in order: the log-prob of every trained token at the temperature, 0 elsewhere."""
    told = [np.zeros(len(sample), dtype=np.float32) for sample in samples]
    scored = [i for i, sample in enumerate(samples) if sample.mask.any()]
    for batch in pack([samples[i] for i in scored], max_tokens, share=policy.packs):
        logp_N = policy.score(batch, temperature).float().cpu().numpy()
        members = [scored[place] for place in batch.order]
        ends = np.cumsum([samples[i].mask.sum() for i in members])
        for i, part in zip(members, np.split(logp_N, ends[:-1]), strict=True):
            told[i][samples[i].mask] = part
    return told
