"""RMS norm for training in a third of the operations: on a CPU transformers' own takes a twentieth of an update, more in small models.

Formula: y = w * x / sqrt(mean(x^2) + eps) (Zhang and Sennrich 2019, "Root Mean Square Layer Normalization", section 3).
"""

from functools import partial
from typing import Any

import torch
from torch import Tensor, nn


class _RMSNorm(torch.autograd.Function):
    """Rounds as transformers does (the normed input to the input's type, then times the weight); keeps one tensor of its size."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight_D: Tensor, eps: float) -> Tensor:
        norm = torch.linalg.vector_norm(x, dim=-1, keepdim=True, dtype=torch.float32)
        scale = norm.square_().mul_(1 / x.shape[-1]).add_(eps).rsqrt_()
        normed = (x * scale if x.dtype == torch.float32 else x.float().mul_(scale)).to(x.dtype)
        ctx.save_for_backward(normed, weight_D, scale)
        return normed * weight_D

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor, None]:
        """dx = scale * (w dy - n mean(n w dy)) with n the normed input; dw = sum(n dy)."""
        (grad,), (normed, weight_D, scale) = grads, ctx.saved_tensors
        product = grad * normed
        mean = (product @ weight_D[:, None]).div_(normed.shape[-1])
        grad_x = torch.addcmul(grad * weight_D, normed, mean, value=-1).mul_(scale.to(grad.dtype))
        return grad_x, product.flatten(0, -2).sum(0), None


def rms_norm(x: Tensor, weight_D: Tensor, eps: float) -> Tensor:
    """x [..., D] normed over its last axis and scaled; differentiable in both."""
    return _RMSNorm.apply(x, weight_D, eps)  # type: ignore[return-value]


def use_fast_norms(model: nn.Module) -> int:
    """Lets every plain RMS norm of a transformers model run through `rms_norm`; gives how many.

    A module counts as plain if it computes the formula on a probe: some families scale by 1 + w or norm in groups, and stay as
    they are.
    """
    found = 0
    for module in model.modules():
        weight, eps = getattr(module, "weight", None), getattr(module, "variance_epsilon", None)
        if isinstance(weight, Tensor) and weight.dim() == 1 and isinstance(eps, float) and _is_plain(module, weight, eps):
            module.forward = partial(_norm_with, module, eps)
            found += 1
    return found


def _norm_with(module: Any, eps: float, hidden_states: Tensor) -> Tensor:
    return rms_norm(hidden_states, module.weight, eps)  # looked up each time: a moved module has another tensor


@torch.no_grad()
def _is_plain(module: nn.Module, weight_D: Tensor, eps: float) -> bool:
    probe = torch.linspace(-2, 3, 2 * len(weight_D), dtype=weight_D.dtype, device=weight_D.device).view(1, 2, -1)
    try:
        told = module(probe)
    except (TypeError, RuntimeError):
        return False  # it takes more than hidden states
    return torch.allclose(told, rms_norm(probe, weight_D, eps), rtol=1e-2 if weight_D.dtype == torch.bfloat16 else 1e-5)
