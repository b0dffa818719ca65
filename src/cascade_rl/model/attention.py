"""Causal attention over packed samples, as a function that transformers' models call in place of their own.

Samples lie end to end in one row of T tokens; `plan_attention` cuts the row into pieces of a few segments of similar length, and
`attend` computes each piece with batched matmuls, so attention never crosses samples and pads almost nothing. A segment is a whole
sample, or a stretch that goes on from one that several samples share: its queries then see that one's keys before its own. Long
segments go through in blocks of queries that see only the keys they may, and their probabilities are computed again in the
backward pass, so memory grows with T and not with its square.

Letters: T tokens, H query heads, K key-value heads, G = H / K query heads to a key-value head, B segments of a piece, L their
padded length, C tokens that they go on from, D head size, Q queries of a block, S keys the block sees.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate, groupby, pairwise
from typing import Any, Literal

import torch
from torch import Tensor, nn

from cascade_rl.algo.batch import Segment
from cascade_rl.errors import ModelError

NAME = "cascade_packed"
# Segments share a piece while padding stays below this share of it.
MAX_PADDING = 0.12
# Scores of a block of queries take at most so many bytes: measured best from 256 to 4,096 tokens, within a few percent of torch's
# own attention there (which knows neither windows nor softcaps, and is slower below).
MAX_SCORE_BYTES = 1 << 23
# Segments share a piece while B L (C + L) stays below this.
MAX_AREA = 1 << 19
# Probabilities over at most so many keys are kept for the backward pass, those over more computed again.
KEEP_BELOW = 256


@dataclass(frozen=True, eq=False, slots=True)
class Piece:
    """Segments that lie end to end in a row, seen as [B, L]. Padding is at the end, where causality hides it.

    row_BL     int64, where in the row each place reads from (a padded place reads the segment's first token; its output is dropped).
    kept_P     int64, the places of the flat [B * L] that are real, in row order; None when all are.
    context_C  int64, where in the row the tokens are that all these segments go on from; None when there are none.
    start      where in the row the piece starts; it ends at start + sum(lengths).
    """

    lengths: tuple[int, ...]
    start: int
    row_BL: Tensor
    kept_P: Tensor | None
    context_C: Tensor | None = None

    @property
    def stop(self) -> int:
        return self.start + sum(self.lengths)

    @property
    def num_keys(self) -> int:
        """Keys that a segment's last query sees, C + L."""
        return self.row_BL.shape[1] + (0 if self.context_C is None else len(self.context_C))


@dataclass(eq=False)
class Plan:
    """The pieces of a row. Not a tuple and not frozen: torch.compile would look inside those and compile anew for each batch."""

    pieces: tuple[Piece, ...]


def plan_attention(segments: Sequence[Segment], device: torch.device | str = "cpu") -> Plan:
    """How to compute attention over these segments, laid end to end in this order. Sorted lengths pad least.

    A piece holds neighbours that go on from the same segment, which lies in an earlier piece.
    """
    starts = [0, *accumulate(segment.length for segment in segments)]
    pieces: list[Piece] = []
    start = 0
    for parent, siblings in groupby(segments, key=lambda segment: segment.parent):
        context_C = _context(parent, segments, starts)
        for lengths in _runs([segment.length for segment in siblings], len(context_C)):
            pieces.append(_piece(lengths, start, context_C, device))
            start += sum(lengths)
    return Plan(tuple(pieces))


def _context(segment: int, segments: Sequence[Segment], starts: Sequence[int]) -> Tensor:
    """The places of this segment and of those that it goes on from, in order; none for -1."""
    parts: list[Tensor] = []
    while segment >= 0:
        parts.append(torch.arange(starts[segment], starts[segment + 1]))
        segment = segments[segment].parent
    return torch.cat(parts[::-1]) if parts else torch.arange(0)


def _runs(lengths: Sequence[int], num_context: int) -> Iterator[list[int]]:
    """The lengths in runs that may share a piece."""
    members: list[int] = []
    for length in lengths:
        if members and not _fits([*members, length], num_context):
            yield members
            members = []
        members.append(length)
    if members:
        yield members


def _fits(lengths: Sequence[int], num_context: int) -> bool:
    area = len(lengths) * max(lengths)
    return sum(lengths) >= (1 - MAX_PADDING) * area and area * (num_context + max(lengths)) <= MAX_AREA


def _piece(lengths: Sequence[int], start: int, context_C: Tensor, device: torch.device | str) -> Piece:
    longest = max(lengths)
    place_L = torch.arange(longest)
    starts_B = start + torch.tensor([0, *lengths[:-1]]).cumsum(0)
    real_BL = place_L < torch.tensor(lengths)[:, None]
    row_BL = starts_B[:, None] + torch.where(real_BL, place_L, 0)
    kept_P = None if bool(real_BL.all()) else real_BL.flatten().nonzero().flatten().to(device)
    return Piece(tuple(lengths), start, row_BL.to(device), kept_P, context_C.to(device) if len(context_C) else None)


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
            q, k, v = _lay_out(query_THD, key_TKD, value_TKD, piece, shape)
            out = q.new_empty(*q.shape[:3], v.shape[2])
            for queries, keys in _blocks(q, k, shape.window):
                prob, _ = _probabilities(q[:, :, queries], k[:, keys], keys, shape)
                out[:, :, queries] = (prob @ v[:, keys]).view(*out[:, :, queries].shape)
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
            q, k, v = _lay_out(query_THD, key_TKD, value_TKD, piece, shape)
            grad = _grouped(grads[0], piece, key_TKD.shape[1], padding="zero")
            grad_q, grad_k, grad_v = torch.empty_like(q), torch.zeros_like(k), torch.zeros_like(v)
            for queries, keys in _blocks(q, k, shape.window):
                if _keeps(piece, shape):
                    prob, slope = next(probs), None
                else:
                    prob, slope = _probabilities(q[:, :, queries], k[:, keys], keys, shape)
                grad_block = grad[:, :, queries].flatten(1, 2)
                grad_prob = grad_block @ v[:, keys].transpose(1, 2)
                grad_score = torch.ops.aten._softmax_backward_data(grad_prob, prob, -1, prob.dtype)
                if slope is not None:
                    grad_score *= slope
                grad_q[:, :, queries] = (grad_score @ k[:, keys]).view(*grad_q[:, :, queries].shape)
                grad_k[:, keys] += grad_score.transpose(1, 2) @ q[:, :, queries].flatten(1, 2)
                grad_v[:, keys] += prob.transpose(1, 2) @ grad_block
            _put_back(grad_q_THD, grad_q.mul_(shape.scale), piece)
            _put_back_keys(grad_k_TKD, grad_k, piece)
            _put_back_keys(grad_v_TKD, grad_v, piece)
        return grad_q_THD, grad_k_TKD, grad_v_TKD, None, None


def _keeps(piece: Piece, shape: Shape) -> bool:
    """Whether probabilities wait for the backward pass: with few keys they are smaller than a layer's other activations."""
    return piece.num_keys <= KEEP_BELOW and shape.softcap is None


def _lay_out(query_THD: Tensor, key_TKD: Tensor, value_TKD: Tensor, piece: Piece, shape: Shape) -> tuple[Tensor, Tensor, Tensor]:
    """A piece's queries [B * K, G, L, D], times the scale, and its keys and values [B * K, C + L, D]."""
    query = _grouped(query_THD, piece, key_TKD.shape[1], padding="any") * shape.scale
    return query, _with_context(key_TKD, piece), _with_context(value_TKD, piece)


def _with_context(x_TKD: Tensor, piece: Piece) -> Tensor:
    """The piece's part of keys or values [T, K, D] as [B * K, C + L, D]: each segment's own, after those it goes on from."""
    own = _grouped(x_TKD, piece, x_TKD.shape[1], padding="any").squeeze(1)
    if piece.context_C is None:
        return own
    context_KCD = x_TKD.index_select(0, piece.context_C).transpose(0, 1)
    return torch.cat([context_KCD.repeat(len(piece.lengths), 1, 1), own], dim=1)


def _grouped(x_THD: Tensor, piece: Piece, num_kv: int, padding: Literal["any", "zero"]) -> Tensor:
    """The piece's part of [T, H, D] as [B * K, G, L, D]; padded places hold some real row, or zeros."""
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
    return x.permute(0, 2, 3, 1, 4).reshape(batch * num_kv, num_heads // num_kv, length, size)


def _put_back(out_THD: Tensor, x: Tensor, piece: Piece) -> None:
    """Writes [B * K, G, L, D] to the piece's part of [T, H, D], dropping padded places."""
    batch, length = piece.row_BL.shape
    num_heads = out_THD.shape[1]
    x = x.reshape(batch, num_heads, length, -1).transpose(1, 2)
    part = out_THD[piece.start : piece.stop]
    if piece.kept_P is None:
        part.view(batch, length, num_heads, -1).copy_(x)
    else:
        part.copy_(x.reshape(batch * length, num_heads, -1).index_select(0, piece.kept_P))


def _put_back_keys(out_TKD: Tensor, x: Tensor, piece: Piece) -> None:
    """Writes [B * K, C + L, D] to the piece's part of [T, K, D], and adds to the places that all its segments go on from."""
    _put_back(out_TKD, x[:, None, x.shape[1] - piece.row_BL.shape[1] :], piece)
    if piece.context_C is not None:
        num_context = len(piece.context_C)
        context_KCD = x[:, :num_context].unflatten(0, (-1, out_TKD.shape[1])).sum(0)
        # An earlier piece wrote these places first.
        out_TKD[piece.context_C] += context_KCD.transpose(0, 1)


def _blocks(q: Tensor, k: Tensor, window: int | None) -> list[tuple[slice, slice]]:
    """Blocks of queries [B * K, G, L, D] and which of the keys [B * K, C + L, D] each may see; the last is its last query's own."""
    batch, group, length, _ = q.shape
    num_keys, num_context = k.shape[1], k.shape[1] - length
    size, most = length, MAX_SCORE_BYTES // q.element_size()
    seen = num_keys if window is None else min(num_keys, length + window)
    if batch * group * length * seen > most or (window is not None and length > 2 * window):
        seen = num_keys if window is None else min(num_keys, 2 * window)
        size = max(1, min(length, most // (batch * group * seen), 512 if window is None else window))
    blocks = []
    for lo, hi in pairwise([*range(0, length, size), length]):
        first = 0 if window is None else max(0, num_context + lo - window + 1)
        blocks.append((slice(lo, hi), slice(first, num_context + hi)))
    return blocks


def _probabilities(q: Tensor, k: Tensor, keys: slice, shape: Shape) -> tuple[Tensor, Tensor | None]:
    """softmax over visible keys [B * K, G * Q, S], and with a softcap its slope (the derivative of the capped score)."""
    hidden_QS = _hidden(q.shape[2], keys, shape.window, q.device)
    ban_QS = torch.zeros(hidden_QS.shape, dtype=q.dtype, device=q.device).masked_fill_(hidden_QS, -torch.inf)
    ban = ban_QS.repeat(q.shape[1], 1)
    if shape.softcap is None:
        return torch.softmax(torch.baddbmm(ban, q.flatten(1, 2), k.transpose(1, 2)), dim=-1), None
    bent = torch.tanh((q.flatten(1, 2) @ k.transpose(1, 2)) / shape.softcap)
    return torch.softmax(bent * shape.softcap + ban, dim=-1), 1 - bent * bent


def _hidden(num_queries: int, keys: slice, window: int | None, device: torch.device) -> Tensor:
    """True where a query must not see a key: later ones, and those further back than the window. The last queries are the keys' own."""
    at_S = torch.arange(keys.start, keys.stop, device=device)
    at_Q = at_S[-num_queries:]
    back_QS = at_Q[:, None] - at_S
    return back_QS < 0 if window is None else (back_QS < 0) | (back_QS >= window)


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
