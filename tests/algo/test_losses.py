"""Losses against numbers worked out by hand."""

import torch

from cascade_rl.algo.batch import Targets
from cascade_rl.algo.losses import LOSSES, cross_entropy


def targets(num: int) -> Targets:
    return Targets(token_ids_N=torch.zeros(num, dtype=torch.long), sample_N=torch.zeros(num, dtype=torch.long), num_samples=1)


def test_cross_entropy_is_a_sum_with_its_number_of_tokens():
    logp_N = torch.tensor([-1.0, -2.0, -3.0], requires_grad=True)
    part = cross_entropy(logp_N, targets(3))
    assert part.total.item() == 6.0
    assert part.weight == 3.0
    part.total.backward()
    assert logp_N.grad.tolist() == [-1.0, -1.0, -1.0]


def test_every_loss_of_a_fully_masked_batch_is_zero():
    for loss in LOSSES.values():
        part = loss(torch.zeros(0, requires_grad=True), targets(0))
        assert part.total.item() == 0.0
        assert part.weight == 0.0
