"""`cascade ablate`: one recipe with one thing changed at a time, over seeds, in one table with standard errors.

    seeds = [0, 1, 2]

    [variant.no-mopd]
    without = ["select", "mopd"]

    [variant.reversed]
    order = ["multi-rl", "if-rl"]                     # these two take each other's places; the others stay

    [variant.one-rl]                                  # "mixed": one RL stage on the prompts of all of them, in equal numbers
    mix = ["if-rl", "multi-rl"]

    [variant.by-gap]
    set = ["mopd.balance=gap"]

The recipe as it stands is the variant "base". Each variant and seed is a run of its own, OUT/VARIANT/seed-N, so what is done is never
done again; stages that two runs have in common (the same fingerprint) are trained once and linked.
"""

import copy
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cascade_rl.errors import RecipeError, RunError, unknown
from cascade_rl.eval.matrix import ACCURACY, Evaluation, Matrix
from cascade_rl.plan import Planned, budget, check_name, make_plan, start_fingerprint
from cascade_rl.recipe import Recipe, apply_override, build, parse_recipe, read_recipe, read_toml, stage_name
from cascade_rl.records import Split
from cascade_rl.run import RunDir, StageDir, folder_atomic, link_folder
from cascade_rl.shortfall import check_files
from cascade_rl.stages.rl import RL

BASE = "base"
MIXED = "mixed"  # the name of the stage that `mix` makes


@dataclass(frozen=True)
class Variant:
    """One change: RL stages mixed into one, stages left out, stages in another order among their places, overrides as of --set."""

    name: str
    mix: tuple[str, ...] = ()
    without: tuple[str, ...] = ()
    order: tuple[str, ...] = ()
    set: tuple[str, ...] = ()

    def in_words(self) -> str:
        told = [("mixed", self.mix), ("without", self.without), ("order", self.order), ("set", self.set)]
        return "; ".join(f"{word} {', '.join(names)}" for word, names in told if names) or "the recipe as it stands"

    def apply(self, table: Mapping[str, Any]) -> dict[str, Any]:
        """The raw recipe with the change. Raises RecipeError for a stage that is not there."""
        changed, where = copy.deepcopy(dict(table)), f'variant "{self.name}"'
        stages: list[dict[str, Any]] = changed.get("stage", [])
        known = [stage_name(stage) for stage in stages]
        for name in (*self.mix, *self.without, *self.order):
            if name not in known:
                raise RecipeError(unknown(f"{where}: stage", name, known))
        stages = _mixed(stages, self.mix, self.set, where) if self.mix else stages
        stages = [stage for stage in stages if stage_name(stage) not in self.without]
        stages = _reordered(stages, self.order, where) if self.order else stages
        changed["stage"] = stages
        try:
            _refuse_seed(self.set)
            for override in self.set:
                apply_override(changed, override)
        except RecipeError as error:
            raise RecipeError(f"{where}: {error}") from None
        if changed == table and self.name != BASE:
            raise RecipeError(
                f"{where}: changes nothing of the recipe; leave it out: the recipe itself is measured beside the variants"
            )
        if not stages:
            raise RecipeError(f"{where}: leaves no stage")
        return changed


def _reordered(stages: list[dict[str, Any]], order: Sequence[str], where: str) -> list[dict[str, Any]]:
    """The stages of `order` in the places that they have together; every other stage keeps its place."""
    named = {stage_name(stage): stage for stage in stages if stage_name(stage) in order}
    if len(named) < 2 or len(named) != len(order):
        raise RecipeError(f"{where}: order {', '.join(order)} must name two or more of the stages that are left, each once")
    following = iter(order)
    return [named[next(following)] if stage_name(stage) in named else stage for stage in stages]


def _mixed(stages: list[dict[str, Any]], names: Sequence[str], overrides: Sequence[str], where: str) -> list[dict[str, Any]]:
    """The RL stages `names` as one, at the place of the first: as many prompts of each task in all, and the settings of the first.

    The longest answer allowed is that of the longest. Another setting that differs is an error, since it would be a second change,
    unless the variant itself says what it is to be: set = ["mixed.KEY=VALUE"].
    """
    parts = [stage for stage in stages if stage_name(stage) in names]
    if len(parts) < 2 or any(stage.get("kind") != "rl" for stage in parts):
        raise RecipeError(f"{where}: mix needs the names of two or more rl stages")
    first = parts[0]
    free = {"kind", "name", "tasks", "steps", "prompts_per_step", "max_new_tokens"}
    free |= {told.partition("=")[0].strip().removeprefix(f"{MIXED}.") for told in overrides if told.startswith(f"{MIXED}.")}
    for other in parts[1:]:
        differing = [key for key in (first.keys() | other.keys()) - free if first.get(key) != other.get(key)]
        if differing:
            told = f"{stage_name(first)} and {stage_name(other)} differ in {', '.join(sorted(differing))}"
            way_out = f'set = ["{MIXED}.{min(differing)}=..."]'
            raise RecipeError(
                f"{where}: {told}; so that mixing is the only change, set them alike, or say which it is: {way_out}"
            )
    size = first.get("prompts_per_step", RL.prompts_per_step)
    steps_of: dict[str, float] = {}  # task -> its prompts in all, in steps of the first stage's size
    for stage in parts:
        whole = sum(share.get("weight", 1.0) for share in stage["tasks"])
        steps = stage.get("steps", RL.steps) * stage.get("prompts_per_step", RL.prompts_per_step) / size
        for share in stage["tasks"]:
            steps_of[share["task"]] = steps_of.get(share["task"], 0.0) + steps * share.get("weight", 1.0) / whole
    tasks = [{"task": task, "weight": round(weight, 6)} for task, weight in steps_of.items()]
    one = {**first, "name": MIXED, "tasks": tasks, "steps": max(1, round(sum(steps_of.values())))}
    if lengths := [stage["max_new_tokens"] for stage in parts if "max_new_tokens" in stage]:
        one["max_new_tokens"] = max(lengths)
    return [one if stage is first else stage for stage in stages if stage is first or stage not in parts]


