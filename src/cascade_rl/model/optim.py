"""AdamW with float32 masters, and learning rates as plain functions of the step."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn
from torch.optim.adamw import adamw

from cascade_rl.errors import RunError, unknown

Schedule = Literal["cosine", "linear", "constant"]
SCHEDULES: tuple[str, ...] = ("cosine", "linear", "constant")


def learning_rate(
    step: int,
    *,
    schedule: str,
    peak: float,
    floor: float = 0.0,
    warmup_steps: int = 0,
    horizon_steps: int,
) -> float:
    """The learning rate of update `step`, counted from 0.

    The rate climbs linearly and reaches `peak` with the last of `warmup_steps` updates: peak (step + 1) / warmup_steps. From
    there "constant" stays, "linear" and "cosine" fall to `floor` at `horizon_steps` (training may stop before) and stay there.
    With the paper's 5e-5, floor 5e-6, warm-up 200 and horizon 40,000, update 33,000 has 8.4e-6.
    """
    if schedule not in SCHEDULES:
        raise ValueError(unknown("schedule", schedule, SCHEDULES))
    if step < warmup_steps:
        return peak * (step + 1) / warmup_steps
    if schedule == "constant":
        return peak
    done = min(1.0, (step - warmup_steps) / max(1, horizon_steps - warmup_steps))
    left = 1 - done if schedule == "linear" else (1 + math.cos(math.pi * done)) / 2
    return floor + (peak - floor) * left


@dataclass(eq=False, slots=True)
class _Slot:
    """One parameter and what AdamW keeps for it. `master` is the parameter itself where that is float32 already."""

    name: str
    weight: nn.Parameter
    master: Tensor
    exp_avg: Tensor
    exp_avg_sq: Tensor
    decay: float
    version: int

    @property
    def shares(self) -> bool:
        return self.master is self.weight


class AdamW:
    """AdamW (Loshchilov and Hutter, 2019) over a model's parameters, in float32 whatever the weights' type.

    With g the gradient, b1, b2 the betas and t the number of the update:

        m = b1 m + (1 - b1) g;  v = b2 v + (1 - b2) g^2
        w = w - lr decay w - lr (m / (1 - b1^t)) / (sqrt(v / (1 - b2^t)) + eps)

    bf16 weights have float32 masters here: updates too small for bf16 add up in the master, and the weight is always the master
    rounded. When someone else writes a weight (a checkpoint is loaded), its master equals it again before the next update.
    Weight decay applies to matrices, embeddings included, and not to vectors (norms, biases), as in Megatron-LM.
    """

    def __init__(
        self,
        model: nn.Module,
        betas: tuple[float, float] = (0.9, 0.98),
        eps: float = 1e-8,
        weight_decay: float = 0.1,
    ) -> None:
        self.betas, self.eps = betas, eps
        self.num_steps = 0
        self._slots = [
            _slot(name, weight, weight_decay if weight.ndim > 1 else 0.0)
            for name, weight in model.named_parameters()
            if weight.requires_grad
        ]

    @property
    def parameters(self) -> list[nn.Parameter]:
        return [slot.weight for slot in self._slots]

    @torch.no_grad()
    def step(self, lr: float, grads: Sequence[Tensor | None] | None = None, grad_scale: float = 1.0) -> None:
        """One update from `grads` (in the order of `parameters`; by default their `.grad`) times `grad_scale`.

        A parameter without a gradient stays as it is. Float32 gradients are scaled in place: they are used up.
        """
        self.num_steps += 1
        for slot, told in zip(self._slots, grads or [weight.grad for weight in self.parameters], strict=True):
            if told is None:
                continue
            _follow(slot)
            grad = told.float()
            if grad_scale != 1.0:
                grad.mul_(grad_scale)
            # One parameter at a time: a float32 copy of all bf16 gradients would cost as much memory as the masters.
            adamw(
                [slot.master],
                [grad],
                [slot.exp_avg],
                [slot.exp_avg_sq],
                [],
                [torch.tensor(float(self.num_steps - 1))],
                fused=True,
                amsgrad=False,
                beta1=self.betas[0],
                beta2=self.betas[1],
                lr=lr,
                weight_decay=slot.decay,
                eps=self.eps,
                maximize=False,
            )
            if not slot.shares:
                slot.weight.copy_(slot.master)
            slot.version = slot.weight._version

    def zero_grad(self) -> None:
        for slot in self._slots:
            slot.weight.grad = None

    @torch.no_grad()
    def state(self) -> dict[str, Tensor]:
        """Everything needed to go on with the same bytes, as a flat dict: "step", "exp_avg/NAME", "exp_avg_sq/NAME", and for bf16
        weights "master/NAME". The tensors are the optimizer's own, not copies."""
        state = {"step": torch.tensor(self.num_steps)}
        for slot in self._slots:
            _follow(slot)
            state[f"exp_avg/{slot.name}"] = slot.exp_avg
            state[f"exp_avg_sq/{slot.name}"] = slot.exp_avg_sq
            if not slot.shares:
                state[f"master/{slot.name}"] = slot.master
        return state

    @torch.no_grad()
    def load_state(self, state: Mapping[str, Tensor]) -> None:
        """Takes over what `state()` gave; the model's weights must be those of the same moment. Raises RunError."""
        own = self.state()
        if strange := sorted(own.keys() ^ state.keys()):
            raise RunError(
                f'optimizer state does not belong to this model and dtype: "{strange[0]}" is on one side only'
                f" ({len(strange)} in all); start the stage anew, or use the recipe it was saved with"
            )
        for name, tensor in own.items():
            if tensor.shape != state[name].shape:
                raise RunError(f'optimizer state "{name}" has shape {list(state[name].shape)}; expected {list(tensor.shape)}')
        for slot in self._slots:
            if not slot.shares and not torch.equal(state[f"master/{slot.name}"].to(slot.weight), slot.weight):
                raise RunError(f'optimizer state: the master of "{slot.name}" is not its weight; they are from different moments')
        for name, tensor in own.items():
            tensor.copy_(state[name])
        self.num_steps = int(state["step"])


def _slot(name: str, weight: nn.Parameter, decay: float) -> _Slot:
    master = weight if weight.dtype == torch.float32 else weight.detach().float()
    return _Slot(
        name, weight, master, torch.zeros_like(master.detach()), torch.zeros_like(master.detach()), decay, weight._version
    )


def _follow(slot: _Slot) -> None:
    """Sets the master to the weight where someone else has written the weight since."""
    if not slot.shares and slot.version != slot.weight._version:
        slot.master.copy_(slot.weight)
        slot.version = slot.weight._version
