"""Packing: what goes where, and that nothing is cut or lost."""

import random

import numpy as np
import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st

from cascade_rl.algo.batch import Batch, Segment, pack
from cascade_rl.records import Sample


def sample(ids: list[int], mask: list[int], **more: np.ndarray) -> Sample:
    return Sample(np.array(ids, dtype=np.int32), np.array(mask, dtype=bool), **more)


def test_two_samples_by_hand():
    short = sample([7, 2], [0, 1])
    long = sample([5, 6, 2], [0, 0, 1])
    (batch,) = pack([short, long], 8)
    assert batch.token_ids_T.tolist() == [5, 6, 2, 7, 2]
    assert batch.position_ids_T.tolist() == [0, 1, 2, 0, 1]
    assert batch.segments == (Segment(3), Segment(2))
    assert batch.order == (1, 0)
    assert batch.query_N.tolist() == [1, 3]
    assert batch.targets.token_ids_N.tolist() == [2, 2]
    assert batch.targets.sample_N.tolist() == [0, 1]
    assert batch.targets.num_samples == 2
    assert batch.targets.advantage_N is None


def test_values_of_tokens_follow_their_tokens():
    first = sample(
        [5, 6, 2], [0, 1, 1], advantage=np.array([9, 0.5, -1], np.float32), logp_sampler=np.array([9, -1, -2], np.float32)
    )
    second = sample([7, 2], [0, 1], advantage=np.array([9, 3], np.float32), logp_sampler=np.array([9, -4], np.float32))
    (batch,) = pack([second, first], 8)
    assert batch.targets.advantage_N.tolist() == [0.5, -1.0, 3.0]
    assert batch.targets.logp_sampler_N.tolist() == [-1.0, -2.0, -4.0]
    assert batch.targets.sample_N.tolist() == [0, 0, 1]


def test_first_fit_decreasing_fills_three_batches_of_ten():
    lengths = [6, 4, 7, 3, 5, 5]
    batches = pack([sample([1] * n, [0] + [1] * (n - 1)) for n in lengths], 10)
    assert [batch.lengths for batch in batches] == [(7, 3), (6, 4), (5, 5)]


def test_a_sample_longer_than_the_limit_is_whole_and_alone():
    batches = pack([sample([1] * 12, [0] + [1] * 11), sample([1, 2], [0, 1])], 10)
    assert [batch.lengths for batch in batches] == [(12,), (2,)]


def test_samples_without_targets_do_not_leave_gaps_in_the_numbers():
    (batch,) = pack([sample([1, 2, 3], [0, 0, 0]), sample([1, 2], [0, 1])], 10)
    assert batch.targets.sample_N.tolist() == [0]
    assert batch.targets.num_samples == 1


def test_values_given_to_some_samples_only_are_an_error():
    with pytest.raises(ValueError, match="1 of 2 samples carry advantage"):
        pack([sample([1, 2], [0, 1], advantage=np.zeros(2, np.float32)), sample([3, 4], [0, 1])], 8)


def test_a_limit_below_one_is_an_error():
    with pytest.raises(ValueError, match="max_tokens 0"):
        pack([], 0)


@given(st.lists(st.integers(1, 40), max_size=30), st.integers(1, 60), st.randoms(use_true_random=False))
def test_every_token_is_there_once_whatever_the_order(lengths, max_tokens, random):
    samples = [sample([i] * n, [0] + [1] * (n - 1)) for i, n in enumerate(lengths)]
    batches = pack(samples, max_tokens)
    assert sorted(n for batch in batches for n in batch.lengths) == sorted(lengths)
    assert all(batch.num_tokens <= max_tokens or len(batch.lengths) == 1 for batch in batches)
    random.shuffle(samples)
    again = pack(samples, max_tokens)
    assert [batch.lengths for batch in again] == [batch.lengths for batch in batches]
    assert all(torch.equal(a.token_ids_T, b.token_ids_T) for a, b in zip(again, batches, strict=True))


def answers(prompt: list[int], *told: list[int]) -> list[Sample]:
    return [sample([*prompt, *answer], [0] * len(prompt) + [1] * len(answer)) for answer in told]


