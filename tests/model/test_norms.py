"""The RMS norm that trains against the formula and against transformers' modules."""

import pytest
import torch
from torch import nn
from transformers import AutoModelForCausalLM
from transformers.models.llama.modeling_llama import LlamaRMSNorm

from cascade_rl.model.norms import rms_norm, use_fast_norms
from tests.model.tiny import make_tiny


def test_by_hand():
    """x = (3, 4): mean square 12.5; with eps 12.5 the scale is 1/5, so n = (0.6, 0.8) and y = (0.6 * 2, 0.8 * 10).

    For dy = (1, 1): w dy = (2, 10), mean(n w dy) = (1.2 + 8) / 2 = 4.6, dx = ((2 - 0.6 * 4.6) / 5, (10 - 0.8 * 4.6) / 5), dw = n.
    """
    x = torch.tensor([[3.0, 4.0]], requires_grad=True)
    weight = torch.tensor([2.0, 10.0], requires_grad=True)
    y = rms_norm(x, weight, 12.5)
    assert torch.allclose(y, torch.tensor([[1.2, 8.0]]))
    y.sum().backward()
    assert torch.allclose(x.grad, torch.tensor([[-0.152, 1.264]]))
    assert torch.allclose(weight.grad, torch.tensor([0.6, 0.8]))


@pytest.mark.parametrize("shape", [(7, 24), (1, 5, 3, 16)])
def test_gradient_is_the_finite_difference(shape):
    torch.manual_seed(0)
    x, weight = torch.randn(shape, requires_grad=True), torch.randn(shape[-1], requires_grad=True)
    mix = torch.randn(shape)
    (rms_norm(x, weight, 1e-5) * mix).sum().backward()
    for tensor in (x, weight):
        step = torch.randn_like(tensor)

        def at(t, tensor=tensor, step=step):
            moved = [own.detach().double() + (t * step.double() if own is tensor else 0) for own in (x, weight)]
            return (moved[0] * (moved[0].square().mean(-1, keepdim=True) + 1e-5).rsqrt() * moved[1] * mix).sum()

        assert (tensor.grad * step).sum().item() == pytest.approx(((at(1e-4) - at(-1e-4)) / 2e-4).item(), rel=1e-4)


@pytest.mark.parametrize(("dtype", "atol"), [(torch.float32, 1e-5), (torch.bfloat16, 0.07)])
def test_as_transformers_computes_it(dtype, atol):
    torch.manual_seed(0)
    module = LlamaRMSNorm(48, 1e-5).to(dtype)
    nn.init.normal_(module.weight)
    x, grad = torch.randn(20, 48).to(dtype).requires_grad_(), torch.randn(20, 48).to(dtype)
    told = []
    for call in (lambda: module(x), lambda: rms_norm(x, module.weight, 1e-5)):
        x.grad = module.weight.grad = None
        y = call()
        y.backward(grad)
        told.append((y.detach(), x.grad, module.weight.grad))
    for theirs, ours in zip(*told, strict=True):
        assert ours.dtype == dtype
        assert torch.allclose(ours, theirs, rtol=0, atol=atol)


@pytest.mark.parametrize(("arch", "num"), [("llama", 5), ("qwen3", 9), ("gemma3", 0)])
def test_only_plain_norms_are_replaced(arch, num, tmp_path):
    """Llama has two norms a layer and one at the end, Qwen3 two more for queries and keys; Gemma scales by 1 + w."""
    model = AutoModelForCausalLM.from_pretrained(make_tiny(arch, tmp_path))
    assert use_fast_norms(model) == num


def test_a_norm_of_another_formula_stays():
    class Shifted(LlamaRMSNorm):
        def forward(self, hidden_states):
            return super().forward(hidden_states) + self.weight

    assert use_fast_norms(nn.Sequential(Shifted(8))) == 0
    assert use_fast_norms(nn.Sequential(LlamaRMSNorm(8))) == 1
