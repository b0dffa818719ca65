"""What `cascade run` would do: every stage with its fingerprint, its place on disk, and whether it is done.

A stage's fingerprint covers its settings, the tasks and files it reads, its parent's fingerprint, and those of other stages whose
checkpoints it uses as judge or teacher. So editing stage 5 makes stage 5 and what came of it new, and nothing else.
"""

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from cascade_rl.errors import RecipeError, RunError, unknown
from cascade_rl.grade.judge.template import BUILT_IN
from cascade_rl.recipe import Recipe, to_json
from cascade_rl.run import RunDir, StageDir, read_json
from cascade_rl.sample.judges import is_stage
from cascade_rl.stages.distill import Distill
from cascade_rl.stages.on_policy import OnPolicy
from cascade_rl.stages.pairs import Pairs
from cascade_rl.stages.select import Select
from cascade_rl.stages.sft import SFT
from cascade_rl.tasks.judged import Judged
from cascade_rl.tasks.preference import Preference, linked

Outlook = Literal["done", "resume", "run"]


@dataclass(frozen=True)
class Planned:
    """A stage with its place in the run. start: whose checkpoint it trains, a stage's name or "start", and parent: its fingerprint.

    outlook: "done" (skipped), "resume" (a saved state is there), or "run".
    """

    index: int
    stage: Any
    fingerprint: str
    start: str
    parent: str
    dir: StageDir
    outlook: Outlook

    @property
    def checkpoint_name(self) -> str:
        return self.dir.root.name

    @property
    def in_words(self) -> str:
        """The outlook for people; a stage that was done and has to be made again says why."""
        words = {"done": "done, will be skipped", "resume": "will go on from its saved state", "run": "will run"}
        gone = absent(self.stage, self.dir) if self.dir.done else ""
        return words[self.outlook] + (f" again: it was done, and its {gone} was deleted since" if gone else "")


def absent(stage: Any, place: StageDir) -> str:
    """What of a stage's results is not there, in words; "" when it is done and whole."""
    if not place.whole:
        return "checkpoint"
    if isinstance(stage, Select) and not place.teachers.is_file():
        return "choice of teachers"
    return "file of pairs" if isinstance(stage, Pairs) and not place.pairs.is_file() else ""


@dataclass(frozen=True)
class Budget:
    """What a stage takes at most: `Budget(steps=180, prompts=23040, rollouts=368640, tokens=18_119_393_280)`.

    prompts and rollouts are 0 where nothing is sampled; groups that are dropped for want of signal and drawn again are not counted.
    tokens: trained on in SFT, sampled elsewhere, every answer taken to be as long as it may be.
    """

    steps: int = 0
    prompts: int = 0
    rollouts: int = 0
    tokens: int = 0


def budget(stage: Any) -> Budget:
    """The budget of a stage by its settings alone."""
    if isinstance(stage, OnPolicy):
        prompts = stage.steps * stage.prompts_per_step
        rollouts = prompts * stage.group_size
        return Budget(stage.steps, prompts, rollouts, rollouts * stage.max_new_tokens)
    if isinstance(stage, Pairs):
        prompts = len(stage.tasks) * sum(stage.num_prompts().values())
        rollouts = prompts * stage.samples * max(1, len(stage.answers_of))
        return Budget(0, prompts, rollouts, rollouts * stage.max_new_tokens)
    if isinstance(stage, SFT):
        return Budget(stage.steps, tokens=stage.steps * stage.batch_size * stage.pack_tokens)
    return Budget()


def verdicts(recipe: Recipe, stage: Any) -> tuple[int, int]:
    """How many verdicts of judges a stage asks for at most, and the tokens of these: `(460_800, 471_859_200)`."""
    groups: Mapping[str, tuple[float, int]] = {}  # task -> its groups, and the answers of one
    if isinstance(stage, Pairs):
        num_groups = sum(stage.num_prompts().values()) * max(1, len(stage.answers_of))
        groups = dict.fromkeys(stage.tasks, (num_groups, stage.samples))
    elif isinstance(stage, OnPolicy):
        whole = sum(share.weight for share in stage.tasks)
        groups = {
            share.task: (stage.steps * stage.prompts_per_step * share.weight / whole, stage.group_size) for share in stage.tasks
        }
    num = tokens = 0
    for name, (num_groups, size) in groups.items():
        if isinstance(task := recipe.tasks[name], Judged):
            asked = round(num_groups * task.num_questions(size))
            num += asked * len(task.judges())
            tokens += sum(asked * judge.max_new_tokens for judge in task.judges().values())
    return num, tokens


def digest(value: Any) -> str:
    """Eight hex digits of the SHA-256 of a JSON value."""
    return hashlib.sha256(json.dumps(value, sort_keys=True, ensure_ascii=False).encode()).hexdigest()[:8]


def start_fingerprint(recipe: Recipe) -> str:
    """Of what the first stage starts from: the model (by content, where it is a folder), precision, format and seed."""
    from cascade_rl.model.sources import BUILT_IN, fingerprint

    source = recipe.model.source
    if source not in BUILT_IN and (folder := Path(source).expanduser()).is_dir():
        source = fingerprint(folder)
    told = to_json(recipe)
    return digest({"model": source, "dtype": recipe.model.dtype, "render": told["render"], "seed": recipe.seed})


