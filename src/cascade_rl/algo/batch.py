"""Packing: many samples in one row of tokens, so that no compute is spent on padding.

Letters: T tokens of a batch, N trained tokens (targets) of a batch.
"""

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from cascade_rl.records import Sample

# What a sample may carry for each of its tokens; a target's `name_N` holds it for the trained ones.
CARRIED = ("logp_sampler", "advantage", "logp_old", "logp_start")


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
    """

    token_ids_N: Tensor
    sample_N: Tensor
    num_samples: int
    logp_sampler_N: Tensor | None = None
    advantage_N: Tensor | None = None
    logp_old_N: Tensor | None = None
    logp_start_N: Tensor | None = None


@dataclass(frozen=True, eq=False, slots=True)
class Batch:
    """Samples laid end to end, longest first. `pack([Sample([5, 6, 2]), Sample([7, 2])], 8)` gives one batch with

        token_ids_T = [5, 6, 2, 7, 2], position_ids_T = [0, 1, 2, 0, 1], lengths = (3, 2)

    query_N holds the positions whose output predicts a trained token (the place before it), so
    `targets.token_ids_N == token_ids_T[query_N + 1]`.
    """

    token_ids_T: Tensor
    position_ids_T: Tensor
    lengths: tuple[int, ...]
    query_N: Tensor
    targets: Targets

    @property
    def num_tokens(self) -> int:
        return len(self.token_ids_T)

    @property
    def num_targets(self) -> int:
        return len(self.query_N)

    def to(self, device: torch.device | str) -> "Batch":
        """The same batch with its tensors on another device."""
        told = self.targets
        per_token = {f.name: getattr(told, f.name) for f in dataclasses.fields(told) if f.name.endswith("_N")}
        moved = {name: None if tensor is None else tensor.to(device) for name, tensor in per_token.items()}
        targets = dataclasses.replace(told, **moved)
        return Batch(self.token_ids_T.to(device), self.position_ids_T.to(device), self.lengths, self.query_N.to(device), targets)


def pack(samples: Sequence[Sample], max_tokens: int) -> list[Batch]:
    """The samples in as few batches of at most `max_tokens` tokens as first-fit decreasing finds.

    No sample is ever cut: one longer than `max_tokens` makes a batch of its own (whether such a sample is refused is the
    caller's affair). The order of `samples` does not matter: they are laid out by length and content, so a shuffled list
    gives the same batches. Empty samples are dropped.

    Raises ValueError when only some of the samples carry log-probs of a sampler or advantages.
    """
    if max_tokens < 1:
        raise ValueError(f"pack: max_tokens {max_tokens} must be at least 1")
    ordered = sorted((sample for sample in samples if len(sample)), key=_order)
    bins: list[list[Sample]] = []
    room: list[int] = []
    for sample in ordered:
        place = next((index for index, free in enumerate(room) if len(sample) <= free), None)
        if place is None:
            bins.append([])
            room.append(max_tokens)
            place = len(bins) - 1
        bins[place].append(sample)
        room[place] -= len(sample)
    return [join(members) for members in bins]


def join(samples: Sequence[Sample]) -> Batch:
    """One batch of the samples in the order given."""
    lengths = tuple(len(sample) for sample in samples)
    mask_T = np.concatenate([sample.mask for sample in samples]).astype(bool)
    token_ids_T = np.concatenate([sample.token_ids for sample in samples]).astype(np.int64)
    trained = [int(sample.mask.sum()) for sample in samples]
    of_sample = np.repeat(np.arange(len(samples)), trained)
    # Losses that average by sample need dense numbers: a sample without targets must not leave a gap.
    sample_N = np.unique(of_sample, return_inverse=True)[1].reshape(-1)
    place_N = np.flatnonzero(mask_T)
    targets = Targets(
        token_ids_N=torch.from_numpy(token_ids_T[place_N]),
        sample_N=torch.from_numpy(sample_N.astype(np.int64)),
        num_samples=sum(1 for count in trained if count),
        **{f"{name}_N": _gather(name, [getattr(sample, name) for sample in samples], place_N) for name in CARRIED},
    )
    return Batch(
        token_ids_T=torch.from_numpy(token_ids_T),
        position_ids_T=torch.from_numpy(np.concatenate([np.arange(length) for length in lengths])),
        lengths=lengths,
        query_N=torch.from_numpy(place_N - 1),
        targets=targets,
    )


def _order(sample: Sample) -> tuple[int, bytes, bytes]:
    """Longest first; samples of one length by content, so that the order they came in has no influence."""
    return -len(sample), sample.token_ids.tobytes(), sample.mask.tobytes()


def _gather(name: str, values: Sequence[np.ndarray | None], place_N: np.ndarray) -> Tensor | None:
    """The float32 values at the trained places; None when no sample has any."""
    given = [value for value in values if value is not None]
    if not given:
        return None
    if len(given) != len(values):
        raise ValueError(f"pack: {len(given)} of {len(values)} samples carry {name}; give it to all of them or to none")
    return torch.from_numpy(np.concatenate(given).astype(np.float32)[place_N])
