"""The frozen records that travel between rooms. Each docstring holds a worked example.

Words: a *prompt* is what a task asks; a *rollout* is one answer to it, possibly many *turns*; a *group* is the rollouts of one
prompt; a *sample* is what trains. Token ids are the truth: text is only ever decoded from them, never tokenised again.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np

Role = Literal["system", "user", "assistant", "tool"]
Finish = Literal["stop", "length"]  # of a turn
Ending = Literal["stop", "length", "turns"]  # of a rollout
Split = Literal["train", "dev", "test"]


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A call that the model wrote: `ToolCall("get_weather", {"city": "Paris"})`. Arguments are JSON values."""

    name: str
    arguments: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Message:
    """One message of a conversation.

    `Message("assistant", "It is 12.", thinking="7 + 5 is 12")`. `thinking` is None when the message has no reasoning at all (an
    empty string means that it was there and empty). `tool_calls` only on assistant messages.
    """

    role: Role
    content: str = ""
    thinking: str | None = None
    tool_calls: tuple[ToolCall, ...] = ()


@dataclass(frozen=True, slots=True)
class Prompt:
    """What a task asks, and what its grader needs.

    `Prompt(id="arith/dev/3", task="arith", domain="math", split="dev", messages=(Message("user", "2+3?"),), reference="5",
    gold=(Message("assistant", "\\\\boxed{5}", thinking="2 and 3 make 5"),))`

    id         unique over all tasks and splits: rows are joined by it (`task/split/number`).
    messages   the conversation so far; assistant messages in it are context, never targets of RL.
    tools      function schemas in the OpenAI layout: {"type": "function", "function": {"name", "description", "parameters"}}.
    thinking   whether the answer starts in thinking mode.
    reference  what the grader compares with; JSON values only.
    gold       messages that score full marks when they follow `messages` (assistant and tool turns); () if none is known. It
               serves as the SFT demonstration and as the audit's gold answer.
    facets     what the prompt is like, for tables of scores: {"kind": "hop", "length": 1500, "depth": 0.25}. No grader reads them.
    """

    id: str
    task: str
    domain: str
    split: Split
    messages: tuple[Message, ...]
    tools: tuple[Mapping[str, Any], ...] = ()
    thinking: bool = True
    reference: Any = None
    gold: tuple[Message, ...] = ()
    facets: Mapping[str, str | float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """How to sample: `SamplingParams(temperature=1.0, max_new_tokens=64, stop_ids=(2,))`.

    temperature 0 is greedy. top_p 1 and top_k 0 are off. `stop` strings end a rollout after the token that completes one
    (the text keeps the stop string); a `stop_ids` token ends it and is itself a sampled token.
    """

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    max_new_tokens: int = 256
    stop: tuple[str, ...] = ()
    stop_ids: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        if not 0 <= self.temperature < math.inf:
            raise ValueError(f"sampling: temperature {self.temperature} must be 0 (greedy) or more, and finite")
        if not 0 < self.top_p <= 1:
            raise ValueError(f"sampling: top_p {self.top_p} must be in (0, 1]; 1 turns it off")
        if self.top_k < 0:
            raise ValueError(f"sampling: top_k {self.top_k} must be 0 (off) or more")
        if self.max_new_tokens < 1:
            raise ValueError(f"sampling: max_new_tokens {self.max_new_tokens} must be at least 1")


@dataclass(frozen=True, slots=True)
class Turn:
    """One stretch of sampled tokens and the tokens put before it since the last turn.

    First turn: `context_ids` is the whole rendered prompt. Later turns: only what was added (tool results, the next generation
    suffix), so the full sequence is the plain concatenation of context_ids + answer_ids over the turns. `fork` marks a turn
    that could not extend its predecessor: its context_ids are then a whole new prompt.

    answer_ids    every sampled id, the stop token included.
    logps         log-prob of each answer id at the sampling temperature, in the untruncated distribution; same length.
    finish        "stop" (stop token or stop string) or "length".
    version       the weight version that sampled it.
    """

    context_ids: tuple[int, ...]
    answer_ids: tuple[int, ...]
    logps: tuple[float, ...]
    finish: Finish
    version: int = 0
    fork: bool = False

    def __post_init__(self) -> None:
        assert len(self.answer_ids) == len(self.logps), "one log-prob per sampled token"


@dataclass(frozen=True, slots=True)
class Reward:
    """A grader's verdict: `Reward(1.0, {"correct": 1.0}, "12 = 12")`, or `Reward(None, why="judge timed out")` for *unscored*.

    None is never 0: an unscored rollout is left out of the group's statistics, gets no gradient and is counted.
    """

    value: float | None
    parts: Mapping[str, float] = field(default_factory=dict)
    why: str = ""

    def __post_init__(self) -> None:
        if self.value is None and not self.why:
            raise ValueError("Reward(None) needs a reason: say in `why` what kept the grader from a verdict")
        if self.value is not None and not np.isfinite(self.value):
            raise ValueError(f"Reward value {self.value} must be finite; use None with a reason for 'unscored'")


@dataclass(frozen=True, slots=True)
class Rollout:
    """One answer to a prompt: its turns as token ids, and the same as messages for the grader.

    messages: what followed `prompt.messages` (assistant and tool turns, in order), parsed from the sampled text.
    format_errors: malformed tool calls met while parsing. `finish`: "stop" or "length", of the last turn; "turns" where it would have
    gone on and had no turn left.
    index: the place in the group (0..n-1); seed: what its sampling was seeded with.
    failure: why the rollout died for a reason that is not the model's (a tool's crash, a deadline); "" if it lived. It is unscored.
    tools: the live tools in their final state, until graded; never saved.
    """

    prompt: Prompt
    turns: tuple[Turn, ...]
    messages: tuple[Message, ...]
    finish: Ending
    index: int = 0
    seed: int = 0
    format_errors: int = 0
    failure: str = ""
    tools: Any = field(default=None, compare=False, repr=False)

    @property
    def answer(self) -> str:
        """The final assistant content, thinking excluded; "" when the rollout never got out of its thinking."""
        last = self.messages[-1] if self.messages else None
        return last.content if last is not None and last.role == "assistant" else ""

    @property
    def num_sampled(self) -> int:
        return sum(len(turn.answer_ids) for turn in self.turns)


@dataclass(frozen=True, slots=True)
class Group:
    """The rollouts of one prompt, and one reward for each once graded: `Group(prompt, (r0, r1), (Reward(1.0), Reward(0.0)))`."""

    prompt: Prompt
    rollouts: tuple[Rollout, ...]
    rewards: tuple[Reward, ...] = ()

    def __post_init__(self) -> None:
        if self.rewards and len(self.rewards) != len(self.rollouts):
            raise ValueError(
                f'task "{self.prompt.task}": grader gave {len(self.rewards)} rewards for {len(self.rollouts)} rollouts'
                f" of prompt {self.prompt.id}; it must give exactly one each (None for unscored)"
            )


@dataclass(frozen=True, eq=False, slots=True)
class Sample:
    """What trains: `Sample(np.array([5, 6, 7, 2]), np.array([0, 0, 1, 1], bool))` trains ids 7 and 2.

    token_ids    int32 [T].
    mask         bool [T]; True where the token was sampled (RL) or written by the assistant (SFT) and is to be trained. Padding is
                 a matter of position: pad ids appear in no Sample. mask[0] must be False (nothing predicts the first token).
    logp_sampler float32 [T] or None; meaningful where mask.
    advantage    float32 [T] or None; meaningful where mask.
    logp_old     float32 [T] or None: the policy's own log-probs before the first of several updates on this sample.
    logp_start   float32 [T] or None: those of the policy at the stage's start.
    logp_teacher float32 [T] or None: those of the domain's teacher.
    teacher      which teacher, and teacher_hidden float32 [N, E] or None: its last hidden states where it predicts the N trained
                 tokens; for losses that look at its whole distribution.
    weight       how much the sample counts in a mean over samples.
    source       where it came from (prompt id or file:line), for messages and counting.
    """

    token_ids: np.ndarray
    mask: np.ndarray
    logp_sampler: np.ndarray | None = None
    advantage: np.ndarray | None = None
    logp_old: np.ndarray | None = None
    logp_start: np.ndarray | None = None
    logp_teacher: np.ndarray | None = None
    teacher: int = 0
    teacher_hidden: np.ndarray | None = None
    weight: float = 1.0
    domain: str = ""
    source: str = ""

    def __post_init__(self) -> None:
        assert self.token_ids.ndim == 1 and self.token_ids.shape == self.mask.shape, "token_ids and mask are [T]"
        assert not len(self.mask) or not self.mask[0], "nothing predicts the first token"

    def __len__(self) -> int:
        return len(self.token_ids)


@dataclass(frozen=True, slots=True)
class Reply:
    """What a model said in a conversation, its reasoning apart: `Reply("Score: 4")`, or `Reply("", failure="HTTP 500")`.

    failure: why there is no whole answer ("" if there is one).
    """

    text: str
    failure: str = ""


@dataclass(frozen=True, slots=True)
class ExecResult:
    """How a program in a sandbox ended: `ExecResult("exit", 0, b"3\\n", b"", wall_s=0.01, cpu_s=0.01)`.

    ended: "exit" (by itself), "time", "memory" or "output" (it broke that limit and was killed), "stopped" (we had seen enough).
    exit_code: as of subprocess; negative is the signal that ended it. stdout, stderr: what it wrote, up to the output limit.
    peak_bytes: of its first process.
    """

    ended: Literal["exit", "time", "memory", "output", "stopped"]
    exit_code: int
    stdout: bytes
    stderr: bytes
    wall_s: float
    cpu_s: float
    peak_bytes: int = 0


@dataclass(frozen=True, slots=True)
class EvalRow:
    """One cell of the regression matrix: `EvalRow("sft", "02-sft-ab12", "arith", "math", "dev", "accuracy", 200, 0.61, 0.034)`.

    n: prompts. mean: of the per-prompt means. stderr: standard error of that mean over prompts.
    """

    stage: str
    checkpoint: str
    task: str
    domain: str
    split: Split
    metric: str
    n: int
    mean: float
    stderr: float
