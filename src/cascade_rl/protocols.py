"""The doors between rooms: what a sampler, scorer, task or stage must offer, and nothing more."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from cascade_rl.records import ExecResult, Group, Message, Prompt, Reply, Reward, Rollout, SamplingParams, Split, ToolCall, Turn

if TYPE_CHECKING:
    import torch


class Sampler(Protocol):
    """Token ids in, token ids out."""

    def sample(
        self, contexts: Sequence[Sequence[int]], n: int, params: SamplingParams | Sequence[SamplingParams], seeds: Sequence[int]
    ) -> list[list[Turn]]:
        """n turns for each context, in input order; answer k of context i depends only on (contexts[i], seeds[i], k, params) and
        the weights, whatever the order of the batch. `params`: one for all, or one per context."""
        ...


@runtime_checkable
class EagerSampler(Sampler, Protocol):
    """A sampler that hands back each answer when it has ended, while others go on.

    Where a sampler has `finished`, rollouts ask it instead of `sample`: what has ended may be graded meanwhile.
    """

    def finished(
        self, contexts: Sequence[Sequence[int]], n: int, params: SamplingParams | Sequence[SamplingParams], seeds: Sequence[int]
    ) -> Iterator[tuple[int, int, Turn]]:
        """(number of the context, number of the answer to it, turn) for all that `sample` would give, in the order in which they end."""
        ...


class Scorer(Protocol):
    """How teachers speak."""

    def score(self, token_ids: Sequence[Sequence[int]], temperature: float = 1.0) -> list[list[float]]:
        """Entry t of a list is log p(ids[t+1] | ids[:t+1]); a sequence of T ids gives T-1 numbers."""
        ...


class Loadable(Protocol):
    """The whole of weight sync."""

    def load(self, weights: "Mapping[str, torch.Tensor]", version: int) -> None: ...


class Tools(Protocol):
    """The live tools of one rollout: state included. `timeout_s`, where they have it: how long one call may take (else 20 s)."""

    async def call(self, call: ToolCall) -> str:
        """The result as text; raises ToolError with a text that the model may read."""
        ...

    async def close(self) -> None: ...


class Sandbox(Protocol):
    """A place for what a model wrote: files and processes that neither see nor outlive it."""

    async def run(self, argv: Sequence[str], *, timeout_s: float) -> ExecResult: ...

    async def read(self, path: str) -> bytes: ...

    async def write(self, path: str, data: bytes) -> None: ...

    async def close(self) -> None: ...


@runtime_checkable
class Task(Protocol):
    """Prompts + interaction + verdict; one task serves RL and eval. A frozen dataclass whose fields are its settings."""

    @property
    def name(self) -> str: ...

    @property
    def domain(self) -> str: ...

    def prompts(self, split: Split) -> Sequence[Prompt]:
        """All prompts of a split, always the same ones in the same order; raises DataError for a split it does not have."""
        ...

    async def grade(self, rollout: Rollout, tools: Tools | None) -> Reward:
        """The verdict; `tools` is what `open_tools` gave, in its final state. A task's `grade_timeout_s`, where it has one, is how
        long a verdict may take (else 300 s). A task with `grades_elsewhere = True` (else False) says that its verdicts wait for
        other processes or machines, so that they are asked for while others are still being sampled; they must not depend on the
        order in which they are."""
        ...

    def open_tools(self, prompt: Prompt) -> Tools | None:
        """Fresh tools for one rollout, or None where the task has none."""
        ...

    @property
    def max_turns(self) -> int:
        """How many assistant turns a rollout may have (1 where there are no tools)."""
        ...


@runtime_checkable
class GroupTask(Task, Protocol):
    """A task whose verdicts need the others of a group, or are given for a whole step at once: a judge compares answers.

    Where a task has `grade_groups`, it is asked instead of `grade`: once for all groups of a step; with `grades_elsewhere`, call by
    call for those that are whole by then.
    """

    @property
    def group_timeout_s(self) -> float:
        """How long a call of `grade_groups` may take; after that every rollout that it was given is unscored."""
        ...

    async def grade_groups(self, groups: Sequence[Group]) -> Sequence[Sequence[Reward]]:
        """For each group one reward for each of its rollouts, in order. Rollouts that died are not among them."""
        ...


class Chat(Protocol):
    """Conversations in, words out: a model that is asked in text, wherever it runs."""

    def reply(self, conversations: Sequence[Sequence[Message]], seeds: Sequence[int]) -> list[Reply]:
        """One reply to each conversation, in input order; never raises for what a model or a server does, and always returns."""
        ...


class Stage(Protocol):
    """A checkpoint in, a checkpoint out. The frozen config is the stage."""

    @property
    def name(self) -> str: ...

    def run(self, ctx: Any) -> None: ...


def gold_rollout(prompt: Prompt, messages: Iterable[Any] | None = None) -> Rollout:
    """A rollout made of given messages (the prompt's gold by default), without tokens: what graders see in tests and audits."""
    told = tuple(prompt.gold if messages is None else messages)
    return Rollout(prompt=prompt, turns=(), messages=told, finish="stop")
