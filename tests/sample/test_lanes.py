"""Lanes: the same answers as one batch, spread over threads, with errors and early ends handed on."""

from collections.abc import Iterator, Sequence
from itertools import chain

import pytest
import torch
from tests.model.tiny import make_tiny

from cascade_rl.records import SamplingParams
from cascade_rl.sample import local
from cascade_rl.sample.answers import Answer
from cascade_rl.sample.lanes import deal, num_lanes, run_lanes
from cascade_rl.sample.local import LocalSampler

PARAMS = SamplingParams(max_new_tokens=12, stop_ids=tuple(range(0, 300, 6)))
CONTEXTS = [[5 + i, 6, 7 + 2 * i, *range(20, 20 + i)] for i in range(10)]


@pytest.fixture
def two_threads() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


def answer(context: int) -> Answer:
    return Answer((context,), PARAMS, 0, 0, 12)


def test_num_lanes() -> None:
    assert num_lanes(num_contexts=16, num_rows=128, num_threads=2) == 2
    assert num_lanes(num_contexts=1, num_rows=128, num_threads=2) == 1
    assert num_lanes(num_contexts=16, num_rows=63, num_threads=2) == 1
    assert num_lanes(num_contexts=16, num_rows=128, num_threads=16) == 4
    assert num_lanes(num_contexts=0, num_rows=0, num_threads=2) == 1


def test_shares_keep_a_context_together_and_their_order() -> None:
    answers = [answer(c) for c in (9, 9, 9, 4, 4, 7, 2)]
    assert [[a.context[0] for a in share] for share in deal(answers, 2)] == [[9, 9, 9, 2], [4, 4, 7]]


@pytest.mark.usefixtures("two_threads")
def test_the_same_answers_as_one_batch(tmp_path, monkeypatch) -> None:
    sampler = LocalSampler(make_tiny("qwen3", tmp_path, initializer_range=0.5), dtype="float32")
    ways: list[int] = []
    monkeypatch.setattr(local, "run_lanes", lambda lanes, shares: ways.append(len(lanes)) or run_lanes(lanes, shares))
    spread = sampler.sample(CONTEXTS, 8, PARAMS, range(10))
    assert ways == [2]
    assert (sampler.progress.done, sampler.progress.total) == (80, 80)
    torch.set_num_threads(1)
    alone = sampler.sample(CONTEXTS, 8, PARAMS, range(10))
    assert ways == [2]
    for mine, theirs in zip(chain(*spread), chain(*alone), strict=True):
        assert (mine.context_ids, mine.answer_ids, mine.finish) == (theirs.context_ids, theirs.answer_ids, theirs.finish)
        assert mine.logps == pytest.approx(theirs.logps, abs=1e-5)


@pytest.mark.usefixtures("two_threads")
def test_each_lane_has_a_whole_batch_and_its_part_of_the_memory(tmp_path, monkeypatch) -> None:
    sampler = LocalSampler(make_tiny("qwen3", tmp_path, initializer_range=0.5), dtype="float32", max_batch=40)
    alone = sampler._batching(sampler._decoder)
    used: list[tuple[int, int]] = []

    def spy(lanes, shares):
        used.extend((lane.max_batch, lane.max_cached) for lane in lanes)
        return run_lanes(lanes, shares)

    monkeypatch.setattr(local, "run_lanes", spy)
    sampler.sample(CONTEXTS, 8, PARAMS, range(10))
    assert used == [(40, alone.max_cached // 2)] * 2


@pytest.mark.usefixtures("two_threads")
def test_lanes_hand_back_each_answer_once(tmp_path) -> None:
    sampler = LocalSampler(make_tiny("qwen3", tmp_path, initializer_range=0.5), dtype="float32")
    whole = sampler.sample(CONTEXTS, 8, PARAMS, range(10))
    ended = list(sampler.finished(CONTEXTS, 8, PARAMS, range(10)))
    assert len(ended) == 80
    assert all(turn == whole[place][index] for place, index, turn in ended)


class Rounds:
    """A stand-in for a batch: so many rounds, then perhaps an error."""

    def __init__(self, rounds: int, error: Exception | None = None) -> None:
        self.rounds, self.error, self.seen = rounds, error, 0

    def run(self, answers: Sequence[Answer]) -> Iterator[int]:
        for _ in range(self.rounds):
            self.seen += 1
            yield len(answers)
            torch.mm(torch.ones(300, 300), torch.ones(300, 300))
        if self.error:
            raise self.error


@pytest.mark.usefixtures("two_threads")
def test_an_error_ends_the_other_lane_and_is_raised_here() -> None:
    endless, failing = Rounds(10**9), Rounds(3, ValueError("broken"))
    with pytest.raises(ValueError, match="broken"):
        list(run_lanes([endless, failing], [[answer(1)], [answer(2)]]))  # type: ignore[list-item]
    assert failing.seen == 3
    assert torch.get_num_threads() == 2


@pytest.mark.usefixtures("two_threads")
def test_leaving_early_stops_every_lane() -> None:
    lanes = [Rounds(10**9), Rounds(10**9)]
    rounds = run_lanes(lanes, [[answer(1)], [answer(2)]])  # type: ignore[arg-type]
    assert next(rounds) == 2
    rounds.close()  # type: ignore[attr-defined]
    seen = [lane.seen for lane in lanes]
    assert torch.get_num_threads() == 2
    assert seen == [lane.seen for lane in lanes]
