"""The distillation loss and its gradient, option by option, against numbers worked out by hand."""

import dataclasses
import math

import pytest
import torch
from torch import Tensor

from cascade_rl.algo.batch import Targets
from cascade_rl.algo.distill_loss import DistillLoss, generalised_kl


def targets(teacher: list[float], sampler: list[float], samples: list[int] | None = None, **told: list[float]) -> Targets:
    of_sample = samples or [0] * len(teacher)
    others = {"advantage": [0.0] * len(teacher), **told}
    return Targets(
        token_ids_N=torch.zeros(len(teacher), dtype=torch.int64),
        sample_N=torch.tensor(of_sample),
        num_samples=max(of_sample) + 1,
        logp_sampler_N=torch.tensor(sampler),
        logp_teacher_N=torch.tensor(teacher),
        **{f"{name}_N": torch.tensor(values) for name, values in others.items()},
    )


def gradient(loss: DistillLoss, logp: list[float], told: Targets) -> list[float]:
    """Divided by its weight, as the update divides."""
    logp_N = torch.tensor(logp, requires_grad=True)
    part = loss(logp_N, told)
    (part.total / part.weight).backward()
    assert isinstance(logp_N.grad, Tensor)
    return logp_N.grad.tolist()


def test_each_token_is_pushed_by_its_gap_to_the_teacher_averaged_by_sequence() -> None:
    """Sequences of lengths 1 and 3: gaps 1 | 0.5, -0.5, 2; mean over a sequence's tokens, then over the two."""
    logp = [-2.0, -1.0, -1.0, -3.0]
    told = targets([-1.0, -0.5, -1.5, -1.0], logp, [0, 1, 1, 1])
    assert gradient(DistillLoss(), logp, told) == pytest.approx([-1 / 2, -0.5 / 6, 0.5 / 6, -2 / 6])


def test_a_teacher_that_is_the_student_moves_nothing() -> None:
    logp = [-2.0, -1.0, -0.25]
    assert gradient(DistillLoss(), logp, targets(logp, logp)) == [0.0, 0.0, 0.0]


def test_tokens_whose_weight_is_out_of_bounds_are_dropped_not_capped() -> None:
    """Weights 2.5, 1.5, 0.4 and 0.6 with bounds 0.5 and 2: only the second and the fourth train, with their own weight."""
    logp = [-1.0] * 4
    sampler = [-1.0 - math.log(w) for w in (2.5, 1.5, 0.4, 0.6)]
    told = gradient(DistillLoss(), logp, targets([0.0] * 4, sampler))
    assert told == pytest.approx([0.0, -1.5 / 4, 0.0, -0.6 / 4])


def test_the_gap_is_clipped_and_the_outcome_is_added_to_it() -> None:
    logp = [-6.0, -1.0]
    told = targets([-1.0, -2.0], logp, advantage=[2.0, 2.0])
    assert gradient(DistillLoss(gap_clip=3.0), logp, told) == pytest.approx([-3 / 2, 1 / 2])
    assert gradient(DistillLoss(gap_clip=3.0, outcome=0.5), logp, told) == pytest.approx([-4 / 2, 0.0])


def test_extrapolation_goes_past_the_teacher_away_from_the_start() -> None:
    """lambda (teacher - start) - (student - start) with lambda 1.5: 1.5 * 2 - 0.5 = 2.5."""
    logp = [-2.5]
    told = targets([-1.0], logp, logp_start=[-3.0])
    assert gradient(DistillLoss(extrapolation=1.5), logp, told) == pytest.approx([-2.5])
    assert gradient(DistillLoss(extrapolation=1.0), logp, told) == pytest.approx([-1.5])


def test_samples_of_other_weight_count_for_so_much_more_in_the_mean() -> None:
    """Weights 3 and 1: (3 * 1 + 1 * mean(1, 1)) / 4."""
    logp = [-2.0, -2.0, -2.0]
    told = targets([-1.0] * 3, logp, [0, 1, 1], weight=[3.0, 1.0, 1.0])
    assert gradient(DistillLoss(), logp, told) == pytest.approx([-3 / 4, -1 / 8, -1 / 8])


