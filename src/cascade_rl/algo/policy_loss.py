"""Policy-gradient losses on sampled tokens, as one plain function of per-token tensors with its options spelled out.

Letters: N trained tokens of a batch, S its sequences.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from cascade_rl.algo.batch import Targets
from cascade_rl.algo.losses import LossSum

Average = Literal["token", "sequence"]
Importance = Literal["none", "truncate", "mask"]


@dataclass(frozen=True, slots=True)
class PolicyLoss:
    """Minus the advantage-weighted log-likelihood of what was sampled.

        loss_t = -w_t min(r_t A_t, clip(r_t, 1 - clip_low, 1 + clip_high) A_t) + kl (log pi - log pi_start)^2 / 2

    r_t = pi / pi_old, where pi_old is the policy before the first update on these rollouts. With one update per batch r_t is 1 and the
    gradient is REINFORCE's, -A_t grad log pi (arXiv 2603.19220, Eq. 1).

    average      "token": over all trained tokens of the update (Eq. 1); "sequence": over each sequence's tokens, then over sequences.
    clip         (low, high): DAPO's asymmetric clip (arXiv 2503.14476); (0, 0) turns it off. It matters from the second update on.
    kl           coefficient of the KL to the stage's start. (log pi - log pi_start)^2 / 2 has, in expectation over the policy's own
                 samples, exactly the gradient of the reverse KL, which the k3 form has not.
    importance   w_t = pi_old / pi_sampler for a sampler that differs from the trainer: "truncate" caps it at bounds[1] (TIS),
                 "mask" drops tokens outside the bounds (IcePop), "none" is 1. It carries no gradient.
    """

    average: Average = "token"
    clip: tuple[float, float] = (0.0, 0.0)
    kl: float = 0.0
    importance: Importance = "none"
    bounds: tuple[float, float] = (0.5, 2.0)

    def __call__(self, logp_N: Tensor, targets: Targets) -> LossSum:
        """Needs targets.advantage_N and .logp_sampler_N, .logp_start_N for a KL, and .logp_old_N from the second update on."""
        assert targets.advantage_N is not None and targets.logp_sampler_N is not None, "RL samples carry both"
        advantage_N, logp_sampler_N, now_N = targets.advantage_N, targets.logp_sampler_N.detach(), logp_N.detach()
        old_N = now_N if targets.logp_old_N is None else targets.logp_old_N.detach()
        ratio_N = torch.exp(logp_N - old_N)
        gain_N = ratio_N * advantage_N
        sums: dict[str, float] = {}
        if any(self.clip):
            low, high = self.clip
            clipped_N = ratio_N.clamp(1 - low, 1 + high) * advantage_N
            sums["clipped"] = float((clipped_N < gain_N).sum())
            gain_N = torch.minimum(gain_N, clipped_N)
        weight_N = importance_weight(old_N - logp_sampler_N, self.importance, self.bounds)
        if self.importance != "none":
            sums["importance_weight"] = float(weight_N.sum())
        loss_N = -weight_N * gain_N
        if self.kl:
            assert targets.logp_start_N is not None, "a KL to the start needs the start's log-probs"
            drift_N = logp_N - targets.logp_start_N.detach()
            loss_N = loss_N + self.kl * drift_N.square() / 2
            sums["kl_start"] = float(k3(drift_N.detach()).sum())
        total, weight = averaged(loss_N, targets, self.average)
        gap_N = now_N - logp_sampler_N
        sums |= {"gap": float(gap_N.abs().sum()), "k3": float(k3(gap_N).sum()), "ratio": float(ratio_N.detach().sum())}
        return LossSum(total, weight, sums, {"gap": float(gap_N.abs().max()), "ratio": float((ratio_N.detach() - 1).abs().max())})


def importance_weight(log_ratio_N: Tensor, kind: str, bounds: tuple[float, float]) -> Tensor:
    """pi_old / pi_sampler for each token, without gradient, as `PolicyLoss.importance` says."""
    weight_N = torch.exp(log_ratio_N.detach())
    return IMPORTANCE[kind](weight_N, bounds)


def _truncate(weight_N: Tensor, bounds: tuple[float, float]) -> Tensor:
    return weight_N.clamp(max=bounds[1])


def _mask(weight_N: Tensor, bounds: tuple[float, float]) -> Tensor:
    inside_N = (weight_N >= bounds[0]) & (weight_N <= bounds[1])
    return torch.where(inside_N, weight_N, torch.zeros_like(weight_N))


IMPORTANCE: Mapping = {"none": lambda weight_N, bounds: torch.ones_like(weight_N), "truncate": _truncate, "mask": _mask}


def averaged(loss_N: Tensor, targets: Targets, average: Average) -> tuple[Tensor, float]:
    """The sum and the weight that it is later divided by: of all tokens, or of each sequence's mean over its own tokens."""
    share_N = torch.ones_like(loss_N) if targets.weight_N is None else targets.weight_N
    if average == "sequence":
        count_S = torch.bincount(targets.sample_N, minlength=targets.num_samples)
        share_N = share_N / count_S[targets.sample_N]
    return (loss_N * share_N).sum(), float(share_N.double().sum())


def k3(log_ratio_N: Tensor) -> Tensor:
    """exp(-d) + d - 1 >= 0 with d = log p - log q: an unbiased estimate of KL(p || q) from samples of p, token by token."""
    return torch.exp(-log_ratio_N) + log_ratio_N - 1
