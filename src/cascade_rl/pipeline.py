"""The pipeline walks a recipe's stages: skip what is done, go on with what is not, evaluate, and draw the report.

A stage's fingerprint covers its settings, the tasks and files it reads, and its parent's fingerprint. So editing stage 5 makes
stage 5 and later ones new, and nothing before.
"""

import dataclasses
import hashlib
import json
import signal
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from cascade_rl.errors import Interrupted, RecipeError, RunError, unknown
from cascade_rl.recipe import Recipe, to_json
from cascade_rl.records import Split
from cascade_rl.run import Checkpoint, RunDir, StageDir, read_json, write_atomic, write_json
from cascade_rl.seeds import derive_seed
from cascade_rl.stages.distill import Distill
from cascade_rl.stages.select import Select

Outlook = Literal["done", "resume", "run"]


@dataclass(frozen=True)
class Planned:
    """A stage with its place in the run. outlook: "done" (skipped), "resume" (a saved state is there), or "run"."""

    index: int
    stage: Any
    fingerprint: str
    dir: StageDir
    outlook: Outlook

    @property
    def checkpoint_name(self) -> str:
        return self.dir.root.name


# --- fingerprints and plan ----------------------------------------------------------------------------------------------------------


def digest(value: Any) -> str:
    """Eight hex digits of the SHA-256 of a JSON value."""
    return hashlib.sha256(json.dumps(value, sort_keys=True, ensure_ascii=False).encode()).hexdigest()[:8]


def start_fingerprint(recipe: Recipe) -> str:
    """Of what the first stage starts from: the model (by content, where it is a folder), precision, format and seed."""
    source = recipe.model.source
    if Path(source).is_dir():
        from cascade_rl.model.sources import fingerprint

        source = fingerprint(Path(source))
    told = to_json(recipe)
    return digest({"model": source, "dtype": recipe.model.dtype, "render": told["render"], "seed": recipe.seed})


def stage_fingerprint(recipe: Recipe, stage: Any, parent: str) -> str:
    settings = {k: v for k, v in to_json(stage).items() if k not in stage.NOT_IN_FINGERPRINT}
    tasks = {name: to_json(recipe.tasks[name]) for name in stage.task_names()}
    paths = [path for name in stage.task_names() if (path := getattr(recipe.tasks[name], "path", ""))]
    files = {path: _file_digest(path, stage.name) for path in (*stage.files(), *paths)}
    if isinstance(stage, Distill):
        files |= {str(folder): _model_digest(folder, stage.name) for folder in stage.folders()}
    told = {"parent": parent, "stage": settings, "tasks": tasks, "files": files}
    if isinstance(stage, Select):
        told["matrix"] = _dev_settings(recipe)
    return digest(told)


def _dev_settings(recipe: Recipe) -> dict[str, Any]:
    """What the dev rows of given checkpoints depend on: a choice of teachers is a function of these."""
    unread = ("test", "rollouts_kept", "on_regression")
    settings = {key: value for key, value in to_json(recipe.eval).items() if key not in unread}
    return {"eval": settings, "tasks": {name: to_json(recipe.tasks[name]) for name in recipe.eval.tasks}}


def _model_digest(folder: Path, stage: str) -> str:
    from cascade_rl.model.sources import fingerprint

    if not (folder / "config.json").is_file():
        raise RecipeError(f'stage "{stage}": teacher {folder} is no model folder: it holds no config.json')
    return fingerprint(folder)


def _file_digest(path: str, stage: str) -> str:
    """The content of a rows file, or of every file of a folder; a hub id is known by its name."""
    place = Path(path).expanduser()
    files = [place] if place.is_file() else sorted(file for file in place.rglob("*") if file.is_file())
    if files:
        told = hashlib.sha256()
        for file in files:
            with open(file, "rb") as handle:
                told.update(hashlib.file_digest(handle, "sha256").digest())
        return told.hexdigest()[:16]
    if place.is_absolute() or place.suffix or path.startswith((".", "~")):
        raise RecipeError(f'stage "{stage}": {path} does not exist; a relative path starts at the folder you run from')
    return path


