"""How a row of packed segments is cut into pieces that attention computes at once.

Letters: T tokens of the row, B segments of a piece, L their padded length, P places of [B, L] that are real, C tokens that they go
on from, U places of the row that are asked for.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, groupby

import numpy as np
import torch
from torch import Tensor

from cascade_rl.algo.batch import Segment

# Segments share a piece while padding stays below this share of it.
MAX_PADDING = 0.12
# and B L (C + L) below this.
MAX_AREA = 1 << 19


@dataclass(frozen=True, eq=False, slots=True)
class Piece:
    """Segments that lie end to end in a row, seen as [B, L]. Padding is at the end, where causality hides it.

    row_BL     int64, where in the row each place reads from (a padded place reads the segment's first token; its output is dropped).
    kept_P     int64, the places of the flat [B * L] that are real, in row order; None when all are.
    context_C  int64, where in the row the tokens are that all these segments go on from; None when there are none.
    start      where in the row the piece starts; it ends at start + sum(lengths).
    first      queries before this place of every segment are not asked: their outputs and gradients are zeros.
    """

    lengths: tuple[int, ...]
    start: int
    row_BL: Tensor
    kept_P: Tensor | None
    context_C: Tensor | None = None
    first: int = 0

    @property
    def stop(self) -> int:
        return self.start + sum(self.lengths)

    @property
    def is_idle(self) -> bool:
        """No query of it is asked."""
        return self.first == self.row_BL.shape[1]

    @property
    def num_keys(self) -> int:
        """Keys that a segment's last query sees, C + L."""
        return self.row_BL.shape[1] + (0 if self.context_C is None else len(self.context_C))


@dataclass(eq=False)
class Plan:
    """The pieces of a row. Not a tuple and not frozen: torch.compile would look inside those and compile anew for each batch."""

    pieces: tuple[Piece, ...]

    def asked(self, place_U: Tensor) -> "Plan":
        """The same plan for a layer of which only the outputs at these places of the row (sorted) are read."""
        places = place_U.cpu().numpy()
        return Plan(tuple(replace(piece, first=_first_asked(piece, places)) for piece in self.pieces))


def _first_asked(piece: Piece, places: np.ndarray) -> int:
    """The first place of a segment that any of the piece's segments is asked for; their longest length if there is none."""
    starts = piece.start + np.array([0, *piece.lengths[:-1]]).cumsum()
    stops = starts + piece.lengths
    found = np.append(places, np.iinfo(np.int64).max)[np.searchsorted(places, starts)]
    return int(np.where(found < stops, found - starts, max(piece.lengths)).min())


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
