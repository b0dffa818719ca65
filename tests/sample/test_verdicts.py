"""Verdicts while others are still being sampled: asked for at once, landing in place, and ended with what they belong to."""

import asyncio
import dataclasses
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest
from tests.model.tiny import tiny_tokenizer
from tests.sample.scripted import CALL, Adding, Scripted, prompt

import cascade_rl.sample.verdicts as verdicts_room
from cascade_rl.errors import CascadeError
from cascade_rl.grade.judge.config import JudgeConfig
from cascade_rl.model.render import RenderConfig, load_renderer
from cascade_rl.protocols import EagerSampler
from cascade_rl.records import Group, Message, Reply, Reward, Rollout, SamplingParams, Turn
from cascade_rl.sample.background import run_async
from cascade_rl.sample.rollout import rollouts
from cascade_rl.sample.verdicts import Verdicts, sample_and_grade
from cascade_rl.tasks.judged import Judged
from cascade_rl.tasks.nano.chat import ChatTask

END = "<|im_end|>"


class Eager(Scripted):
    """Hands its answers back from last to first; `told` is called after each with how many are there."""

    def __init__(self, *script: list[Any], told: Callable[[int], None] = lambda number: None) -> None:
        super().__init__(*script)
        self.told = told

    def finished(self, contexts: Any, n: int, params: Any, seeds: Any) -> Iterator[tuple[int, int, Turn]]:
        turns = self.sample(contexts, n, params, seeds)
        places = [(place, index) for place in range(len(turns)) for index in range(n)]
        for number, (place, index) in enumerate(reversed(places), 1):
            yield place, index, turns[place][index]
            self.told(number)


class Elsewhere(Adding):
    grades_elsewhere = True


def asked(sampler: Scripted, task: Any, n: int = 1, prompts: int = 1) -> tuple[Any, ...]:
    renderer = load_renderer(tiny_tokenizer(), RenderConfig(), 5000)
    told = [prompt(number) for number in range(prompts)]
    return sampler, renderer, {"adding": task}, told, n, SamplingParams(max_new_tokens=500), 0


async def jobs() -> set[asyncio.Task[Any]]:
    return asyncio.all_tasks() - {asyncio.current_task()}  # type: ignore[operator]


@pytest.fixture
def pending() -> Callable[[], int]:
    """How many jobs there are on the background loop since the test began that do not end by themselves very soon."""
    before = run_async(jobs())

    async def count() -> int:
        for _ in range(200):
            if not await jobs() - before:
                break
            await asyncio.sleep(0.005)
        return len(await jobs() - before)

    return lambda: run_async(count())


def test_only_a_sampler_with_finished_is_eager() -> None:
    assert isinstance(Eager(), EagerSampler)
    assert not isinstance(Scripted(), EagerSampler)


@pytest.mark.parametrize("elsewhere", [True, False])
def test_what_has_ended_is_graded_while_the_others_are_sampled_if_its_task_says_so(elsewhere: bool) -> None:
    graded, begun = threading.Semaphore(0), list[str]()

    async def grading(told: Rollout) -> Reward:
        begun.append(told.answer)
        graded.release()
        return Reward(float(told.answer))

    def told(number: int) -> None:  # the sampler goes on only when there is a verdict on what it has handed back
        assert graded.acquire(timeout=5 if elsewhere else 0.02) is elsewhere

    task = (Elsewhere if elsewhere else Adding)(grading=grading)
    groups = sample_and_grade(*asked(Eager(*([f"{i}{END}"] for i in range(6)), told=told), task, n=3, prompts=2))
    assert [[reward.value for reward in group.rewards] for group in groups] == [[0, 1, 2], [3, 4, 5]]
    assert [[r.answer for r in group.rollouts] for group in groups] == [["0", "1", "2"], ["3", "4", "5"]]
    assert begun == (["5", "4", "3", "2", "1", "0"] if elsewhere else ["0", "1", "2", "3", "4", "5"])


def test_a_conversation_that_calls_tools_is_graded_when_it_is_over() -> None:
    """One answers at once, the other calls: its tools' final state is what is graded, and they are closed then."""
    script = [[CALL.format(2) + END], ["7" + END], [CALL.format(3) + END], ["done" + END]]
    task = Elsewhere()
    order = [told.answer for _, told in rollouts(*asked(Eager(*script), task, n=2))]
    assert order == ["7", "done"]
    (group,) = sample_and_grade(*asked(Eager(*script), task := Elsewhere(), n=2))
    assert [reward.value for reward in group.rewards] == [5.0, 0.0]
    assert all(tools.closed for tools in task.opened)
    assert all(told.tools is None for told in group.rollouts)


