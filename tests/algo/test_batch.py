"""Packing: what goes where, and that nothing is cut or lost."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from cascade_rl.algo.batch import pack
from cascade_rl.records import Sample


def sample(ids: list[int], mask: list[int], **more: np.ndarray) -> Sample:
    return Sample(np.array(ids, dtype=np.int32), np.array(mask, dtype=bool), **more)


def test_two_samples_by_hand():
    short = sample([7, 2], [0, 1])
    long = sample([5, 6, 2], [0, 0, 1])
    (batch,) = pack([short, long], 8)
    assert batch.token_ids_T.tolist() == [5, 6, 2, 7, 2]
    assert batch.position_ids_T.tolist() == [0, 1, 2, 0, 1]
    assert batch.lengths == (3, 2)
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