def make_plan(recipe: Recipe, root: Path, start_from: str | None = None, only: str | None = None) -> list[Planned]:
    """What `cascade run` would do, in order; starts and writes nothing."""
    names = [stage.name for stage in recipe.stages]
    for option, name in (("--from", start_from), ("--only", only)):
        if name is not None and name not in names:
            raise RecipeError(unknown(f"{option}: stage", name, names))
    run, parent, again = RunDir(root), start_fingerprint(recipe), False
    planned = []
    for index, stage in enumerate(recipe.stages, 1):
        parent = stage_fingerprint(recipe, stage, parent)
        place = run.stage(index, stage.name, parent)
        again = again or stage.name == start_from
        outlook: Outlook = "run"
        if not again:
            whole = place.done and (place.checkpoint / "config.json").is_file()  # what was deleted since is made again
            whole = whole and (place.teachers.is_file() or not isinstance(stage, Select))
            outlook = "done" if whole else "resume" if any(place.state.glob("step-*")) else "run"
        planned.append(Planned(index, stage, parent, place, outlook))
    if only is not None:
        chosen = names.index(only)
        first = min(chosen, names.index(start_from)) if start_from else chosen  # from there on everything is run
        missing = [item.stage.name for item in planned[:first] if item.outlook != "done"]
        if missing:
            raise RecipeError(f"--only {only}: earlier stages are not done: {', '.join(missing)}; run them first")
        planned = planned[: chosen + 1]
    return planned


# --- the run ------------------------------------------------------------------------------------------------------------------------


def run_recipe(
    recipe: Recipe,
    root: Path,
    *,
    start_from: str | None = None,
    only: str | None = None,
    say: Callable[[str], None] = print,
    how_to_go_on: str = "the same command",
) -> RunDir:
    """Runs every stage that is not done, with a row of the matrix after each, and test rows and the report at the end.

    Bad data and unknown names raise before any work is spent. Ctrl-C saves the running stage and raises Interrupted.
    """
    plan = make_plan(recipe, root, start_from, only)
    _check_data(recipe)
    run = RunDir(root)
    with run.lock(), _stop_on_interrupt(say) as stop:
        run.sweep()
        if start_from:
            _forget(make_plan(recipe, root, start_from))
        write_json(run.recipe, resolved(recipe))
        walk = _Walk(recipe, run, plan, stop, say, how_to_go_on)
        walk.all_stages(start_from)
        walk.test_rows()
        walk.report()
    return run


def resolved(recipe: Recipe) -> dict[str, Any]:
    """Every effective value, plus the optimizer arithmetic and the fingerprint of each stage."""
    told = to_json(recipe)
    parent = start_fingerprint(recipe)
    told["start_fingerprint"] = parent
    for stage, shown in zip(recipe.stages, told["stages"], strict=True):
        parent = stage_fingerprint(recipe, stage, parent)
        shown |= {"fingerprint": parent, "arithmetic": stage.arithmetic()}
    return told


def _check_data(recipe: Recipe) -> None:
    """Reads every task and file of rows that will be needed later, so that a missing one or a bad row is an error now."""
    from cascade_rl.tasks.rows import conversation, read_placed

    for name in recipe.eval.tasks:
        splits: tuple[Split, ...] = ("dev", "test")
        for split in splits:
            if recipe.eval.num_prompts(split) and not recipe.tasks[name].prompts(split):
                raise RecipeError(f'eval: task "{name}" has no prompts in split "{split}"; set eval.{split} = 0 to leave it out')
    for stage in recipe.stages:
        for name in stage.task_names():
            if not recipe.tasks[name].prompts("train"):
                raise RecipeError(f'stage "{stage.name}": task "{name}" has no training prompts')
        for path in stage.files():  # rows to train on
            for where, row in read_placed(path):
                conversation(row, where)


@contextmanager
def _stop_on_interrupt(say: Callable[[str], None]) -> Iterator[Callable[[], bool]]:
    """The first Ctrl-C asks the stage to save and stop; a second one stops at once."""
    asked = False

    def ask(signum: int, frame: Any) -> None:
        nonlocal asked
        if asked:
            raise KeyboardInterrupt
        asked = True
        say("stopping after this step; once more to stop at once (then the last saved state counts)")

    try:
        before = signal.signal(signal.SIGINT, ask)
    except ValueError:  # not the main thread: whoever runs us there owns the signals
        yield lambda: False
        return
    try:
        yield lambda: asked
    finally:
        signal.signal(signal.SIGINT, before)


