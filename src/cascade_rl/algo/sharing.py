"""Which samples start alike, so that what they share is computed once.

The rollouts of a group start with the same prompt, and the prompts of a task often with the same preamble. `forest` arranges
samples as trees whose nodes are stretches of tokens: a sample is the path from a root to a leaf. Only tokens that no sample trains
are shared, and only stretches of at least `MIN_SHARED` tokens. Trees are found by content alone, so neither the order of the
samples nor where they come from matters.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from cascade_rl.records import Sample

# A shorter stretch costs more in matmuls over small pieces than it saves in tokens.
MIN_SHARED = 16
# How much larger than its longest sample a batch may be whose room not even the shared prompt fits.
OVERFULL = 0.25


@dataclass(frozen=True, slots=True)
class Node:
    """Places [start, stop) of a sample, the same in all samples below; a leaf has no children and ends its sample.

    sample  which sample the tokens can be read from; in a leaf, the only one.
    size    tokens of the whole tree below, this stretch included.
    """

    start: int
    stop: int
    sample: int
    children: tuple["Node", ...]
    size: int

    @property
    def length(self) -> int:
        return self.stop - self.start


def forest(samples: Sequence[Sample], share: bool = True) -> list[Node]:
    """Trees that hold each sample as one leaf; single leaves where nothing is shared, and everywhere without `share`."""
    heads = [sample.token_ids[: _shareable(sample)] for sample in samples]
    keys = [(head.tobytes(), *content(sample)) for head, sample in zip(heads, samples, strict=True)]
    order = sorted(range(len(samples)), key=keys.__getitem__)
    alike = [0] + [_common(heads[a], heads[b]) if share else 0 for a, b in pairwise(order)]

    def grow(lo: int, hi: int, start: int) -> tuple[Node, ...]:
        """The nodes that hold places [start, ...) of the samples order[lo:hi], whose first `start` tokens are the same."""
        cuts = [lo, *(i for i in range(lo + 1, hi) if alike[i] < start + MIN_SHARED), hi]
        nodes = []
        for first, last in pairwise(cuts):
            if last - first == 1:
                nodes.append(node(start, len(samples[order[first]]), order[first]))
            else:
                stop = min(alike[first + 1 : last])
                nodes.append(node(start, stop, order[first], grow(first, last, stop)))
        return tuple(nodes)

    return list(grow(0, len(order), 0)) if order else []


def node(start: int, stop: int, sample: int, children: tuple[Node, ...] = ()) -> Node:
    return Node(start, stop, sample, children, stop - start + sum(child.size for child in children))


def split(tree: Node, room: int, before: int = 0, overfull: bool = False) -> list[Node]:
    """The tree as trees of at most `room` tokens that repeat what their parts share; only a whole sample may be larger.

    Where the stretch at the root has no room by itself (a prompt of 16,000 tokens in batches of 8,192), one sample must be held
    anyway: its siblings join it as far as they make that no more than a quarter larger than the longest of them, so that the prompt is
    not computed for each. before: tokens of the stretches above this tree. overfull: one of these had no room by itself.
    """
    above = before + tree.length
    overfull = overfull or above >= room

    def left(part: Node) -> int:
        """The room behind the root's stretch in a tree whose longest sample is that of `part`."""
        return (max(room, int((above + longest(part)) * (1 + OVERFULL))) if overfull else room) - above

    if not tree.children or tree.size <= tree.length + max(left(child) for child in tree.children):
        return [tree]
    parts = [part for child in tree.children for part in split(child, room, above, overfull)]
    trees = []
    for members in first_fit([part.size for part in parts], [left(part) for part in parts]):
        children = tuple(parts[i] for i in members)
        if len(children) == 1:  # nobody to share with any more
            only = children[0]
            trees.append(node(tree.start, only.stop, only.sample, only.children))
        else:
            trees.append(node(tree.start, tree.stop, tree.sample, children))
    return trees


def longest(tree: Node) -> int:
    """Tokens from the root's start to the end of the longest sample."""
    return tree.length + max((longest(child) for child in tree.children), default=0)


def first_fit(sizes: Sequence[int], rooms: Sequence[int]) -> list[list[int]]:
    """Which sizes go together, by first-fit decreasing; one larger than its room is alone. Equal sizes keep their order.

    rooms: of the bin that an item opens; items of more room come first, so that no bin has more than its items grant.
    """
    bins: list[list[int]] = []
    free: list[int] = []
    for i in sorted(range(len(sizes)), key=lambda i: (-rooms[i], -sizes[i])):
        place = next((place for place, left in enumerate(free) if sizes[i] <= left), None)
        if place is None:
            bins.append([])
            free.append(rooms[i])
            place = len(bins) - 1
        bins[place].append(i)
        free[place] -= sizes[i]
    return bins


def content(sample: Sample) -> tuple[bytes, bytes]:
    """What samples are ordered by where the order they came in must have no influence."""
    return sample.token_ids.tobytes(), sample.mask.tobytes()


def _shareable(sample: Sample) -> int:
    """How many tokens from its start a sample may share: those before the first trained one, and never all of them."""
    return int(sample.mask.argmax()) if sample.mask.any() else max(0, len(sample) - 1)


def _common(a: np.ndarray, b: np.ndarray) -> int:
    """How many first tokens two samples have in common."""
    shorter = min(len(a), len(b))
    differs = a[:shorter] != b[:shorter]
    return int(differs.argmax()) if differs.any() else shorter
