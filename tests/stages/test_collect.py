"""What a step collects, by hand: filtering, refills, overlong answers, shaping, and the figures that are logged."""

import dataclasses
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import pytest
from tests.model.tiny import tiny_tokenizer

from cascade_rl.algo.advantages import mean_centred
from cascade_rl.algo.samples import to_samples
from cascade_rl.errors import RunError
from cascade_rl.model.render import RenderConfig, load_renderer
from cascade_rl.records import Group, Message, Prompt, Reward, Rollout, Turn
from cascade_rl.stages.collect import Collected, SignalCollector, overlong, soft_overlong, tally
from cascade_rl.stages.feed import Feed
from cascade_rl.stages.on_policy import TaskShare
from cascade_rl.stages.rl import RL

PROMPT = Prompt("t/train/0", "t", "toy", "train", (Message("user", "?"),))


def group(*rewards: float | None, lengths: tuple[int, ...] = (), cut: tuple[int, ...] = ()) -> Group:
    rollouts = tuple(
        Rollout(
            PROMPT, (Turn((1,), (5,) * length, (-1.0,) * length, "length" if i in cut else "stop"),), (Message("assistant", "x"),),
            finish="length" if i in cut else "stop", index=i,
        )
        for i, length in enumerate(lengths or (3,) * len(rewards))
    )  # fmt: skip
    return Group(PROMPT, rollouts, tuple(Reward(r, why="?" if r is None else "") for r in rewards))


def values(told: Group) -> list[float | None]:
    return [reward.value for reward in told.rewards]


def test_overlong_rollouts_get_zero_or_are_masked() -> None:
    told = group(1.0, 1.0, None, cut=(1, 2))
    assert values(overlong(told, "zero")) == [1.0, 0.0, None]  # unscored stays unscored
    assert values(overlong(told, "mask")) == [1.0, None, None]
    below = group(-2.0, -1.0, 0.5, cut=(0, 2))
    assert values(overlong(below, "zero")) == [-2.0, -1.0, 0.0]  # being cut is never better than being wrong


def test_a_rollout_out_of_turns_is_cut_like_one_out_of_tokens() -> None:
    told = group(1.0, 1.0)
    out = dataclasses.replace(told, rollouts=(told.rollouts[0], dataclasses.replace(told.rollouts[1], finish="turns")))
    assert values(overlong(out, "zero")) == [1.0, 0.0]
    assert values(overlong(out, "mask")) == [1.0, None]
    assert tally([out])["truncated"] == pytest.approx(1 / 2)


def test_a_masked_rollout_is_in_neither_the_sum_nor_the_count() -> None:
    """Rewards 1, 0 and a cut one of seven tokens: two samples of three tokens train, with a mean over the two."""
    told = to_samples([overlong(group(1.0, 0.0, 1.0, lengths=(3, 3, 7), cut=(2,)), "mask")], mean_centred)
    assert [s.advantage.tolist() for s in told if s.advantage is not None] == [[0, 0.5, 0.5, 0.5], [0, -0.5, -0.5, -0.5]]
    assert sum(int(sample.mask.sum()) for sample in told) == 6


def test_soft_overlong_shaping_by_hand() -> None:
    told = group(1.0, 1.0, 1.0, None, lengths=(6, 8, 10, 10))
    assert values(soft_overlong(told, max_new_tokens=10, soft_tokens=4)) == [1.0, 0.5, 0.0, None]
    assert values(soft_overlong(told, max_new_tokens=10, soft_tokens=0)) == [1.0, 1.0, 1.0, None]


def test_figures_by_hand() -> None:
    told = tally([group(1.0, 1.0, cut=(0,)), group(0.0, 0.0), group(1.0, None)])
    assert told["reward"] == pytest.approx(3 / 5)
    assert (told["solve_all"], told["solve_none"]) == pytest.approx((2 / 3, 1 / 3))
    assert (told["unscored"], told["truncated"], told["mean_tokens"], told["entropy"]) == pytest.approx((1 / 6, 1 / 6, 3.0, 1.0))
    assert tally([group(4.0, 5.0)])["solve_all"] == 0  # a judge's scores: none of them is all right
    assert "reward" not in tally([group(None, None)])  # not measured is absent, never 0
    masked = tally([overlong(group(1.0, None, 0.0, cut=(0, 1)), "mask")])
    assert (masked["unscored"], masked["truncated"]) == pytest.approx((1 / 3, 2 / 3))  # masked is not "without a verdict"


# --- a step's collecting, with a sampler that says what it is told --------------------------------------------------------------------


@dataclass(frozen=True)
class Said:
    """The reward is what the answer says; "?" has no verdict."""

    name: str
    domain: str = "toy"
    max_turns: int = 1

    def prompts(self, split: str) -> list[Prompt]:
        return [Prompt(f"{self.name}/train/{i}", self.name, "toy", "train", (Message("user", f"{i}"),)) for i in range(20)]

    def open_tools(self, prompt: Prompt) -> None:
        return None

    async def grade(self, rollout: Rollout, tools: Any) -> Reward:
        mark = rollout.answer[0]
        return Reward(None, why="?") if mark == "?" else Reward(float(mark))


