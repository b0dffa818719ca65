"""Rollouts: prompts in, groups of conversations out; tools are called between turns, and verdicts are asked for at the end.

Live conversations advance together: every turn is one call of the sampler over all of them. Token ids are only ever appended to
(invariant 5), so turn n+1 extends turn n as an exact prefix.
"""

import asyncio
import dataclasses
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import cast

from cascade_rl.errors import CascadeError, DataError, ToolError
from cascade_rl.model.render import Renderer
from cascade_rl.protocols import GroupTask, Sampler, Task, Tools
from cascade_rl.records import Ending, Group, Message, Prompt, Reward, Rollout, SamplingParams, ToolCall, Turn
from cascade_rl.sample.background import run_async
from cascade_rl.seeds import derive_seed

log = logging.getLogger(__name__)

MAX_CALLS_PER_TURN = 8
TOOL_TIMEOUT_S = 20.0
GRADE_TIMEOUT_S = 300.0  # a verdict that runs code waits for others' runs, each of which has a limit of its own
NUM_CHECKED = 4  # of the longest prompts, before a run
MAX_VERDICTS_AT_ONCE = 32  # a verdict's deadline starts when its turn comes: waiting for the others is not its fault


@dataclass
class _Conversation:
    """The bookkeeping of one rollout while it is live."""

    prompt: Prompt
    index: int
    seed: int
    tools: Tools | None
    ids: list[int]
    turns: list[Turn] = field(default_factory=list)
    messages: list[Message] = field(default_factory=list)
    format_errors: int = 0
    failure: str = ""
    cut: bool = False  # it called tools and had no token left to go on
    out_of_turns: bool = False  # the same, and no turn

    @property
    def num_sampled(self) -> int:
        return sum(len(turn.answer_ids) for turn in self.turns)

    @property
    def calls(self) -> bool:
        """Whether its last turn calls tools; one that was cut says nothing for certain."""
        return self.tools is not None and bool(self.messages[-1].tool_calls) and self.turns[-1].finish == "stop"

    def add(self, turn: Turn, renderer: Renderer) -> None:
        """Takes the next sampled turn; its context_ids are what was appended since the last one."""
        known = sum(len(t.context_ids) + len(t.answer_ids) for t in self.turns)
        self.turns.append(dataclasses.replace(turn, context_ids=tuple(self.ids[known:])))
        self.ids.extend(turn.answer_ids)
        parsed = renderer.parse(turn.answer_ids, self.prompt.tools, self.prompt.thinking)
        self.messages.append(parsed.message)
        self.format_errors += parsed.format_errors

    def rollout(self) -> Rollout:
        finish: Ending = "length" if self.cut or not self.turns else "turns" if self.out_of_turns else self.turns[-1].finish
        return Rollout(
            prompt=self.prompt, turns=tuple(self.turns), messages=tuple(self.messages), finish=finish, index=self.index,
            seed=self.seed, format_errors=self.format_errors, failure=self.failure, tools=self.tools,
        )  # fmt: skip


def rollout(
    sampler: Sampler,
    renderer: Renderer,
    tasks: Mapping[str, Task],
    prompts: Sequence[Prompt],
    n: int,
    params: SamplingParams,
    seed: int,
) -> list[Group]:
    """n rollouts of each prompt, in input order, ungraded.

    params.max_new_tokens is the budget of a whole rollout, all its turns together; params.stop_ids gains the renderer's. A
    conversation that would go on and has no token left, of the budget or of the model's context, ends with finish "length"; one that
    has no turn left, with "turns".
    Raises DataError for a prompt that leaves no room to answer.
    """
    params = dataclasses.replace(params, stop_ids=tuple(dict.fromkeys((*params.stop_ids, *renderer.stop_ids))))
    contexts = [renderer.prompt(p.messages, p.tools, p.thinking) for p in prompts]
    _check_room(prompts, contexts, renderer.max_context)
    seeds = [derive_seed(seed, p.id) for p in prompts]
    first = sampler.sample(contexts, n, params, seeds)
    groups = []
    for prompt, ids, prompt_seed, turns in zip(prompts, contexts, seeds, first, strict=True):
        group = []
        for index, turn in enumerate(turns):
            talk = _Conversation(prompt, index, prompt_seed, None, list(ids))
            talk.add(turn, renderer)
            _open_tools(talk, tasks[prompt.task])
            group.append(talk)
        groups.append(group)
    live = [talk for group in groups for talk in group]
    while live := _advance(live, sampler, renderer, tasks, params):
        pass
    return [Group(p, tuple(talk.rollout() for talk in group)) for p, group in zip(prompts, groups, strict=True)]


def _check_room(prompts: Sequence[Prompt], contexts: Sequence[Sequence[int]], max_context: int | None) -> None:
    for prompt, ids in zip(prompts, contexts, strict=True):
        if max_context is not None and len(ids) >= max_context:
            raise DataError(
                f"prompt {prompt.id}: has {len(ids):,} tokens, which leaves no room to answer in the model's {max_context:,}; shorten"
                " it, or leave it out"
            )


def check_longest(prompts: Sequence[Prompt], renderer: Renderer) -> None:
    """Raises DataError where one of the longest prompts leaves no room to answer: what a run would meet hours later, or never.

    The longest by their characters, since rendering all of a task's long prompts takes a while; `rollout` checks each one again.
    """
    longest = sorted(prompts, key=lambda prompt: -sum(len(message.content) for message in prompt.messages))[:NUM_CHECKED]
    _check_room(longest, [renderer.prompt(p.messages, p.tools, p.thinking) for p in longest], renderer.max_context)