PROMPT, OTHER = [*range(100, 120)], [*range(200, 220)]


def test_a_prompt_of_two_answers_is_laid_out_once():
    """20 tokens of prompt, then 3 and 2 of answer; the prompt's last token predicts the first of both."""
    told = answers(PROMPT, [7, 2], [5, 6, 2])
    (batch,) = pack(told, 100)
    assert batch.token_ids_T.tolist() == [*PROMPT, 5, 6, 2, 7, 2]
    assert batch.position_ids_T.tolist() == [*range(20), 20, 21, 22, 20, 21]
    assert batch.segments == (Segment(20), Segment(3, 0), Segment(2, 0))
    assert batch.order == (1, 0)
    assert batch.query_N.tolist() == [19, 20, 21, 19, 23]
    assert batch.targets.token_ids_N.tolist() == [5, 6, 2, 7, 2]
    assert batch.targets.sample_N.tolist() == [0, 0, 0, 1, 1]
    assert batch.num_tokens == 25


def test_prompts_that_start_alike_share_that_as_well():
    """A preamble of 16 tokens, two prompts of 16 more with two answers each, and one that ends elsewhere."""
    preamble, one, two = [*range(16)], [*range(50, 66)], [*range(70, 86)]
    told = [
        *answers(preamble + one, [1, 2], [3]), *answers(preamble + two, [4], [5, 6, 7]), *answers(preamble, [8]), *answers(OTHER, [9])
    ]  # fmt: skip
    (batch,) = pack(told, 1000)
    assert batch.segments == (
        Segment(21), Segment(16), Segment(16, 1), Segment(16, 1), Segment(1, 1), Segment(2, 2), Segment(1, 2), Segment(3, 3), Segment(1, 3)
    )  # fmt: skip
    assert batch.num_tokens == 21 + 16 + 2 * 16 + 1 + 3 + 4
    assert batch.order == (5, 4, 0, 1, 3, 2)


def test_a_trained_token_is_never_shared():
    """Of 30 like tokens the first 18 are untrained in both samples, so that only these are there once."""
    like = [*range(30)]
    first = sample([*like, 1], [0] * 18 + [1] * 13)
    second = sample([*like, 2], [0] * 25 + [1] * 6)
    (batch,) = pack([first, second], 100)
    assert batch.segments == (Segment(18), Segment(13, 0), Segment(13, 0))
    assert batch.num_targets == 13 + 6
    # The second sample's first target is its own eighth token, predicted by the one before it.
    assert batch.query_N.tolist()[:13] == [17, *range(18, 30)]
    assert batch.query_N.tolist()[13:] == [*range(37, 43)]


def test_short_likeness_is_not_worth_a_stretch_of_its_own():
    (batch,) = pack(answers(PROMPT[:15], [1, 2], [3]), 100)
    assert batch.segments == (Segment(17), Segment(16))


def test_the_same_sample_twice_and_one_that_trains_nothing():
    twin, silent = answers(PROMPT, [1, 2])[0], sample(PROMPT, [0] * 20)
    (batch,) = pack([twin, silent, twin], 100)
    assert batch.segments == (Segment(19), Segment(3, 0), Segment(3, 0), Segment(1, 0))
    assert batch.targets.token_ids_N.tolist() == [1, 2, 1, 2]
    assert batch.targets.num_samples == 2


def test_a_group_too_large_for_one_batch_repeats_its_prompt():
    """Of 40 tokens, 20 go to the prompt: answers of 12, 8, 8 and 5 fill two batches and start a third."""
    told = answers(PROMPT, [1] * 12, [2] * 8, [3] * 8, [4] * 5)
    batches = pack(told, 40)
    assert [batch.lengths for batch in batches] == [(20, 12, 8), (20, 8, 5)]
    # Alone in its batch, an answer is a whole sample again.
    assert [batch.segments for batch in pack(told, 32)] == [(Segment(32),), (Segment(28),), (Segment(28),), (Segment(25),)]


