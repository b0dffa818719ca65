"""The policy loss and its gradient, option by option, against numbers worked out by hand."""

import math

import pytest
import torch
from torch import Tensor

from cascade_rl.algo.batch import Targets
from cascade_rl.algo.policy_loss import PolicyLoss


def targets(advantage: list[float], sampler: list[float], samples: list[int] | None = None, **told: list[float]) -> Targets:
    of_sample = samples or [0] * len(advantage)
    return Targets(
        token_ids_N=torch.zeros(len(advantage), dtype=torch.int64),
        sample_N=torch.tensor(of_sample),
        num_samples=max(of_sample) + 1,
        logp_sampler_N=torch.tensor(sampler),
        advantage_N=torch.tensor(advantage),
        **{f"{name}_N": torch.tensor(values) for name, values in told.items()},
    )


def loss_and_gradient(loss: PolicyLoss, logp: list[float], told: Targets) -> tuple[float, list[float]]:
    """Divided by its weight, as the update divides."""
    logp_N = torch.tensor(logp, requires_grad=True)
    part = loss(logp_N, told)
    (part.total / part.weight).backward()
    assert isinstance(logp_N.grad, Tensor)
    return part.total.item() / part.weight, logp_N.grad.tolist()


def test_on_policy_it_is_reinforce_over_all_tokens() -> None:
    logp = [-1.0, -2.0, -0.5]
    value, gradient = loss_and_gradient(PolicyLoss(), logp, targets([1.0, 1.0, -2.0], logp, [0, 0, 1]))
    assert value == pytest.approx(0.0)  # ratio 1: minus the mean of 1, 1 and -2
    assert gradient == pytest.approx([-1 / 3, -1 / 3, 2 / 3])


def test_by_sequence_each_rollout_weighs_the_same() -> None:
    logp = [-1.0, -2.0, -0.5]
    value, gradient = loss_and_gradient(PolicyLoss(average="sequence"), logp, targets([1.0, 1.0, -2.0], logp, [0, 0, 1]))
    assert value == pytest.approx(0.5)  # minus the mean of 1 and -2
    assert gradient == pytest.approx([-1 / 4, -1 / 4, 1.0])


def test_the_ratio_after_a_first_update_and_its_asymmetric_clip() -> None:
    old = [-1.0, -1.0, -1.0, -1.0]
    ratio = [1.5, 1.1, 0.5, 0.9]
    logp = [-1.0 + math.log(r) for r in ratio]
    told = targets([1.0, 1.0, -1.0, -1.0], old, logp_old=old)
    value, gradient = loss_and_gradient(PolicyLoss(clip=(0.2, 0.28)), logp, told)
    # min(r A, clip(r) A): 1.28 (clipped), 1.1, -0.8 (clipped), -0.9
    assert value == pytest.approx(-(1.28 + 1.1 - 0.8 - 0.9) / 4)
    assert gradient == pytest.approx([0.0, -1.1 / 4, 0.0, 0.9 / 4])
    unclipped = loss_and_gradient(PolicyLoss(), logp, told)[1]
    assert unclipped == pytest.approx([-1.5 / 4, -1.1 / 4, 0.5 / 4, 0.9 / 4])


@pytest.mark.parametrize("kind, weights", [("none", [1, 1, 1]), ("truncate", [3.0, 0.4, 1.2]), ("mask", [0.0, 0.0, 1.2])])
def test_importance_weights_are_capped_or_masked_and_carry_no_gradient(kind: str, weights: list[float]) -> None:
    logp = [-1.0, -1.0, -1.0]
    sampler = [-1.0 - math.log(w) for w in (4.0, 0.4, 1.2)]
    loss = PolicyLoss(importance=kind, bounds=(0.5, 3.0))  # type: ignore[arg-type]
    _, gradient = loss_and_gradient(loss, logp, targets([1.0, 1.0, 1.0], sampler))
    assert gradient == pytest.approx([-w / 3 for w in weights])


def test_the_gradient_of_the_kl_is_that_of_the_exact_reverse_kl() -> None:
    """Over a vocabulary of three tokens the expectation over the policy's own samples can be taken exactly."""
    logits_V = torch.tensor([0.3, -0.7, 0.1], dtype=torch.float64, requires_grad=True)
    start_V = torch.tensor([-0.2, 0.4, 0.5], dtype=torch.float64).log_softmax(0)
    logp_V = logits_V.log_softmax(0)
    (exact_V,) = torch.autograd.grad((logp_V.exp() * (logp_V - start_V)).sum(), logits_V)
    expected_V = torch.zeros(3, dtype=torch.float64)
    for token in range(3):
        logp = logits_V.log_softmax(0)
        told = targets([0.0], [0.0], logp_start=[0.0])
        told = Targets(
            told.token_ids_N, told.sample_N, 1, logp[token : token + 1].detach(), told.advantage_N, None, start_V[token, None]
        )
        part = PolicyLoss(kl=1.0)(logp[token : token + 1], told)
        (gradient_V,) = torch.autograd.grad(part.total, logits_V)
        expected_V += logp_V[token].exp().detach() * gradient_V
    torch.testing.assert_close(expected_V, exact_V)


def test_figures_for_the_log() -> None:
    part = PolicyLoss()(torch.tensor([-1.0, -2.0]), targets([1.0, -1.0], [-1.1, -1.8]))
    assert part.sums["gap"] == pytest.approx(0.3)
    assert part.maxes["gap"] == pytest.approx(0.2)
    assert part.sums["k3"] == pytest.approx((math.exp(-0.1) + 0.1 - 1) + (math.exp(0.2) - 0.2 - 1), rel=1e-4)
    assert part.maxes["ratio"] == 0.0


@pytest.mark.parametrize("kind", ["none", "truncate", "mask"])
def test_the_gap_is_measured_before_any_weight_is_capped(kind: str) -> None:
    told = targets([1.0, 1.0], [-1.0 - math.log(4.0), -1.0])
    part = PolicyLoss(importance=kind, bounds=(0.5, 2.0))(torch.tensor([-1.0, -1.0]), told)  # type: ignore[arg-type]
    assert part.sums["gap"] == part.maxes["gap"] == pytest.approx(math.log(4.0))
    assert part.sums["k3"] == pytest.approx(0.25 + math.log(4.0) - 1)


def test_sampler_old_and_start_log_probs_carry_no_gradient() -> None:
    leak = torch.tensor([-1.0, -1.0], requires_grad=True)
    told = Targets(torch.zeros(2, dtype=torch.int64), torch.tensor([0, 0]), 1, leak * 1, torch.ones(2), leak * 2, leak * 3)
    PolicyLoss(importance="truncate", kl=0.1)(torch.tensor([-1.0, -2.0], requires_grad=True), told).total.backward()
    assert leak.grad is None
