"""Rollouts: exact prefixes over tool turns, one reward each in order, and failures that are unscored rather than zero."""

import asyncio
import time
from typing import Any

import pytest
from tests.model.tiny import tiny_tokenizer
from tests.sample.scripted import CALL, Adding, Counter, Scripted, prompt

import cascade_rl.sample.rollout as rollout_room
import cascade_rl.sample.verdicts as verdicts_room
from cascade_rl.algo.samples import rollout_samples
from cascade_rl.errors import CascadeError, DataError, RunError, ToolError
from cascade_rl.model.render import RenderConfig, load_renderer
from cascade_rl.records import Reward, Rollout, SamplingParams
from cascade_rl.sample import background
from cascade_rl.sample.rollout import in_order, rollouts
from cascade_rl.sample.verdicts import grade_all


def run(task: Adding, script: list[Any], prompts: int = 1, n: int = 1, budget: int = 500, max_context: int = 5000):
    renderer = load_renderer(tiny_tokenizer(), RenderConfig(), max_context)
    sampler = Scripted(*script)
    asked, params = [prompt(i) for i in range(prompts)], SamplingParams(max_new_tokens=budget)
    return sampler, in_order(asked, rollouts(sampler, renderer, {"adding": task}, asked, n, params, 0))


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
    assert groups[0].rollouts[0].finish == "turns"  # it called, and would have gone on
    assert task.opened[0].total == 1
    task = Adding(max_turns=2)
    _, groups = run(task, [[CALL.format(1) + "<|im_end|>"], ["done<|im_end|>"]])
    assert groups[0].rollouts[0].finish == "stop"
    task = Adding()
    _, groups = run(task, [[CALL.format(1)]])  # no stop token: the budget ran out
    assert groups[0].rollouts[0].finish == "length"
    assert task.opened[0].total == 0


def test_tools_and_tasks_may_have_deadlines_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rollout_room, "TOOL_TIMEOUT_S", 30.0)
    monkeypatch.setattr(Counter, "timeout_s", 0.05, raising=False)
    _, groups = run(Adding(), [[CALL.format(99) + "<|im_end|>"]])
    assert "gave no answer in 0.05 s" in groups[0].rollouts[0].failure

    async def slow(rollout: Rollout) -> Reward:
        await asyncio.sleep(30)
        return Reward(1.0)

    monkeypatch.setattr(Adding, "grade_timeout_s", 0.05, raising=False)
    task = Adding(grading=slow)
    _, groups = run(task, [["done<|im_end|>"]])
    (graded,) = grade_all(groups, {"adding": task})
    assert graded.rewards[0].why == "no verdict in 0.05 s"


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
    monkeypatch.setattr(verdicts_room, "GRADE_TIMEOUT_S", 0.1)

    async def grading(told: Rollout) -> Any:
        if told.answer == "crash":
            raise KeyError("x")
        if told.answer == "hang":
            await asyncio.sleep(60)
        if told.answer == "exit":
            raise SystemExit(0)
        return 1.0 if told.answer == "number" else Reward(0.0)

    task = Adding(grading=grading)
    _, groups = run(task, [["crash<|im_end|>"], ["hang<|im_end|>"], ["zero<|im_end|>"], ["exit<|im_end|>"]], n=4)
    rewards = grade_all(groups, {"adding": task})[0].rewards
    assert [reward.value for reward in rewards] == [None, None, 0.0, None]
    assert rewards[3].why == "grader crashed: RuntimeError: it called exit(0)"
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