class Script:
    """Gives each prompt its group of answers, in order; an answer's length is its reward's digit repeated."""

    def __init__(self, *groups: str) -> None:
        self.groups = list(groups)

    def sample(self, contexts: Sequence[Sequence[int]], n: int, params: Any, seeds: Sequence[int]) -> list[list[Turn]]:
        told = []
        for _ in contexts:
            texts = self.groups.pop(0).split()
            assert len(texts) == n
            told.append([self.turn(text) for text in texts])
        return told

    def turn(self, text: str) -> Turn:
        ids = [i for char in "</think>" + text for i in tiny_tokenizer().encode(char)][-len(text) :]
        close = tiny_tokenizer().encode("</think>")
        return Turn((), (*close, *ids), (-1.0,) * (len(close) + len(ids)), "stop")


def collect(script: Script, tasks: Sequence[str] = ("a",), **settings: Any) -> Collected:
    chosen = {name: Said(name) for name in tasks}
    stage = RL(tasks=tuple(TaskShare(name) for name in tasks), group_size=2, **{"max_new_tokens": 50, **settings})
    renderer = load_renderer(tiny_tokenizer(), RenderConfig(), 5000)
    ctx: Any = SimpleNamespace(
        seed=0, renderer=renderer, tasks=chosen, timed=lambda part: nullcontext(), count_time=lambda *_: None
    )
    feed = Feed([task.prompts("train") for task in chosen.values()], [1.0] * len(chosen), 0)
    return SignalCollector(stage, ctx, script, feed).collect(0)


def test_groups_without_signal_are_replaced_and_the_figures_are_of_all_that_was_sampled() -> None:
    """Filtering what trains must not filter what is measured, nor part a group from its rewards."""
    script = Script("1 1", "1 0", "0 0", "0 1", "1 0", "0 0", "0 1")
    told = collect(script, prompts_per_step=4)
    assert script.groups == []
    assert [values(group) for group in told.groups] == [[1, 0], [0, 1], [1, 0], [0, 1]]
    assert [[r.answer for r in group.rollouts] for group in told.groups] == [["1", "0"], ["0", "1"], ["1", "0"], ["0", "1"]]
    assert all(r.prompt is group.prompt for group in told.groups for r in group.rollouts)
    assert len({group.prompt.id for group in told.groups}) == 4
    assert told.metrics["reward"] == pytest.approx(6 / 14)  # over the kept ones it would be 1/2
    assert (told.metrics["solve_all"], told.metrics["solve_none"]) == pytest.approx((1 / 7, 2 / 7))
    assert (told.metrics["groups_sampled"], told.metrics["groups_kept"]) == (7, 4)


@pytest.mark.parametrize("dynamic", [True, False])
def test_groups_that_nobody_solves_are_left_out_where_asked(dynamic: bool) -> None:
    """Rewards between 0 and 9, and nothing above 5: they differ, and still do not train."""
    script = Script("5 1", "6 1", "9 0", *["0 1"] * 3)
    told = collect(script, prompts_per_step=3, dynamic_filtering=dynamic, max_refills=1, solved_above=5.0)
    assert [values(group) for group in told.groups] == [[6, 1], [9, 0]]
    kept = collect(Script("5 1", "6 1", "9 0"), prompts_per_step=3, dynamic_filtering=dynamic)
    assert len(kept.groups) == 3


def test_each_tasks_figures_are_its_own() -> None:
    told = collect(Script("1 0", "0 0", "1 1", "0 ?"), tasks=("a", "b"), prompts_per_step=4, dynamic_filtering=False)
    assert (told.metrics["reward/a"], told.metrics["reward/b"]) == pytest.approx((3 / 4, 0.0))
    assert (told.metrics["unscored/a"], told.metrics["unscored/b"]) == (0.0, 0.25)


def test_groups_are_filtered_by_the_unshaped_reward() -> None:
    """All wrong, one of them long: shaped rewards differ, and the group still teaches nothing."""
    room = len(tiny_tokenizer().encode("</think>")) + 5
    script = Script("0 0000", "1111 0", "0000 0")
    told = collect(script, prompts_per_step=2, max_refills=1, max_new_tokens=room, soft_overlong_tokens=4)
    assert [values(group) for group in told.groups] == [[pytest.approx(1 - 3 / 4), 0]]
    assert told.metrics["reward"] == pytest.approx(1 / 6)  # as graded: shaping is no part of the task


def test_a_search_without_end_stops_with_the_shares_and_the_tasks() -> None:
    script = Script(*["1 1", "0 0"] * 20)
    with pytest.raises(
        RunError, match=r"none of 8 groups has any signal: a \(all right 100%, .*\), b \(all right 0%, all wrong 100%"
    ):
        collect(script, tasks=("a", "b"), prompts_per_step=2, max_refills=3)
    assert len(script.groups) == 40 - 8


def test_too_many_without_a_verdict_stop_before_any_more_are_sampled() -> None:
    script = Script(*["? ?"] * 8)
    with pytest.raises(RunError, match=r"4 of 4 rollouts are unscored, above max_unscored = 0.5; the first: \?"):
        collect(script, prompts_per_step=2)
    assert len(script.groups) == 6
