"""Feed: the order in which items of several sources are drawn, as a function of the seed and the number of draws alone."""

from collections.abc import Callable, Hashable, Mapping, Sequence
from functools import lru_cache
from itertools import groupby
from typing import Any, Generic, TypeVar

import numpy as np

from cascade_rl.records import Sample
from cascade_rl.seeds import derive_seed

Item = TypeVar("Item")


class Feed(Generic[Item]):
    """Draws items from weighted sources without end; each source is gone through in a new order every epoch.

    After any number of draws each source's share is within one draw of its weight. The cursor is a few integers, so resuming
    goes on at the exact sample; a step may end anywhere in an epoch, its very end included.

    together: neighbours of a source for which it gives the same (None: nothing) stay neighbours, in their order.
    """

    def __init__(
        self,
        sources: Sequence[Sequence[Item]],
        weights: Sequence[float],
        seed: int,
        together: Callable[[Item], Hashable] | None = None,
    ) -> None:
        if len(sources) != len(weights) or not sources or any(len(source) == 0 for source in sources):
            raise ValueError(f"feed: needs one weight per source and no empty source; got sizes {[len(s) for s in sources]}")
        self.sources = sources
        self.shares = np.array(weights, dtype=np.float64) / sum(weights)
        self.seed = seed
        self.counts = [0] * len(sources)
        self.closed: set[int] = set()
        self._runs = [_runs([together(item) for item in source]) if together else None for source in sources]
        self._order = lru_cache(maxsize=2 * len(sources))(self._permutation)

    @property
    def draws(self) -> int:
        return sum(self.counts)

    def _permutation(self, source: int, epoch: int) -> np.ndarray:
        generator = np.random.Generator(np.random.Philox(derive_seed(self.seed, "order", source, epoch)))
        runs = self._runs[source]
        if runs is None:
            return generator.permutation(len(self.sources[source]))
        return np.concatenate([runs[number] for number in generator.permutation(len(runs))])

    def _next(self) -> tuple[int, Item]:
        """The item of the next draw, not yet drawn: from the source that lags most behind its share."""
        lag = self.shares * (self.draws + 1) - self.counts
        if self.closed:
            opened = [i for i in range(len(self.sources)) if i not in self.closed]
            share, drawn = self.shares[opened].sum(), sum(self.counts[i] for i in opened)
            lag = self.shares / share * (drawn + 1) - self.counts
            lag[list(self.closed)] = -np.inf
        source = int(np.argmax(lag))
        epoch, place = divmod(self.counts[source], len(self.sources[source]))
        return source, self.sources[source][self._order(source, epoch)[place]]

    def peek(self) -> Item:
        """What the next draw will give."""
        return self._next()[1]

    def take(self, num: int) -> list[Item]:
        """The next `num` items."""
        taken = []
        for _ in range(num):
            source, item = self._next()
            self.counts[source] += 1
            taken.append(item)
        return taken

    def close(self, source: int) -> None:
        """No more draws from this source; the others share among themselves, in proportion to their weights."""
        self.closed.add(source)

    @property
    def is_closed(self) -> bool:
        """Nothing is left to draw."""
        return len(self.closed) == len(self.sources)

    def cursor(self) -> dict[str, Any]:
        return {"counts": list(self.counts), "closed": sorted(self.closed)}

    def restore(self, cursor: Mapping[str, Any]) -> None:
        self.counts, self.closed = list(cursor["counts"]), set(cursor.get("closed", ()))


def _runs(keys: Sequence[Hashable]) -> list[np.ndarray] | None:
    """The places of each run of equal keys, those of None being alone; None where every run is of one."""
    told = [list(run) for _, run in groupby(range(len(keys)), key=lambda i: (i,) if keys[i] is None else keys[i])]
    return None if len(told) == len(keys) else [np.array(run) for run in told]


def take_packed(feed: Feed[Sample], num_sequences: int, pack_tokens: int) -> list[Sample]:
    """The next samples that fill `num_sequences` packed sequences of at most `pack_tokens` tokens, in drawing order.

    No sample is cut or lost: one that does not fit the last sequence starts the next step. Every sample must fit one.
    """
    taken: list[Sample] = []
    opened = room = 0
    while True:
        sample = feed.peek()
        if len(sample) > pack_tokens:
            raise ValueError(f"feed: sample {sample.source} has {len(sample)} tokens, a packed sequence {pack_tokens}")
        if len(sample) > room:
            if opened == num_sequences:
                return taken
            opened, room = opened + 1, pack_tokens
        room -= len(sample)
        taken += feed.take(1)