def test_sampled_ids_are_never_spelled_anew() -> None:
    """An answer in single bytes, which the tokenizer would merge: the next turn continues these very ids."""
    text = "the quick brown fox" + CALL.format(1)
    single = [i for char in text for i in tiny_tokenizer().encode(char, add_special_tokens=False)]
    ids = [*single, *tiny_tokenizer().encode("<|im_end|>", add_special_tokens=False)]
    assert tiny_tokenizer().encode(text, add_special_tokens=False) != single
    sampler, groups = run(Adding(), [[ids], ["done<|im_end|>"]])
    (told,) = groups[0].rollouts
    assert list(told.turns[0].answer_ids) == ids
    asked = sampler.asked[1][0][0]
    assert asked[len(told.turns[0].context_ids) :][: len(ids)] == ids
    (sample,) = rollout_samples(told, 1.0)
    assert sample.token_ids[sample.mask].tolist() == [i for turn in told.turns for i in turn.answer_ids]


def test_a_tool_boundary_is_the_templates_own() -> None:
    """The newline behind the stop token is there, two results share one user block, and none of it is trained."""
    _, groups = run(Adding(), [[CALL.format(2) + "\n" + CALL.format(3) + "<|im_end|>"], ["ok<|im_end|>"]])
    (told,) = groups[0].rollouts
    between = tiny_tokenizer().decode(told.turns[1].context_ids)
    results = "<tool_response>\ntotal 2\n</tool_response>\n<tool_response>\ntotal 5\n</tool_response>\n"
    assert between == f"\n<|im_start|>user\n{results}<|im_end|>\n<|im_start|>assistant\n<think></think>"
    whole = load_renderer(tiny_tokenizer(), RenderConfig(), 5000).prompt(
        [*told.prompt.messages, *told.messages[:3]], told.prompt.tools, thinking=False
    )
    assert whole == [*told.turns[0].context_ids, *told.turns[0].answer_ids, *told.turns[1].context_ids]
    (sample,) = rollout_samples(told, 1.0)
    trained = tiny_tokenizer().decode(sample.token_ids[sample.mask])
    assert "tool_response" not in trained
    assert trained.endswith("<|im_end|>ok<|im_end|>")


@pytest.mark.parametrize(
    "call",
    [
        "<tool_call>\n<function=add>\n</function>\n</tool_call>",
        "<tool_call>\n<function=add>\n<parameter=n>\nnull\n</parameter>\n</function>\n</tool_call>",
        "<tool_call>\n<function=add>\n<parameter=n>\n[1, 2]\n</parameter>\n</function>\n</tool_call>",
        "<tool_call>\n<function=nothing>\n</function>\n</tool_call>",
        "<tool_call>\n<function=add>\n<parameter=n>\n__import__('os').abort()\n</parameter>\n</function>\n</tool_call>",
        "<tool_call>\n<function=add",
        "<tool_call>null</tool_call>",
        "</tool_call><tool_call>{}",
    ],
)
def test_no_call_however_malformed_ends_the_run(call: str) -> None:
    """What these tools make of such arguments is their affair; nothing reaches beyond the rollout."""
    task = Adding()
    _, groups = run(task, [[call + "<|im_end|>"], ["ok<|im_end|>"]])
    (told,) = groups[0].rollouts
    (graded,) = grade_all(groups, {"adding": task})
    assert told.format_errors or told.failure or told.messages[0].tool_calls
    assert len(graded.rewards) == 1
    assert task.opened[0].closed


def test_a_conversation_without_a_token_left_was_cut() -> None:
    call = CALL.format(2) + "<|im_end|>"
    used = len(tiny_tokenizer().encode(call, add_special_tokens=False))
    sampler, groups = run(Adding(), [[call]], budget=used)
    assert groups[0].rollouts[0].finish == "length"
    assert len(sampler.asked) == 1
    prompt_tokens = len(sampler.asked[0][0][0])
    sampler, groups = run(Adding(), [[call]], max_context=prompt_tokens + used + 10)  # the result alone is longer than ten tokens
    assert groups[0].rollouts[0].finish == "length"
    assert len(sampler.asked) == 1
    (sample,) = rollout_samples(groups[0].rollouts[0], 1.0)
    assert len(sample) == prompt_tokens + used


