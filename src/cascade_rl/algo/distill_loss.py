"""On-policy distillation: the student's own tokens, judged token by token by a teacher. Letters: N trained tokens, S sequences."""

import dataclasses
from dataclasses import dataclass

from torch import Tensor

from cascade_rl.algo.batch import Targets
from cascade_rl.algo.losses import LossSum
from cascade_rl.algo.policy_loss import PolicyLoss, averaged


@dataclass(frozen=True, slots=True)
class DistillLoss:
    """Multi-domain on-policy distillation (arXiv 2603.19220, section 4.2): RL in which the advantage is the gap to the teacher.

        a_t = log pi_teacher(y_t) - log pi(y_t)
        loss = - mean over sequences of mean over tokens of  w_t sg[a_t] log pi(y_t)

    w_t = sg[pi / pi_sampler] inside `bounds` and 0 outside. In expectation over the policy's own tokens the gradient is that of the
    reverse KL at each state, sum_v pi(v) log(pi(v) / pi_teacher(v)), the state held fixed.

    extrapolation  lambda of ExOPD (arXiv 2602.12125): a_t = lambda (log pi_teacher - log pi_start) - (log pi - log pi_start); 1 is
                   the plain gap, beyond 1 goes past the teacher in the direction from the stage's start.
    gap_clip       a_t is cut to [-gap_clip, gap_clip]; 0: off.
    outcome        alpha of MiMo-V2-Flash: a_t + alpha A, with A the rollout's advantage among its group. 0: no reward trains.
    divergence     whether targets.divergence_N, the whole KL of each state, takes the place of the sampled token's gap.
    """

    bounds: tuple[float, float] = (0.5, 2.0)
    extrapolation: float = 1.0
    gap_clip: float = 0.0
    outcome: float = 0.0
    divergence: bool = False

    def __call__(self, logp_N: Tensor, targets: Targets) -> LossSum:
        """Needs targets.logp_teacher_N, .logp_sampler_N and .advantage_N, and .logp_start_N or .divergence_N where they are used."""
        assert targets.logp_teacher_N is not None and targets.advantage_N is not None, "distillation samples carry both"
        advantage_N = self.outcome * targets.advantage_N
        if not self.divergence:
            advantage_N = advantage_N + self._gap(logp_N.detach(), targets)
        by_token = PolicyLoss(average="sequence", importance="mask", bounds=self.bounds)
        part = by_token(logp_N, dataclasses.replace(targets, advantage_N=advantage_N))
        if not self.divergence:
            return part
        assert targets.divergence_N is not None, "the whole KL is found where the logits are"
        total, _ = averaged(targets.divergence_N, targets, "sequence")
        sums = {**part.sums, "divergence": float(targets.divergence_N.detach().sum())}
        return dataclasses.replace(part, total=part.total + total, sums=sums)

    def _gap(self, logp_N: Tensor, targets: Targets) -> Tensor:
        assert targets.logp_teacher_N is not None
        gap_N = targets.logp_teacher_N.detach() - logp_N
        if self.extrapolation != 1:
            assert targets.logp_start_N is not None, "extrapolation needs the start's log-probs"
            gap_N = gap_N + (self.extrapolation - 1) * (targets.logp_teacher_N.detach() - targets.logp_start_N.detach())
        return gap_N.clamp(-self.gap_clip, self.gap_clip) if self.gap_clip else gap_N


def generalised_kl(logp_NV: Tensor, logp_teacher_NV: Tensor, top_k: int = 0) -> Tensor:
    """sum over v of p log(p / q) + q - p, for each row; p is the student, q the teacher.

    Over the whole vocabulary q and p both sum to 1 and this is the reverse KL. Over the teacher's `top_k` tokens alone (arXiv
    2606.30406) the term q - p keeps it at 0 or above, and 0 only where p = q on these tokens; without it the least value would be
    reached by leaving them.
    """
    if top_k and top_k < logp_NV.shape[-1]:
        logp_teacher_NV, place_NK = logp_teacher_NV.topk(top_k, dim=-1)
        logp_NV = logp_NV.gather(-1, place_NK)
    p_NV = logp_NV.exp()
    return (p_NV * (logp_NV - logp_teacher_NV) + logp_teacher_NV.exp() - p_NV).sum(-1)
