"""Log-probs of given tokens, without ever holding a [tokens, vocabulary] matrix.

For hidden states h and the head's weights W, with an optional softcap c and a temperature t:

    logits z = W h (+ b);  z = c tanh(z / c);  logp(y) = z_y / t - log sum_v exp(z_v / t)

computed for a chunk of tokens at a time. The gradient at the logits, (1[v = y] - p_v) / t times what comes from above, needs the
logits again: the backward pass makes them anew, chunk by chunk, from the kept log-sum-exp. Where the caller expects that the same
number comes from above for every token (a plain mean of log-probs: supervised fine-tuning), the forward pass finds the gradients
for the number 1 while it has the logits, which saves one matrix multiplication of four and one pass over the logits.

Letters: N tokens, C tokens of a chunk, R rows of a chunk, D hidden size, V vocabulary.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

CHUNK = 1024
# Reductions run over so many rows at once: float32 rows of the vocabulary then stay in the processor's cache.
ROWS = 32


@dataclass(frozen=True, eq=False, slots=True)
class Head:
    """How a model's hidden states become logits."""

    weight_VD: Tensor
    bias_V: Tensor | None = None
    softcap: float | None = None

    def logps(self, hidden_CD: Tensor, temperature: float) -> Tensor:
        """Float32 (or float64) [C, V]."""
        logits_CV = torch.nn.functional.linear(hidden_CD, self.weight_VD, self.bias_V)
        wide = torch.promote_types(logits_CV.dtype, torch.float32)
        return (_bend(logits_CV.to(wide), self.softcap) / temperature).log_softmax(-1)


@dataclass(frozen=True, slots=True)
class _How:
    temperature: float
    softcap: float | None
    chunk: int
    alike: bool


def target_logps(
    hidden_ND: Tensor,
    weight_VD: Tensor,
    target_N: Tensor,
    bias_V: Tensor | None = None,
    temperature: float = 1.0,
    softcap: float | None = None,
    chunk: int = CHUNK,
    alike: bool = False,
) -> Tensor:
    """Float32 (or float64) [N]: log p(target) at the temperature, differentiable in hidden states, weights and bias.

    alike: the caller expects the gradient of its loss to be the same number for every token. It only saves time where that holds,
    and costs some where it does not; the result is the same.
    """
    assert temperature > 0, "a log-prob at temperature 0 is 0 or minus infinity"
    how = _How(temperature, softcap, chunk, alike and torch.is_grad_enabled())
    return _TargetLogps.apply(hidden_ND, weight_VD, bias_V, target_N, how)  # type: ignore[no-any-return]


