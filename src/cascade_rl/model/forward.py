"""The forward that trains Llama-like and Qwen3-like models: transformers' numbers, and only what the loss needs.

Of the last layer, tokens whose successor is not trained (prompts, most of a long document) need their keys and values alone: nobody
reads their queries, their attention or their MLP. In a model of four layers whose samples are mostly prompt, that is a fifth of
an update. Rotations take half the passes over memory of transformers' own.

Letters: T tokens of a batch, U of them that are asked for the next token, N trained tokens (several may follow one place), H query
heads, K key-value heads, D head size, E hidden size.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from cascade_rl.algo.batch import Batch
from cascade_rl.model.attention import Shape, attend
from cascade_rl.model.pieces import Plan, plan_attention

if TYPE_CHECKING:
    from transformers import PreTrainedModel


class _Turn(torch.autograd.Function):
    """x cos + rotate_half(x) sin, for x [T, H, D]. rotate_half(x) is roll(x, D / 2) with the sign of its first half turned, which
    the given `sin` carries."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, cos_T1D: Tensor, sin_T1D: Tensor) -> Tensor:
        ctx.save_for_backward(cos_T1D, sin_T1D)
        return torch.addcmul(x * cos_T1D, x.roll(x.shape[-1] // 2, -1), sin_T1D)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None]:
        (grad,), (cos_T1D, sin_T1D) = grads, ctx.saved_tensors
        return torch.addcmul((grad * sin_T1D).roll(grad.shape[-1] // 2, -1), grad, cos_T1D), None, None


@dataclass(frozen=True, eq=False, slots=True)
class Rope:
    """How each token's queries and keys are turned: cos and signed sin [T, 1, D], in the model's type."""

    cos_T1D: Tensor
    sin_T1D: Tensor

    def turn(self, x_THD: Tensor) -> Tensor:
        return _Turn.apply(x_THD, self.cos_T1D, self.sin_T1D)  # type: ignore[no-any-return]

    def at(self, place_U: Tensor) -> "Rope":
        return Rope(self.cos_T1D[place_U], self.sin_T1D[place_U])


class Forward:
    """The forward of one model, whose modules stay transformers' own. For the families of `families.why_not` only.

    checkpointing: recompute each layer's activations in the backward pass.
    """

    def __init__(self, model: "PreTrainedModel", checkpointing: bool = False) -> None:
        self._body: Any = model.base_model
        self._checkpointing = checkpointing

    def __call__(self, batch: Batch) -> Tensor:
        """Hidden states after the last norm where the next token is trained, [N, E]. The batch is on the model's device."""
        body = self._body
        x_TE = body.embed_tokens(batch.token_ids_T)
        rope = self._rope(x_TE, batch.position_ids_T)
        plan = plan_attention(batch.segments, x_TE.device)
        *layers, last = body.layers
        for layer in layers:
            x_TE = self._run(layer, x_TE, rope, plan)
        place_U, which_N = batch.query_N.unique(return_inverse=True)
        x_UE = self._run(last, x_TE, rope, plan.asked(place_U), place_U)
        # A lookup, since that is what sums the gradients of a repeated place in a fixed order; indexing would not.
        return F.embedding(which_N, body.norm(x_UE))

    def _rope(self, x_TE: Tensor, position_T: Tensor) -> Rope:
        cos_TD, sin_TD = (table[0] for table in self._body.rotary_emb(x_TE, position_T[None]))
        half = sin_TD.shape[-1] // 2
        return Rope(cos_TD[:, None], torch.cat([-sin_TD[:, :half], sin_TD[:, half:]], dim=-1)[:, None])

    def _run(self, layer: nn.Module, x_TE: Tensor, rope: Rope, plan: Plan, place_U: Tensor | None = None) -> Tensor:
        if self._checkpointing and torch.is_grad_enabled():
            return checkpoint(_layer, layer, x_TE, rope, plan, place_U, use_reentrant=False, preserve_rng_state=False)  # type: ignore[no-any-return]
        return _layer(layer, x_TE, rope, plan, place_U)


def _layer(layer: Any, x_TE: Tensor, rope: Rope, plan: Plan, place_U: Tensor | None) -> Tensor:
    """One layer for all tokens, or behind the keys and values for the given places alone: [T, E] or [U, E]."""
    attention = layer.self_attn
    normed_TE = layer.input_layernorm(x_TE)
    key_TKD = rope.turn(_heads(attention, "k", normed_TE))
    value_TKD = _heads(attention, "v", normed_TE)
    if place_U is None:
        query_THD = rope.turn(_heads(attention, "q", normed_TE))
    else:
        query_UHD = rope.at(place_U).turn(_heads(attention, "q", normed_TE.index_select(0, place_U)))
        query_THD = query_UHD.new_zeros(len(normed_TE), *query_UHD.shape[1:]).index_copy(0, place_U, query_UHD)
    out_TD = attend(query_THD, key_TKD, value_TKD, plan, Shape(attention.scaling)).flatten(1)
    if place_U is not None:
        x_TE, out_TD = x_TE.index_select(0, place_U), out_TD.index_select(0, place_U)
    x_TE = x_TE + attention.o_proj(out_TD)
    return x_TE + layer.mlp(layer.post_attention_layernorm(x_TE))  # type: ignore[no-any-return]


def _heads(attention: Any, name: str, normed_TE: Tensor) -> Tensor:
    """Queries, keys or values [T, heads, D], normed where the family does that."""
    x = getattr(attention, f"{name}_proj")(normed_TE).unflatten(-1, (-1, attention.head_dim))
    norm = getattr(attention, f"{name}_norm", None)
    return x if norm is None else norm(x)
