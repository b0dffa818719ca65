"""Causal attention over packed samples, as a function that transformers' models call in place of their own.

Samples lie end to end in one row of T tokens; `pieces.plan_attention` cuts the row into pieces of a few segments of similar length,
and `attend` computes each piece with batched matmuls, so attention never crosses samples and pads almost nothing. A segment is a
whole sample, or a stretch that goes on from one that several samples share: its queries then see that one's keys before its own. Long
segments go through in blocks of queries that see only the keys they may, and their probabilities are computed again in the
backward pass, so memory grows with T and not with its square.

Letters: T tokens, H query heads, K key-value heads, G = H / K query heads to a key-value head, B segments of a piece, L their
padded length, C tokens that they go on from, D head size, Q queries of a block, S keys the block sees.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from typing import Any, Literal

import torch
from torch import Tensor, nn

from cascade_rl.algo.batch import Segment
from cascade_rl.errors import ModelError
from cascade_rl.model.pieces import Piece, Plan, plan_attention

NAME = "cascade_packed"
# Scores of a block of queries take at most so many bytes, which then stay in the processor's cache; but a block has at least so many
# queries, since fewer make thin matmuls, and at most so many, since more compute scores that causality hides. On one core torch's own
# attention takes 0.85 of the time from 512 to 4,096 tokens; it knows neither windows, softcaps nor shared contexts, and its
# backward pass gives a core whole heads, of which there are three in the nano model.
MAX_SCORE_BYTES = 1 << 21
MIN_QUERIES, MAX_QUERIES = 128, 256
# Probabilities over at most so many keys are kept for the backward pass, those over more computed again.
KEEP_BELOW = 256


@dataclass(frozen=True, slots=True)
class Shape:
    """What a model's attention asks for. window: keys a query sees, itself included (None: all). softcap: c tanh(score / c)."""

    scale: float
    window: int | None = None
    softcap: float | None = None


def attend(query_THD: Tensor, key_TKD: Tensor, value_TKD: Tensor, plan: Plan, shape: Shape) -> Tensor:
    """Causal attention along each sample: [T, H, D] of the query's type. Scores are in the input's type, softmax in float32."""
    return _Attend.apply(query_THD, key_TKD, value_TKD, plan.pieces, shape)  # type: ignore[no-any-return]


class _Attend(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, query_THD: Tensor, key_TKD: Tensor, value_TKD: Tensor, pieces: Sequence[Piece], shape: Shape) -> Tensor:
        kept: list[Tensor] = []
        out_THD = query_THD.new_empty(*query_THD.shape[:2], value_TKD.shape[2])
        for piece in pieces:
            if piece.is_idle:
                out_THD[piece.start : piece.stop] = 0
                continue
            q, k, v = _lay_out(query_THD, key_TKD, value_TKD, piece, shape)
            out = q.new_empty(*q.shape[:3], value_TKD.shape[2])
            out[:, :, : piece.first] = 0
            for queries, keys in _blocks(q, k, shape.window, piece.first):
                prob, _ = _probabilities(q[:, :, queries], k, keys, shape)
                out[:, :, queries] = v.mix(prob, keys).view(*out[:, :, queries].shape)
                if _keeps(piece, shape):
                    kept.append(prob)
            _put_back(out_THD, out, piece)
        ctx.save_for_backward(query_THD, key_TKD, value_TKD, *kept)
        ctx.pieces, ctx.shape = pieces, shape
        return out_THD

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor, Tensor, None, None]:
        query_THD, key_TKD, value_TKD, *kept = ctx.saved_tensors
        shape: Shape = ctx.shape
        probs = iter(kept)
        grad_q_THD, grad_k_TKD, grad_v_TKD = (
            torch.empty(x.shape, dtype=x.dtype, device=x.device) for x in (query_THD, key_TKD, value_TKD)
        )
        for piece in ctx.pieces:
            if piece.is_idle:
                for x in (grad_q_THD, grad_k_TKD, grad_v_TKD):
                    x[piece.start : piece.stop] = 0
                continue
            q, k, v = _lay_out(query_THD, key_TKD, value_TKD, piece, shape)
            grad = _grouped(grads[0], piece, key_TKD.shape[1], padding="zero")
            grad_q, grad_k, grad_v = torch.empty_like(q), k.zeros(), v.zeros()
            grad_q[:, :, : piece.first] = 0
            for queries, keys in _blocks(q, k, shape.window, piece.first):
                if _keeps(piece, shape):
                    prob, slope = next(probs), None
                else:
                    prob, slope = _probabilities(q[:, :, queries], k, keys, shape)
                grad_block = grad[:, :, queries].flatten(1, 2)
                grad_score = torch.ops.aten._softmax_backward_data(v.dot(grad_block, keys), prob, -1, prob.dtype)
                if slope is not None:
                    grad_score *= slope
                grad_q[:, :, queries] = k.mix(grad_score, keys).view(*grad_q[:, :, queries].shape)
                grad_k.add(grad_score, q[:, :, queries].flatten(1, 2), keys)
                grad_v.add(prob, grad_block, keys)
            _put_back(grad_q_THD, grad_q.mul_(shape.scale), piece)
            _put_back_keys(grad_k_TKD, grad_k, piece)
            _put_back_keys(grad_v_TKD, grad_v, piece)
        return grad_q_THD, grad_k_TKD, grad_v_TKD, None, None