class _TargetLogps(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, hidden_ND: Tensor, weight_VD: Tensor, bias_V: Tensor | None, target_N: Tensor, how: _How) -> Tensor:
        wide = torch.promote_types(hidden_ND.dtype, torch.float32)
        logp_N = hidden_ND.new_empty(len(hidden_ND), dtype=wide)
        lse_N = torch.empty_like(logp_N)
        unit = _Gradients(hidden_ND, weight_VD, bias_V, wide) if how.alike else None
        for part in _parts(len(hidden_ND), how.chunk):
            logits_CV = torch.nn.functional.linear(hidden_ND[part], weight_VD, bias_V)
            for at in _parts(len(logits_CV), ROWS):
                rows = slice(part.start + at.start, part.start + at.stop)
                bent_RV = _bend(logits_CV[at].to(wide), how.softcap)
                scaled_RV = bent_RV if how.temperature == 1 else bent_RV / how.temperature
                logp_RV = torch.log_softmax(scaled_RV, dim=-1)
                chosen_R = logp_RV.gather(1, target_N[rows, None])[:, 0]
                logp_N[rows] = chosen_R
                lse_N[rows] = scaled_RV.gather(1, target_N[rows, None])[:, 0] - chosen_R
                if unit is not None:
                    scale_R = torch.full_like(chosen_R, 1 / how.temperature)
                    logits_CV[at] = _slope(logp_RV.exp_(), bent_RV, target_N[rows], scale_R, how.softcap)
            if unit is not None:
                unit.add(part, logits_CV)
        unit_grads = () if unit is None else (unit.hidden_ND, unit.weight_VD, unit.bias_V)
        ctx.save_for_backward(hidden_ND, weight_VD, bias_V, target_N, lse_N, *unit_grads)
        ctx.how = how
        return logp_N

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        hidden_ND, weight_VD, bias_V, target_N, lse_N, *unit_grads = ctx.saved_tensors
        how: _How = ctx.how
        grad_N = grads[0]
        if unit_grads and len(grad_N) and bool((grad_N == grad_N[0]).all()):
            of_hidden, of_weight, of_bias = (None if g is None else g * grad_N[0].to(g.dtype) for g in unit_grads)
        else:
            found = _Gradients(hidden_ND, weight_VD, bias_V, lse_N.dtype)
            for part in _parts(len(hidden_ND), how.chunk):
                logits_CV = torch.nn.functional.linear(hidden_ND[part], weight_VD, bias_V)
                for at in _parts(len(logits_CV), ROWS):
                    rows = slice(part.start + at.start, part.start + at.stop)
                    bent_RV = _bend(logits_CV[at].to(lse_N.dtype), how.softcap)
                    prob_RV = (bent_RV / how.temperature).sub_(lse_N[rows, None]).exp_()
                    scale_R = grad_N[rows] / how.temperature
                    logits_CV[at] = _slope(prob_RV, bent_RV, target_N[rows], scale_R, how.softcap)
                found.add(part, logits_CV)
            of_hidden, of_weight, of_bias = found.hidden_ND, found.weight_VD, found.bias_V
        return (
            of_hidden,
            of_weight.to(weight_VD.dtype) if ctx.needs_input_grad[1] and of_weight is not None else None,
            of_bias.to(weight_VD.dtype) if of_bias is not None else None,
            None,
            None,
        )


class _Gradients:
    """Sums of gradients over chunks: float32 for weights and bias, whatever their type."""

    def __init__(self, hidden_ND: Tensor, weight_VD: Tensor, bias_V: Tensor | None, wide: torch.dtype) -> None:
        self._inputs = hidden_ND, weight_VD
        self.hidden_ND = torch.empty_like(hidden_ND)
        self.weight_VD: Tensor | None = None if len(hidden_ND) else torch.zeros_like(weight_VD, dtype=wide)
        self.bias_V = None if bias_V is None else torch.zeros_like(bias_V, dtype=wide)
        self._wide = wide

    def add(self, part: slice, slope_CV: Tensor) -> None:
        hidden_ND, weight_VD = self._inputs
        self.hidden_ND[part] = slope_CV @ weight_VD
        of_weight = slope_CV.t() @ hidden_ND[part]
        self.weight_VD = of_weight.to(self._wide) if self.weight_VD is None else self.weight_VD.add_(of_weight)
        if self.bias_V is not None:
            self.bias_V += slope_CV.sum(0, dtype=self._wide)


def _parts(total: int, size: int) -> list[slice]:
    return [slice(lo, min(lo + size, total)) for lo in range(0, total, size)]


def _bend(logits: Tensor, softcap: float | None) -> Tensor:
    return logits if softcap is None else softcap * torch.tanh(logits / softcap)


def _slope(prob_RV: Tensor, bent_RV: Tensor, target_R: Tensor, scale_R: Tensor, softcap: float | None) -> Tensor:
    """scale (1[v = target] - p_v), times the softcap's derivative: the gradient at the raw logits. Overwrites the probabilities."""
    slope_RV = prob_RV.mul_(-scale_R[:, None]).scatter_add_(1, target_R[:, None], scale_R[:, None])
    return slope_RV if softcap is None else slope_RV.mul_(1 - (bent_RV / softcap) ** 2)
