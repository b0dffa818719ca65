"""The figures of an ablation: means over seeds, differences from the recipe as it stands, and their errors; as JSON and as a table.

And, before it is run, what it would run."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cascade_rl.ablate import BASE, Cell, Job, Variant
from cascade_rl.eval.stats import mean_and_stderr
from cascade_rl.plan import Planned, budget, with_pairs
from cascade_rl.run import write_json
from cascade_rl.shortfall import shortfalls

if TYPE_CHECKING:
    from rich.console import Console

MEAN = "mean over tasks"


@dataclass(frozen=True)
class Figure:
    """A figure over seeds: its mean, and its standard error over seeds and over prompts, each None where it is not known.

    Over prompts, a prompt's value is its mean over seeds. Over seeds, one number a seed is left: the luck of training. The larger of
    the two is `error`: neither alone covers both kinds of luck.
    """

    mean: float
    stderr_seeds: float | None
    stderr_prompts: float | None

    @property
    def error(self) -> float | None:
        return max((told for told in (self.stderr_seeds, self.stderr_prompts) if told is not None), default=None)


@dataclass(frozen=True)
class Line:
    """One task of one variant: accuracy, and its paired difference from the base (None for the base, or without a common seed)."""

    task: str
    accuracy: Figure
    difference: Figure | None


def lines(cells: Sequence[Cell], variant: str) -> list[Line]:
    """All tasks of a variant, then their mean. Differences are paired: the same seeds, and the same prompts."""
    own = {cell.seed: cell.scores for cell in cells if cell.variant == variant}
    base = {cell.seed: cell.scores for cell in cells if cell.variant == BASE}
    tasks = list(dict.fromkeys(task for scores in own.values() for task in scores))
    accuracies = {task: {seed: scores[task] for seed, scores in own.items() if task in scores} for task in tasks}
    differences = {
        task: {
            seed: _minus(scores[task], base[seed][task])
            for seed, scores in own.items()
            if variant != BASE and seed in base and task in scores and task in base[seed]
        }
        for task in tasks
    }
    found = [Line(task, _figure(accuracies[task]), _figure(told) if (told := differences[task]) else None) for task in tasks]
    if len(tasks) > 1:
        compared = {task: told for task, told in differences.items() if told}
        found.append(Line(MEAN, _mean_of(accuracies), _mean_of(compared) if compared else None))
    return found


def _minus(told: Mapping[str, float], base: Mapping[str, float]) -> dict[str, float]:
    return {prompt: value - base[prompt] for prompt, value in told.items() if prompt in base}


def _figure(by_seed: Mapping[int, Mapping[str, float]]) -> Figure:
    """Of prompts' values under each seed."""
    seeds = mean_and_stderr([[sum(told.values()) / len(told)] for told in by_seed.values() if told])
    prompts = sorted({prompt for told in by_seed.values() for prompt in told})
    over_prompts = mean_and_stderr([[told[prompt] for told in by_seed.values() if prompt in told] for prompt in prompts])
    return Figure(seeds.mean, _or_none(seeds.stderr), _or_none(over_prompts.stderr))


def _mean_of(tasks: Mapping[str, Mapping[int, Mapping[str, float]]]) -> Figure:
    """The mean over tasks, each counting the same; prompts of two tasks are independent."""
    figures = [_figure(told) for told in tasks.values()]
    seeds = [seed for seed in next(iter(tasks.values())) if all(seed in told for told in tasks.values())]
    means = [[sum(sum(told[seed].values()) / len(told[seed]) for told in tasks.values()) / len(tasks)] for seed in seeds]
    over_seeds = mean_and_stderr(means)
    errors = [figure.stderr_prompts for figure in figures]
    known = [error for error in errors if error is not None]
    over_prompts = math.sqrt(sum(e * e for e in known)) / len(errors) if len(known) == len(errors) else None
    return Figure(over_seeds.mean, _or_none(over_seeds.stderr), over_prompts)


def _or_none(value: float) -> float | None:
    return None if math.isnan(value) else value


