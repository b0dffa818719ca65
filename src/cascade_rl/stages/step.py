"""One optimizer update: the only caller of backward."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from cascade_rl.algo.batch import pack
from cascade_rl.algo.losses import ALIKE, LOSSES, Loss
from cascade_rl.errors import NonFiniteError, unknown
from cascade_rl.model.divergence import Divergence
from cascade_rl.model.optim import AdamW
from cascade_rl.model.policy import Policy
from cascade_rl.records import Sample


@dataclass(frozen=True, slots=True)
class StepStats:
    """What an update did; every value is a function of its inputs alone.

    loss         the loss's sum over its weight, over the whole update (0 when nothing was trained).
    grad_norm    length of the whole gradient before clipping.
    num_samples  samples with at least one trained token; num_tokens: their tokens; num_targets: their trained tokens.
    num_computed tokens that went through the model: less than num_tokens where samples start alike.
    num_batches  forward passes.
    stepped      False when nothing was to be trained, so that the optimizer did not move.
    means        the loss's further figures, each a mean over trained tokens; maxes: those of which the largest counts.
    """

    loss: float = 0.0
    grad_norm: float = 0.0
    num_samples: int = 0
    num_tokens: int = 0
    num_targets: int = 0
    num_computed: int = 0
    num_batches: int = 0
    stepped: bool = False
    means: dict[str, float] = field(default_factory=dict)
    maxes: dict[str, float] = field(default_factory=dict)


def update(
    policy: Policy,
    optim: AdamW,
    samples: Sequence[Sample],
    loss: Loss | str,
    *,
    lr: float,
    max_tokens_per_microbatch: int,
    max_grad_norm: float = 0.0,
    temperature: float = 1.0,
    divergence: Divergence | None = None,
) -> StepStats:
    """One optimizer step on all samples, whatever micro-batches they go through in.

    loss: a function, or its name in `LOSSES`. Losses return sums; the division by the weight of the whole update happens here,
    once, on the finished gradient. So splitting, packing and the order of samples do not matter. max_grad_norm 0: no clipping.
    divergence: for a loss that looks at targets.divergence_N, the teachers that it is found with.
    A sample without a trained token is left out; when none is left, no step is taken. Raises NonFiniteError, before the optimizer
    moves, when the loss or the gradient is not finite.
    """
    if isinstance(loss, str):
        if loss not in LOSSES:
            raise ValueError(unknown("update: loss", loss, LOSSES))
        loss = LOSSES[loss]
    trained = [sample for sample in samples if sample.mask.any()]
    batches = pack(trained, max_tokens_per_microbatch, share=policy.packs)
    if not batches:
        return StepStats()
    optim.zero_grad()
    gradients = _Gradients(optim.parameters, several=len(batches) > 1)
    total = weight = 0.0
    sums: dict[str, float] = {}
    maxes: dict[str, float] = {}
    for batch in batches:
        if divergence is None:
            part = loss(policy.logps(batch, temperature, alike=loss in ALIKE), batch.targets)
        else:
            logp_N, kl_N = policy.logps_and_divergence(batch, divergence, temperature)
            part = loss(logp_N, replace(batch.targets, divergence_N=kl_N))
        value = part.total.item()
        if not math.isfinite(value):
            optim.zero_grad()
            raise _not_finite(f"loss is {value}", lr, samples)
        part.total.backward()
        gradients.add()
        total += value
        weight += part.weight
        for name, figure in part.sums.items():
            sums[name] = sums.get(name, 0.0) + figure
        for name, figure in part.maxes.items():
            maxes[name] = max(maxes.get(name, figure), figure)
    num_targets = sum(batch.num_targets for batch in batches)
    counted = StepStats(
        num_samples=len(trained),
        num_tokens=sum(len(sample) for sample in trained),
        num_targets=num_targets,
        num_computed=sum(batch.num_tokens for batch in batches),
        num_batches=len(batches),
    )
    if weight == 0:
        optim.zero_grad()
        return counted
    grads = gradients.all()
    grad_norm = _length(grads) / weight
    if not math.isfinite(grad_norm):
        optim.zero_grad()
        raise _not_finite(f"gradient norm is {grad_norm}", lr, samples)
    clip = min(1.0, max_grad_norm / (grad_norm + 1e-6)) if max_grad_norm > 0 else 1.0
    optim.step(lr, grads, grad_scale=clip / weight)
    optim.zero_grad()
    means = {name: figure / num_targets for name, figure in sums.items()}
    return replace(counted, loss=total / weight, grad_norm=grad_norm, stepped=True, means=means, maxes=maxes)


class _Gradients:
    """The gradients of one update, summed over its batches in float32: a bf16 sum would lose what each further batch adds.

    Float32 parameters, and a single batch, keep autograd's own sums; only bf16 parameters over several batches need a place.
    """

    def __init__(self, parameters: Sequence[Tensor], several: bool) -> None:
        self._parameters = parameters
        self._wide: dict[int, Tensor] = {}
        self._several = several

    def add(self) -> None:
        """Takes over the gradients of the batch that has just been through backward."""
        for i, parameter in enumerate(self._parameters):
            if self._several and parameter.grad is not None and parameter.dtype != torch.float32:
                if i in self._wide:
                    self._wide[i].add_(parameter.grad)
                else:
                    self._wide[i] = parameter.grad.float()
                parameter.grad = None

    def all(self) -> list[Tensor | None]:
        """One gradient for each parameter, None where nothing reached it."""
        return [self._wide.get(i, parameter.grad) for i, parameter in enumerate(self._parameters)]


def _length(grads: Sequence[Tensor | None]) -> float:
    """Length of all gradients as one vector: float32 within a tensor, float64 across them."""
    norms = [torch.linalg.vector_norm(grad, dtype=torch.float32) for grad in grads if grad is not None]
    return math.sqrt(sum(norm.item() ** 2 for norm in norms))


def _not_finite(what: str, lr: float, samples: Sequence[Sample]) -> NonFiniteError:
    sources = ", ".join([sample.source for sample in samples if sample.source][:3])
    return NonFiniteError(
        f"update of {len(samples)} samples{f' ({sources}, ...)' if sources else ''}: {what}; expected a finite number;"
        f" weights and optimizer are as they were; lower the learning rate ({lr:g}), clip gradients, or look at these samples"
    )
