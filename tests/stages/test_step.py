"""Invariant 1 (micro-batches, packing, padding and order do not matter) and invariant 12 (stop before the optimizer moves)."""

import math
from pathlib import Path

import numpy as np
import pytest
import torch
from tests.model.tiny import make_tiny
from transformers import AutoModelForCausalLM

from cascade_rl.algo.losses import LossSum, cross_entropy
from cascade_rl.errors import NonFiniteError
from cascade_rl.model.optim import AdamW
from cascade_rl.model.policy import Policy
from cascade_rl.records import Sample
from cascade_rl.stages.step import StepStats, update

LENGTHS = (5, 33, 7, 8, 30, 31, 3)


def samples(seed: int = 0, lengths: tuple[int, ...] = LENGTHS) -> list[Sample]:
    rng = np.random.default_rng(seed)
    return [Sample(rng.integers(0, 290, n).astype(np.int32), np.r_[False, rng.random(n - 2) < 0.6, True]) for n in lengths]


def groups(seed: int = 0) -> list[Sample]:
    """Five answers to each of two prompts of 40 tokens that start with the same 20, and two samples that share nothing."""
    rng = np.random.default_rng(seed)
    start = rng.integers(0, 290, 20)
    told = samples(seed, (33, 5))
    for prompt in [np.r_[start, rng.integers(0, 290, 20)] for _ in range(2)]:
        for own in (20, 19, 18, 4, 1):
            ids = np.r_[prompt, rng.integers(0, 290, own)].astype(np.int32)
            told.append(Sample(ids, np.r_[np.zeros(40, bool), np.ones(own, bool)]))
    return told


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    return make_tiny("qwen3", tmp_path_factory.mktemp("qwen3"))


class GradientsOnly(AdamW):
    """Keeps the scaled gradients of the last step and leaves the weights alone."""

    def step(self, lr, grads=None, grad_scale=1.0):
        self.last = [None if grad is None else grad.float() * grad_scale for grad in grads]


def gradient(policy: Policy, told: list[Sample], max_tokens: int) -> tuple[StepStats, torch.Tensor]:
    optim = GradientsOnly(policy.model)
    stats = update(policy, optim, told, "sft", lr=1.0, max_tokens_per_microbatch=max_tokens, max_grad_norm=0.0)
    return stats, torch.cat([grad.flatten() for grad in optim.last])


def plain_gradient(folder: Path, told: list[Sample]) -> tuple[float, torch.Tensor]:
    """The plainest way: pad all rows to the longest, whole logits, mean over the trained tokens."""
    model = AutoModelForCausalLM.from_pretrained(folder, attn_implementation="eager")
    longest = max(len(sample) for sample in told)
    ids_BT = torch.tensor(np.stack([np.pad(s.token_ids, (0, longest - len(s))) for s in told]), dtype=torch.long)
    real_BT = torch.tensor(np.stack([np.pad(np.ones(len(s)), (0, longest - len(s))) for s in told]), dtype=torch.long)
    mask_BT = torch.tensor(np.stack([np.pad(s.mask, (0, longest - len(s))) for s in told]))
    logits_BTV = model(input_ids=ids_BT, attention_mask=real_BT).logits
    loss = torch.nn.functional.cross_entropy(logits_BTV[:, :-1][mask_BT[:, 1:]], ids_BT[:, 1:][mask_BT[:, 1:]])
    loss.backward()
    return loss.item(), torch.cat([weight.grad.flatten() for weight in model.parameters()])


@pytest.mark.parametrize("make", [samples, groups])
@pytest.mark.parametrize("max_tokens", [1, 35, 70, 1000])
def test_micro_batches_packing_and_sharing_do_not_change_loss_or_gradient(folder, max_tokens, make):
    told_loss, told = plain_gradient(folder, make())
    stats, found = gradient(Policy(folder), make(), max_tokens)
    assert stats.loss == pytest.approx(told_loss, rel=1e-6)
    assert stats.grad_norm == pytest.approx(told.norm().item(), rel=1e-5)
    assert (found - told).norm() < 1e-6 * told.norm() + 1e-7
    assert stats.num_targets == sum(int(sample.mask.sum()) for sample in make())
    assert stats.num_tokens == sum(len(sample) for sample in make())


