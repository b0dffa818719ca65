"""Packing: many samples in one row of tokens, so that no compute is spent on padding, nor twice on what samples share.

Letters: T tokens of a batch, N trained tokens (targets) of a batch.
"""

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from cascade_rl.algo.sharing import Node, first_fit, forest, split
from cascade_rl.records import Sample

# What a sample may carry for each of its tokens; a target's `name_N` holds it for the trained ones.
CARRIED = ("logp_sampler", "advantage", "logp_old", "logp_start", "logp_teacher")


@dataclass(frozen=True, eq=False, slots=True)
class Targets:
    """What a loss may look at besides the log-probs: one entry for each trained token, in the order of the batch.

    token_ids_N     int64, the trained ids.
    sample_N        int64, which sample of the batch each belongs to (0 .. num_samples - 1).
    num_samples     samples of the batch that have at least one trained token.
    logp_sampler_N  float32, or None where the samples carry none.
    advantage_N     float32, or None where the samples carry none.
    logp_old_N      float32, the policy's own log-probs before the first of several updates; None in the first.
    logp_start_N    float32, those of the policy at the stage's start; None where no loss asks for them.
    logp_teacher_N  float32, those of the sample's teacher; None where there is none.
    weight_N        float32, the weight of the sample each belongs to; None where all weigh the same.
    teacher_N       int64, which teacher; with teacher_hidden_NE, its last hidden states there. None where no loss asks for them.
    divergence_N    float32 with a gradient, the generalised KL to the teacher; filled in by `step.update` for losses that ask for it.
    """

    token_ids_N: Tensor
    sample_N: Tensor
    num_samples: int
    logp_sampler_N: Tensor | None = None
    advantage_N: Tensor | None = None
    logp_old_N: Tensor | None = None
    logp_start_N: Tensor | None = None
    logp_teacher_N: Tensor | None = None
    weight_N: Tensor | None = None
    teacher_N: Tensor | None = None
    teacher_hidden_NE: Tensor | None = None
    divergence_N: Tensor | None = None


class Segment(NamedTuple):
    """A stretch of a row that goes on where segment `parent` ends (-1: it starts a context). Parents come first in the row."""

    length: int
    parent: int = -1


@dataclass(frozen=True, eq=False, slots=True)
class Batch:
    """Samples in one row of tokens. `pack([Sample([5, 6, 2]), Sample([7, 2])], 8)` gives one batch with

        token_ids_T = [5, 6, 2, 7, 2], position_ids_T = [0, 1, 2, 0, 1], segments = (Segment(3), Segment(2))

    Samples that start with the same P untrained tokens have these in the row once: with answers of 4 and 3 tokens the segments are
    (Segment(P), Segment(4, parent=0), Segment(3, parent=0)), and position ids of both answers start at P. A token sees those before
    it in its segment and all of the segments that this one goes on from.

    order    which of the packed samples each is, as places in what `pack` was given; targets follow this order.
    query_N  the places of the row whose output predicts a trained token: those of the token before it. The last token of what
             samples share predicts the first token of several.
    """

    token_ids_T: Tensor
    position_ids_T: Tensor
    segments: tuple[Segment, ...]
    order: tuple[int, ...]
    query_N: Tensor
    targets: Targets

    @property
    def num_tokens(self) -> int:
        """Tokens of the row: what is shared counts once."""
        return len(self.token_ids_T)

    @property
    def num_targets(self) -> int:
        return len(self.query_N)

    @property
    def lengths(self) -> tuple[int, ...]:
        return tuple(segment.length for segment in self.segments)

    def to(self, device: torch.device | str) -> "Batch":
        """The same batch with its tensors on another device."""
        told = self.targets
        per_token: dict[str, Any] = {
            f.name: getattr(told, f.name) for f in dataclasses.fields(told) if f.name.endswith(("_N", "_NE"))
        }
        moved: dict[str, Any] = {name: None if tensor is None else tensor.to(device) for name, tensor in per_token.items()}
        own = {name: getattr(self, name).to(device) for name in ("token_ids_T", "position_ids_T", "query_N")}
        return dataclasses.replace(self, **own, targets=dataclasses.replace(told, **moved))