@dataclass
class _Walk:
    """One pass over the plan: the model in hand, and what has been evaluated so far."""

    recipe: Recipe
    run: RunDir
    plan: Sequence[Planned]
    stop: Callable[[], bool]
    say: Callable[[str], None]
    how_to_go_on: str

    def __post_init__(self) -> None:
        from cascade_rl.eval.matrix import Matrix
        from cascade_rl.eval.suite import Suite
        from cascade_rl.model.render import load_renderer
        from cascade_rl.model.sources import load_tokenizer, resolve
        from cascade_rl.model.teachers import check_same_tokens
        from cascade_rl.tasks.nano import corpus

        self.start = resolve(self.recipe.model.source, corpus)
        self.renderer = load_renderer(load_tokenizer(self.start), self.recipe.render)
        for stage in self.recipe.stages:  # every stage keeps the start's tokenizer, so this is known before any work
            for domain, teacher in stage.teachers.items() if isinstance(stage, Distill) else ():
                if "/" in teacher:
                    where = f'stage "{stage.name}": teacher of domain "{domain}"'
                    check_same_tokens(self.start, Path(teacher).expanduser(), where)
        self.suite = Suite(
            self.recipe.eval, self.recipe.tasks, self.renderer, self.run, self.recipe.model.dtype, self.recipe.seed, self.say
        )
        self.start_name = f"00-start-{start_fingerprint(self.recipe)}"
        names = [self.start_name, *(item.checkpoint_name for item in self.plan)]
        Matrix.load(self.run.root).keep(names)

    def all_stages(self, start_from: str | None) -> None:
        if self.recipe.eval.start:
            self.evaluate("start", self.start_name, self.start, "dev")
        earlier, parent = [Checkpoint("start", self.start_name, self.start)], start_fingerprint(self.recipe)
        for item in self.plan:
            if item.outlook == "done":
                self.say(f'stage "{item.stage.name}": done before ({item.dir.root.name}), skipped')
            else:
                self._run_stage(item, earlier, parent)
            parent = item.fingerprint
            if isinstance(item.stage, Select):  # its checkpoint is the one before it, which has its row
                earlier.append(Checkpoint(item.stage.name, earlier[-1].name, item.dir.checkpoint))
                write_atomic(self.run.teachers, item.dir.teachers.read_bytes())
            else:
                earlier.append(Checkpoint(item.stage.name, item.checkpoint_name, item.dir.checkpoint))
                self.evaluate(item.stage.name, item.checkpoint_name, item.dir.checkpoint, "dev")
                self._gate(item)

    def _gate(self, item: Planned) -> None:
        """Compares the stage's dev row with each task's best earlier checkpoint, on the same prompts."""
        from cascade_rl.eval.matrix import Matrix, significant_changes

        matrix = Matrix.load(self.run.root)
        if item.checkpoint_name not in matrix.checkpoints("dev"):
            return
        drops = [change for change in significant_changes(matrix, item.checkpoint_name) if change.verdict == "drop"]
        told = "; ".join(
            f"{change.task} fell by {-change.paired.difference:.1%} ± {change.paired.stderr:.1%} against {change.against}"
            for change in drops
        )
        if drops and self.recipe.eval.on_regression == "stop":
            raise RunError(
                f'stage "{item.stage.name}" ({item.checkpoint_name}) made something worse: {told}. Its checkpoint is kept and later'
                f' stages were not run; change the stage, or set eval.on_regression = "warn" to go on'
            )
        if drops:
            self.say(f'stage "{item.stage.name}": worse than before: {told}')

    def _run_stage(self, item: Planned, earlier: Sequence[Checkpoint], parent: str) -> None:
        from cascade_rl.observe.progress import progress
        from cascade_rl.stages.context import StageContext

        self._audit_graders(item.stage.rewarded_tasks())
        if item.outlook == "run" and item.dir.root.exists():
            _set_aside(item.dir)
        item.dir.root.mkdir(parents=True, exist_ok=True)
        self.say(f'stage "{item.stage.name}": {item.stage.arithmetic()}')
        ctx = StageContext(
            name=item.stage.name,
            start=earlier[-1].folder,
            dir=item.dir,
            seed=derive_seed(self.recipe.seed, item.stage.name),
            dtype=self.recipe.model.dtype,
            tasks=self.recipe.tasks,
            renderer=self.renderer,
            lineage={
                "stage": item.stage.name,
                "fingerprint": item.fingerprint,
                "parent": parent,
                "start": earlier[-1].folder.name,
            },
            progress_for=progress,
            stop=self.stop,
            how_to_go_on=self.how_to_go_on,
            say=self.say,
            run=self.run,
            earlier=tuple(earlier),
        )
        with closing(ctx):
            item.stage.run(ctx)

    def _audit_graders(self, tasks: Sequence[str]) -> None:
        """Refuses a task whose own gold answers fail: rewards that are wrong train what is wrong."""
        from cascade_rl.eval.audit import short_audit

        for name in dict.fromkeys(tasks):
            short_audit(self.recipe.tasks[name], say=self.say)

    def evaluate(self, stage: str, checkpoint: str, folder: Path, split: Split) -> None:
        if not self.suite.measure(folder, stage, checkpoint, split, self.stop):
            raise Interrupted(f"stopped; what is done is saved; go on with: {self.how_to_go_on}")

    def test_rows(self) -> None:
        """Every checkpoint on the test split, once all stages are done: no choice was made with these numbers."""
        if self.recipe.eval.start:
            self.evaluate("start", self.start_name, self.start, "test")
        for item in self.plan:
            if not isinstance(item.stage, Select):
                self.evaluate(item.stage.name, item.checkpoint_name, item.dir.checkpoint, "test")

    def report(self) -> None:
        from cascade_rl.eval.matrix import Matrix
        from cascade_rl.observe.report import build
        from cascade_rl.observe.report_distill import recoveries
        from cascade_rl.observe.report_run import read_run
        from cascade_rl.observe.tables import print_matrix, print_recovery

        matrix = Matrix.load(self.run.root)
        for split in ("dev", "test"):
            if matrix.checkpoints(split):
                print_matrix(matrix, split)
        view = read_run(self.run.root)
        for stage in view.stages:
            split, found = recoveries(view, stage)
            print_recovery(f"what {stage.name} won back, {split}, in %", found, matrix.checkpoints())
        build(self.run.root)
        self.say(f"report: {self.run.report}")


