"""How far a stage is: a live bar on a terminal, plain lines everywhere else.

    with progress("sft", total=400, done=120) as bar:  # done: steps that an earlier, resumed run made
        for step in range(121, 401):
            ...
            bar.step(step, {"loss": loss}, tokens=num_tokens)

    sft  120/400  loss 1.234  3,210 tok/s  0:42 left

Nothing runs beside the caller: the bar is drawn inside `step`, so that there is no thread to leave behind and Ctrl-C ends it like
any other line of the loop.
"""

import contextlib
import math
import time
from collections.abc import Callable, Iterator, Mapping

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn

LINE_EVERY_S = 10.0
DRAW_EVERY_S = 0.1


class Bar:
    """What `progress` hands out; `step` is all it needs."""

    def __init__(
        self, name: str, total: int, done: int, unit: str, console: Console, every_s: float, clock: Callable[[], float]
    ) -> None:
        self.name, self.total, self.unit = name, total, unit
        self._console, self._every_s, self._clock = console, every_s, clock
        self._first, self._now_at, self._tokens = done, done, 0
        self._started = clock()
        self._shown = -math.inf
        self._told = ""
        self._live: Progress | None = None
        if console.is_terminal:
            columns = (
                TextColumn("{task.fields[name]}", style="bold", markup=False),
                BarColumn(bar_width=24),
                TextColumn("{task.fields[told]}", markup=False),
            )
            self._live = Progress(*columns, console=console, auto_refresh=False)
            self._task = self._live.add_task("", total=max(total, 1), completed=done, name=name, told="")

    def step(self, step: int, metrics: Mapping[str, float | None] | None = None, tokens: int = 0) -> None:
        """`step` of `total` are done. metrics: what to show (None: not measured). tokens: how many this step handled."""
        self._now_at = step
        self._tokens += tokens
        now = self._clock()
        self._told = self._line(metrics or {}, now - self._started)
        due = now - self._shown >= (DRAW_EVERY_S if self._live else self._every_s)
        if due or step >= self.total:
            self._show(now)

    def _show(self, now: float) -> None:
        self._shown = now
        if self._live:
            self._live.update(self._task, completed=self._now_at, told=self._told, refresh=True)
        else:
            self._console.print(f"{self.name}  {self._told}", markup=False, highlight=False, soft_wrap=True)

    def _line(self, metrics: Mapping[str, float | None], elapsed_s: float) -> str:
        parts = [f"{self._now_at}/{self.total}{self.unit and ' ' + self.unit}"]
        parts += [f"{key} {_short(value)}" for key, value in metrics.items() if value is not None]
        if self._tokens and elapsed_s > 0:
            parts.append(f"{self._tokens / elapsed_s:,.0f} tok/s")
        new = self._now_at - self._first  # only what this process did tells how fast it is
        if new > 0 and self._now_at < self.total:
            parts.append(f"{_duration(elapsed_s / new * (self.total - self._now_at))} left")
        elif self._now_at >= self.total:
            parts.append(f"in {_duration(elapsed_s)}")
        return "  ".join(parts)


@contextlib.contextmanager
def progress(
    name: str,
    total: int,
    done: int = 0,
    unit: str = "",
    console: Console | None = None,
    every_s: float = LINE_EVERY_S,
    clock: Callable[[], float] = time.monotonic,
) -> Iterator[Bar]:
    """A bar for `total` steps of which `done` were made before; for evaluation and sampling say `unit="prompts"`.

    On a terminal one line is redrawn; otherwise a plain line without control codes is printed for the first step, the last, and
    every `every_s` seconds in between.
    """
    bar = Bar(name, total, done, unit, console or Console(), every_s, clock)
    if bar._live is None:
        yield bar
        return
    with bar._live:
        try:
            yield bar
        finally:
            bar._show(clock())  # the last state stays on the screen, also after Ctrl-C


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