def test_teacher_start_and_sampler_log_probs_carry_no_gradient() -> None:
    leak = torch.tensor([-1.0, -1.5], requires_grad=True)
    told = targets([0.0, 0.0], [0.0, 0.0])
    told = dataclasses.replace(told, logp_teacher_N=leak * 2, logp_start_N=leak * 3, logp_sampler_N=leak * 1)
    logp_N = torch.tensor([-1.0, -1.5], requires_grad=True)
    DistillLoss(extrapolation=1.25)(logp_N, told).total.backward()
    assert leak.grad is None
    assert logp_N.grad is not None


LOGITS = [0.3, -0.7, 0.1]
TEACHER = [-0.2, 0.4, 0.5]


def finite_difference(kl, logits: list[float], step: float = 1e-6) -> list[float]:
    told = []
    for place in range(len(logits)):
        up, down = ([x + sign * step * (i == place) for i, x in enumerate(logits)] for sign in (1, -1))
        told.append((kl(up) - kl(down)) / (2 * step))
    return told


def reverse_kl(logits: list[float]) -> float:
    p, q = (torch.tensor(x, dtype=torch.float64).log_softmax(0) for x in (logits, TEACHER))
    return float((p.exp() * (p - q)).sum())


def test_on_a_vocabulary_of_three_the_expected_gradient_is_that_of_the_exact_reverse_kl() -> None:
    """The sampled token's gradient, taken over all tokens with the student's own probabilities."""
    logits_V = torch.tensor(LOGITS, dtype=torch.float64, requires_grad=True)
    teacher_V = torch.tensor(TEACHER, dtype=torch.float64).log_softmax(0)
    found_V = torch.zeros(3, dtype=torch.float64)
    for token in range(3):
        logp_V = logits_V.log_softmax(0)
        told = dataclasses.replace(
            targets([0.0], [0.0]), logp_teacher_N=teacher_V[token, None], logp_sampler_N=logp_V[token, None].detach()
        )
        (gradient_V,) = torch.autograd.grad(DistillLoss()(logp_V[token, None], told).total, logits_V)
        found_V += logp_V[token].exp().detach() * gradient_V
    assert found_V.tolist() == pytest.approx(finite_difference(reverse_kl, LOGITS), abs=1e-8)


def test_the_whole_kl_has_the_gradient_of_the_reverse_kl_too() -> None:
    logits_V = torch.tensor(LOGITS, dtype=torch.float64, requires_grad=True)
    teacher_V = torch.tensor(TEACHER, dtype=torch.float64).log_softmax(0)
    kl_N = generalised_kl(logits_V.log_softmax(0)[None], teacher_V[None])
    assert kl_N.item() == pytest.approx(reverse_kl(LOGITS))
    told = dataclasses.replace(targets([0.0], [0.0]), divergence_N=kl_N)
    logp_N = logits_V.log_softmax(0)[:1]
    (found_V,) = torch.autograd.grad(DistillLoss(divergence=True)(logp_N, told).total, logits_V)
    assert found_V.tolist() == pytest.approx(finite_difference(reverse_kl, LOGITS), abs=1e-8)


def test_over_the_likeliest_tokens_the_minimum_stays_at_the_teacher() -> None:
    """p = (.2, .3, .5), q = (.6, .3, .1), the teacher's two: .2 log(.2/.6) + .6 - .2 + .3 log 1; and its gradient is 0 at p = q."""
    p, q = torch.tensor([[0.2, 0.3, 0.5]]).log(), torch.tensor([[0.6, 0.3, 0.1]]).log()
    assert generalised_kl(p, q, top_k=2).item() == pytest.approx(0.2 * math.log(1 / 3) + 0.4)
    same_V = q[0].clone().requires_grad_()
    generalised_kl(same_V.log_softmax(0)[None], q, top_k=2).sum().backward()
    assert same_V.grad is not None
    assert same_V.grad.abs().max() < 1e-6
