"""Verdicts: on a rollout as soon as its conversation has ended, where they are given elsewhere; on all others when sampling has ended.

What grades in another process or on another machine (a sandbox, a server) does so while the sampler goes on with what is left. A task
says so itself (`grades_elsewhere`, see `protocols.Task`): a grader in this process would take the sampler's time. Verdicts are given on
one background loop; each lands on its own rollout, so nothing depends on the order in which they come.
"""

import asyncio
import dataclasses
import logging
import time
from collections.abc import Awaitable, Callable, Generator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import closing
from typing import Any, TypeVar, cast

from cascade_rl.errors import CascadeError, ToolError
from cascade_rl.model.render import Renderer
from cascade_rl.protocols import GroupTask, Sampler, Task
from cascade_rl.records import Group, Prompt, Reward, Rollout, SamplingParams
from cascade_rl.sample.background import run_async, start_async
from cascade_rl.sample.rollout import in_order, rollouts

log = logging.getLogger(__name__)

T = TypeVar("T")

GRADE_TIMEOUT_S = 300.0  # a verdict that runs code waits for others' runs, each of which has a limit of its own
CLOSE_TIMEOUT_S = 20.0
MAX_VERDICTS_AT_ONCE = 32  # a verdict's deadline starts when its turn comes: waiting for the others is not its fault


def sample_and_grade(
    sampler: Sampler,
    renderer: Renderer,
    tasks: Mapping[str, Task],
    prompts: Sequence[Prompt],
    n: int,
    params: SamplingParams,
    seed: int,
) -> list[Group]:
    """n graded rollouts of each prompt, in input order; see `rollouts` for what it is given."""
    with Verdicts(tasks, n) as verdicts:
        return verdicts.finish(verdicts.gather(prompts, rollouts(sampler, renderer, tasks, prompts, n, params, seed)))


def grade_all(groups: Sequence[Group], tasks: Mapping[str, Task]) -> list[Group]:
    """The same groups with one reward for each rollout, in order; closes the rollouts' tools."""
    with Verdicts(tasks, 0) as verdicts:
        return verdicts.finish(groups)