@dataclass(frozen=True)
class Ablation:
    """A spec file: seeds, and the variants in their order; "base" is always there, and first."""

    seeds: tuple[int, ...] = (0,)
    variant: Mapping[str, Any] | None = None

    @property
    def variants(self) -> list[Variant]:
        found = [Variant(BASE)]
        for name, told in (self.variant or {}).items():
            if name == BASE or not all(c.isalnum() or c in "-_" for c in name):
                raise RecipeError(
                    f'variant "{name}": a name is letters, digits, "-" and "_", and not "{BASE}", the unchanged recipe'
                )
            found.append(build(Variant, told, f'variant "{name}"', name=name))
        return found


def load_ablation(path: Path) -> Ablation:
    """Reads a spec file. Raises RecipeError."""
    told = build(Ablation, read_toml(path, "ablation"), f"ablation {path}")
    if not told.seeds or len(set(told.seeds)) < len(told.seeds):
        raise RecipeError(f"ablation {path}: seeds {list(told.seeds)} must be one or more different numbers")
    if len(told.variants) == 1:
        raise RecipeError(f"ablation {path}: names no variant; add a table [variant.NAME] with without, order, mix or set")
    return told


def load_table(path: Path, overrides: Sequence[str]) -> dict[str, Any]:
    """The raw recipe with its overrides. Raises RecipeError, which says so where it is they that are at fault."""
    table = read_recipe(path, overrides)
    _refuse_seed(overrides)
    try:
        parse_recipe(table)
    except RecipeError as error:
        parse_recipe(read_recipe(path))  # a fault of the recipe itself comes first
        raise RecipeError(f"--set {', '.join(overrides)}: {error}") from None
    return table


def _refuse_seed(overrides: Sequence[str]) -> None:
    if told := [override for override in overrides if override.partition("=")[0].strip() == "seed"]:
        raise RecipeError(f"--set {told[0]}: the seeds of an ablation are those of its file of variants; set seeds = [...] there")


# --- running ------------------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Cell:
    """One run: a variant under a seed. scores: task -> prompt id -> mean score, of the last checkpoint on `split`."""

    variant: str
    seed: int
    folder: Path
    checkpoint: str
    split: Split
    scores: Mapping[str, Mapping[str, float]]
    rollouts: int


def run_ablation(
    table: Mapping[str, Any], ablation: Ablation, out: Path, how_to_go_on: str, say: Callable[[str], None] = print
) -> Iterator[Cell]:
    """Runs what is not done, seed by seed, and yields each cell when it is there. Every variant is parsed, and its files and folders
    are looked at, before any is run."""
    from cascade_rl.pipeline import run_recipe

    jobs = _jobs(table, ablation, out)
    for job in jobs:
        check_files(job.recipe)
        _check_folder(job)
    for number, job in enumerate(jobs, 1):
        say(f"[{number}/{len(jobs)}] {job.in_words()}")
        borrow(job.recipe, job.folder, [folder for folder in sorted(out.glob("*/seed-*")) if folder != job.folder])
        run_recipe(job.recipe, job.folder, how_to_go_on=how_to_go_on)
        yield _cell(job.variant.name, job.seed, job.recipe, job.folder)


@dataclass(frozen=True)
class Job:
    """A run to be made: a variant under a seed, and its folder."""

    variant: Variant
    seed: int
    recipe: Recipe
    folder: Path

    def in_words(self) -> str:
        return f"{self.variant.name}, seed {self.seed}: {self.variant.in_words()}"


def _jobs(table: Mapping[str, Any], ablation: Ablation, out: Path) -> list[Job]:
    """All runs in their order: seed by seed, "base" first. Raises RecipeError for a variant that cannot be run as it is written."""
    return [
        Job(variant, seed, _parsed(variant, seed, table), out / variant.name / f"seed-{seed}")
        for seed in ablation.seeds
        for variant in ablation.variants
    ]