def check_folder(run: RunDir) -> None:
    """Raises RunError for a --run folder that is a file, or holds anything but a run."""
    if run.root.exists() and not run.root.is_dir():
        raise RunError(f"--run {run.root}: is a file, where a folder is to be; choose another")
    there = [path.name for path in run.root.glob("[!.]*")]
    if there and not run.recipe.exists() and run.stages.name not in there:
        raise RunError(
            f'--run {run.root}: is no folder of a run ("{min(there)}" is in it), and what a run writes would mix with it; choose a folder'
            f" that is empty or not there"
        )


def check_name(recipe: Recipe, run: RunDir, option: str = "--run") -> dict[str, Any]:
    """The resolved recipe that a folder was last run with ({}: none). Raises RunError for one of another name; `option` chose the
    folder."""
    if not run.recipe.exists():
        return {}
    before = read_json(run.recipe)
    if not isinstance(before, dict):
        raise RunError(
            f"{run.recipe}: is no resolved recipe; the file is another's or was damaged; choose another {option} folder"
        )
    if (name := before.get("name")) != recipe.name:
        raise RunError(
            f'run {run.root}: was made by the recipe "{name}", and this one is "{recipe.name}"; choose another {option} folder, or give'
            f" the recipe the same name if it is the same one"
        )
    return before


def starts(stages: Sequence[Any]) -> list[str]:
    """For each stage whose checkpoint it begins with: that of the last stage before it that is no branch, unless it names another."""
    found, trunk = [], "start"
    for stage in stages:
        found.append(stage.start or trunk)
        trunk = trunk if stage.branch else stage.name
    return found


def fingerprints(recipe: Recipe) -> dict[str, str]:
    """Stage name -> fingerprint, in order, "start" first."""
    known, ancestors = {"start": start_fingerprint(recipe)}, {"start": frozenset({"start"})}
    for index, (stage, begins) in enumerate(zip(recipe.stages, starts(recipe.stages), strict=True)):
        used = {name: known[name] for name in used_stages(recipe, index) if name not in ancestors[begins]}
        known[stage.name] = stage_fingerprint(recipe, stage, known[begins], used)
        ancestors[stage.name] = ancestors[begins] | {stage.name}
    return known


def used_stages(recipe: Recipe, index: int) -> list[str]:
    """Earlier stages whose results a stage uses besides the checkpoint that it starts from: as judges, as teachers, to choose from, for
    their pairs, or to answer."""
    stage, earlier = recipe.stages[index], [before.name for before in recipe.stages[:index]]
    if isinstance(stage, Select):
        return earlier
    tasks = [recipe.tasks[name] for name in stage.task_names()]
    used = [config.model for task in tasks if isinstance(task, Judged) for config in task.judges().values() if is_stage(config)]
    used += [task.stage for task in tasks if isinstance(task, Preference) and task.stage]
    if isinstance(stage, Pairs):
        return [*used, *stage.answers_of]
    if not isinstance(stage, Distill):
        return used
    selects = [before.name for before in recipe.stages[:index] if isinstance(before, Select)]
    chosen = selects[-1:] if any(task.domain not in stage.teachers for task in tasks) else []
    return [*used, *chosen, *(name for name in stage.teachers.values() if name in earlier)]


def stage_fingerprint(recipe: Recipe, stage: Any, parent: str, used: Mapping[str, str]) -> str:
    """used: fingerprints of the stages that it uses and does not descend from."""
    settings = {k: v for k, v in to_json(stage).items() if k not in stage.NOT_IN_FINGERPRINT}
    tasks = {name: _task_settings(recipe, name) for name in stage.task_names()}
    sources = [task.task for name in stage.task_names() if isinstance(task := recipe.tasks[name], Judged)]
    read = [getattr(recipe.tasks[name], key, "") for name in (*stage.task_names(), *sources) for key in ("path", "archives")]
    paths = [path for path in read if path] + list(stage.keep_files() if isinstance(stage, OnPolicy) else ())
    files = {path: _file_digest(path) for path in (*stage.files(), *paths)}
    for task in (recipe.tasks[name] for name in stage.task_names()):
        if isinstance(task, Judged):
            files |= _judge_files(task, stage.name)
    if isinstance(stage, Distill):
        files |= {str(folder): _model_digest(folder, stage.name, "teacher") for folder in stage.folders()}
    told = {"parent": parent, "stage": settings, "tasks": tasks, "files": files}
    if used:
        told["used"] = dict(used)
    if isinstance(stage, Select):
        told["matrix"] = _dev_settings(recipe, stage.name)
    return digest(told)


def _task_settings(recipe: Recipe, name: str) -> Any:
    """A task's settings; of a judged one also those of the task it wraps, and nothing that only bounds a wait."""
    task, told = recipe.tasks[name], to_json(recipe.tasks[name])
    if isinstance(task, Judged):
        told = {key: value for key, value in told.items() if key not in task.NOT_IN_FINGERPRINT}
        for who, config in task.judges().items():
            told[who] = {key: value for key, value in told[who].items() if key not in config.NOT_IN_FINGERPRINT}
        told["source"] = to_json(recipe.tasks[task.task])
    return told


