"""Rollouts: exact prefixes over tool turns, one reward each in order, and failures that are unscored rather than zero."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest
from tests.model.tiny import tiny_tokenizer

import cascade_rl.sample.rollout as rollout_room
from cascade_rl.errors import CascadeError, ToolError
from cascade_rl.model.render import RenderConfig, load_renderer
from cascade_rl.protocols import Tools
from cascade_rl.records import Message, Prompt, Reward, Rollout, SamplingParams, ToolCall, Turn
from cascade_rl.sample.rollout import grade_all, rollout

ADD = {
    "type": "function",
    "function": {"name": "add", "parameters": {"type": "object", "properties": {"n": {"type": "integer"}}}},
}
CALL = "<tool_call>\n<function=add>\n<parameter=n>\n{}\n</parameter>\n</function>\n</tool_call>"


@dataclass
class Counter:
    """Tools with a state: what was added."""

    total: int = 0
    closed: bool = False

    async def call(self, call: ToolCall) -> str:
        n = call.arguments.get("n")
        if n == 13:
            raise ToolError("13 is not liked")
        if n == 666:
            raise RuntimeError("the database is gone")
        if n == 99:
            await asyncio.sleep(60)
        self.total += int(n)
        return f"total {self.total}"

    async def close(self) -> None:
        self.closed = True


@dataclass
class Adding:
    """A task whose reward is the tools' final state."""

    name: str = "adding"
    domain: str = "tools"
    max_turns: int = 3
    opened: list[Counter] = field(default_factory=list)
    grading: Any = None

    def prompts(self, split: str) -> list[Prompt]:
        return []

    def open_tools(self, prompt: Prompt) -> Tools | None:
        self.opened.append(Counter())
        return self.opened[-1]

    async def grade(self, rollout: Rollout, tools: Tools | None) -> Reward:
        if self.grading is not None:
            return await self.grading(rollout)
        assert isinstance(tools, Counter)
        return Reward(float(tools.total), why=rollout.answer)


class Scripted:
    """A sampler that says what it is told, turn by turn, and remembers what it was asked."""

    def __init__(self, *script: list[str]) -> None:
        self.tokenizer = tiny_tokenizer()
        self.script = [list(turns) for turns in script]
        self.asked: list[tuple[list[list[int]], Any]] = []

    def sample(self, contexts: Sequence[Sequence[int]], n: int, params: Any, seeds: Sequence[int]) -> list[list[Turn]]:
        self.asked.append(([list(c) for c in contexts], params))
        turns = []
        for _ in contexts:
            row = []
            for _ in range(n):
                text = self.script.pop(0)[0]
                ids = tuple(self.tokenizer.encode(text, add_special_tokens=False))
                row.append(Turn((), ids, (-0.5,) * len(ids), "stop" if text.endswith("<|im_end|>") else "length"))
            turns.append(row)
        return turns


def prompt(number: int = 0) -> Prompt:
    return Prompt(f"adding/train/{number}", "adding", "tools", "train", (Message("user", "add"),), tools=(ADD,), thinking=False)


def run(task: Adding, script: list[list[str]], prompts: int = 1, n: int = 1, budget: int = 500):
    renderer = load_renderer(tiny_tokenizer(), RenderConfig())
    sampler = Scripted(*script)
    groups = rollout(
        sampler, renderer, {"adding": task}, [prompt(i) for i in range(prompts)], n, SamplingParams(max_new_tokens=budget), 0
    )
    return sampler, groups


def test_each_turn_extends_the_last_one_exactly_and_the_state_is_graded() -> None:
    task = Adding()
    sampler, groups = run(task, [[CALL.format(2) + "<|im_end|>"], [CALL.format(5) + "<|im_end|>"], ["done<|im_end|>"]])
    (told,) = groups[0].rollouts
    assert [m.role for m in told.messages] == ["assistant", "tool", "assistant", "tool", "assistant"]
    assert [m.content for m in told.messages if m.role == "tool"] == ["total 2", "total 7"]
    ids: list[int] = []
    for turn, (contexts, _) in zip(told.turns, sampler.asked, strict=True):
        ids += turn.context_ids
        assert contexts == [ids]  # what the sampler was asked is the plain concatenation so far
        ids += turn.answer_ids
        assert not turn.fork
    assert "<tool_response>\ntotal 2\n</tool_response>" in tiny_tokenizer().decode(told.turns[1].context_ids)
    (graded,) = grade_all(groups, {"adding": task})
    assert graded.rewards[0].value == 7.0
    assert task.opened[0].closed
    assert graded.rollouts[0].tools is None