def _open_tools(talk: _Conversation, task: Task) -> None:
    """Fresh tools for a conversation; what keeps them from opening is not the model's fault."""
    try:
        talk.tools = task.open_tools(talk.prompt)
    except CascadeError:
        raise
    except Exception as error:  # the boundary that classifies failures: a task may be anyone's code
        talk.failure = f"tools did not open: {type(error).__name__}: {error}"


def _advance(
    live: list[_Conversation], sampler: Sampler, renderer: Renderer, tasks: Mapping[str, Task], params: SamplingParams
) -> list[_Conversation]:
    """One more turn for every conversation that called tools and still may; gives those that got one."""
    calling = [talk for talk in live if talk.calls]
    for talk in calling:
        talk.out_of_turns = len(talk.turns) >= tasks[talk.prompt.task].max_turns
    calling = [talk for talk in calling if not talk.out_of_turns]
    for talk in calling:
        talk.cut = talk.num_sampled >= params.max_new_tokens
    calling = [talk for talk in calling if not talk.cut]
    if calling:
        run_async(_answer_calls(calling))
    calling = [talk for talk in calling if not talk.failure]
    for talk in calling:
        results = renderer.extend(_trailing_tool_messages(talk.messages), talk.prompt.thinking)
        talk.cut = renderer.max_context is not None and len(talk.ids) + len(results) >= renderer.max_context
        talk.ids.extend([] if talk.cut else results)
    calling = [talk for talk in calling if not talk.cut]
    if not calling:
        return []
    turns = sampler.sample(
        [talk.ids for talk in calling],
        1,
        [dataclasses.replace(params, max_new_tokens=params.max_new_tokens - talk.num_sampled) for talk in calling],
        [derive_seed(talk.seed, talk.index, len(talk.turns)) for talk in calling],
    )
    for talk, (turn,) in zip(calling, turns, strict=True):
        talk.add(turn, renderer)
    return calling


def _trailing_tool_messages(messages: Sequence[Message]) -> list[Message]:
    start = len(messages)
    while start and messages[start - 1].role == "tool":
        start -= 1
    return list(messages[start:])


async def _answer_calls(calling: Sequence[_Conversation]) -> None:
    async def answer(talk: _Conversation) -> None:
        assert talk.tools is not None
        for number, call in enumerate(talk.messages[-1].tool_calls):
            if number >= MAX_CALLS_PER_TURN:
                text = f"Error: more than {MAX_CALLS_PER_TURN} calls in one turn; this one was not run."
            else:
                text = await _call(talk, talk.tools, call)
            if talk.failure:
                return
            talk.messages.append(Message("tool", text))

    await asyncio.gather(*(answer(talk) for talk in calling))


async def _call(talk: _Conversation, tools: Tools, call: ToolCall) -> str:
    """A tool's answer; its ToolError is text for the model, anything else that goes wrong is not the model's fault."""
    timeout_s = tool_timeout_s(tools)
    try:
        return await asyncio.wait_for(tools.call(call), timeout_s)
    except ToolError as error:
        return f"Error: {error}"
    except TimeoutError:
        talk.failure = f'tool "{call.name}" gave no answer in {timeout_s:g} s'
    except Exception as error:  # the boundary that classifies failures: a tool may be anyone's code
        talk.failure = f'tool "{call.name}" crashed: {type(error).__name__}: {error}'
    return ""


def tool_timeout_s(tools: Tools) -> float:
    """How long one call may take: what the tools say, since one that runs a project's tests takes longer than a look-up."""
    return getattr(tools, "timeout_s", TOOL_TIMEOUT_S)


def grade_all(groups: Sequence[Group], tasks: Mapping[str, Task]) -> list[Group]:
    """The same groups with one reward for each rollout, in order; closes the rollouts' tools."""
    cohorts: dict[str, list[int]] = {}
    for place, group in enumerate(groups):
        if isinstance(tasks[group.prompt.task], GroupTask):
            cohorts.setdefault(group.prompt.task, []).append(place)

    async def grade_groups() -> dict[int, Sequence[Reward]]:
        turns = asyncio.Semaphore(MAX_VERDICTS_AT_ONCE)

        async def alone(place: int) -> dict[int, Sequence[Reward]]:
            task = tasks[groups[place].prompt.task]
            return {place: await asyncio.gather(*(_grade(task, r, turns) for r in groups[place].rollouts))}

        async def together(task: GroupTask, places: Sequence[int]) -> dict[int, Sequence[Reward]]:
            told = await _grade_together(task, [groups[place] for place in places])
            return dict(zip(places, told, strict=True))

        compared = {place for places in cohorts.values() for place in places}
        work = [alone(place) for place in range(len(groups)) if place not in compared]
        work += [together(cast(GroupTask, tasks[name]), places) for name, places in cohorts.items()]
        return {place: rewards for told in await asyncio.gather(*work) for place, rewards in told.items()}

    verdicts = run_async(grade_groups())
    graded = []
    for place, group in enumerate(groups):
        spent = tuple(dataclasses.replace(r, tools=None) for r in group.rollouts)
        graded.append(Group(group.prompt, spent, tuple(verdicts[place])))
    return graded


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
        told = await asyncio.wait_for(task.grade_groups(groups), task.group_timeout_s)
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
        reward = await asyncio.wait_for(task.grade(rollout, rollout.tools), timeout_s)
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


async def _close(rollout: Rollout) -> None:
    """Tools that do not close cost neither the verdict nor the run."""
    if rollout.tools is None:
        return
    try:
        await asyncio.wait_for(rollout.tools.close(), TOOL_TIMEOUT_S)
    except Exception as error:  # a tool may be anyone's code
        log.warning("prompt %s: tools did not close: %s: %s", rollout.prompt.id, type(error).__name__, error)