def _judge_files(task: Judged, stage: str) -> dict[str, str]:
    """The contents of a judged task's template and of judges that are folders."""
    told = {} if task.template in BUILT_IN[task.mode] else {"template": _file_digest(task.template)}
    for config in task.judges().values():
        folder = Path(config.model).expanduser()
        if not config.url and not is_stage(config) and folder.is_dir():
            told[config.model] = _model_digest(folder, stage, "judge")
    return told


def _dev_settings(recipe: Recipe, before: str) -> dict[str, Any]:
    """What the dev rows of the checkpoints before a stage depend on: a choice of teachers is a function of these."""
    unread = ("test", "rollouts_kept", "on_regression", "only")
    settings = {key: value for key, value in to_json(recipe.eval).items() if key not in unread}
    names = [stage.name for stage in recipe.stages]
    earlier = ["start", *names[: names.index(before)]]
    asked = {name for stage in earlier for name in recipe.eval.tasks_of(stage)}
    settings["tasks"] = [name for name in recipe.eval.tasks if name in asked]
    if only := {name: told for name, stages in recipe.eval.only.items() if (told := [one for one in stages if one in earlier])}:
        settings["only"] = only
    return {"eval": settings, "tasks": {name: to_json(recipe.tasks[name]) for name in settings["tasks"]}}


def _model_digest(folder: Path, stage: str, what: str) -> str:
    from cascade_rl.model.sources import fingerprint

    if not (folder / "config.json").is_file():
        raise RecipeError(f'stage "{stage}": {what} {folder} is no model folder: it holds no config.json')
    return fingerprint(folder)


def _file_digest(path: str) -> str:
    """The content of a file, or of every file of a folder; what is not there is known by its name: a hub id, or yet to be fetched."""
    place = Path(path).expanduser()
    files = [place] if place.is_file() else sorted(file for file in place.rglob("*") if file.is_file())
    if not files:
        return path
    told = hashlib.sha256()
    for file in files:
        with open(file, "rb") as handle:
            told.update(hashlib.file_digest(handle, "sha256").digest())
    return told.hexdigest()[:16]


def make_plan(recipe: Recipe, root: Path, start_from: str | None = None, only: str | None = None) -> list[Planned]:
    """What `cascade run` would do, in order; starts and writes nothing."""
    names = [stage.name for stage in recipe.stages]
    for option, name in (("--from", start_from), ("--only", only)):
        if name is not None and name not in names:
            raise RecipeError(unknown(f"{option}: stage", name, names))
    run, known, again = RunDir(root), fingerprints(recipe), False
    planned = []
    for index, (stage, begins) in enumerate(zip(recipe.stages, starts(recipe.stages), strict=True), 1):
        place = run.stage(index, stage.name, known[stage.name])
        again = again or stage.name == start_from
        outlook: Outlook = "run"
        if not again:
            outlook = "done" if not absent(stage, place) else "resume" if any(place.state.glob("step-*")) else "run"
        planned.append(Planned(index, stage, known[stage.name], begins, known[begins], place, outlook))
    if only is not None:
        chosen = names.index(only)
        first = min(chosen, names.index(start_from)) if start_from else chosen  # from there on everything is run
        missing = [item.stage.name for item in planned[:first] if item.outlook != "done"]
        if missing:
            raise RecipeError(f"--only {only}: earlier stages are not done: {', '.join(missing)}; run them first")
        planned = planned[: chosen + 1]
    return planned


def with_pairs(recipe: Recipe, plan: Sequence[Planned]) -> Recipe:
    """The recipe, whose tasks have the pairs of the stages that are done and will not be run again."""
    files = {item.stage.name: item.dir.pairs for item in plan if isinstance(item.stage, Pairs) and item.outlook == "done"}
    return replace(recipe, tasks=linked(recipe.tasks, files))


def teaches_itself(recipe: Recipe, stage: Any) -> bool:
    """Whether a stage is a distillation whose student is named as the teacher of every domain: its gradient is zero."""
    if not isinstance(stage, Distill):
        return False
    begins = dict(zip((stage.name for stage in recipe.stages), starts(recipe.stages), strict=True))
    selects = {stage.name for stage in recipe.stages if isinstance(stage, Select)}
    student = [begins[stage.name]]
    while student[-1] in selects:  # a choice of teachers hands its start on
        student.append(begins[student[-1]])
    return {stage.teachers.get(recipe.tasks[name].domain) for name in stage.task_names()} <= set(student)


def resolved(recipe: Recipe) -> dict[str, Any]:
    """Every effective value, plus the optimizer arithmetic and the fingerprint of each stage."""
    told, known = to_json(recipe), fingerprints(recipe)
    told["start_fingerprint"] = known["start"]
    for stage, shown in zip(recipe.stages, told["stages"], strict=True):
        shown |= {"fingerprint": known[stage.name], "arithmetic": stage.arithmetic()}
    return told