def _forget(plan: Sequence[Planned]) -> None:
    """Sets aside every stage that is to run again, the last one too: what came of an older parent must not count as done later."""
    for item in plan:
        if item.outlook == "run" and item.dir.root.exists():
            _set_aside(item.dir)


def _set_aside(stage: StageDir) -> None:
    """A stage that is run again keeps its old folder under another name: nothing is lost."""
    number = 1
    while (aside := stage.root.with_name(f"old{number}-{stage.root.name}")).exists():
        number += 1
    stage.root.rename(aside)


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
        if done := [stage for stage in places if stage.done]:
            return done[-1].checkpoint
    raise RunError(f"{place}: holds no model; expected a model folder, a stage folder, or a run with a finished stage")


def evaluate_folder(recipe: Recipe, place: Path, tasks: Sequence[str], split: Split, out: Path | None) -> None:
    """`cascade eval`: rows of one checkpoint in a folder of their own, with the recipe's tasks, format and eval settings."""
    from cascade_rl.eval.matrix import Matrix
    from cascade_rl.eval.suite import Suite
    from cascade_rl.model.render import load_renderer
    from cascade_rl.model.sources import load_tokenizer
    from cascade_rl.observe.tables import print_matrix

    for name in tasks:
        if name not in recipe.tasks:
            raise RecipeError(unknown("--tasks: task", name, recipe.tasks))
    folder = find_checkpoint(place)
    run = RunDir(out or Path("runs") / f"eval-{place.resolve().name}")
    config = dataclasses.replace(recipe.eval, tasks=tuple(tasks))
    renderer = load_renderer(load_tokenizer(folder), recipe.render)
    suite = Suite(config, recipe.tasks, renderer, run, recipe.model.dtype, recipe.seed)
    with run.lock(), _stop_on_interrupt(print) as stop:
        if not suite.measure(folder, "eval", folder.parent.name if folder.name == "checkpoint" else folder.name, split, stop):
            raise Interrupted("stopped; the tasks that were finished are saved; go on with the same command")
    print_matrix(Matrix.load(run.root), split)
    print(f"rows and scores: {run.root}")