def test_a_prompt_without_room_to_answer_is_named() -> None:
    with pytest.raises(DataError, match=r"prompt adding/train/0: has \d+ tokens, which leaves no room .* model's 300"):
        run(Adding(), [], max_context=300)


@pytest.mark.parametrize("closing", ["hangs", "crashes"])
def test_tools_that_do_not_close_cost_neither_the_verdict_nor_the_run(
    closing: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(verdicts_room, "CLOSE_TIMEOUT_S", 0.1)
    task = Adding(opening=lambda: Counter(closing=closing))
    _, groups = run(task, [[CALL.format(2) + "<|im_end|>"], ["ok<|im_end|>"], ["ok<|im_end|>"]], prompts=2)
    begin = time.perf_counter()
    assert [group.rewards[0].value for group in grade_all(groups, {"adding": task})] == [2.0, 0.0]
    assert time.perf_counter() - begin < 2
    assert "prompt adding/train/0: tools did not close" in caplog.text


def test_tools_that_do_not_open_leave_their_rollout_unscored() -> None:
    opened: list[int] = []

    def opening() -> Counter:
        opened.append(1)
        if len(opened) == 1:
            raise ConnectionError("no sandbox is free")
        return Counter()

    task = Adding(opening=opening)
    _, groups = run(task, [[CALL.format(2) + "<|im_end|>"], [CALL.format(3) + "<|im_end|>"], ["ok<|im_end|>"]], n=2)
    rewards = grade_all(groups, {"adding": task})[0].rewards
    assert [reward.value for reward in rewards] == [None, 3.0]
    assert rewards[0].why == "tools did not open: ConnectionError: no sandbox is free"


def test_a_tool_call_that_a_grader_makes_and_fails_is_unscored() -> None:
    async def grading(told: Rollout) -> Reward:
        raise ToolError("the state cannot be read")

    task = Adding(grading=grading)
    _, groups = run(task, [["ok<|im_end|>"]])
    (reward,) = grade_all(groups, {"adding": task})[0].rewards
    assert (reward.value, reward.why) == (None, "grader's tool call failed: the state cannot be read")


def test_a_verdicts_deadline_starts_when_its_turn_comes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(verdicts_room, "GRADE_TIMEOUT_S", 0.3)
    monkeypatch.setattr(verdicts_room, "MAX_VERDICTS_AT_ONCE", 2)
    busy = [0, 0]

    async def grading(told: Rollout) -> Reward:
        busy[0] += 1
        busy[1] = max(busy)
        await asyncio.sleep(0.1)
        busy[0] -= 1
        return Reward(1.0)

    task = Adding(grading=grading)
    _, groups = run(task, [["ok<|im_end|>"]] * 10, n=10)
    assert [reward.value for reward in grade_all(groups, {"adding": task})[0].rewards] == [1.0] * 10
    assert busy == [0, 2]


def test_a_grader_that_never_awaits_stops_the_run_instead_of_stalling_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(background, "BLOCKED_AFTER_S", 0.3)

    async def blocking(told: Rollout) -> Reward:
        time.sleep(1.5)
        return Reward(1.0)

    async def slow(told: Rollout) -> Reward:
        await asyncio.sleep(0.6)  # longer than that, and awaited
        return Reward(1.0)

    task = Adding(grading=slow)
    _, groups = run(task, [["ok<|im_end|>"]])
    assert grade_all(groups, {"adding": task})[0].rewards[0].value == 1.0
    task = Adding(grading=blocking)
    _, groups = run(task, [["ok<|im_end|>"]])
    with pytest.raises(RunError, match=r"has not let its event loop turn for 0\.3 s"):
        grade_all(groups, {"adding": task})
    task = Adding()
    _, groups = run(task, [["ok<|im_end|>"]])
    assert grade_all(groups, {"adding": task})[0].rewards[0].value == 0.0  # a new loop serves what comes after