def write(path: Path, recipe: str, variants: Sequence[Variant], cells: Sequence[Cell]) -> None:
    """OUT/ablation.json: every run, and every figure with both of its errors; of those that are there so far."""
    told: list[dict[str, Any]] = []
    for variant in variants:
        runs = [cell for cell in cells if cell.variant == variant.name]
        if not runs:
            continue
        figures = {
            line.task: {"accuracy": asdict(line.accuracy), "difference": line.difference and asdict(line.difference)}
            for line in lines(cells, variant.name)
        }
        told.append({
            "name": variant.name, "change": variant.in_words(), "rollouts": runs[0].rollouts, "split": runs[0].split,
            "runs": [{"seed": run.seed, "folder": str(run.folder), "checkpoint": run.checkpoint} for run in runs],
            "tasks": figures,
        })  # fmt: skip
    write_json(path, {"recipe": recipe, "variants": told})


def show_plan(planned: Sequence[tuple[Job, Sequence[tuple[Planned, str]]]], console: "Console | None" = None) -> None:
    """Every run with its stages: done, linked from another run, or to be run; and what all of them take."""
    from rich.console import Console

    output = console or Console(highlight=False, soft_wrap=True)
    to_run, rollouts = 0, 0
    for number, (job, stages) in enumerate(planned, 1):
        output.print(f"[{number}/{len(planned)}] {job.in_words()}", style="bold", markup=False)
        for item, donor in stages:
            output.print(f"   {item.index}. {item.stage.name}  {item.fingerprint}  {_outlook(item, donor)}", markup=False)
            if item.outlook != "done" and not donor:
                to_run, rollouts = to_run + 1, rollouts + budget(item.stage).rollouts
    output.print(
        f"{len(planned)} runs of {sum(len(stages) for _, stages in planned)} stages; {to_run} of these are to be run, of at most"
        f" {rollouts:,} rollouts together, refills and evaluations apart"
    )
    recipes = [with_pairs(job.recipe, [item for item, _ in stages]) for job, stages in planned]
    if lacks := dict.fromkeys(lack for recipe in recipes for lack in shortfalls(recipe)):
        output.print("What cannot be run as it stands", style="bold")
        for lack in lacks:
            output.print(f"- {lack}", markup=False)


def _outlook(item: Planned, donor: str) -> str:
    return f"the same as in {donor}, will be linked" if donor else item.in_words


def show(variants: Sequence[Variant], cells: Sequence[Cell], console: "Console | None" = None) -> None:
    """Tasks as rows, variants as columns: accuracy in percent, and the difference from base with its error."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    output = console or Console()
    there = [variant for variant in variants if any(cell.variant == variant.name for cell in cells)]
    if not there:
        return
    seeds = sorted({cell.seed for cell in cells})
    title = f"accuracy, {cells[0].split}, of the last checkpoint, in %; {len(seeds)} seed{'s' if len(seeds) > 1 else ''}"
    table = Table(title=title, title_justify="left")
    table.add_column("task", style="bold")
    for variant in there:
        table.add_column(Text(variant.name), justify="right")
    found = {variant.name: {line.task: line for line in lines(cells, variant.name)} for variant in there}
    for task in dict.fromkeys(task for told in found.values() for task in told):
        table.add_row(Text(task), *(_shown(found[variant.name].get(task)) for variant in there))
    rollouts = {cell.variant: cell.rollouts for cell in cells}
    table.add_row("rollouts", *(Text(f"{rollouts[variant.name]:,}", style="dim") for variant in there))
    output.print(table)
    for variant in there:
        output.print(f"{variant.name}: {variant.in_words()}", markup=False, highlight=False)
    luck = (
        "the larger of the errors over seeds and over prompts"
        if len(seeds) > 1
        else "over prompts alone; one seed says nothing of luck in training"
    )
    output.print(
        f"± is {luck}; differences are from {BASE}, on the same seeds and prompts; ▲ ▼ beyond two errors",
        style="dim",
        highlight=False,
    )


def _shown(line: Line | None) -> Any:
    from rich.text import Text

    if line is None:
        return Text("–", style="dim")
    text, change = Text(f"{100 * line.accuracy.mean:.1f}"), line.difference
    if change is None:
        return text.append(_error(line.accuracy.error))
    mark, style = "", ""
    if change.error is not None and abs(change.mean) > 2 * change.error:
        mark, style = (" ▲", "bold green") if change.mean > 0 else (" ▼", "bold red")
    return text.append(f"  {100 * change.mean:+.1f}{_error(change.error)}{mark}", style=style)


def _error(error: float | None) -> str:
    return "" if error is None else f" ± {100 * error:.1f}"