def test_a_sample_too_long_leaves_its_group_and_is_alone():
    batches = pack(answers(PROMPT, [1] * 50, [2] * 8, [3] * 8), 40)
    assert [batch.segments for batch in batches] == [(Segment(70),), (Segment(20), Segment(8, 0), Segment(8, 0))]


def test_answers_to_a_prompt_too_long_share_it_as_far_as_that_adds_a_quarter():
    """A sample of 20 + 20 tokens must be held; 50 may be. So an answer of 8 joins, and the next pair starts another batch."""
    batches = pack(answers(PROMPT, [1] * 20, [2] * 8, [3] * 8, [4] * 5), 20)
    assert [batch.segments for batch in batches] == [
        (Segment(20), Segment(20, 0), Segment(8, 0)),
        (Segment(20), Segment(8, 0), Segment(5, 0)),
    ]
    # With one token more of room the prompt fits by itself, and only samples longer than the room stand alone.
    assert [batch.lengths for batch in pack(answers(PROMPT, [1] * 20, [2] * 8, [3] * 8), 21)] == [(40,), (28,), (28,)]


def test_without_sharing_every_sample_is_whole():
    batches = pack(answers(PROMPT, [1] * 12, [2] * 8), 100, share=False)
    assert [batch.segments for batch in batches] == [(Segment(32), Segment(28))]


def whole(batch: Batch) -> list[tuple[list[int], list[int]]]:
    """Each sample of a batch, read back from the row: its token ids and its trained places."""
    starts = np.cumsum([0, *batch.lengths])
    paths: list[list[int]] = []
    for i, segment in enumerate(batch.segments):
        above = paths[segment.parent] if segment.parent >= 0 else []
        paths.append([*above, *range(starts[i], starts[i + 1])])
    parents = {segment.parent for segment in batch.segments}
    leaves = [path for i, path in enumerate(paths) if i not in parents]
    told = []
    query = batch.query_N.tolist()
    for path, sample_id in zip(leaves, range(len(leaves)), strict=True):
        assert batch.position_ids_T[path].tolist() == [*range(len(path))]
        mine = [q for q, s in zip(query, batch.targets.sample_N.tolist(), strict=True) if s == sample_id]
        told.append((batch.token_ids_T[path].tolist(), [path.index(q) + 1 for q in mine]))
    return told


@example([(0, 16, 5, 0), (0, 16, 5, 0), (0, 17, 5, 0)], 1, random.Random(0))  # the two short ones are a batch of their own
@given(
    st.lists(st.tuples(st.integers(0, 3), st.integers(0, 40), st.integers(1, 30), st.integers(0, 2)), min_size=1, max_size=24),
    st.integers(1, 150),
    st.randoms(use_true_random=False),
)
def test_every_sample_can_be_read_back_whatever_the_order(told, max_tokens, random):
    """Samples that start with parts of a few long stretches: nothing is lost, cut, or trained elsewhere."""
    samples = []
    for which, shared, own, mark in told:
        ids = [*range(100 * which, 100 * which + shared), *([mark] * own), 7]
        samples.append(sample(ids, [0] * (len(ids) - (own + 1) // 2) + [1] * ((own + 1) // 2)))
    batches = pack(samples, max_tokens)
    found = []
    for batch in batches:
        found += whole(batch)
        most = max(len(samples[i]) for i in batch.order)
        assert batch.num_tokens <= max(max_tokens, 1.25 * most) or len(batch.segments) == 1
        assert [len(samples[i]) for i in batch.order] == [len(ids) for ids, _ in found[-len(batch.order) :]]
    assert sorted(found) == sorted((s.token_ids.tolist(), np.flatnonzero(s.mask).tolist()) for s in samples)
    random.shuffle(samples)
    again = pack(samples, max_tokens)
    assert [batch.segments for batch in again] == [batch.segments for batch in batches]
    assert all(torch.equal(a.token_ids_T, b.token_ids_T) for a, b in zip(again, batches, strict=True))
    assert all(torch.equal(a.query_N, b.query_N) for a, b in zip(again, batches, strict=True))