def pack(samples: Sequence[Sample], max_tokens: int, share: bool = True) -> list[Batch]:
    """The samples in as few batches of at most `max_tokens` tokens as first-fit decreasing finds.

    share: samples that start alike share a batch, and what they share is in it once; where they do not fit one batch, each of
    theirs repeats it. No sample is ever cut: one longer than `max_tokens` makes a batch of its own, or one with others that share
    a prompt of more than `max_tokens` with it (`sharing.split`). The order of `samples` does not matter: they are laid out by length
    and content, so a shuffled list gives the same batches. Empty samples are dropped.

    Raises ValueError when only some of the samples carry log-probs of a sampler or advantages.
    """
    if max_tokens < 1:
        raise ValueError(f"pack: max_tokens {max_tokens} must be at least 1")
    whole = [i for i, sample in enumerate(samples) if len(sample)]
    trees = [part for tree in forest([samples[i] for i in whole], share) for part in split(tree, max_tokens)]
    bins = first_fit([tree.size for tree in trees], [max_tokens] * len(trees))
    return [_lay_out([trees[i] for i in members], samples, whole) for members in bins]


def _lay_out(trees: Sequence[Node], samples: Sequence[Sample], whole: Sequence[int]) -> Batch:
    """One batch of the trees, whose nodes count within `whole`: all roots first, then the children of each node, longest first."""
    segments: list[Segment] = []
    order: list[int] = []
    token_ids, position_ids, queries = [], [], []
    ends: list[int] = []  # of each segment, in the row
    waiting: list[tuple[int, Sequence[Node]]] = [(-1, trees)]
    for parent, siblings in waiting:  # grows on the way: breadth first
        for node in sorted(siblings, key=lambda node: -node.length):
            sample = samples[whole[node.sample]]
            start = ends[-1] if ends else 0
            ends.append(start + node.length)
            token_ids.append(sample.token_ids[node.start : node.stop])
            position_ids.append(np.arange(node.start, node.stop))
            if node.children:
                waiting.append((len(segments), node.children))
            else:
                order.append(whole[node.sample])
                place = np.flatnonzero(sample.mask)
                # A root's leaf trains nothing at its start, so that the choice of a parent that is not there never counts.
                queries.append(np.where(place > node.start, start + place - node.start, ends[parent]) - 1)
            segments.append(Segment(node.length, parent))
    return Batch(
        token_ids_T=torch.from_numpy(np.concatenate(token_ids).astype(np.int64)),
        position_ids_T=torch.from_numpy(np.concatenate(position_ids)),
        segments=tuple(segments),
        order=tuple(order),
        query_N=torch.from_numpy(np.concatenate(queries)),
        targets=_targets([samples[i] for i in order]),
    )


def _targets(samples: Sequence[Sample]) -> Targets:
    """The trained tokens of the samples, in the order given."""
    trained = [int(sample.mask.sum()) for sample in samples]
    of_sample = np.repeat(np.arange(len(samples)), trained)
    # Losses that average by sample need dense numbers: a sample without targets must not leave a gap.
    sample_N = np.unique(of_sample, return_inverse=True)[1].reshape(-1)
    return Targets(
        token_ids_N=torch.from_numpy(np.concatenate([sample.token_ids[sample.mask] for sample in samples]).astype(np.int64)),
        sample_N=torch.from_numpy(sample_N.astype(np.int64)),
        num_samples=sum(1 for count in trained if count),
        **{f"{name}_N": _gather(name, samples) for name in CARRIED},
        weight_N=None if all(sample.weight == 1 for sample in samples) else _repeat([s.weight for s in samples], trained).float(),
        **_teacher_states(samples, trained),
    )


def _repeat(values: Sequence[float], counts: Sequence[int]) -> Tensor:
    return torch.from_numpy(np.repeat(np.array(values), counts))


def _teacher_states(samples: Sequence[Sample], trained: Sequence[int]) -> dict[str, Tensor]:
    states = [sample.teacher_hidden for sample in samples if sample.teacher_hidden is not None]
    if not states:
        return {}
    assert len(states) == len(samples), "the teacher's hidden states are given for all samples or for none"
    assert [len(state) for state in states] == list(trained), "one hidden state of the teacher for each trained token"
    return {
        "teacher_N": _repeat([sample.teacher for sample in samples], trained),
        "teacher_hidden_NE": torch.from_numpy(np.concatenate(states)),
    }


def _gather(name: str, samples: Sequence[Sample]) -> Tensor | None:
    """The float32 values at the trained places; None when no sample has any."""
    values = [getattr(sample, name) for sample in samples]
    given = sum(value is not None for value in values)
    if not given:
        return None
    if given < len(values):
        raise ValueError(f"pack: {given} of {len(values)} samples carry {name}; give it to all of them or to none")
    chosen = [value[sample.mask] for value, sample in zip(values, samples, strict=True)]
    return torch.from_numpy(np.concatenate(chosen).astype(np.float32))