def long_group() -> list[Sample]:
    """Six short answers to a prompt of 600 tokens."""
    rng = np.random.default_rng(3)
    prompt = rng.integers(0, 290, 600)
    rows = [np.r_[prompt, rng.integers(0, 290, own)].astype(np.int32) for own in (40, 35, 30, 20, 9, 1)]
    return [Sample(ids, np.arange(len(ids)) >= 600) for ids in rows]


def test_a_prompt_longer_than_a_micro_batch_trains_like_any_other_and_is_computed_once(folder):
    """One such sample must be held; the other answers are small beside it."""
    told_loss, told = plain_gradient(folder, long_group())
    stats, found = gradient(Policy(folder, checkpointing=True), long_group(), 256)
    assert stats.loss == pytest.approx(told_loss, rel=1e-6)
    assert (found - told).norm() < 1e-6 * told.norm() + 1e-7
    assert (stats.num_batches, stats.num_computed) == (1, 600 + 135)


def test_a_shared_prompt_is_computed_once_unless_the_model_does_not_pack(folder, tmp_path):
    stats, _ = gradient(Policy(folder), groups(), 1000)
    assert stats.num_tokens == 33 + 5 + 2 * (5 * 40 + 62)
    assert stats.num_computed == 33 + 5 + 20 + 2 * (20 + 62)
    stats, _ = gradient(Policy(make_tiny("nemotron_h", tmp_path)), groups(), 1000)
    assert stats.num_computed == stats.num_tokens


@pytest.mark.parametrize("make", [lambda: samples(lengths=(9, 9, 9, 9, 20, 20)), groups])
def test_order_does_not_change_a_bit(folder, make):
    policy, told = Policy(folder), make()
    one, first = gradient(policy, told, 40)
    other, second = gradient(policy, told[::-1], 40)
    assert one == other
    assert torch.equal(first, second)


def test_a_micro_batch_with_few_targets_weighs_by_its_targets(folder):
    """Two samples with 1 and 20 trained tokens: the mean is over 21 tokens, not over two means."""
    rng = np.random.default_rng(0)
    ids = rng.integers(0, 290, 21).astype(np.int32)
    few, many = Sample(ids, np.r_[np.zeros(20, bool), True]), Sample(ids[::-1].copy(), np.r_[False, np.ones(20, bool)])
    policy = Policy(folder)
    losses = [gradient(policy, told, 21)[0].loss for told in ([few], [many], [few, many])]
    assert losses[2] == pytest.approx((losses[0] + 20 * losses[1]) / 21, rel=1e-6)


def test_bf16_over_several_batches_is_summed_in_float32(folder):
    policy = Policy(folder, dtype="bfloat16")
    whole, split = gradient(policy, samples(), 1000)[1], gradient(policy, samples(), 35)[1]
    assert (whole - split).norm() < 0.02 * whole.norm()


def test_same_inputs_same_bytes(folder):
    weights = []
    for _ in range(2):
        policy = Policy(folder)
        optim = AdamW(policy.model)
        for seed in range(3):
            told = samples(seed) + groups(seed)
            update(policy, optim, told, "sft", lr=1e-2, max_tokens_per_microbatch=256, max_grad_norm=1.0)
        weights.append(policy.weights())
    assert all(torch.equal(weights[0][name], weights[1][name]) for name in weights[0])