def test_a_grader_that_fails_or_hangs_midway_costs_its_own_rollout(
    pending: Callable[[], int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(verdicts_room, "GRADE_TIMEOUT_S", 0.1)

    async def grading(told: Rollout) -> Reward:
        if told.answer == "crash":
            raise KeyError("x")
        if told.answer == "hang":
            await asyncio.sleep(60)
        return Reward(1.0)

    script = [[said + END] for said in ("ok", "crash", "ok", "hang")]
    groups = sample_and_grade(*asked(Eager(*script), Elsewhere(grading=grading), n=2, prompts=2))
    assert [[reward.value for reward in group.rewards] for group in groups] == [[1.0, None], [1.0, None]]
    assert [group.rewards[1].why for group in groups] == ["grader crashed: KeyError: 'x'", "no verdict in 0.1 s"]
    assert pending() == 0


def test_a_grader_that_breaks_its_contract_is_an_error_and_ends_the_others(pending: Callable[[], int]) -> None:
    async def grading(told: Rollout) -> Any:
        if told.answer != "bad":
            await asyncio.sleep(60)
        return 1.0

    begin = time.monotonic()
    with pytest.raises(CascadeError, match="must give a Reward"):
        sample_and_grade(*asked(Eager(*([said + END] for said in ("ok", "bad", "ok"))), Elsewhere(grading=grading), n=3))
    assert time.monotonic() - begin < 5
    assert pending() == 0


@pytest.mark.parametrize("error", [KeyboardInterrupt, ValueError])
def test_an_interruption_ends_the_verdicts_that_are_under_way(error: type[BaseException], pending: Callable[[], int]) -> None:
    ended, begun = list[str](), threading.Semaphore(0)

    async def grading(told: Rollout) -> Reward:
        begun.release()
        try:
            await asyncio.sleep(60)
        finally:
            ended.append(told.answer)
        return Reward(1.0)

    def told(number: int) -> None:
        assert begun.acquire(timeout=5)
        if number == 2:
            raise error

    before, begin = threading.active_count(), time.monotonic()
    task = Elsewhere(grading=grading)
    with pytest.raises(error):
        sample_and_grade(*asked(Eager(*([f"{i}{END}"] for i in range(4)), told=told), task, n=4))
    assert pending() == 0
    assert sorted(ended) == ["2", "3"]
    assert [tools.closed for tools in task.opened] == [True, True]
    assert time.monotonic() - begin < 5
    assert threading.active_count() <= before + 1  # the loop's own, where this test is the first


def test_the_time_in_which_both_went_on_is_counted() -> None:
    async def grading(told: Rollout) -> Reward:
        await asyncio.sleep(0.1)
        return Reward(1.0)

    sampler = Eager(*([f"{i}{END}"] for i in range(2)), told=lambda number: time.sleep(0.3 if number == 1 else 0))
    parts = asked(sampler, Elsewhere(grading=grading), n=2)
    with Verdicts(parts[2], 2) as verdicts:
        groups = verdicts.gather(parts[3], rollouts(*parts))
        assert 0.1 <= verdicts.seconds < 0.25  # the first verdict; the second has just begun
        verdicts.finish(groups)


class Judge:
    """Scores by question and seed; remembers how many questions each call had, and waits until it may answer."""

    def __init__(self) -> None:
        self.calls: list[int] = []
        self.may = threading.Event()

    def reply(self, conversations: Sequence[Sequence[Message]], seeds: Sequence[int]) -> list[Reply]:
        self.calls.append(len(conversations))
        assert self.may.wait(5)
        return [self.say(c[0].content, seed) for c, seed in zip(conversations, seeds, strict=True)]

    def say(self, question: str, seed: int) -> Reply:
        return Reply(f"Score 1: {seed % 5 + 1}\nScore 2: {len(question) % 5 + 1}\nRanking: 3")


def judged(judge: Judge, url: str) -> Judged:
    task = Judged(task="chat", judge=JudgeConfig(model="m", url=url), template="brief", watch=False, name="adding")
    return dataclasses.replace(task.link({"chat": ChatTask(num_train=6)}), chats={"judge": judge})


def test_a_judge_behind_a_url_is_asked_of_the_groups_that_are_whole_by_then() -> None:
    """One call at a time: first the one group that is there, then all that came meanwhile. The same rewards as in one call."""
    script = [[f"{'ab' * i} {i}{END}"] for i in range(8)]

    def run(url: str) -> tuple[list[int], list[Group]]:
        judge = Judge()

        def told(number: int) -> None:
            if number == 2 and url:  # one group of four is whole, and the judge is asked
                until = time.monotonic() + 5
                while not judge.calls and time.monotonic() < until:
                    time.sleep(0.005)
            if number == 8:
                judge.may.set()

        return judge.calls, sample_and_grade(*asked(Eager(*script, told=told), judged(judge, url), n=2, prompts=4))

    elsewhere, here = run("http://127.0.0.1:9/v1"), run("")
    assert (elsewhere[0], here[0]) == ([1, 3], [4])
    assert elsewhere[1] == here[1]
    assert all(reward.value is not None for group in here[1] for reward in group.rewards)
