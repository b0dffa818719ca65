"""What a model says of whole samples, without gradients: of the stage's start, of a teacher, of the policy before its first update."""

from collections.abc import Callable, Sequence

import numpy as np
from torch import Tensor

from cascade_rl.algo.batch import Batch, pack
from cascade_rl.model.policy import Policy
from cascade_rl.records import Sample


def score_samples(policy: Policy, samples: Sequence[Sample], max_tokens: int, temperature: float = 1.0) -> list[np.ndarray]:
    """Float32 [T] for each sample, in order: the log-prob of every trained token at the temperature, 0 elsewhere."""
    answers = _ask(policy, samples, max_tokens, lambda batch: (policy.score(batch, temperature),))
    return [_spread(answer[0], sample) if answer else _nothing(sample) for answer, sample in zip(answers, samples, strict=True)]


def hidden_and_scores(
    policy: Policy, samples: Sequence[Sample], max_tokens: int, temperature: float = 1.0
) -> list[tuple[np.ndarray | None, np.ndarray]]:
    """For each sample the last hidden states float32 [N, D] that predict its N trained tokens (None: it has none), and the log-probs
    [T] as above."""
    answers = _ask(policy, samples, max_tokens, lambda batch: policy.hidden_and_logps(batch, temperature))
    return [
        (answer[0], _spread(answer[1], sample)) if answer else (None, _nothing(sample))
        for answer, sample in zip(answers, samples, strict=True)
    ]


def _ask(
    policy: Policy, samples: Sequence[Sample], max_tokens: int, question: Callable[[Batch], tuple[Tensor, ...]]
) -> list[list[np.ndarray]]:
    """For each sample, the rows of the answer's tensors that belong to its trained tokens; [] for a sample that has none."""
    told: list[list[np.ndarray]] = [[] for _ in samples]
    scored = [i for i, sample in enumerate(samples) if sample.mask.any()]
    for batch in pack([samples[i] for i in scored], max_tokens, share=policy.packs):
        members = [scored[place] for place in batch.order]
        ends = np.cumsum([samples[i].mask.sum() for i in members])[:-1]
        for tensor in question(batch):
            for i, rows in zip(members, np.split(tensor.float().cpu().numpy(), ends), strict=True):
                told[i].append(rows)
    return told


def _spread(logp_N: np.ndarray, sample: Sample) -> np.ndarray:
    logp_T = _nothing(sample)
    logp_T[sample.mask] = logp_N
    return logp_T


def _nothing(sample: Sample) -> np.ndarray:
    return np.zeros(len(sample), dtype=np.float32)
