"""Limits that the settings of every stage keep; each check raises ValueError with the key, its value and what it must be.

And one on what a stage may do to its model: how much longer its answers may get."""

import dataclasses
import math
from collections.abc import Sequence
from statistics import fmean
from typing import Any

GROWTH_STEPS = 5  # a step's mean length is noisy: the first so many are compared with the last so many
LARGEST = 1e9  # of any setting: what is beyond is a slip, and overflows in single precision or takes all memory


def check_finite(config: Any) -> None:
    """No number of a frozen config, alone or in a tuple, is infinite, not a number, or beyond all use."""
    for field in dataclasses.fields(config):
        value = getattr(config, field.name)
        for number in value if isinstance(value, tuple) else (value,):
            if isinstance(number, float) and not math.isfinite(number):
                raise ValueError(f"{field.name} = {value} must be finite")
            if isinstance(number, int | float) and abs(number) > LARGEST:
                raise ValueError(f"{field.name} = {value} must be at most {LARGEST:g}")


def check_at_least(config: Any, least: int, *keys: str) -> None:
    """Each of these keys is at least `least`."""
    for key in keys:
        if getattr(config, key) < least:
            told = f"{least} or more" if least == 0 else f"at least {least}"
            raise ValueError(f"{key} = {getattr(config, key)} must be {told}")


def check_update(tokens: int, keys: str) -> None:
    """`tokens`, the product of `keys`, can be one update: it is no more than LARGEST."""
    if tokens > LARGEST:
        raise ValueError(
            f"{keys} makes one update of up to {tokens:,} tokens; at most {LARGEST:,.0f} are possible; make them smaller"
        )


def check_optimizer(config: Any) -> None:
    """What a learning-rate schedule and AdamW can work with, in the keys that all stages share."""
    check_at_least(config, 0, "min_learning_rate", "warmup_steps", "weight_decay", "max_grad_norm")
    if not config.learning_rate > 0:
        raise ValueError(f"learning_rate = {config.learning_rate} must be more than 0")
    if config.schedule != "constant" and config.min_learning_rate > config.learning_rate:
        raise ValueError(
            f"learning_rate = {config.learning_rate} is less than min_learning_rate = {config.min_learning_rate}, where the"
            f" schedule ends; set min_learning_rate to at most {config.learning_rate}"
        )
    for beta in config.betas:
        if not 0 <= beta < 1:
            raise ValueError(f"betas = {config.betas}: each must be in [0, 1)")


def warmup_note(config: Any) -> str:
    """What to say of a warm-up that does not end within the stage; "" of one that does."""
    if config.warmup_steps <= config.steps:
        return ""
    start = getattr(config, "warmup_from", 0.0)
    reached = start + (config.learning_rate - start) * config.steps / config.warmup_steps
    return (
        f"; its warm-up of {config.warmup_steps:,} steps is longer than the stage, so the learning rate gets no further than"
        f" {reached:.2g} of {config.learning_rate:g}"
    )


def first_growth(lengths: Sequence[float], most: float) -> tuple[int, float] | None:
    """The first step whose answers are more than `most` times as long as the first ones, and how many times; None: there is none.

    lengths: the mean length of each step's answers. Means over GROWTH_STEPS steps are compared, the first and those up to the step.
    """
    if not most or len(lengths) <= GROWTH_STEPS:
        return None
    start = max(1.0, fmean(lengths[:GROWTH_STEPS]))
    for step in range(GROWTH_STEPS + 1, len(lengths) + 1):
        times = fmean(lengths[step - GROWTH_STEPS : step]) / start
        if times > most:
            return step, times
    return None