def _keeps(piece: Piece, shape: Shape) -> bool:
    """Whether probabilities wait for the backward pass: with few keys they are smaller than a layer's other activations."""
    return piece.num_keys <= KEEP_BELOW and shape.softcap is None


@dataclass(frozen=True, eq=False, slots=True)
class _Seen:
    """The keys, or the values, of a piece: what its segments go on from, once [K, C, D], and their own [K * B, L, D].

    A block's queries, R of each segment and key-value head, see a slice of the C + L places; what lies in the context is one matmul for
    all segments.
    """

    context_KCD: Tensor
    own: Tensor

    @property
    def num_context(self) -> int:
        return self.context_KCD.shape[1]

    def zeros(self) -> "_Seen":
        return _Seen(torch.zeros_like(self.context_KCD), torch.zeros_like(self.own))

    def _parts(self, keys: slice) -> tuple[Tensor, Tensor]:
        num = self.num_context
        return self.context_KCD[:, keys.start :], self.own[:, max(0, keys.start - num) : keys.stop - num]

    def _joint(self, x: Tensor) -> Tensor:
        """[K * B, R, ...] as [K, B * R, ...]."""
        return x.reshape(len(self.context_KCD), -1, x.shape[-1])

    def dot(self, x_NRD: Tensor, keys: slice) -> Tensor:
        """[K * B, R, S]: each row's product with each place."""
        context, own = self._parts(keys)
        told = x_NRD @ own.transpose(1, 2)
        if not context.shape[1]:
            return told
        before = self._joint(x_NRD) @ context.transpose(1, 2)
        return torch.cat([before.view(*x_NRD.shape[:2], -1), told], dim=-1)

    def mix(self, weight_NRS: Tensor, keys: slice) -> Tensor:
        """[K * B, R, D]: each row's weighted sum of the places."""
        context, own = self._parts(keys)
        num = context.shape[1]
        mixed = weight_NRS[..., num:] @ own
        if num:
            mixed += (self._joint(weight_NRS[..., :num]) @ context).view_as(mixed)
        return mixed

    def add(self, weight_NRS: Tensor, x_NRD: Tensor, keys: slice) -> None:
        """Adds to each place the rows' weighted sum."""
        context, own = self._parts(keys)
        num = context.shape[1]
        own.baddbmm_(weight_NRS[..., num:].transpose(1, 2), x_NRD)
        if num:
            context.baddbmm_(self._joint(weight_NRS[..., :num]).transpose(1, 2), self._joint(x_NRD))


def _lay_out(query_THD: Tensor, key_TKD: Tensor, value_TKD: Tensor, piece: Piece, shape: Shape) -> tuple[Tensor, _Seen, _Seen]:
    """A piece's queries [K * B, G, L, D], times the scale, and its keys and values."""
    query = _grouped(query_THD, piece, key_TKD.shape[1], padding="any") * shape.scale
    return query, _seen(key_TKD, piece), _seen(value_TKD, piece)


def _seen(x_TKD: Tensor, piece: Piece) -> _Seen:
    own = _grouped(x_TKD, piece, x_TKD.shape[1], padding="any").squeeze(1)
    context_TKD = x_TKD[:0] if piece.context_C is None else x_TKD.index_select(0, piece.context_C)
    return _Seen(context_TKD.transpose(0, 1).contiguous(), own)


