"""What a run ends with on the terminal: the regression matrix, what was won back, what each stage took."""

import math
import sys
from collections.abc import Mapping, Sequence

from rich.console import Console
from rich.table import Table
from rich.text import Text

from cascade_rl.eval.keep import Kept
from cascade_rl.eval.matrix import ACCURACY, Change, Matrix, significant_changes
from cascade_rl.eval.teachers import Recovery
from cascade_rl.observe.report_html import duration
from cascade_rl.observe.report_run import StageView
from cascade_rl.records import EvalRow, Split

MARKS = {"rise": (" ▲", "bold green"), "drop": (" ▼", "bold red"), "same": ("", "")}
READABLE = 140  # columns


def print_matrix(matrix: Matrix, split: Split = "dev", metric: str = ACCURACY, console: Console | None = None) -> None:
    """Stages x tasks, mean ± standard error in percent; ▲ and ▼ mark what changed against the best earlier checkpoint of a task.

    The table is turned (tasks as rows) where a column a task would be too wide to read. A file has no width that cells must fit.
    """
    console = console or _output()
    stages = matrix.checkpoints(split)
    tasks = matrix.tasks(split)
    if not stages:
        console.print(f"no {split} evaluation yet", markup=False, highlight=False)
        return
    changes: dict[tuple[str, str], Change] = {}
    if metric == ACCURACY:
        found = (change for checkpoint in stages for change in significant_changes(matrix, checkpoint, split=split))
        changes = {(change.checkpoint, change.task): change for change in found}

    def cell(checkpoint: str, task: str) -> Text:
        row = matrix.row(checkpoint, task, split, metric)
        change = changes.get((checkpoint, task))
        mark, style = MARKS[change.verdict if change else "same"]
        return Text(_figure(row) + mark, style=style) if row else Text("–", style="dim")

    turned = 12 + 15 * len(tasks) > min(console.width, READABLE)
    table = Table(
        title=f"{metric}, {split}: mean ± standard error" + (" in %" if _is_share(metric) else ""), title_justify="left"
    )
    table.add_column("task" if turned else "stage", style="bold")
    for name in stages.values() if turned else tasks:
        table.add_column(Text(name), justify="right")
    if turned:
        for task in tasks:
            table.add_row(Text(task), *(cell(checkpoint, task) for checkpoint in stages))
    else:
        for checkpoint, stage in stages.items():
            table.add_row(Text(stage), *(cell(checkpoint, task) for task in tasks))
    console.print(table)
    if any(change.verdict != "same" for change in changes.values()):
        note = "▲ ▼ better or worse than the best earlier checkpoint on the same prompts (paired, 5% level for the whole row)"
        console.print(Text(note, style="dim"))


def print_recovery(title: str, found: Sequence[Recovery], stages: Mapping[str, str], console: Console | None = None) -> None:
    """What a distill stage won back in each domain, in percent; nothing where no teacher was another than the student."""
    if not found:
        return
    table = Table(title=title, title_justify="left")
    table.add_column("domain", style="bold")
    table.add_column("teacher")
    for name in ("before", "after", "of teacher", "recovered"):
        table.add_column(name, justify="right")
    for told in found:
        means = (f"{100 * mean:.1f}" for mean in (told.before, told.after, told.of_teacher))
        share = "–" if math.isnan(told.recovered) else f"{100 * told.recovered:.0f} ± {100 * told.stderr:.0f}"
        table.add_row(Text(told.domain), Text(stages.get(told.teacher, told.teacher)), *means, share)
    (console or _output()).print(table)


def print_stages(stages: Sequence[StageView], console: Console | None = None) -> None:
    """What each stage took: steps, tokens that went through training, and the time of its steps."""
    table = Table(title="what the stages took", title_justify="left")
    table.add_column("stage", style="bold")
    table.add_column("kind")
    for name in ("steps", "tokens trained", "time"):
        table.add_column(name, justify="right")
    for told in stages:
        steps, tokens = (f"{number:,.0f}" if number else "–" for number in (told.num_steps, told.num_tokens))
        table.add_row(Text(told.name), told.kind, steps, tokens, duration(told.seconds) if told.seconds else "–")
    (console or _output()).print(table)


def print_kept(found: Sequence[Kept], seconds: Sequence[float], samples: int, console: Console | None = None) -> None:
    """What `cascade filter` made of each task's prompts, and what it cost."""
    console = console or _output()
    table = Table(title=f"prompts after {samples} answers each", title_justify="left")
    table.add_column("task", style="bold")
    for name in ("asked", "always solved, dropped", "never solved", "of these kept", "unscored", "kept", "tokens", "seconds"):
        table.add_column(name, justify="right")
    for kept, took in zip(found, seconds, strict=True):
        counts = (kept.num_prompts, kept.num_always, kept.num_never, kept.num_never_kept, kept.num_unscored, len(kept.kept))
        table.add_row(Text(kept.task), *(f"{count:,}" for count in (*counts, kept.num_tokens)), f"{took:,.1f}")
    console.print(table)


def _output() -> Console:
    return Console() if sys.stdout.isatty() else Console(width=1000)


def _is_share(metric: str) -> bool:
    return metric != "mean_tokens"


def _figure(row: EvalRow) -> str:
    scale = 100.0 if _is_share(row.metric) else 1.0
    error = f" ±{row.stderr * scale:4.1f}" if math.isfinite(row.stderr) else ""
    return f"{row.mean * scale:.1f}{error}"
