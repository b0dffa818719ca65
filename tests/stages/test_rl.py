"""The RL stage on a tiny model: it learns, every choice runs, the proof of on-policyness holds and stops a run that fails it."""

import dataclasses
import json
import re
import typing
from collections.abc import Callable
from pathlib import Path
from statistics import fmean
from typing import Any

import pytest
from tests.stages.letters import lines, make_letters_model, run_rl

from cascade_rl.errors import RunError
from cascade_rl.run import StageDir
from cascade_rl.sample.local import LocalSampler
from cascade_rl.stages.context import StageContext
from cascade_rl.stages.rl import RL


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_letters_model(tmp_path_factory.mktemp("rl"))


def metrics(stage: StageDir) -> list[dict[str, Any]]:
    return lines(stage.metrics)


def test_it_learns_what_is_rewarded(model: Path, tmp_path: Path) -> None:
    told = metrics(run_rl(model, tmp_path / "run", steps=25, prompts_per_step=8, group_size=8, learning_rate=3e-3))
    assert fmean(line["reward"] for line in told[-5:]) > fmean(line["reward"] for line in told[:5]) + 0.2


@pytest.mark.parametrize("sampling", [{}, {"temperature": 0.6}, {"temperature": 1.3, "top_p": 0.9}], ids=str)
def test_the_proof_of_on_policyness(sampling: dict[str, float], model: Path, tmp_path: Path) -> None:
    """Sampler and trainer see the same log-probs at any temperature: those of the whole distribution, whatever top_p cuts."""
    for line in metrics(run_rl(model, tmp_path / "run", steps=4, **sampling)):
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
    told = metrics(run_rl(model, tmp_path / "run", **{name: value}))
    assert [line["step"] for line in told] == [1, 2]
    assert all(line["num_targets"] > 0 for line in told)


def test_rollouts_that_are_cut_and_masked_take_no_step_and_give_no_nan(model: Path, tmp_path: Path) -> None:
    told = metrics(run_rl(model, tmp_path / "run", max_new_tokens=1, overlong="mask", dynamic_filtering=False))
    for line in told:
        assert (line["loss"], line["grad_norm"], line["num_samples"]) == (0.0, 0.0, 0)
        assert line["truncated"] > 0.8  # the rest said nothing at all, and is alike
        assert (line["unscored"], line["on_policy"]) == (0.0, "nothing trained")
        assert "gap_mean" not in line  # not measured is absent, never 0


