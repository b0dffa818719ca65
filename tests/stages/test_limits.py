"""Settings that no stage can train with are refused before anything starts, by the key's own name."""

import math
from typing import Any

import pytest

from cascade_rl.stages.distill import Distill
from cascade_rl.stages.limits import first_growth
from cascade_rl.stages.on_policy import TaskShare
from cascade_rl.stages.rl import RL
from cascade_rl.stages.sft import SFT, Source

SFT_DATA: dict[str, Any] = {"data": (Source(rows="rows.jsonl"),)}
RL_TASKS: dict[str, Any] = {"tasks": (TaskShare("nano.math"),)}


def floats(stage: Any) -> list[str]:
    return [name for name, value in vars(stage).items() if isinstance(value, float)]


@pytest.mark.parametrize("value", [math.inf, -math.inf, math.nan])
def test_every_float_is_finite(value: float) -> None:
    for cls, needed in ((SFT, SFT_DATA), (RL, RL_TASKS)):
        for key in floats(cls(**needed)):
            with pytest.raises(ValueError, match=f"^{key} = .* must be finite"):
                cls(**needed, **{key: value})
        with pytest.raises(ValueError, match=r"^betas"):
            cls(**needed, betas=(0.9, value))
    with pytest.raises(ValueError, match=r"^weight"):
        Source(task="nano.math", weight=value)
    with pytest.raises(ValueError, match=r"^weight"):
        TaskShare("nano.math", weight=value)


@pytest.mark.parametrize(
    "changes, message",
    [
        ({"learning_rate": 0.0}, "learning_rate = 0.0 must be more than 0"),
        ({"learning_rate": 1e-6, "min_learning_rate": 5e-6, "schedule": "cosine"}, "1e-06 .* 5e-06, .* set min_learning_rate"),
        ({"min_learning_rate": -1.0}, "min_learning_rate = -1.0"),
        ({"weight_decay": -1.0}, "weight_decay = -1.0"),
        ({"max_grad_norm": -1.0}, "max_grad_norm = -1.0"),
        ({"warmup_steps": -1}, "warmup_steps = -1"),
        ({"betas": (0.9, 1.0)}, r"betas = \(0.9, 1.0\)"),
        ({"betas": (-0.1, 0.9)}, "betas"),
    ],
)
def test_both_stages_keep_the_optimizers_limits(changes: dict[str, Any], message: str) -> None:
    for cls, needed in ((SFT, SFT_DATA), (RL, RL_TASKS)):
        with pytest.raises(ValueError, match=message):
            cls(**needed, **changes)


@pytest.mark.parametrize("key", ["clip_low", "clip_high", "kl", "max_gap"])
def test_rl_keeps_its_own_limits(key: str) -> None:
    with pytest.raises(ValueError, match=f"^{key} = -0.1 must be 0 or more"):
        RL(**RL_TASKS, **{key: -0.1})


def test_no_tokens_to_sample_says_so() -> None:
    with pytest.raises(ValueError, match=r"^max_new_tokens = 0 must be at least 1"):
        RL(**RL_TASKS, max_new_tokens=0)


def test_a_horizon_is_none_or_as_long_as_training() -> None:
    assert SFT(**SFT_DATA, steps=5, horizon_steps=10, warmup_steps=7).horizon_steps == 10
    with pytest.raises(ValueError, match="horizon_steps = 4"):
        SFT(**SFT_DATA, steps=5, horizon_steps=4)


def test_a_constant_rate_has_no_floor() -> None:
    assert SFT(**SFT_DATA, learning_rate=1e-6, schedule="constant").learning_rate == 1e-6


def test_a_warm_up_longer_than_its_stage_is_told() -> None:
    stage = Distill(**RL_TASKS, steps=10)  # the default warm-up has 30 steps, from 2e-7 to 2e-6
    assert "its warm-up of 30 steps is longer than the stage" in stage.arithmetic()
    assert "no further than 8e-07 of 2e-06" in stage.arithmetic()
    assert stage.lr(9) == pytest.approx(8e-7)
    assert "warm-up" not in Distill(**RL_TASKS, steps=30).arithmetic()
    assert "no further than 2.5e-05 of 5e-05" in SFT(**SFT_DATA, steps=5, warmup_steps=10).arithmetic()
    assert "no further than 1.5e-06 of 3e-06" in RL(**RL_TASKS, steps=5, warmup_steps=10).arithmetic()


def test_growth_compares_means_of_five_steps() -> None:
    lengths = [10.0, 30.0, 20.0, 15.0, 25.0]  # 20 on average
    assert first_growth([*lengths, 1000.0], 0) is None, "no limit"
    assert first_growth(lengths, 1.01) is None, "nothing to compare yet"
    assert first_growth([*lengths, 60.0], 1.5) is None, "exactly as much is allowed: (30+20+15+25+60) / 5 is 30"
    assert first_growth([*lengths, 61.0, 0.0], 1.5) == (6, pytest.approx(151 / 5 / 20))
    assert first_growth([*lengths, 10.0, 60.0, 90.0], 1.5) == (8, pytest.approx(2.0))
    assert first_growth([0.0] * 5 + [4.0] * 5, 3.0) == (9, pytest.approx(3.2)), "empty answers count as one token"


def test_a_growth_below_one_is_no_limit() -> None:
    for value in (1.0, 0.5, -2.0):
        with pytest.raises(ValueError, match=f"^max_growth = {value} is a factor and must be more than 1"):
            RL(**RL_TASKS, max_growth=value)