def test_the_token_budget_is_of_the_whole_rollout() -> None:
    sampler, groups = run(Adding(), [[CALL.format(2) + "<|im_end|>"], ["done<|im_end|>"]], budget=400)
    first = len(groups[0].rollouts[0].turns[0].answer_ids)
    (params,) = sampler.asked[1][1]
    assert params.max_new_tokens == 400 - first


def test_turns_are_limited_and_a_cut_turn_calls_nothing() -> None:
    task = Adding(max_turns=2)
    _, groups = run(task, [[CALL.format(1) + "<|im_end|>"], [CALL.format(1) + "<|im_end|>"]])
    assert len(groups[0].rollouts[0].turns) == 2
    assert task.opened[0].total == 1
    task = Adding()
    _, groups = run(task, [[CALL.format(1)]])  # no stop token: the budget ran out
    assert groups[0].rollouts[0].finish == "length"
    assert task.opened[0].total == 0


def test_tool_errors_are_text_for_the_model_and_crashes_are_unscored(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rollout_room, "TOOL_TIMEOUT_S", 0.1)
    task = Adding()
    end = "<|im_end|>"
    _, groups = run(
        task,
        [
            [CALL.format(13) + end],
            [CALL.format(666) + end],
            [CALL.format(99) + end],
            [CALL.format(4) + end],
            ["sorry" + end],
            ["ok" + end],
        ],
        prompts=4,
    )
    told = [group.rollouts[0] for group in groups]
    assert told[0].messages[1].content == "Error: 13 is not liked"
    graded = [group.rewards[0] for group in grade_all(groups, {"adding": task})]
    assert [reward.value for reward in graded] == [0.0, None, None, 4.0]
    assert graded[1].why == 'tool "add" crashed: RuntimeError: the database is gone'
    assert graded[2].why == 'tool "add" gave no answer in 0.1 s'
    assert all(tools.closed for tools in task.opened)


def test_rewards_land_on_their_rollouts_whatever_the_order_of_verdicts(monkeypatch: pytest.MonkeyPatch) -> None:
    async def slow_first(told: Rollout) -> Reward:
        await asyncio.sleep(0.05 if told.answer.startswith("0") else 0)
        return Reward(float(told.answer))

    task = Adding(grading=slow_first)
    _, groups = run(task, [[f"{i}<|im_end|>"] for i in range(6)], prompts=2, n=3)
    graded = grade_all(groups, {"adding": task})
    assert [[reward.value for reward in group.rewards] for group in graded] == [[0, 1, 2], [3, 4, 5]]
    assert [[r.answer for r in group.rollouts] for group in graded] == [["0", "1", "2"], ["3", "4", "5"]]


def test_a_grader_that_crashes_or_hangs_is_unscored_and_one_that_gives_no_reward_is_an_error(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(rollout_room, "GRADE_TIMEOUT_S", 0.1)

    async def grading(told: Rollout) -> Any:
        if told.answer == "crash":
            raise KeyError("x")
        if told.answer == "hang":
            await asyncio.sleep(60)
        return 1.0 if told.answer == "number" else Reward(0.0)

    task = Adding(grading=grading)
    _, groups = run(task, [["crash<|im_end|>"], ["hang<|im_end|>"], ["zero<|im_end|>"]], n=3)
    rewards = grade_all(groups, {"adding": task})[0].rewards
    assert [reward.value for reward in rewards] == [None, None, 0.0]
    assert rewards[0].why == "grader crashed: KeyError: 'x'"
    assert rewards[1].why == "no verdict in 0.1 s"
    _, groups = run(task, [["number<|im_end|>"]])
    with pytest.raises(CascadeError, match="must give a Reward"):
        grade_all(groups, {"adding": task})


def test_too_many_calls_in_one_turn_are_refused_in_text(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rollout_room, "MAX_CALLS_PER_TURN", 1)
    task = Adding()
    _, groups = run(task, [[CALL.format(2) + "\n" + CALL.format(3) + "<|im_end|>"], ["ok<|im_end|>"]])
    assert next(m.content for m in groups[0].rollouts[0].messages if m.role == "tool") == "total 2"
    assert "more than 1 calls" in groups[0].rollouts[0].messages[2].content
    assert task.opened[0].total == 2
