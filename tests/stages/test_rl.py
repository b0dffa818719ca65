"""The RL stage on a tiny model: it learns, every choice runs, the proof of on-policyness holds and stops a run that fails it."""

import dataclasses
import json
import random
import typing
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

import pytest
from tests.model.tiny import make_tiny

from cascade_rl.errors import RunError
from cascade_rl.pipeline import find_checkpoint, run_recipe
from cascade_rl.protocols import Tools
from cascade_rl.recipe import parse_recipe
from cascade_rl.records import Group, Message, Prompt, Reward, Rollout, Turn
from cascade_rl.run import StageDir
from cascade_rl.sample.local import LocalSampler
from cascade_rl.stages.collect import overlong, soft_overlong, tally
from cascade_rl.stages.rl import RL


@dataclass(frozen=True)
class Letters:
    """Rewards the share of vowels in an answer; `grader` makes it misbehave."""

    name: str = "letters"
    domain: str = "toy"
    max_turns: int = 1
    grader: str = "vowels"

    def prompts(self, split: str) -> list[Prompt]:
        told = [(Message("user", f"go {i}"),) for i in range(12)]
        return [Prompt(f"{self.name}/{split}/{i}", self.name, "toy", "train", m, thinking=False) for i, m in enumerate(told)]

    def open_tools(self, prompt: Prompt) -> Tools | None:
        return None

    async def grade(self, rollout: Rollout, tools: Tools | None) -> Reward:
        if self.grader == "same":
            return Reward(1.0)
        if self.grader == "down" or (self.grader == "half" and rollout.index % 2):
            return Reward(None, why="the judge is down")
        return Reward(sum(c in "aeiou" for c in rollout.answer) / max(1, len(rollout.answer)))


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny model that has learnt to answer with a few random letters and to stop."""
    folder = tmp_path_factory.mktemp("rl")
    make_tiny("qwen3", folder / "random", max_position_embeddings=256)
    letters = random.Random(0)
    words = ["".join(letters.choices("abcdefghijklmnoprstu", k=letters.randint(2, 6))) for _ in range(200)]
    rows = [{"prompt": f"go {i % 12}", "completion": word} for i, word in enumerate(words)]
    (folder / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    stage = {
        "kind": "sft", "steps": 80, "batch_size": 1, "pack_tokens": 800, "learning_rate": 1e-2,
        "data": [{"rows": str(folder / "rows.jsonl")}],
    }  # fmt: skip
    source = {"source": str(folder / "random"), "dtype": "float32"}
    run_recipe(parse_recipe({"name": "t", "model": source, "stage": [stage]}), folder / "run", say=lambda text: None)
    return find_checkpoint(folder / "run")


def run(model: Path, out: Path, grader: str = "vowels", **changes: Any) -> StageDir:
    stage = {
        "kind": "rl", "steps": 2, "prompts_per_step": 4, "group_size": 4, "max_new_tokens": 12, "learning_rate": 1e-3,
        "rollouts_every": 1, "tasks": [{"task": "letters"}], **changes,
    }  # fmt: skip
    table = {
        "name": "t", "model": {"source": str(model), "dtype": "float32"}, "stage": [stage],
        "tasks": {"letters": {"kind": "tests.stages.test_rl:Letters", "grader": grader}},
    }  # fmt: skip
    run_recipe(parse_recipe(table), out, say=lambda text: None)
    return StageDir(next((out / "stages").iterdir()))


def metrics(stage: StageDir) -> list[dict[str, Any]]:
    return [json.loads(line) for line in stage.metrics.read_text().splitlines()]


def test_it_learns_what_is_rewarded(model: Path, tmp_path: Path) -> None:
    told = metrics(run(model, tmp_path / "run", steps=25, prompts_per_step=8, group_size=8, learning_rate=3e-3))
    assert fmean(line["reward"] for line in told[-5:]) > fmean(line["reward"] for line in told[:5]) + 0.2


def test_the_proof_of_on_policyness(model: Path, tmp_path: Path) -> None:
    for line in metrics(run(model, tmp_path / "run", steps=4)):
        assert line["on_policy"] == "on-policy: equal up to rounding"
        assert line["gap_mean"] <= line["gap_max"] < 1e-4
        assert abs(line["gap_k3"]) < 1e-6
        assert line["ratio"] == pytest.approx(1.0, abs=1e-6)
        assert line["entropy"] > 0
        # The prompt of a group is computed once, and yet the log-probs are the sampler's.
        assert line["num_computed"] < line["num_tokens"]


def choices() -> list[tuple[str, Any]]:
    """Every value of every closed choice of the stage, and the options that are off by default."""
    found: list[tuple[str, Any]] = [
        ("updates_per_batch", 2),
        ("kl", 0.1),
        ("soft_overlong_tokens", 4),
        ("dynamic_filtering", False),
    ]
    for name, hint in typing.get_type_hints(RL).items():
        if typing.get_origin(hint) is typing.Literal:
            found += [(name, value) for value in typing.get_args(hint)]
        elif hint is bool:
            found.append((name, True))
    return found


@pytest.mark.parametrize("name, value", choices(), ids=lambda x: str(x))
def test_every_choice_runs(name: str, value: Any, model: Path, tmp_path: Path) -> None:
    told = metrics(run(model, tmp_path / "run", **{name: value}))
    assert [line["step"] for line in told] == [1, 2]
    assert all(line["num_targets"] > 0 for line in told)


def test_trained_rollouts_are_written_with_verdicts(model: Path, tmp_path: Path) -> None:
    stage = run(model, tmp_path / "run")
    rows = [json.loads(line) for line in stage.rollouts.read_text().splitlines()]
    assert {row["step"] for row in rows} == {1, 2}
    assert all(
        "advantage" in row and row["reward"]["value"] is not None for row in rows if row["segments"][-1]["kind"] == "trained"
    )


def test_a_task_without_signal_stops_with_the_shares(model: Path, tmp_path: Path) -> None:
    with pytest.raises(RunError, match=r"none of 16 groups has any signal: letters \(all right \d+%, all wrong 0%\)"):
        run(model, tmp_path / "run", grader="same", overlong="mask")


def test_unscored_rollouts_are_left_out_and_counted_and_too_many_stop_the_run(model: Path, tmp_path: Path) -> None:
    told = metrics(run(model, tmp_path / "half", grader="half", overlong="mask", max_unscored=0.9))
    assert all(0.5 <= line["unscored"] < 0.9 for line in told)
    with pytest.raises(
        RunError, match=r"16 of 16 rollouts are unscored, above max_unscored = 0\.5; the first: the judge is down"
    ):
        run(model, tmp_path / "down", grader="down", overlong="mask", dynamic_filtering=False)


def test_a_sampler_that_differs_from_the_trainer_stops_the_run_before_anything_is_saved(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    original: Callable[..., Any] = LocalSampler.sample

    def shifted(self: LocalSampler, *args: Any) -> Any:
        return [
            [dataclasses.replace(turn, logps=tuple(x - 0.5 for x in turn.logps)) for turn in turns]
            for turns in original(self, *args)
        ]

    monkeypatch.setattr(LocalSampler, "sample", shifted)
    with pytest.raises(RunError, match=r"trainer and sampler disagree by 0\.5 nats"):
        run(model, tmp_path / "run", save_every=1)
    assert not list((tmp_path / "run").glob("stages/*/state/*"))


def test_stale_weights_stop_the_run(model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    original: Callable[..., None] = LocalSampler.load

    def forgetful(self: LocalSampler, weights: Any, version: int) -> None:
        original(self, weights, 0)

    monkeypatch.setattr(LocalSampler, "load", forgetful)
    with pytest.raises(RunError, match=r"step 1 trains rollouts of weight versions \[0\]; expected 1 alone"):
        run(model, tmp_path / "run")


# --- collecting, by hand ------------------------------------------------------------------------------------------------------------

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


def test_soft_overlong_shaping_by_hand() -> None:
    told = group(1.0, 1.0, 1.0, None, lengths=(6, 8, 10, 10))
    assert values(soft_overlong(told, max_new_tokens=10, soft_tokens=4)) == [1.0, 0.5, 0.0, None]
    assert values(soft_overlong(told, max_new_tokens=10, soft_tokens=0)) == [1.0, 1.0, 1.0, None]


def test_figures_by_hand() -> None:
    told = tally([group(1.0, 1.0, cut=(0,)), group(0.0, 0.0), group(1.0, None)])
    assert told["reward"] == pytest.approx(3 / 5)
    assert (told["solve_all"], told["solve_none"]) == pytest.approx((2 / 3, 1 / 3))
    assert (told["unscored"], told["truncated"], told["mean_tokens"], told["entropy"]) == pytest.approx((1 / 6, 1 / 6, 3.0, 1.0))
