"""What can be done with one checkpoint, outside of a run: find it, evaluate it, choose prompts by what it solves."""

import dataclasses
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from cascade_rl.errors import Interrupted, RecipeError, RunError
from cascade_rl.pipeline import stop_on_interrupt
from cascade_rl.recipe import Recipe
from cascade_rl.recipe_checks import check_asked, check_out
from cascade_rl.records import Group, Split
from cascade_rl.run import RunDir, read_json, write_json
from cascade_rl.seeds import derive_seed


def find_checkpoint(place: Path) -> Path:
    """The model folder meant by a path: itself, a stage folder's checkpoint, or the last finished stage of a run."""
    if (place / "config.json").is_file():
        return place
    if (place / "checkpoint" / "config.json").is_file():
        return place / "checkpoint"
    run = RunDir(place)
    if run.recipe.is_file():
        stages = read_json(run.recipe)["stages"]
        places = [run.stage(i, stage["name"], stage["fingerprint"]) for i, stage in enumerate(stages, 1)]
        of_student = [place for place, stage in zip(places, stages, strict=True) if not stage.get("branch")]
        if done := [stage for stage in of_student if stage.whole]:
            return done[-1].checkpoint
    raise RunError(f"{place}: holds no model; expected a model folder, a stage folder, or a run with a finished stage")


def name_of(folder: Path) -> str:
    """What a model folder is called: a stage's checkpoint has the name of the stage's folder, such as "02-sft-4e4b3e3f"."""
    place = Path(os.path.abspath(folder))
    return place.parent.name if place.name == "checkpoint" else place.name


def check_used(overrides: Sequence[str], split: Split) -> None:
    """Raises RecipeError for an override that sets how many prompts of the other split are asked, where `split` alone is evaluated."""
    other = "dev" if split == "test" else "test"
    for override in overrides:
        if override.partition("=")[0].strip() == f"eval.{other}":
            raise RecipeError(f"--set {override}: changes nothing of split {split}; set eval.{split}, or add --split {other}")


def evaluate_folder(recipe: Recipe, place: Path, tasks: Sequence[str], split: Split, out: Path | None) -> None:
    """`cascade eval`: rows of one checkpoint in a folder of their own, with the recipe's tasks, format and eval settings."""
    from cascade_rl.eval.matrix import Matrix
    from cascade_rl.eval.suite import Suite
    from cascade_rl.model.render import load_renderer
    from cascade_rl.model.sources import load_tokenizer
    from cascade_rl.observe.tables import print_matrix
    from cascade_rl.sample.rollout import check_longest

    check_asked(recipe, tasks, "--tasks")
    folder = find_checkpoint(place)
    run = RunDir(out or Path("runs") / f"eval-{place.resolve().name}")
    if run.recipe.is_file():
        raise RecipeError(f"--out {run.root}: is a run, whose own matrix would be mixed with these rows; give another folder")
    config = dataclasses.replace(recipe.eval, tasks=tuple(tasks), only={})
    renderer = load_renderer(load_tokenizer(folder), recipe.render)
    suite = Suite(config, recipe.tasks, renderer, run, recipe.model.dtype, recipe.seed)
    for name in tasks if config.num_prompts(split) else ():
        check_longest(suite.prompts(name, split), renderer)
    with run.lock(), stop_on_interrupt(print) as stop:
        if not suite.measure(folder, "eval", name_of(folder), split, stop):
            raise Interrupted("stopped; the tasks that were finished are saved; go on with the same command")
    print_matrix(Matrix.load(run.root), split)
    print(f"rows and scores: {run.root}")


def filter_folder(
    recipe: Recipe, place: Path, tasks: Sequence[str], out: Path, *, samples: int, num: int | None, keep_unsolved: float
) -> None:
    """`cascade filter`: answers of one checkpoint to training prompts, and a file of the prompts that are worth training on."""
    import time

    from cascade_rl.eval.keep import choose_prompts, is_kept_file, try_prompts
    from cascade_rl.model.render import load_renderer
    from cascade_rl.model.sources import fingerprint, load_tokenizer
    from cascade_rl.observe.progress import progress
    from cascade_rl.observe.tables import print_kept
    from cascade_rl.sample.local import LocalSampler

    check_asked(recipe, tasks, "--tasks")
    check_out(out, is_kept_file, "cascade filter")
    folder = find_checkpoint(place)
    renderer = load_renderer(load_tokenizer(folder), recipe.render)
    sampler = LocalSampler(folder, dtype=recipe.model.dtype)
    params, found, seconds = recipe.eval.sampling(), [], []
    for name in tasks:
        prompts, begin = recipe.tasks[name].prompts("train")[:num], time.perf_counter()
        with progress(f"filter: {name}", len(prompts)) as bar:

            def told(done: int, new: Sequence[Group], bar: Any = bar) -> None:
                scores = [reward.value for group in new for reward in group.rewards if reward.value is not None]
                tokens = sum(rollout.num_sampled for group in new for rollout in group.rollouts)
                bar.step(done, {"reward": sum(scores) / len(scores)} if scores else {}, tokens=tokens)

            seed = derive_seed(recipe.seed, "filter", name)
            groups = try_prompts(sampler, renderer, recipe.tasks, prompts, samples, params, seed, told)
        found.append(choose_prompts(groups, keep_unsolved, seed))
        seconds.append(time.perf_counter() - begin)
    made_of = {"model": fingerprint(folder), "samples": samples, "keep_unsolved": keep_unsolved, "seed": recipe.seed,
               "sampling": dataclasses.asdict(params)}  # fmt: skip
    write_json(out, {"made_of": made_of, "tasks": {kept.task: kept.told() for kept in found}})
    print_kept(found, seconds, samples)
    print(f'kept prompts: {out}; use them with {{ task = "{tasks[0]}", keep = "{out}" }} in an rl or distill stage')
