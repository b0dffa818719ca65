"""How far each domain is from its teacher, and how much each counts in the loss. No tensors: figures of the samples of one step."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from cascade_rl.records import Sample

Balance = Literal["sequence", "domain", "gap"]


@dataclass(frozen=True, slots=True)
class DomainGap:
    """How far a domain's teacher is from the sampler, over the trained tokens of one step.

    gap: mean |log p_teacher - log p_sampler|. reverse_kl: k3, an unbiased estimate of KL(sampler || teacher) a token, 0 or more.
    num_samples, num_tokens: what the domain had of the step.
    """

    gap: float
    reverse_kl: float
    num_samples: int
    num_tokens: int


def domain_gaps(samples: Sequence[Sample]) -> dict[str, DomainGap]:
    """domain -> its gap, in the order of the names; only domains with a trained token."""
    found: dict[str, list[np.ndarray]] = {}
    for sample in samples:
        assert sample.logp_teacher is not None and sample.logp_sampler is not None, "distillation samples carry both"
        if sample.mask.any():
            difference = sample.logp_teacher[sample.mask].astype(np.float64) - sample.logp_sampler[sample.mask]
            found.setdefault(sample.domain, []).append(difference)
    gaps = {}
    for domain, parts in sorted(found.items()):
        difference_N = np.concatenate(parts)
        k3 = float(np.mean(np.exp(difference_N) - difference_N - 1))
        gaps[domain] = DomainGap(float(np.abs(difference_N).mean()), k3, len(parts), len(difference_N))
    return gaps


def domain_weights(
    gaps: Mapping[str, DomainGap], balance: Balance, clamp: tuple[float, float] = (0.05, 20.0)
) -> dict[str, float]:
    """The weight of each sample of a domain; the mean over all samples is 1.

    "sequence"  every sample weighs the same, as in the paper: a domain counts by its number of samples.
    "domain"    every domain weighs the same (Open-MOPD, arXiv 2608.19098, for a mean over sequences).
    "gap"       and on top by its gap over the mean gap of the domains, within `clamp`: who has further to go gets more.

    Two domains of 3 and 1 samples: "domain" gives 2/3 and 2. With gaps 0.1 and 0.3, "gap" gives 1/3 and 3.
    """
    if balance == "sequence":
        return dict.fromkeys(gaps, 1.0)
    weights = {domain: 1 / told.num_samples for domain, told in gaps.items()}
    if balance == "gap":
        mean = sum(told.gap for told in gaps.values()) / len(gaps)
        if mean > 0:
            low, high = clamp
            weights = {domain: w * min(max(gaps[domain].gap / mean, low), high) for domain, w in weights.items()}
    total = sum(weights[domain] * told.num_samples for domain, told in gaps.items())
    count = sum(told.num_samples for told in gaps.values())
    return {domain: w * count / total for domain, w in weights.items()}
