"""Chunked log-probs against log_softmax over whole logits."""

import math

import pytest
import torch

from cascade_rl.model.head import target_logps


def test_by_hand():
    # Logits (0, ln 3) at temperature 1: probabilities 1/4 and 3/4. At temperature 0.5 the odds square: 1/10 and 9/10.
    hidden, weight = torch.tensor([[1.0]]), torch.tensor([[0.0], [math.log(3)]])
    for temperature, p in ((1.0, 0.75), (0.5, 0.9)):
        found = target_logps(hidden, weight, torch.tensor([1]), temperature=temperature)
        assert found.item() == pytest.approx(math.log(p), abs=1e-6)


@pytest.mark.parametrize("alike,uneven", [(False, True), (True, True), (True, False)])
@pytest.mark.parametrize("chunk", [1, 3, 100])
@pytest.mark.parametrize("softcap", [None, 3.0])
@pytest.mark.parametrize("bias", [False, True])
def test_equals_log_softmax_and_its_gradients(chunk, softcap, bias, alike, uneven):
    generator = torch.Generator().manual_seed(0)
    hidden, weight, bias_V = (
        torch.randn(shape, generator=generator, dtype=torch.float64, requires_grad=True) for shape in ((7, 4), (11, 4), (11,))
    )
    target = torch.randint(0, 11, (7,), generator=generator)
    logits = hidden @ weight.t() + (bias_V if bias else 0)
    if softcap:
        logits = softcap * torch.tanh(logits / softcap)
    told = (logits / 0.7).log_softmax(-1).gather(1, target[:, None])[:, 0]
    found = target_logps(hidden, weight, target, bias_V if bias else None, 0.7, softcap, chunk, alike)
    assert torch.allclose(found, told, rtol=0, atol=1e-12)
    inputs = [hidden, weight, *([bias_V] if bias else [])]
    # Where the same pull on every token was expected and is not what comes, the gradients must be right all the same.
    pull = torch.arange(1.0, 8.0, dtype=torch.float64) if uneven else torch.full((7,), -3.0, dtype=torch.float64)
    told_grads = torch.autograd.grad((told * pull).sum(), inputs)
    for grad, told_grad in zip(torch.autograd.grad((found * pull).sum(), inputs), told_grads, strict=True):
        assert torch.allclose(grad, told_grad, rtol=0, atol=1e-12)


def test_gradients_by_finite_differences():
    generator = torch.Generator().manual_seed(0)
    hidden, weight, bias = (
        torch.randn(shape, generator=generator, dtype=torch.float64, requires_grad=True) for shape in ((5, 3), (6, 3), (6,))
    )
    target = torch.tensor([0, 5, 2, 2, 1])
    assert torch.autograd.gradcheck(lambda h, w, b: target_logps(h, w, target, b, 0.8, 2.0, chunk=2), (hidden, weight, bias))


def test_no_targets_at_all():
    hidden, weight = torch.zeros(0, 3, requires_grad=True), torch.ones(5, 3, requires_grad=True)
    logp = target_logps(hidden, weight, torch.zeros(0, dtype=torch.long))
    logp.sum().backward()
    assert logp.shape == (0,)
    assert weight.grad.abs().sum() == 0


def test_never_holds_tokens_by_vocabulary():
    """The largest tensor that forward and backward make is a chunk of logits or a gradient of the weights."""
    from torch.utils._python_dispatch import TorchDispatchMode

    largest = 0

    class Watch(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            nonlocal largest
            out = func(*args, **(kwargs or {}))
            for tensor in out if isinstance(out, (tuple, list)) else (out,):
                largest = max(largest, tensor.numel() if isinstance(tensor, torch.Tensor) else 0)
            return out

    hidden, weight = torch.randn(512, 8, requires_grad=True), torch.randn(100, 8, requires_grad=True)
    with Watch():
        target_logps(hidden, weight, torch.zeros(512, dtype=torch.long), chunk=64).sum().backward()
    assert largest == 64 * 100