class Verdicts:
    """The verdicts on the rollouts of one batch, `group_size` of each prompt.

        with Verdicts(tasks, n) as verdicts:
            groups = verdicts.gather(prompts, rollouts(...))   # sampling; verdicts are given meanwhile
            graded = verdicts.finish(groups)                   # what is left of them

    Whatever keeps it from its end (an error, Ctrl-C) ends the verdicts that are under way.
    """

    def __init__(self, tasks: Mapping[str, Task], group_size: int) -> None:
        self._tasks, self._group_size = tasks, group_size
        self._turns = asyncio.Semaphore(MAX_VERDICTS_AT_ONCE)
        self._alone: dict[tuple[int, int], Future[Reward]] = {}  # by place and index
        self._compared: dict[int, Future[list[Reward]]] = {}  # by place
        self._rooms: dict[str, _Room] = {}
        self._parts: dict[int, list[Rollout]] = {}  # of groups that are compared and not yet whole
        self._num_open, self._since, self._seconds = 0, 0.0, 0.0

    def __enter__(self) -> "Verdicts":
        return self

    def __exit__(self, *error: object) -> None:
        for future in (*self._alone.values(), *self._compared.values()):
            future.cancel()  # nothing to one that is done

    def gather(self, prompts: Sequence[Prompt], ended: Generator[tuple[int, Rollout], None, None]) -> list[Group]:
        """The groups of rollouts that `ended` hands on, ungraded, in input order; verdicts that may be asked for at once are."""
        told = []
        with closing(ended):
            for place, rollout in ended:
                self._begin(place, rollout)
                told.append((place, rollout))
        return in_order(prompts, told)

    def _begin(self, place: int, rollout: Rollout) -> None:
        task = self._tasks[rollout.prompt.task]
        if not getattr(task, "grades_elsewhere", False):
            return
        if not isinstance(task, GroupTask):
            self._alone[place, rollout.index] = start_async(self._counted(_grade, task, rollout, self._turns))
            return
        group = self._parts.setdefault(place, [])
        group.append(rollout)
        if len(group) == self._group_size:
            room = self._rooms.setdefault(rollout.prompt.task, _Room(task))
            whole = Group(rollout.prompt, tuple(sorted(group, key=lambda told: told.index)))
            self._compared[place] = start_async(self._counted(room.verdicts, place, whole))

    async def _counted(self, verdict: Callable[..., Awaitable[T]], *given: Any) -> T:
        """Counts the wall time in which any verdict is under way."""
        if not self._num_open:
            self._since = time.perf_counter()
        self._num_open += 1
        try:
            return await verdict(*given)
        finally:
            self._num_open -= 1
            if not self._num_open:
                self._seconds += time.perf_counter() - self._since

    @property
    def seconds(self) -> float:
        """For how long verdicts were under way so far, of those that did not wait for the end of sampling."""
        return self._seconds + (time.perf_counter() - self._since if self._num_open else 0.0)

    def finish(self, groups: Sequence[Group]) -> list[Group]:
        """The same groups with one reward for each rollout, in order: what was begun is waited for, the rest asked for now.

        Closes the rollouts' tools. Raises CascadeError for a grader that breaks its contract.
        """
        verdicts = run_async(self._rest(groups))
        graded = []
        for place, group in enumerate(groups):
            spent = tuple(dataclasses.replace(r, tools=None) for r in group.rollouts)
            graded.append(Group(group.prompt, spent, tuple(verdicts[place])))
        return graded

    async def _rest(self, groups: Sequence[Group]) -> dict[int, Sequence[Reward]]:
        cohorts: dict[str, list[int]] = {}
        for place, group in enumerate(groups):
            if isinstance(self._tasks[group.prompt.task], GroupTask) and place not in self._compared:
                cohorts.setdefault(group.prompt.task, []).append(place)

        async def one(place: int, rollout: Rollout) -> Reward:
            if begun := self._alone.get((place, rollout.index)):
                return await asyncio.wrap_future(begun)
            return await _grade(self._tasks[rollout.prompt.task], rollout, self._turns)

        async def alone(place: int) -> dict[int, Sequence[Reward]]:
            if begun := self._compared.get(place):
                return {place: await asyncio.wrap_future(begun)}
            return {place: await asyncio.gather(*(one(place, r) for r in groups[place].rollouts))}

        async def together(task: GroupTask, places: Sequence[int]) -> dict[int, Sequence[Reward]]:
            told = await _grade_together(task, [groups[place] for place in places])
            return dict(zip(places, told, strict=True))

        compared = {place for places in cohorts.values() for place in places}
        work = [alone(place) for place in range(len(groups)) if place not in compared]
        work += [together(cast(GroupTask, self._tasks[name]), places) for name, places in cohorts.items()]
        jobs = [asyncio.ensure_future(job) for job in work]
        try:
            return {place: rewards for told in await asyncio.gather(*jobs) for place, rewards in told.items()}
        finally:
            for job in jobs:  # of the others, where one failed
                job.cancel()


class _Room:
    """Where the groups of one task wait until the call before theirs has ended; all that wait then are one call of `grade_groups`."""

    def __init__(self, task: GroupTask) -> None:
        self._task = task
        self._turn = asyncio.Lock()
        self._waiting: dict[int, Group] = {}
        self._asked: dict[int, tuple[asyncio.Future[list[list[Reward]]], int]] = {}  # place -> the call, its number there

    async def verdicts(self, place: int, group: Group) -> list[Reward]:
        self._waiting[place] = group
        async with self._turn:
            if place in self._waiting:
                groups, self._waiting = self._waiting, {}
                call = asyncio.ensure_future(_grade_together(self._task, list(groups.values())))
                self._asked |= {place: (call, number) for number, place in enumerate(groups)}
                await call
        call, number = self._asked[place]
        return (await call)[number]