def _check_folder(job: Job) -> None:
    """Raises RunError where the run cannot have its folder: a file is there, another recipe's run, or --out itself is a run."""
    out = job.folder.parent.parent
    if RunDir(out).recipe.exists():
        raise RunError(
            f"--out {out}: is a run itself; runs of variants go into a folder of their own; choose another --out folder"
        )
    if blocked := next((place for place in (job.folder, *job.folder.parents) if place.exists() and not place.is_dir()), None):
        raise RunError(f"--out: {blocked} is a file, where the folder {job.folder} is to be; choose another --out folder")
    check_name(job.recipe, RunDir(job.folder), "--out")


def plan_ablation(table: Mapping[str, Any], ablation: Ablation, out: Path) -> list[tuple[Job, list[tuple[Planned, str]]]]:
    """What `run_ablation` would do, in its order: each run's stages, with the run that a stage is linked from, "" where it is not.

    Starts and writes nothing. Raises RecipeError and RunError as `run_ablation` does, but for files that are not there.
    """
    whole = [place for place in sorted(out.glob("*/seed-*/stages/*"), reverse=True) if StageDir(place).whole]
    there = {place.name: _short(place.parent.parent) for place in whole}  # of several, the first run: as `borrow` looks for them
    planned = []
    for job in _jobs(table, ablation, out):
        _check_folder(job)
        stages, linking = [], True
        for item in make_plan(job.recipe, job.folder):
            donor = there.get(item.checkpoint_name, "") if linking and item.outlook != "done" else ""
            linking = linking and (item.outlook == "done" or bool(donor))
            stages.append((item, donor))
        there = {item.checkpoint_name: _short(job.folder) for item, _ in stages} | there
        planned.append((job, stages))
    return planned


def _short(run: Path) -> str:
    return f"{run.parent.name}/{run.name}"


def _parsed(variant: Variant, seed: int, table: Mapping[str, Any]) -> Recipe:
    where = "recipe" if variant.name == BASE else f'variant "{variant.name}"'
    try:
        recipe = parse_recipe({**variant.apply(table), "seed": seed})
    except RecipeError as error:
        whole = variant.name == BASE or str(error).startswith(where)
        raise RecipeError(str(error) if whole else f"{where}: {error}") from None
    if not recipe.eval.tasks or not (recipe.eval.test or recipe.eval.dev):
        raise RecipeError(f"{where}: eval measures nothing, so nothing can be compared; set eval.tasks and eval.test")
    return recipe


def borrow(recipe: Recipe, root: Path, others: Sequence[Path]) -> list[str]:
    """Links the finished first stages of `recipe` that another run has, with their rows of the matrix; gives their names.

    A stage with the same fingerprint is the same stage: settings, data, model, seed and all stages before it.
    """
    run, taken = RunDir(root), []
    with run.lock():
        for item in make_plan(recipe, root):
            if item.outlook == "done":
                continue
            donor = next((StageDir(d) for other in others if StageDir(d := other / "stages" / item.checkpoint_name).whole), None)
            if donor is None:
                break
            with folder_atomic(item.dir.root) as place:
                link_folder(donor.root, place)
            taken.append(item.checkpoint_name)
        names = [f"00-start-{start_fingerprint(recipe)}", *(item.checkpoint_name for item in make_plan(recipe, root))]
        splits: tuple[Split, ...] = ("dev", "test")
        for split in splits:
            for name in names:
                _borrow_rows(root, others, name, split)
    return taken


def _borrow_rows(root: Path, others: Sequence[Path], checkpoint: str, split: Split) -> None:
    """Rows and scores of a checkpoint that this run lacks; the ledger beside them says what they were measured with."""
    ledger = f"{checkpoint}.{split}.done.json"
    if (RunDir(root).evals / ledger).exists():
        return
    donor = next((RunDir(other) for other in others if (RunDir(other).evals / ledger).exists()), None)
    if donor is None:
        return
    matrix = Matrix.load(donor.root)
    rows = tuple(row for row in matrix.rows if (row.checkpoint, row.split) == (checkpoint, split))
    Matrix.load(root).add(Evaluation(checkpoint, split, rows, matrix.scores(checkpoint, split)))
    kept = donor.evals / f"{checkpoint}.{split}.rollouts"
    if kept.is_dir():
        link_folder(kept, RunDir(root).evals / kept.name)
    shutil.copy2(donor.evals / ledger, RunDir(root).evals / ledger)


def _cell(variant: str, seed: int, recipe: Recipe, root: Path) -> Cell:
    plan: list[Planned] = make_plan(recipe, root)
    no_row = {*recipe.eval.skip, *(item.stage.name for item in plan if item.dir.passed_on or item.stage.branch)}
    measured = [item for item in plan if item.stage.name not in no_row]
    last = measured[-1].checkpoint_name if measured else f"00-start-{start_fingerprint(recipe)}"
    split: Split = "test" if recipe.eval.test else "dev"
    matrix = Matrix.load(root)
    shown = {row.task for row in matrix.rows if (row.checkpoint, row.split, row.metric) == (last, split, ACCURACY)}
    scores = {
        task: {
            prompt: sum(known) / len(known) for prompt, told in prompts.items() if (known := [s for s in told if s is not None])
        }
        for task, prompts in matrix.scores(last, split).items()
        if task in shown
    }
    return Cell(variant, seed, root, last, split, scores, sum(budget(item.stage).rollouts for item in plan))
