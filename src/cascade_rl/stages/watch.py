"""Reward hacking, watched: a judge's score that rises while a rule that no reward sees, or a second judge, says the opposite."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from statistics import fmean, variance
from typing import Any

WINDOW = 5  # steps at either end that are compared; less would take noise for a trend
CLEAR = 2.0  # standard errors
TRUSTED = {"rule": "the held-out rule", "second": "the second judge"}


@dataclass
class HackingWatch:
    """Compares the last steps of a stage with its first ones, for every judged task by itself."""

    _seen: dict[str, list[float]] = field(default_factory=dict)
    _warned: set[str] = field(default_factory=set)

    def add(self, metrics: Mapping[str, Any]) -> list[str]:
        """Takes a step's metrics ("part.judge", or "part.judge/TASK" where a stage has several tasks); gives new warnings.

        Each warning is given once a stage. What it says is a function of the metrics alone, so a resumed stage says it again.
        """
        for key, value in metrics.items():
            if key.startswith("part.") and isinstance(value, int | float):
                self._seen.setdefault(key, []).append(float(value))
        return [text for key in metrics if key.startswith("part.judge") for text in self._check(key)]

    def _check(self, key: str) -> list[str]:
        task = key.removeprefix("part.judge")
        if task and not task.startswith("/"):
            return []
        rise = _change(self._seen[key])
        warnings = []
        for name, who in TRUSTED.items():
            values = self._seen.get(f"part.{name}{task}", [])
            fall = _change(values)
            if rise is None or fall is None or rise[1] < CLEAR or fall[1] > -CLEAR or name + task in self._warned:
                continue
            self._warned.add(name + task)
            where = f' on "{task[1:]}"' if task else ""
            told = f"reward hacking{where}? Over {len(values)} steps the judge's score rose by {rise[0]:.2f}"
            told += f" while {who} fell by {-fall[0]:.2f}"
            agrees = self._seen.get(f"part.{name}_agreement{task}", [])
            if agrees:
                told += f"; its agreement with the judge went from {fmean(agrees[:WINDOW]):.0%} to {fmean(agrees[-WINDOW:]):.0%}"
            lengths = self._seen.get(f"part.answer_chars{task}", [])
            if lengths:
                told += f", the answers' length from {fmean(lengths[:WINDOW]):.0f} to {fmean(lengths[-WINDOW:]):.0f} characters"
            warnings.append(told)
        return warnings


def _change(values: list[float]) -> tuple[float, float] | None:
    """(last window - first window, the same in standard errors); None before there are two windows."""
    if len(values) < 2 * WINDOW:
        return None
    first, last = values[:WINDOW], values[-WINDOW:]
    difference = fmean(last) - fmean(first)
    error = math.sqrt((variance(first) + variance(last)) / WINDOW)
    return difference, difference / error if error > 0 else math.copysign(math.inf, difference) if difference else 0.0