def _grouped(x_THD: Tensor, piece: Piece, num_kv: int, padding: Literal["any", "zero"]) -> Tensor:
    """The piece's part of [T, H, D] as [K * B, G, L, D]; padded places hold some real row, or zeros."""
    _, num_heads, size = x_THD.shape
    batch, length = piece.row_BL.shape
    if piece.kept_P is None:
        x = x_THD[piece.start : piece.stop]
    elif padding == "any":
        x = x_THD.index_select(0, piece.row_BL.flatten())
    else:
        x = x_THD.new_zeros(batch * length, num_heads, size)
        x.index_copy_(0, piece.kept_P, x_THD[piece.start : piece.stop])
    x = x.view(batch, length, num_kv, num_heads // num_kv, size)
    return x.permute(2, 0, 3, 1, 4).reshape(num_kv * batch, num_heads // num_kv, length, size)


def _put_back(out_THD: Tensor, x: Tensor, piece: Piece) -> None:
    """Writes [K * B, G, L, D] to the piece's part of [T, H, D], dropping padded places."""
    batch, length = piece.row_BL.shape
    x = x.unflatten(0, (-1, batch)).permute(1, 3, 0, 2, 4)
    part = out_THD[piece.start : piece.stop]
    if piece.kept_P is None:
        part.view(x.shape).copy_(x)
    else:
        part.copy_(x.reshape(batch * length, *out_THD.shape[1:]).index_select(0, piece.kept_P))


def _put_back_keys(out_TKD: Tensor, x: _Seen, piece: Piece) -> None:
    """Writes the own part to the piece's part of [T, K, D], and adds the context's to the places that all its segments go on from."""
    _put_back(out_TKD, x.own[:, None], piece)
    if piece.context_C is not None:
        # An earlier piece wrote these places first.
        out_TKD[piece.context_C] += x.context_KCD.transpose(0, 1)


def _blocks(q: Tensor, k: _Seen, window: int | None, first: int = 0) -> list[tuple[slice, slice]]:
    """Blocks of queries [K * B, G, L, D], from place `first` on, and which of the C + L keys each may see; the last is its last
    query's own."""
    batch, group, length, _ = q.shape
    num_context, asked = k.num_context, length - first
    num_keys = num_context + length
    most = MAX_SCORE_BYTES // (q.element_size() * batch * group)  # scores of a block, for each head
    size, seen = asked, num_keys if window is None else min(num_keys, asked + window)
    if asked * seen > most or (window is not None and asked > 2 * window):
        seen = num_keys if window is None else min(num_keys, 2 * window)
        size = max(1, min(asked, max(most // seen, MIN_QUERIES), MAX_QUERIES if window is None else window))
    blocks = []
    for lo, hi in pairwise([*range(first, length, size), length]):
        start = 0 if window is None else max(0, num_context + lo - window + 1)
        blocks.append((slice(lo, hi), slice(start, num_context + hi)))
    return blocks


def _probabilities(q: Tensor, k: _Seen, keys: slice, shape: Shape) -> tuple[Tensor, Tensor | None]:
    """softmax over visible keys [K * B, G * Q, S], and with a softcap its slope (the derivative of the capped score)."""
    score, slope = k.dot(q.flatten(1, 2), keys), None
    if shape.softcap is not None:
        score = torch.tanh(score / shape.softcap)
        slope = 1 - score * score
        score *= shape.softcap
    _ban(score.unflatten(1, q.shape[1:3]), keys.stop - keys.start, shape.window)
    return torch.softmax(score, dim=-1), slope


def _ban(score_NGQS: Tensor, num_keys: int, window: int | None) -> None:
    """Sets scores to minus infinity where a query must not see a key. The last queries are the keys' own."""
    num_queries, device = score_NGQS.shape[2], score_NGQS.device
    if window is None:  # keys before the block's own are all seen
        if num_queries > 1:
            score_NGQS[..., num_keys - num_queries :].masked_fill_(_later(num_queries, device), -torch.inf)
        return
    at_S = torch.arange(num_keys, device=device)
    back_QS = at_S[num_keys - num_queries :, None] - at_S
    score_NGQS.masked_fill_((back_QS < 0) | (back_QS >= window), -torch.inf)


@lru_cache(maxsize=64)
def _later(num: int, device: torch.device) -> Tensor:
    """Bool [num, num]: True where the key is later than the query."""
    return torch.ones(num, num, dtype=torch.bool, device=device).triu_(1)


@torch.compiler.disable
def packed_attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    dropout: float = 0.0,
    sliding_window: int | None = None,
    softcap: float | None = None,
    plan: Plan | None = None,
    **others: Any,
) -> tuple[Tensor, None]:
    """The function that transformers calls: query [1, H, T, D], key and value [1, K, T, D], giving [1, T, H, D].

    Without a plan each row of [R, H, T, D] is one sample, padded at its end or not at all. Dropout is not applied: the sampler
    must agree with the trainer. Raises ModelError for what it cannot honour.
    """
    del attention_mask, dropout
    assert query.shape[2] == key.shape[2], f'"{NAME}" attention is for training: it knows no cache'
    for name in ("s_aux", "position_bias"):
        if others.get(name) is not None:
            raise ModelError(f'{type(module).__name__} passes "{name}" to attention, which packed attention does not know')
    scale = query.shape[-1] ** -0.5 if scaling is None else scaling
    num_rows, _, length, _ = query.shape
    if plan is None:
        plan = plan_attention([Segment(length)] * num_rows, query.device)
    query_THD, key_TKD, value_TKD = (x.transpose(1, 2).flatten(0, 1) for x in (query, key, value))
    out_THD = attend(query_THD, key_TKD, value_TKD, plan, Shape(scale, sliding_window, softcap))
    return out_THD.view(num_rows, length, *out_THD.shape[1:]), None


def register() -> None:
    """Makes the name known to transformers; doing so twice changes nothing."""
    from transformers import AttentionInterface

    AttentionInterface.register(NAME, packed_attention)