def test_clipping_by_hand(folder):
    policy = Policy(folder)
    free, whole = gradient(policy, samples(), 1000)
    optim = GradientsOnly(policy.model)
    update(policy, optim, samples(), "sft", lr=1.0, max_tokens_per_microbatch=1000, max_grad_norm=free.grad_norm / 4)
    clipped = torch.cat([grad.flatten() for grad in optim.last])
    assert torch.allclose(clipped, whole / 4, rtol=1e-4, atol=1e-9)


def test_training_lowers_the_loss(folder):
    policy = Policy(folder)
    optim = AdamW(policy.model)
    losses = [
        update(policy, optim, samples(), "sft", lr=1e-2, max_tokens_per_microbatch=64, max_grad_norm=1.0).loss for _ in range(20)
    ]
    assert losses[-1] < losses[0] / 2


def frozen(policy: Policy, optim: AdamW) -> dict[str, torch.Tensor]:
    tensors = {**policy.weights(), **{f"state {name}": tensor for name, tensor in optim.state().items()}}
    return {name: tensor.clone() for name, tensor in tensors.items()}


def unmoved(before: dict[str, torch.Tensor], policy: Policy, optim: AdamW) -> bool:
    return all(torch.equal(tensor, before[name]) for name, tensor in frozen(policy, optim).items())


@pytest.fixture(params=["float32", "bfloat16"])
def trained(request, folder) -> tuple[Policy, AdamW]:
    policy = Policy(folder, dtype=request.param)
    optim = AdamW(policy.model)
    update(policy, optim, samples(), "sft", lr=1e-2, max_tokens_per_microbatch=64, max_grad_norm=1.0)
    return policy, optim


def step(policy: Policy, optim: AdamW, told: list[Sample], loss) -> StepStats:
    return update(policy, optim, told, loss, lr=1e-2, max_tokens_per_microbatch=64, max_grad_norm=1.0)


def test_a_loss_that_is_not_finite_stops_before_the_optimizer_moves(trained):
    policy, optim = trained
    before = frozen(policy, optim)
    calls = []

    def late_nan(logp_N, targets):
        calls.append(len(logp_N))
        part = cross_entropy(logp_N, targets)
        return part if len(calls) == 1 else LossSum(part.total * math.nan, part.weight)

    with pytest.raises(NonFiniteError, match="loss is nan"):
        step(policy, optim, samples(), late_nan)
    assert len(calls) == 2
    assert unmoved(before, policy, optim)
    assert all(weight.grad is None for weight in optim.parameters)
    assert step(policy, optim, samples(), "sft").stepped


def test_a_gradient_that_is_not_finite_stops_before_the_optimizer_moves(trained):
    policy, optim = trained
    before = frozen(policy, optim)

    def steep(logp_N, targets):
        # sqrt at 0 is finite, its slope is not.
        return LossSum((logp_N - logp_N.detach()).abs().sqrt().sum(), float(len(logp_N)))

    with pytest.raises(NonFiniteError, match="gradient norm is nan"):
        step(policy, optim, samples(), steep)
    assert unmoved(before, policy, optim)


@pytest.mark.parametrize("told", [[], [Sample(np.array([1, 2, 3], np.int32), np.zeros(3, bool))]])
def test_a_fully_masked_batch_has_loss_zero_and_takes_no_step(trained, told):
    policy, optim = trained
    before = frozen(policy, optim)
    assert step(policy, optim, told, "sft") == StepStats()
    assert unmoved(before, policy, optim)
    assert optim.num_steps == 1


def test_an_unknown_loss_is_refused_with_a_suggestion(trained):
    with pytest.raises(ValueError, match='"sft"'):
        step(*trained, samples(), "stf")


def test_further_figures_are_means_over_trained_tokens(trained):
    policy, optim = trained

    def with_figure(logp_N, targets):
        part = cross_entropy(logp_N, targets)
        return LossSum(part.total, part.weight, {"threes": 3.0 * len(logp_N)})

    assert step(policy, optim, samples(), with_figure).means == {"threes": pytest.approx(3.0)}
