"""Log-probs of given tokens, without ever holding a [tokens, vocabulary] matrix.

For hidden states h and the head's weights W, with an optional softcap c and a temperature t:

    logits z = W h (+ b);  z = c tanh(z / c);  logp(y) = z_y / t - log sum_v exp(z_v / t)

computed for a chunk of tokens at a time. The backward pass recomputes a chunk's logits from the kept log-sum-exp, which gives
d logp(y) / d z_v = (1[v = y] - p_v) / t without a second reduction.

Letters: N tokens, C tokens of a chunk, D hidden size, V vocabulary.
"""

from typing import Any

import torch
from torch import Tensor

CHUNK = 1024
# Reductions run over so many rows at once: float32 rows of the vocabulary then stay in the processor's cache.
ROWS = 32


def target_logps(
    hidden_ND: Tensor,
    weight_VD: Tensor,
    target_N: Tensor,
    bias_V: Tensor | None = None,
    temperature: float = 1.0,
    softcap: float | None = None,
    chunk: int = CHUNK,
) -> Tensor:
    """Float32 (or float64) [N]: log p(target) at the temperature, differentiable in hidden states, weights and bias."""
    assert temperature > 0, "a log-prob at temperature 0 is 0 or minus infinity"
    return _TargetLogps.apply(hidden_ND, weight_VD, bias_V, target_N, temperature, softcap, chunk)  # type: ignore[no-any-return]


class _TargetLogps(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        hidden_ND: Tensor,
        weight_VD: Tensor,
        bias_V: Tensor | None,
        target_N: Tensor,
        temperature: float,
        softcap: float | None,
        chunk: int,
    ) -> Tensor:
        wide = torch.promote_types(hidden_ND.dtype, torch.float32)
        lse_N = hidden_ND.new_empty(len(hidden_ND), dtype=wide)
        chosen_N = torch.empty_like(lse_N)
        for lo in range(0, len(hidden_ND), chunk):
            logits_CV = _logits(hidden_ND[lo : lo + chunk], weight_VD, bias_V)
            for at in range(0, len(logits_CV), ROWS):
                rows = slice(lo + at, lo + min(at + ROWS, len(logits_CV)))
                scaled = _bend(logits_CV[at : at + ROWS].to(wide), softcap) / temperature
                lse_N[rows] = torch.logsumexp(scaled, dim=-1)
                chosen_N[rows] = scaled.gather(1, target_N[rows, None])[:, 0]
        ctx.save_for_backward(hidden_ND, weight_VD, bias_V, target_N, lse_N)
        ctx.temperature, ctx.softcap, ctx.chunk = temperature, softcap, chunk
        return chosen_N - lse_N

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        hidden_ND, weight_VD, bias_V, target_N, lse_N = ctx.saved_tensors
        scale_N = grads[0] / ctx.temperature
        wide = lse_N.dtype
        grad_hidden_ND = torch.empty_like(hidden_ND)
        grad_weight_VD = torch.zeros_like(weight_VD, dtype=wide) if ctx.needs_input_grad[1] else None
        grad_bias_V = None if bias_V is None else torch.zeros_like(bias_V, dtype=wide)
        for lo in range(0, len(hidden_ND), ctx.chunk):
            part = slice(lo, min(lo + ctx.chunk, len(hidden_ND)))
            slope_CV = _logits(hidden_ND[part], weight_VD, bias_V)
            for at in range(0, len(slope_CV), ROWS):
                rows = slice(lo + at, min(lo + at + ROWS, part.stop))
                slope_CV[at : at + ROWS] = _slope(
                    slope_CV[at : at + ROWS].to(wide), lse_N[rows], target_N[rows], scale_N[rows], ctx.temperature, ctx.softcap
                )
            grad_hidden_ND[part] = slope_CV @ weight_VD
            if grad_weight_VD is not None:
                grad_weight_VD += slope_CV.t() @ hidden_ND[part]
            if grad_bias_V is not None:
                grad_bias_V += slope_CV.sum(0, dtype=wide)
        return (
            grad_hidden_ND,
            None if grad_weight_VD is None else grad_weight_VD.to(weight_VD.dtype),
            None if bias_V is None or grad_bias_V is None else grad_bias_V.to(bias_V.dtype),
            None,
            None,
            None,
            None,
        )


def _logits(hidden_CD: Tensor, weight_VD: Tensor, bias_V: Tensor | None) -> Tensor:
    return torch.nn.functional.linear(hidden_CD, weight_VD, bias_V)


def _bend(logits: Tensor, softcap: float | None) -> Tensor:
    return logits if softcap is None else softcap * torch.tanh(logits / softcap)


def _slope(logits: Tensor, lse: Tensor, target: Tensor, scale: Tensor, temperature: float, softcap: float | None) -> Tensor:
    """scale (1[v = target] - p_v), times the softcap's derivative: the gradient at the raw logits, in the logits' place."""
    bent = _bend(logits, softcap)
    slope = (bent / temperature).sub_(lse[:, None]).exp_().mul_(-scale[:, None])
    slope.scatter_add_(1, target[:, None], scale[:, None])
    return slope if softcap is None else slope * (1 - (bent / softcap) ** 2)
