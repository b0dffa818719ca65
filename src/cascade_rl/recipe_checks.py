"""What the parts of a recipe promise each other: every name leads to something that is there, and is there in time."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from cascade_rl.errors import RecipeError, unknown
from cascade_rl.eval.suite import check_only
from cascade_rl.records import Split
from cascade_rl.sample.judges import is_stage
from cascade_rl.stages.distill import Distill
from cascade_rl.stages.pairs import Pairs, check_measured, check_pairs
from cascade_rl.stages.select import Select
from cascade_rl.stages.sft import SFT
from cascade_rl.tasks.drawn import DrawnTask
from cascade_rl.tasks.judged import Judged

if TYPE_CHECKING:
    from cascade_rl.recipe import Recipe


def check_recipe(recipe: "Recipe") -> None:
    """Raises RecipeError for the first promise that is broken, with the key's path."""
    for name in recipe.eval.skip:
        if name not in (stage.name for stage in recipe.stages):
            raise RecipeError(unknown("eval: skip: stage", name, [stage.name for stage in recipe.stages]))
    _check_judged(recipe)
    _check_sizes(recipe)
    check_only(recipe.eval, recipe.stages)
    _check_rows(recipe)
    check_measured(recipe.eval, recipe.stages, recipe.tasks)
    for index, stage in enumerate(recipe.stages):
        _check_start(recipe, index)
        _check_judges(recipe, index)
        check_pairs(stage, recipe.stages[:index], recipe.tasks)
        if isinstance(stage, Select):
            _check_select(recipe, index)
        if isinstance(stage, Distill):
            _check_teachers(recipe, stage, index)


def _check_start(recipe: "Recipe", index: int) -> None:
    """A stage starts from an earlier one's checkpoint."""
    stage, earlier = recipe.stages[index], ["start", *(before.name for before in recipe.stages[:index])]
    if stage.start and stage.start not in earlier:
        raise RecipeError(unknown(f'stage "{stage.name}": start', stage.start, earlier, "a stage starts from an earlier one"))


def _check_judges(recipe: "Recipe", index: int) -> None:
    """Judges that are checkpoints of the run are there when their stage begins."""
    stage, earlier = recipe.stages[index], ["start", *(before.name for before in recipe.stages[:index])]
    for task in (recipe.tasks[name] for name in stage.task_names()):
        for who, config in task.judges().items() if isinstance(task, Judged) else ():
            if is_stage(config) and config.model not in earlier:
                way_out = 'name an earlier stage, "smollm2", a model folder with a "/", or an endpoint with url'
                raise RecipeError(unknown(f'stage "{stage.name}": task "{task.name}": {who}', config.model, earlier, way_out))


def check_asked(recipe: "Recipe", names: Sequence[str], where: str) -> None:
    """Raises RecipeError where something is to be measured, or tried, with a task that is not there, or that only judges in an rl stage."""
    for name in names:
        if name not in recipe.tasks:
            raise RecipeError(unknown(f"{where}: task", name, recipe.tasks))
        if isinstance(task := recipe.tasks[name], Judged):
            raise RecipeError(
                f'{where}: task "{name}" is judged: its scores compare the answers of one checkpoint with each other, so they cannot be'
                f' compared between checkpoints; measure with "{task.task}", whose prompts it asks'
            )


def check_out(out: Path, ours: Callable[[Path], bool], verb: str) -> None:
    """Raises RecipeError where the file of --out cannot be written, or holds what the verb did not write."""
    if out.is_dir() or not out.absolute().parent.is_dir():
        raise RecipeError(f"--out {out}: must be a file in a folder that is there")
    if out.exists() and not ours(out):
        raise RecipeError(f"--out {out}: is there already, and no file that `{verb}` wrote; give another name, or delete it")


def _check_rows(recipe: "Recipe") -> None:
    """What a stage alone is asked is measured: it has a row of the matrix."""
    without = {stage.name: "trains nothing" for stage in recipe.stages if isinstance(stage, Select | Pairs)}
    without |= dict.fromkeys(recipe.eval.skip, "is one of eval.skip")
    for task, stages in recipe.eval.only.items():
        if named := [name for name in stages if name in without]:
            raise RecipeError(
                f'eval: only: {task}: stage "{named[0]}" has no row, since it {without[named[0]]}; name one that has'
            )


def _check_sizes(recipe: "Recipe") -> None:
    """A task that makes its own prompts makes some where they are asked for."""
    config = recipe.eval
    splits: tuple[Split, ...] = ("dev", "test")
    asked = [("eval", name, split) for split in splits if config.num_prompts(split) for name in config.tasks]
    train: Split = "train"
    asked += [(f'stage "{stage.name}"', name, train) for stage in recipe.stages for name in stage.task_names()]
    for where, name, split in asked:
        task = recipe.tasks[name]
        task = recipe.tasks[task.task] if isinstance(task, Judged) else task
        if isinstance(task, DrawnTask) and not getattr(task, f"num_{split}"):
            raise RecipeError(
                f'{where}: task "{task.name}" has no {split} prompts, since its num_{split} is 0; set it to 1 or more'
            )


def _check_judged(recipe: "Recipe") -> None:
    check_asked(recipe, recipe.eval.tasks, "eval")
    for stage in recipe.stages:
        if isinstance(stage, SFT) and (judged := [n for n in stage.task_names() if isinstance(recipe.tasks[n], Judged)]):
            raise RecipeError(
                f'stage "{stage.name}": task "{judged[0]}" is judged and has no demonstrations; name the task it wraps'
            )


def _check_select(recipe: "Recipe", index: int) -> None:
    where = f'stage "{recipe.stages[index].name}"'
    if not index:
        raise RecipeError(f"{where}: comes first and has nothing to choose from; put it after the stages that may teach")
    if not recipe.eval.tasks or not recipe.eval.dev:
        raise RecipeError(f"{where}: chooses teachers by dev accuracy; set eval.tasks and eval.dev")


def _check_teachers(recipe: "Recipe", stage: Distill, index: int) -> None:
    """Every domain of a `distill` stage has a teacher that will be there: named, or one that a `select` stage can choose."""
    where = f'stage "{stage.name}"'
    earlier = ["start", *(before.name for before in recipe.stages[:index])]
    domains = [recipe.tasks[name].domain for name in stage.task_names()]
    for domain, teacher in stage.teachers.items():
        if domain not in domains:
            raise RecipeError(unknown(f"{where}: teachers: domain", domain, domains, "domains are those of the stage's tasks"))
        if "/" not in teacher and teacher not in earlier:
            way_out = 'name an earlier stage, "start", or a model folder with a "/"'
            raise RecipeError(unknown(f"{where}: teacher of {domain}: stage", teacher, earlier, way_out))
    selects = any(isinstance(before, Select) for before in recipe.stages[:index])
    measured = {recipe.tasks[name].domain for name in recipe.eval.tasks} if selects else set()
    for domain in domains:
        if domain not in stage.teachers and domain not in measured:
            why, way_out = "no select stage comes before", 'a stage of kind "select" before this one'
            if selects:
                why, way_out = "eval.tasks has no task of it to choose one by", "a task of it to eval.tasks"
            raise RecipeError(
                f'{where}: domain "{domain}" has no teacher: {why}; add teachers = {{ {domain} = "STAGE" }}, or {way_out}'
            )
