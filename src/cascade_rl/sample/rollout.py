"""Rollouts: prompts in, conversations out, each handed on when it has ended; tools are called between turns.

Live conversations advance together: every turn is one call of the sampler over all of them. Token ids are only ever appended to
(invariant 5), so turn n+1 extends turn n as an exact prefix. Verdicts are `sample.verdicts`' affair.
"""

import asyncio
import dataclasses
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from cascade_rl.errors import CascadeError, DataError, ToolError
from cascade_rl.model.render import Renderer
from cascade_rl.protocols import EagerSampler, Sampler, Task, Tools
from cascade_rl.records import Ending, Group, Message, Prompt, Rollout, SamplingParams, ToolCall, Turn
from cascade_rl.sample.background import run_async
from cascade_rl.seeds import derive_seed

MAX_CALLS_PER_TURN = 8
TOOL_TIMEOUT_S = 20.0
NUM_CHECKED = 4  # of the longest prompts, before a run


@dataclass(eq=False)
class _Conversation:
    """The bookkeeping of one rollout while it is live; place: the number of its prompt."""

    place: int
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


def rollouts(
    sampler: Sampler,
    renderer: Renderer,
    tasks: Mapping[str, Task],
    prompts: Sequence[Prompt],
    n: int,
    params: SamplingParams,
    seed: int,
) -> Generator[tuple[int, Rollout], None, None]:
    """n rollouts of each prompt, ungraded, each with the number of its prompt: handed on as they end, in whatever order.

    params.max_new_tokens is the budget of a whole rollout, all its turns together; params.stop_ids gains the renderer's. A
    conversation that would go on and has no token left, of the budget or of the model's context, ends with finish "length"; one that
    has no turn left, with "turns".
    Raises DataError for a prompt that leaves no room to answer.
    """
    params = dataclasses.replace(params, stop_ids=tuple(dict.fromkeys((*params.stop_ids, *renderer.stop_ids))))
    contexts = [renderer.prompt(p.messages, p.tools, p.thinking) for p in prompts]
    _check_room(prompts, contexts, renderer.max_context)
    seeds = [derive_seed(seed, p.id) for p in prompts]
    live = []
    for place, index, turn in _answers(sampler, contexts, n, params, seeds):
        talk = _Conversation(place, prompts[place], index, seeds[place], None, list(contexts[place]))
        talk.add(turn, renderer)
        _open_tools(talk, tasks[talk.prompt.task])
        if talk.calls:
            live.append(talk)
        else:
            yield place, talk.rollout()
    live.sort(key=lambda talk: (talk.place, talk.index))
    while live:
        calling = _answer_calls(live, renderer, tasks, params)
        yield from ((talk.place, talk.rollout()) for talk in live if talk not in calling)
        left = [dataclasses.replace(params, max_new_tokens=params.max_new_tokens - talk.num_sampled) for talk in calling]
        seeds = [derive_seed(talk.seed, talk.index, len(talk.turns)) for talk in calling]
        for number, _, turn in _answers(sampler, [talk.ids for talk in calling], 1, left, seeds):
            talk = calling[number]
            talk.add(turn, renderer)
            if not talk.calls:
                yield talk.place, talk.rollout()
        live = [talk for talk in calling if talk.calls]


def _answers(
    sampler: Sampler,
    contexts: Sequence[Sequence[int]],
    n: int,
    params: SamplingParams | Sequence[SamplingParams],
    seeds: Sequence[int],
) -> Iterator[tuple[int, int, Turn]]:
    """The sampler's turns with the numbers of their context and answer: as they end where it tells, else all at the end."""
    if not contexts:
        return
    if isinstance(sampler, EagerSampler):
        yield from sampler.finished(contexts, n, params, seeds)
        return
    for place, turns in zip(range(len(contexts)), sampler.sample(contexts, n, params, seeds), strict=True):
        for index, turn in zip(range(n), turns, strict=True):
            yield place, index, turn


def in_order(prompts: Sequence[Prompt], ended: Iterable[tuple[int, Rollout]]) -> list[Group]:
    """A group for each prompt, in input order, its rollouts by their index: whatever the order in which they ended."""
    found: list[list[Rollout]] = [[] for _ in prompts]
    for place, told in ended:
        found[place].append(told)
    return [Group(p, tuple(sorted(group, key=lambda told: told.index))) for p, group in zip(prompts, found, strict=True)]


def _check_room(prompts: Sequence[Prompt], contexts: Sequence[Sequence[int]], max_context: int | None) -> None:
    for prompt, ids in zip(prompts, contexts, strict=True):
        if max_context is not None and len(ids) >= max_context:
            raise DataError(
                f"prompt {prompt.id}: has {len(ids):,} tokens, which leaves no room to answer in the model's {max_context:,}; shorten"
                " it, or leave it out"
            )


def check_longest(prompts: Sequence[Prompt], renderer: Renderer) -> None:
    """Raises DataError where one of the longest prompts leaves no room to answer: what a run would meet hours later, or never.

    The longest by their characters, since rendering all of a task's long prompts takes a while; `rollouts` checks each one again.
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


def _answer_calls(
    live: Sequence[_Conversation], renderer: Renderer, tasks: Mapping[str, Task], params: SamplingParams
) -> list[_Conversation]:
    """Answers the calls of conversations that may go on; gives those that do, with what the model reads next."""
    for talk in live:
        talk.out_of_turns = len(talk.turns) >= tasks[talk.prompt.task].max_turns
    calling = [talk for talk in live if not talk.out_of_turns]
    for talk in calling:
        talk.cut = talk.num_sampled >= params.max_new_tokens
    calling = [talk for talk in calling if not talk.cut]
    if calling:
        run_async(_ask_tools(calling))
    calling = [talk for talk in calling if not talk.failure]
    for talk in calling:
        results = renderer.extend(_trailing_tool_messages(talk.messages), talk.prompt.thinking)
        talk.cut = renderer.max_context is not None and len(talk.ids) + len(results) >= renderer.max_context
        talk.ids.extend([] if talk.cut else results)
    return [talk for talk in calling if not talk.cut]


def _trailing_tool_messages(messages: Sequence[Message]) -> list[Message]:
    start = len(messages)
    while start and messages[start - 1].role == "tool":
        start -= 1
    return list(messages[start:])


async def _ask_tools(calling: Sequence[_Conversation]) -> None:
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
