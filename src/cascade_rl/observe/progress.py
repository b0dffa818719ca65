"""How far a stage is: a live bar on a terminal, plain lines everywhere else.

    with progress("sft", total=400, done=120) as bar:  # done: steps that an earlier, resumed run made
        for step in range(121, 401):
            ...
            bar.step(step, {"loss": loss}, tokens=num_tokens)

    sft  120/400  loss 1.234  3,210 tok/s  0:42 left

Nothing runs beside the caller: the bar is drawn inside `step`, so that there is no thread to leave behind and Ctrl-C ends it like
any other line of the loop.
"""

import math
import time
from collections.abc import Callable, Mapping
from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, TextColumn
from rich.progress import Progress as LiveBar

LINE_EVERY_S = 10.0
DRAW_EVERY_S = 0.1


class Progress:
    """What `progress` gives: a context whose `step` is all that a loop needs."""

    def __init__(
        self, name: str, total: int, done: int, unit: str, console: Console, every_s: float, clock: Callable[[], float]
    ) -> None:
        self.name, self.total, self.unit = name, total, unit
        self._console, self._every_s, self._clock = console, every_s, clock
        self._first, self._at, self._tokens = done, done, 0
        self._started = clock()
        self._shown = -math.inf
        self._told = ""
        self._live: LiveBar | None = None
        if console.is_terminal:
            columns = (
                TextColumn("{task.fields[name]}", style="bold", markup=False),
                BarColumn(bar_width=24),
                TextColumn("{task.fields[told]}", markup=False),
            )
            self._live = LiveBar(*columns, console=console, auto_refresh=False)
            self._task = self._live.add_task("", total=max(total, 1), completed=done, name=name, told="")

    def step(self, step: int, metrics: Mapping[str, float | None] | None = None, tokens: int = 0) -> None:
        """`step` of `total` are done. metrics: what to show (None: not measured). tokens: how many this step handled."""
        self._at = step
        self._tokens += tokens
        now = self._clock()
        self._told = self._line(metrics or {}, now - self._started)
        due = now - self._shown >= (DRAW_EVERY_S if self._live else self._every_s)
        if due or step >= self.total:
            self._show(now)

    def __enter__(self) -> "Progress":
        if self._live:
            self._live.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self._live:
            try:
                self._show(self._clock())  # the last state stays on the screen, also after Ctrl-C
            finally:
                self._live.stop()

    def _show(self, now: float) -> None:
        self._shown = now
        if self._live:
            self._live.update(self._task, completed=self._at, told=self._told, refresh=True)
        else:
            self._console.print(f"{self.name}  {self._told}", markup=False, highlight=False, soft_wrap=True)

    def _line(self, metrics: Mapping[str, float | None], elapsed_s: float) -> str:
        parts = [f"{self._at}/{self.total} {self.unit}".rstrip()]
        parts += [f"{key} {_short(value)}" for key, value in metrics.items() if value is not None]
        if self._tokens and elapsed_s > 0:
            parts.append(f"{self._tokens / elapsed_s:,.0f} tok/s")
        new = self._at - self._first  # only what this process did tells how fast it is
        if self._at >= self.total:
            parts.append(f"in {_duration(elapsed_s)}")
        elif new > 0:
            parts.append(f"{_duration(elapsed_s / new * (self.total - self._at))} left")
        return "  ".join(parts)


def progress(
    name: str,
    total: int,
    done: int = 0,
    unit: str = "",
    console: Console | None = None,
    every_s: float = LINE_EVERY_S,
    clock: Callable[[], float] = time.monotonic,
) -> Progress:
    """A bar for `total` steps of which `done` were made before; for evaluation and sampling say `unit="prompts"`.

    On a terminal one line is redrawn; otherwise a plain line without control codes is printed for the first step, the last, and
    every `every_s` seconds in between.
    """
    return Progress(name, total, done, unit, console or Console(), every_s, clock)


def _short(value: float) -> str:
    """Four significant digits: 1.234, 2e-05, 12,345."""
    if value == 0 or 1e-3 <= abs(value) < 1e4:
        return f"{value:.4g}"
    return f"{value:,.0f}" if abs(value) >= 1e4 else f"{value:.2e}"


def _duration(seconds: float) -> str:
    """0:42, 12:05, 3:04:05."""
    minutes, second = divmod(round(seconds), 60)
    hours, minute = divmod(minutes, 60)
    return f"{hours}:{minute:02d}:{second:02d}" if hours else f"{minute}:{second:02d}"
