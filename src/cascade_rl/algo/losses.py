"""Losses as plain functions of per-token tensors.

A loss takes the log-probs of the trained tokens (`logp_N`, differentiable) and what is known about them (`Targets`), and returns
a *sum* with the weight that belongs to it. It never divides by a batch's own size: `stages.step` divides once, by the weight of
all batches of the update, so neither micro-batches nor packing can change the result.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from torch import Tensor

from cascade_rl.algo.batch import Targets


@dataclass(frozen=True, eq=False, slots=True)
class LossSum:
    """`LossSum(total, 12.0)`: a scalar summed over 12 tokens (or sequences, whatever the loss averages over).

    total   scalar tensor with a gradient.
    weight  what the sums of all batches are divided by, once, after the last one.
    sums    further figures for the log, each summed over tokens and without gradient; divided by the number of trained tokens.
    maxes   further figures of which the largest over all batches counts (never an average of maxima).
    """

    total: Tensor
    weight: float
    sums: Mapping[str, float] = field(default_factory=dict)
    maxes: Mapping[str, float] = field(default_factory=dict)


Loss = Callable[[Tensor, Targets], LossSum]


def cross_entropy(logp_N: Tensor, targets: Targets) -> LossSum:
    """Supervised fine-tuning: minus the log-prob, each trained token weighing the same.

    Log-probs of -1, -2 and -3 give a total of 6 and a weight of 3, so a loss of 2.
    """
    assert logp_N.shape == targets.token_ids_N.shape, "one log-prob per trained token"
    return LossSum(total=-logp_N.sum(), weight=float(len(logp_N)))


LOSSES: Mapping[str, Loss] = {"sft": cross_entropy}

# Losses that pull on every trained token with the same weight: their gradient is cheaper to find.
ALIKE: frozenset[Loss] = frozenset({cross_entropy})
