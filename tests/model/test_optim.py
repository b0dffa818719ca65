"""AdamW against its definition, masters, resume, and the schedules."""

import math

import pytest
import torch
from torch import nn

from cascade_rl.errors import RunError
from cascade_rl.model.optim import AdamW, learning_rate


def model(dtype: torch.dtype = torch.float32) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 4), nn.LayerNorm(4), nn.Linear(4, 2)).to(dtype)


def give_gradients(net: nn.Module, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    for weight in net.parameters():
        weight.grad = torch.randn(weight.shape, generator=generator).to(weight.dtype)


def test_first_step_by_hand():
    net = nn.Linear(1, 1, bias=False)
    nn.init.constant_(net.weight, 2.0)
    net.weight.grad = torch.tensor([[0.5]])
    AdamW(net, betas=(0.9, 0.98), eps=0.0, weight_decay=0.1).step(0.01)
    # With bias correction the first step is lr * sign(g); decay takes lr * 0.1 * 2.
    assert net.weight.item() == pytest.approx(2.0 - 0.01 * 0.1 * 2.0 - 0.01, abs=1e-6)


def test_ten_steps_equal_the_definition_and_vectors_do_not_decay():
    net = model()
    told = [weight.detach().double() for weight in net.parameters()]
    first, second = [torch.zeros_like(w) for w in told], [torch.zeros_like(w) for w in told]
    optim = AdamW(net, betas=(0.9, 0.98), eps=1e-8, weight_decay=0.1)
    for t in range(1, 11):
        give_gradients(net, seed=t)
        for i, weight in enumerate(net.parameters()):
            grad = weight.grad.double() * 0.5
            first[i] = 0.9 * first[i] + 0.1 * grad
            second[i] = 0.98 * second[i] + 0.02 * grad**2
            decay = 0.1 if weight.ndim > 1 else 0.0
            move = (first[i] / (1 - 0.9**t)) / ((second[i] / (1 - 0.98**t)).sqrt() + 1e-8)
            told[i] = told[i] * (1 - 1e-2 * decay) - 1e-2 * move
        optim.step(1e-2, grad_scale=0.5)
    for weight, wanted in zip(net.parameters(), told, strict=True):
        assert torch.allclose(weight.double(), wanted, rtol=0, atol=2e-6)


def test_masters_add_up_what_bf16_would_swallow():
    net = nn.Linear(1, 1, bias=False).bfloat16()
    nn.init.constant_(net.weight, 1.0)
    optim = AdamW(net, weight_decay=0.0)
    for _ in range(100):
        net.weight.grad = torch.ones_like(net.weight)
        optim.step(3e-5)  # each update is a hundredth of what bf16 can add to 1
    assert net.weight.item() == torch.tensor(1.0 - 3e-3).bfloat16().item() < 1.0
    assert optim.state()["master/weight"].item() == pytest.approx(1.0 - 3e-3, abs=1e-5)


def test_masters_equal_weights_after_anyone_loads_them():
    net = model(torch.bfloat16)
    optim = AdamW(net)
    give_gradients(net, 1)
    optim.step(0.1)
    with torch.no_grad():
        for weight in net.parameters():
            weight.copy_(torch.full_like(weight, 0.25))
    state = optim.state()
    for name, weight in net.named_parameters():
        assert torch.equal(state[f"master/{name}"], weight.float())


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_resume_gives_the_same_bytes(dtype):
    def train(net: nn.Module, optim: AdamW, steps: range) -> None:
        for seed in steps:
            give_gradients(net, seed)
            optim.step(1e-3)

    whole, halves = model(dtype), model(dtype)
    train(whole, AdamW(whole), range(6))
    optim = AdamW(halves)
    train(halves, optim, range(3))
    weights = {name: tensor.clone() for name, tensor in halves.state_dict().items()}
    state = {name: tensor.clone() for name, tensor in optim.state().items()}
    resumed = model(dtype)
    resumed.load_state_dict(weights)
    optim = AdamW(resumed)
    optim.load_state(state)
    train(resumed, optim, range(3, 6))
    for one, other in zip(whole.parameters(), resumed.parameters(), strict=True):
        assert torch.equal(one, other)


def test_state_of_another_model_type_or_moment_is_refused():
    with pytest.raises(RunError, match="does not belong"):
        AdamW(model()).load_state(AdamW(model(torch.bfloat16)).state())
    with pytest.raises(RunError, match="shape"):
        AdamW(nn.Linear(2, 2)).load_state(AdamW(nn.Linear(2, 3)).state())
    net = model(torch.bfloat16)
    state = {name: tensor.clone() for name, tensor in AdamW(net).state().items()}
    with torch.no_grad():
        next(net.parameters()).add_(1.0)
    with pytest.raises(RunError, match="different moments"):
        AdamW(net).load_state(state)


def test_a_parameter_without_gradient_stays():
    net = model()
    before = [weight.detach().clone() for weight in net.parameters()]
    AdamW(net).step(1.0)
    assert all(torch.equal(one, other) for one, other in zip(before, net.parameters(), strict=True))


def test_schedules_of_the_paper():
    def rate(step: int, schedule: str = "cosine") -> float:
        return learning_rate(step, schedule=schedule, peak=5e-5, floor=5e-6, warmup_steps=200, horizon_steps=40_000)

    assert rate(0) == pytest.approx(5e-5 / 200)
    assert rate(99) == pytest.approx(2.5e-5)
    assert rate(199) == rate(200) == pytest.approx(5e-5)
    assert rate(20_100) == pytest.approx((5e-5 + 5e-6) / 2)
    assert rate(33_000) == pytest.approx(5e-6 + 4.5e-5 * (1 + math.cos(math.pi * 32_800 / 39_800)) / 2)
    assert rate(33_000) == pytest.approx(8.4e-6, rel=0.01)
    assert rate(40_000) == rate(99_999) == pytest.approx(5e-6)
    assert rate(20_100, "linear") == pytest.approx(2.75e-5)
    assert rate(40_000, "constant") == 5e-5


def test_an_unknown_schedule_is_an_error_even_in_the_warm_up():
    with pytest.raises(ValueError, match="cosine"):
        learning_rate(0, schedule="cosin", peak=1.0, warmup_steps=10, horizon_steps=20)
