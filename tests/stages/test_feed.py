"""The feed: shares by weight, every row once an epoch, exact resume."""

import numpy as np
import pytest

from cascade_rl.records import Sample
from cascade_rl.stages.feed import Feed, take_packed


def sample(name: str, length: int = 3) -> Sample:
    mask = np.ones(length, dtype=bool)
    mask[0] = False
    return Sample(np.arange(length, dtype=np.int32), mask, source=name)


def source(letter: str, count: int, length: int = 3) -> list[Sample]:
    return [sample(f"{letter}{i}", length) for i in range(count)]


def names(samples: list[Sample]) -> list[str]:
    return [s.source for s in samples]


def test_each_epoch_has_every_row_once_in_a_new_order() -> None:
    feed = Feed([source("a", 6)], [1.0], seed=0)
    first, second = names(take_packed(feed, 6, 3)), names(take_packed(feed, 6, 3))
    assert sorted(first) == sorted(second) == [f"a{i}" for i in range(6)]
    assert first != second


def test_shares_follow_the_weights_at_every_moment() -> None:
    feed = Feed([source("a", 5), source("b", 7), source("c", 3)], [3.0, 2.0, 1.0], seed=1)
    for _ in range(60):
        take_packed(feed, 1, 3)
        for share, count in zip((3 / 6, 2 / 6, 1 / 6), feed.counts, strict=True):
            assert abs(share * feed.draws - count) < 1.0001
    assert feed.counts == [30, 20, 10]


def test_packed_sequences_hold_whole_samples_and_lose_none() -> None:
    feed = Feed([source("a", 4, length=4)], [1.0], seed=0)
    taken = take_packed(feed, 2, 7)  # one sample of 4 fits in 7, a second does not
    assert len(taken) == 2
    assert len(take_packed(feed, 1, 8)) == 2
    assert feed.draws == 4


def test_resuming_at_any_cursor_gives_the_same_samples() -> None:
    sources = [source("a", 5), source("b", 3)]
    whole = Feed(sources, [2.0, 1.0], seed=7)
    steps = [names(take_packed(whole, 2, 7)) for _ in range(12)]
    for cut in range(12):
        first = Feed(sources, [2.0, 1.0], seed=7)
        for _ in range(cut):
            take_packed(first, 2, 7)
        again = Feed(sources, [2.0, 1.0], seed=7)
        again.restore(first.cursor())
        assert [names(take_packed(again, 2, 7)) for _ in range(12 - cut)] == steps[cut:]


def test_resuming_at_the_exact_end_of_an_epoch_starts_the_next_one() -> None:
    feed = Feed([source("a", 4)], [1.0], seed=3)
    take_packed(feed, 4, 3)
    again = Feed([source("a", 4)], [1.0], seed=3)
    again.restore(feed.cursor())
    assert sorted(names(take_packed(again, 4, 3))) == ["a0", "a1", "a2", "a3"]


def test_seeds_give_different_orders() -> None:
    orders = {tuple(names(take_packed(Feed([source("a", 8)], [1.0], seed=s), 8, 3))) for s in range(5)}
    assert len(orders) == 5


def test_empty_sources_and_long_samples_are_refused() -> None:
    with pytest.raises(ValueError, match="no empty source"):
        Feed([source("a", 2), []], [1.0, 1.0], seed=0)
    with pytest.raises(ValueError, match="has 3 tokens, a packed sequence 2"):
        take_packed(Feed([source("a", 2)], [1.0], seed=0), 1, 2)


def test_a_closed_source_gives_no_more_and_the_others_keep_their_proportion() -> None:
    feed = Feed([["a"] * 5, ["b"] * 5, ["c"] * 5], [1, 2, 1], seed=0)
    feed.take(8)
    feed.close(0)
    assert not feed.is_closed
    taken = feed.take(30)
    assert (taken.count("a"), taken.count("b"), taken.count("c")) == (0, 20, 10)
    again = Feed([["a"] * 5, ["b"] * 5, ["c"] * 5], [1, 2, 1], seed=0)
    again.restore(feed.cursor())
    assert again.take(9) == feed.take(9)
    feed.close(1)
    feed.close(2)
    assert feed.is_closed


def test_items_that_belong_together_stay_neighbours_in_every_epoch() -> None:
    items = [(document, question) for document in "abcdefgh" for question in range(3)] + [(None, n) for n in range(5)]
    feed = Feed([items], [1.0], 0, together=lambda item: item[0])
    orders = [feed.take(len(items)) for _ in range(3)]
    assert orders[0] != orders[1]
    for order in orders:
        assert set(order) == set(items)
        for place, (document, question) in enumerate(order):
            if document is not None and question:
                assert order[place - 1] == (document, question - 1)
    assert [item for item in orders[0] if item[0] is None] != items[-5:], "what belongs to nothing is shuffled too"


def test_a_source_without_neighbours_keeps_its_order() -> None:
    plain, told = Feed([range(20)], [1.0], 3), Feed([range(20)], [1.0], 3, together=lambda item: None)
    assert plain.take(60) == told.take(60)
