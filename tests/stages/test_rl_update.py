"""Invariant 1 for the policy loss: the update equals the plain formula, however it is split, packed, padded or ordered."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.model.tiny import make_tiny
from transformers import AutoModelForCausalLM

from cascade_rl.algo.policy_loss import Average, PolicyLoss
from cascade_rl.model.optim import AdamW
from cascade_rl.model.policy import Policy
from cascade_rl.records import Sample
from cascade_rl.stages.step import StepStats, update

TEMPERATURE = 0.6
LENGTHS = (4, 21, 9, 9, 13)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny("qwen3", tmp_path_factory.mktemp("update"))


@pytest.fixture(scope="module")
def samples(folder: Path) -> list[Sample]:
    """Prompts of two tokens, advantages of both signs, and log-probs of a sampler that is a little off."""
    rng = np.random.default_rng(0)
    told = []
    for number, length in enumerate(LENGTHS):
        mask = np.arange(length) >= 2
        values = [np.where(mask, rng.normal(size=length), 0).astype(np.float32) for _ in range(2)]
        ids = rng.integers(0, 290, length).astype(np.int32)
        told.append(Sample(ids, mask, logp_sampler=-5 + 0.1 * values[0], advantage=values[1], source=str(number)))
    return told


class GradientsOnly(AdamW):
    """Keeps the scaled gradients of the last step and leaves the weights alone."""

    def step(self, lr: float, grads: Any = None, grad_scale: float = 1.0) -> None:
        self.last = torch.cat([grad.float().flatten() * grad_scale for grad in grads])


def ours(folder: Path, samples: list[Sample], average: Average, max_tokens: int) -> tuple[StepStats, torch.Tensor]:
    policy = Policy(folder)
    optim = GradientsOnly(policy.model)
    loss = PolicyLoss(average=average)
    stats = update(policy, optim, samples, loss, lr=1.0, max_tokens_per_microbatch=max_tokens, temperature=TEMPERATURE)
    return stats, optim.last


def plain(folder: Path, samples: list[Sample], average: Average) -> torch.Tensor:
    """Eq. 1 as it is written: one sequence at a time, whole logits over the temperature, - sum A log p over the count."""
    model = AutoModelForCausalLM.from_pretrained(folder, attn_implementation="eager")
    count = sum(int(sample.mask.sum()) for sample in samples)
    for sample in samples:
        ids_T = torch.tensor(sample.token_ids, dtype=torch.long)
        logp_TV = (model(ids_T[None]).logits[0, :-1] / TEMPERATURE).log_softmax(-1)
        logp_T = logp_TV.gather(1, ids_T[1:, None])[:, 0][torch.tensor(sample.mask[1:])]
        gain = (logp_T * torch.tensor(sample.advantage[sample.mask])).sum()
        (-gain / (count if average == "token" else len(samples) * int(sample.mask.sum()))).backward()
    return torch.cat([weight.grad.flatten() for weight in model.parameters()])


@pytest.mark.parametrize("average", ["token", "sequence"])
@pytest.mark.parametrize("max_tokens", [1, 30, 1000])
def test_the_gradient_is_that_of_the_formula(average: Average, max_tokens: int, folder: Path, samples: list[Sample]) -> None:
    """One sample a batch, two batches, or one: a sample alone in its batch weighs what it weighs among the others."""
    expected = plain(folder, samples, average)
    stats, found = ours(folder, samples, average, max_tokens)
    assert stats.num_batches == {1: len(LENGTHS), 30: 2, 1000: 1}[max_tokens]
    assert (found - expected).norm() < 1e-5 * expected.norm()
    assert stats.grad_norm == pytest.approx(expected.norm().item(), rel=1e-5)


def test_figures_do_not_depend_on_the_split_and_the_largest_is_the_largest(folder: Path, samples: list[Sample]) -> None:
    """Means over all tokens, never means of means; and a maximum over micro-batches is no average of maxima."""
    told = [ours(folder, samples, "token", max_tokens)[0] for max_tokens in (1, 30, 1000)]
    policy = Policy(folder)
    from cascade_rl.model.scoring import score_samples

    gaps = [
        np.abs(logp - sample.logp_sampler)[sample.mask]
        for logp, sample in zip(score_samples(policy, samples, 1000, TEMPERATURE), samples, strict=True)
        if sample.logp_sampler is not None
    ]
    for stats in told:
        assert stats.loss == pytest.approx(told[0].loss, rel=1e-5)
        assert stats.means["gap"] == pytest.approx(np.concatenate(gaps).mean(), rel=1e-4)
        assert stats.maxes["gap"] == pytest.approx(np.concatenate(gaps).max(), rel=1e-4)
        assert stats.maxes["ratio"] == 0.0  # the policy that trains is the one that is compared with
    assert max(map(np.max, gaps)) > 1.05 * np.mean([gap.max() for gap in gaps])  # else the line above would prove nothing


def test_the_order_of_samples_does_not_change_a_bit(folder: Path, samples: list[Sample]) -> None:
    one, first = ours(folder, samples, "token", 30)
    other, second = ours(folder, samples[::-1], "token", 30)
    assert one == other
    assert torch.equal(first, second)