async def _grade_together(task: GroupTask, groups: Sequence[Group]) -> list[list[Reward]]:
    """A group task's verdicts. Rollouts that died are unscored and never shown to it, so that none waits for them."""
    living = [dataclasses.replace(group, rollouts=tuple(r for r in group.rollouts if not r.failure)) for group in groups]
    try:
        told = await _group_verdicts(task, living)
    finally:
        await asyncio.gather(*(_close(rollout) for group in groups for rollout in group.rollouts))
    rewards = []
    for group, verdicts in zip(groups, told, strict=True):
        rest = iter(verdicts)
        rewards.append([Reward(None, why=r.failure) if r.failure else next(rest) for r in group.rollouts])
    return rewards


async def _group_verdicts(task: GroupTask, groups: Sequence[Group]) -> Sequence[Sequence[Reward]]:
    """What `grade_groups` says, checked; whatever keeps it from verdicts leaves all its rollouts unscored."""

    def unscored(why: str) -> list[list[Reward]]:
        return [[Reward(None, why=why) for _ in group.rollouts] for group in groups]

    try:
        told = await asyncio.wait_for(_held(task.grade_groups, groups), task.group_timeout_s)
    except TimeoutError:
        return unscored(f"no verdicts in {task.group_timeout_s:g} s")
    except CascadeError:
        raise
    except Exception as error:  # the boundary that classifies failures: a grader may be anyone's code
        return unscored(f"grader crashed: {type(error).__name__}: {error}")
    where = f'task "{task.name}": grade_groups()'
    if len(told) != len(groups):
        raise CascadeError(
            f"{where} gave verdicts on {len(told)} groups, and was given {len(groups)}; it must give a list for each"
        )
    for group, rewards in zip(groups, told, strict=True):
        if len(rewards) != len(group.rollouts):
            raise CascadeError(
                f"{where} gave {len(rewards)} rewards for {len(group.rollouts)} rollouts of prompt {group.prompt.id}; it must give"
                " exactly one each (None for unscored)"
            )
        if any(not isinstance(reward, Reward) for reward in rewards):
            raise CascadeError(f"{where} gave something that is no Reward for prompt {group.prompt.id}")
    return told


async def _grade(task: Task, rollout: Rollout, turns: asyncio.Semaphore) -> Reward:
    async with turns:
        try:
            return await _verdict(task, rollout)
        finally:
            await _close(rollout)


async def _verdict(task: Task, rollout: Rollout) -> Reward:
    """A task's verdict on one rollout; whatever keeps it from one makes the rollout unscored, never 0 (invariant 4)."""
    if rollout.failure:
        return Reward(None, why=rollout.failure)
    timeout_s: float = getattr(task, "grade_timeout_s", GRADE_TIMEOUT_S)
    try:
        reward = await asyncio.wait_for(_held(task.grade, rollout, rollout.tools), timeout_s)
    except TimeoutError:
        return Reward(None, why=f"no verdict in {timeout_s:g} s")
    except ToolError as error:  # of a tool that the grader called, not of the model
        return Reward(None, why=f"grader's tool call failed: {error}")
    except CascadeError:
        raise
    except Exception as error:  # the boundary that classifies failures: a grader may be anyone's code
        return Reward(None, why=f"grader crashed: {type(error).__name__}: {error}")
    if not isinstance(reward, Reward):
        raise CascadeError(f'task "{task.name}": grade() gave {type(reward).__name__}; it must give a Reward')
    return reward


async def _held(grade: Callable[..., Awaitable[T]], *given: Any) -> T:
    """A grader's verdict; one that ends its program (sys.exit) would end the loop that all verdicts run on, and fails instead."""
    try:
        return await grade(*given)
    except SystemExit as error:
        raise RuntimeError(f"it called exit({error})") from None


async def _close(rollout: Rollout) -> None:
    """Tools that do not close cost neither the verdict nor the run."""
    if rollout.tools is None:
        return
    try:
        await asyncio.wait_for(rollout.tools.close(), CLOSE_TIMEOUT_S)
    except Exception as error:  # a tool may be anyone's code
        log.warning("prompt %s: tools did not close: %s: %s", rollout.prompt.id, type(error).__name__, error)