@pytest.mark.parametrize("num", [1, 2])
def test_a_batch_is_what_the_recipe_says(num: int, model: Path, tmp_path: Path) -> None:
    """4 prompts x 4 rollouts: one update over 16 samples, or two over 8 each; never multiplied by the group size."""
    settings = {"updates_per_batch": num, "dynamic_filtering": False}
    stage = run_rl(model, tmp_path / "run", **settings)
    assert [line["num_samples"] for line in metrics(stage)] == [16 // num] * 2
    told = "1 update;" if num == 1 else "2 updates;"
    resolved = json.loads((tmp_path / "run" / "recipe.resolved.json").read_text())
    assert f"4 prompts x 4 rollouts = 16 rollouts = {told}" in resolved["stages"][0]["arithmetic"]


GROWING = {
    "steps": 30, "prompts_per_step": 6, "learning_rate": 3e-3, "max_new_tokens": 48, "overlong": "mask", "dynamic_filtering": False,
    "max_growth": 1.4,
}  # fmt: skip


def test_answers_that_run_away_end_the_stage_and_the_checkpoint_is_that_of_the_step(model: Path, tmp_path: Path) -> None:
    stage = run_rl(model, tmp_path / "run", grader="long", **GROWING)
    told = [line["mean_tokens"] for line in metrics(stage)]
    assert 6 <= len(told) < 30
    assert fmean(told[-5:]) > 1.4 * fmean(told[:5])
    assert fmean(told[-6:-1]) <= 1.4 * fmean(told[:5])
    (note,) = json.loads(stage.lineage.read_text())["notes"]
    assert re.fullmatch(
        rf"ended after step {len(told)} of 30: answers are 1\.\d\d times as long as at the start since step {len(told)}, more than"
        r" max_growth = 1\.4 \(\d+ tokens in step 1, \d+ in step \d+\)",
        note,
    )
    assert json.loads(stage.lineage.read_text())["totals"]["steps"] == len(told)
    assert stage.done


def test_a_stage_that_went_on_after_a_stop_ends_at_the_same_step(model: Path, tmp_path: Path) -> None:
    """What has been logged before counts."""
    whole = run_rl(model, tmp_path / "whole", grader="long", **GROWING, save_every=4)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(StageContext, "finish", lambda *_args, **_kwargs: (_ for _ in ()).throw(RuntimeError("killed")))
        with pytest.raises(RuntimeError, match="killed"):
            run_rl(model, tmp_path / "run", grader="long", **GROWING, save_every=4)
    again = run_rl(model, tmp_path / "run", grader="long", **GROWING, save_every=4)
    assert again.metrics.read_bytes() == whole.metrics.read_bytes()
    assert again.lineage.read_bytes() == whole.lineage.read_bytes()


def test_answers_that_run_away_can_be_a_warning(model: Path, tmp_path: Path) -> None:
    stage = run_rl(model, tmp_path / "run", grader="long", **{**GROWING, "on_growth": "warn", "steps": 14})
    assert len(metrics(stage)) == 14
    (note,) = json.loads(stage.lineage.read_text())["notes"]
    assert note.startswith("answers are 1.")


def test_where_the_time_goes_is_told(model: Path, tmp_path: Path) -> None:
    """Wall times are in timing.jsonl alone; the parts of a step add up to no more than the step."""
    stage = run_rl(model, tmp_path / "run")
    for line in lines(stage.timing):
        parts = [line[f"{part}_s"] for part in ("sampling", "grading", "training", "sync")]
        assert all(seconds > 0 for seconds in parts)
        assert sum(parts) <= line["seconds"] + 1e-3
    assert not any(name.endswith("_s") or name == "seconds" for line in metrics(stage) for name in line)


def test_trained_rollouts_are_written_with_verdicts(model: Path, tmp_path: Path) -> None:
    stage = run_rl(model, tmp_path / "run")
    rows = lines(stage.rollouts)
    assert {row["step"] for row in rows} == {1, 2}
    assert all(
        "advantage" in row and row["reward"]["value"] is not None for row in rows if row["segments"][-1]["kind"] == "trained"
    )


def test_a_task_without_signal_stops_with_the_shares(model: Path, tmp_path: Path) -> None:
    message = r"none of 16 groups has any signal: letters \(all right \d+%, all wrong 0%, cut \d+%, without a verdict 0%\)"
    for soft in (0, 10):  # shaping by length must not make a signal
        with pytest.raises(RunError, match=message):
            run_rl(model, tmp_path / str(soft), grader="same", overlong="mask", soft_overlong_tokens=soft)


def test_unscored_rollouts_are_left_out_and_counted_and_too_many_stop_the_run(model: Path, tmp_path: Path) -> None:
    told = metrics(run_rl(model, tmp_path / "half", grader="half", overlong="mask", max_unscored=0.9))
    assert [line["unscored"] for line in told] == [
        0.5,
        0.5,
    ]  # the second and the fourth of each group; cut ones are not among them
    with pytest.raises(
        RunError, match=r"16 of 16 rollouts are unscored, above max_unscored = 0\.5; the first: the judge is down"
    ):
        run_rl(model, tmp_path / "down", grader="down", overlong="mask", dynamic_filtering=False)


def test_a_sampler_that_differs_from_the_trainer_stops_the_run_before_anything_is_saved(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    original: Callable[..., Any] = LocalSampler.finished

    def shifted(self: LocalSampler, *args: Any) -> Any:
        for place, index, turn in original(self, *args):
            yield place, index, dataclasses.replace(turn, logps=tuple(x - 0.5 for x in turn.logps))

    monkeypatch.setattr(LocalSampler, "finished", shifted)
    with pytest.raises(RunError, match=r"trainer and sampler disagree by 0\.5 nats"):
        run_rl(model, tmp_path / "run", save_every=1)
    assert not list((tmp_path / "run").glob("stages/*/state/*"))


def test_stale_weights_stop_the_run(model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    original: Callable[..., None] = LocalSampler.load

    def forgetful(self: LocalSampler, weights: Any, version: int) -> None:
        original(self, weights, 0)

    monkeypatch.setattr(LocalSampler, "load", forgetful)
    with pytest.raises(RunError, match=r"step 1 trains rollouts of weight versions \[0\]; expected 1 alone"):
        run_rl(model, tmp_path / "run")
