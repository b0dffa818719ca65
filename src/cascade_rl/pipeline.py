"""The pipeline walks a recipe's stages: skip what is done, go on with what is not, evaluate, and draw the report."""

import dataclasses
import signal
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cascade_rl.errors import Interrupted, RecipeError, RunError
from cascade_rl.plan import Planned, check_name, make_plan, resolved, start_fingerprint, with_pairs
from cascade_rl.protocols import Task
from cascade_rl.recipe import Recipe
from cascade_rl.records import Split
from cascade_rl.run import Checkpoint, RunDir, StageDir, write_atomic, write_json
from cascade_rl.sandbox.process import close_shared_pools
from cascade_rl.seeds import derive_seed
from cascade_rl.shortfall import check_files
from cascade_rl.stages.distill import Distill
from cascade_rl.stages.on_policy import OnPolicy
from cascade_rl.stages.pairs import Pairs
from cascade_rl.stages.select import Select
from cascade_rl.stages.sft import SFT
from cascade_rl.tasks.judged import Judged
from cascade_rl.tasks.preference import Preference, linked, waits


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
    if not recipe.stages and not recipe.eval.start:
        raise RecipeError("recipe: has no [[stage]], so there is nothing to run; eval.start = true measures the model as it is")
    run = RunDir(root)
    check_name(recipe, run)  # before anything is written there
    check_files(recipe)
    plan = make_plan(recipe, root, start_from, only)
    recipe = with_pairs(recipe, plan)
    _check_data(recipe, say)
    for item in plan:  # a judge from elsewhere that is not there, or has no key, is an error now
        if item.outlook != "done":
            _with_judges(recipe, item.stage, None)
    with run.lock(), stop_on_interrupt(say) as stop:
        run.sweep()
        _check_owner(recipe, run, plan, say)
        if start_from:
            _forget(make_plan(recipe, root, start_from))
        write_json(run.recipe, resolved(recipe))
        walk = _Walk(recipe, run, plan, stop, say, how_to_go_on)
        walk.all_stages(start_from)
        walk.test_rows()
        walk.report()
    return run


def _check_owner(recipe: Recipe, run: RunDir, plan: Sequence[Planned], say: Callable[[str], None]) -> None:
    """A run folder belongs to one recipe, which may be edited: a recipe of another name is refused, and one of which no stage is
    left is told of. Nothing is deleted either way."""
    before = check_name(recipe, run)
    stages = [(i, told.get("name", ""), told.get("fingerprint", "")) for i, told in enumerate(before.get("stages", []), 1)]
    finished = [place for told in stages if (place := run.stage(*told)).done]
    if finished and not any(place.root == item.dir.root for place in finished for item in plan):
        say(
            f"run {run.root}: none of its {len(finished)} finished stages is one of this recipe as it is now (a model, seed, setting or"
            f" file differs from the first stage on); they stay in {run.stages}, and every stage is run"
        )


def _demonstrates(task: Task) -> bool:
    """Whether any of its training prompts has a demonstration, as far as that can be known before its pairs are made."""
    from cascade_rl.tasks import prompts_of

    return task.demonstrates if isinstance(task, Preference) and waits(task) else any(p.gold for p in prompts_of(task, "train"))


def _check_data(recipe: Recipe, say: Callable[[str], None] = print) -> None:
    """Reads every task and file of rows that will be needed later, so that a missing one or a bad row is an error now.

    What a task has to tell of its rows (`notes`, where it has them: some may be left out) is said.
    """
    from cascade_rl.tasks import prompts_of
    from cascade_rl.tasks.rows import conversation, read_placed

    splits: tuple[Split, ...] = ("dev", "test")
    for split in splits:
        if not (wanted := recipe.eval.num_prompts(split)):
            continue
        found = {name: len(prompts_of(recipe.tasks[name], split)) for name in recipe.eval.tasks if not waits(recipe.tasks[name])}
        if none := [name for name, num in found.items() if not num]:
            raise RecipeError(f'eval: task "{none[0]}" has no prompts in split "{split}"; set eval.{split} = 0 to leave it out')
        _tell_few(f"eval.{split}", wanted, found, say)
    for stage in recipe.stages:
        for name in stage.task_names():
            if not waits(recipe.tasks[name]) and not prompts_of(recipe.tasks[name], "train"):
                raise RecipeError(f'stage "{stage.name}": task "{name}" has no training prompts')
            if isinstance(stage, SFT) and not _demonstrates(recipe.tasks[name]):
                raise RecipeError(
                    f'stage "{stage.name}": task "{name}" has no demonstrations to imitate; name a task that has, rows of your own, or for'
                    " kind preference set thinking = false, which makes a demonstration of its bare verdict"
                )
        if isinstance(stage, OnPolicy | Pairs):
            stage.check_prompts({name: task for name, task in recipe.tasks.items() if not waits(task)})
        if isinstance(stage, Pairs):
            there = [name for name in stage.tasks if not waits(recipe.tasks[name])]
            for split, wanted in stage.num_prompts().items():
                found = {name: len(prompts_of(recipe.tasks[name], split)) for name in there if wanted}
                _tell_few(f"{stage.name}.{split}", wanted, found, say)
        for path in stage.files():  # rows to train on
            for where, row in read_placed(path):
                conversation(row, where)
    for name in dict.fromkeys([*recipe.eval.tasks, *(name for stage in recipe.stages for name in stage.task_names())]):
        for note in getattr(recipe.tasks[name], "notes", tuple)():
            say(f'task "{name}": {note}')


def _tell_few(what: str, wanted: int, found: Mapping[str, int], say: Callable[[str], None]) -> None:
    """found: task -> its prompts, which may be fewer than the setting `what` wants."""
    if few := [f"{name} has {num:,}" for name, num in found.items() if num < wanted]:
        say(f"{what} = {wanted:,} prompts of each task, and {', '.join(few)}; all that are there are asked")


def _with_judges(recipe: Recipe, stage: Any, checkpoints: Mapping[str, Path] | None) -> dict[str, Task]:
    """The tasks; those of the stage that are judged, with their judges at hand. checkpoints: None while there are none to judge yet."""
    from cascade_rl.sample.judges import is_stage, open_judge

    tasks = dict(recipe.tasks)
    for name in stage.task_names():
        if not isinstance(task := tasks[name], Judged):
            continue
        chats = {
            who: open_judge(config, checkpoints or {}, f'task "{name}": {who}', render=recipe.render, dtype=recipe.model.dtype)
            for who, config in task.judges().items()
            if checkpoints is not None or not is_stage(config)
        }
        tasks[name] = dataclasses.replace(task, chats=chats)
    return tasks


@contextmanager
def stop_on_interrupt(say: Callable[[str], None]) -> Generator[Callable[[], bool]]:
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
    except KeyboardInterrupt:
        close_shared_pools()  # Python waits for threads at its end, and those for programs under way
        raise
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
        import torch

        from cascade_rl.eval.matrix import Matrix
        from cascade_rl.eval.suite import Suite
        from cascade_rl.model.policy import multiplies_bf16
        from cascade_rl.model.render import load_renderer
        from cascade_rl.model.sources import load_tokenizer, resolve
        from cascade_rl.model.teachers import check_same_tokens
        from cascade_rl.tasks.nano import corpus

        if self.recipe.model.dtype == "bfloat16" and not multiplies_bf16(torch.device("cpu")):
            self.say(
                'model.dtype = "bfloat16": not multiplied in hardware here, so much slower than float32; "auto" takes the faster'
            )
        self.start = resolve(self.recipe.model.source, corpus)
        self.renderer = load_renderer(load_tokenizer(self.start), self.recipe.render)
        for stage in self.recipe.stages:  # every stage keeps the start's tokenizer, so this is known before any work
            for domain, teacher in stage.teachers.items() if isinstance(stage, Distill) else ():
                if "/" in teacher:
                    where = f'stage "{stage.name}": teacher of domain "{domain}"'
                    check_same_tokens(self.start, Path(teacher).expanduser(), where, self.renderer.template)
        self.suite = Suite(
            self.recipe.eval, self.recipe.tasks, self.renderer, self.run, self.recipe.model.dtype, self.recipe.seed, self.say
        )
        self._check_lengths()
        self.start_name = f"00-start-{start_fingerprint(self.recipe)}"
        shown = [item.checkpoint_name for item in self.plan if item.stage.name not in self.recipe.eval.skip]
        Matrix.load(self.run.root).keep([self.start_name, *shown])

    def _check_lengths(self) -> None:
        """Prompts and samples that are too long for the model or their stage are refused before any work."""
        from cascade_rl.sample.rollout import check_longest

        splits: tuple[Split, ...] = ("dev", "test")
        config = self.recipe.eval
        there = [task for task in config.tasks if not waits(self.recipe.tasks[task])]
        asked = [self.suite.prompts(task, split) for split in splits if config.num_prompts(split) for task in there]
        sampling = [stage for stage in self.recipe.stages if isinstance(stage, OnPolicy | Pairs)]
        sampled = [name for stage in sampling for name in stage.task_names() if not waits(self.recipe.tasks[name])]
        for prompts in (*asked, *(self.recipe.tasks[name].prompts("train") for name in dict.fromkeys(sampled))):
            check_longest(prompts, self.renderer)
        tasks = {name: task for name, task in self.recipe.tasks.items() if not waits(task)}
        for item in self.plan:
            if isinstance(item.stage, SFT) and item.outlook != "done":
                item.stage.check_lengths(tasks, self.renderer)

    def all_stages(self, start_from: str | None) -> None:
        if self.recipe.eval.start:
            self.evaluate("start", self.start_name, self.start, "dev")
        earlier = {"start": Checkpoint("start", self.start_name, self.start)}
        for item in self.plan:
            if self.stop():  # asked for in the last task of a row
                raise self.interrupted()
            if item.outlook == "done":
                self.say(f'stage "{item.stage.name}": done before ({item.dir.root.name}), skipped')
            else:
                # The student of the stage comes last, also where it begins with an older checkpoint.
                others = [told for name, told in earlier.items() if name != item.start]
                self._run_stage(item, [*others, earlier[item.start]])
            if isinstance(item.stage, Pairs):
                self._link({item.stage.name: item.dir.pairs})
            if isinstance(item.stage, Select):
                write_atomic(self.run.teachers, item.dir.teachers.read_bytes())
            if item.dir.passed_on:  # its checkpoint is the one before it, which has its row
                earlier[item.stage.name] = Checkpoint(item.stage.name, earlier[item.start].name, item.dir.checkpoint)
            else:
                earlier[item.stage.name] = Checkpoint(item.stage.name, item.checkpoint_name, item.dir.checkpoint)
                self.evaluate(item.stage.name, item.checkpoint_name, item.dir.checkpoint, "dev")
                self._gate(item)

    def _link(self, files: Mapping[str, Path]) -> None:
        """From here on the tasks that read the pairs of these stages have prompts."""
        known = {task.stage: task.file for task in self.recipe.tasks.values() if isinstance(task, Preference) and task.file}
        self.recipe = dataclasses.replace(self.recipe, tasks=linked(self.recipe.tasks, {**known, **files}))
        self.suite = dataclasses.replace(self.suite, tasks=self.recipe.tasks)

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
            follows = any(stage.name == f"{item.stage.name}-select" for stage in self.recipe.stages)
            next_step = "; its teachers win it back next" if follows and self.recipe.eval.on_regression == "mopd" else ""
            self.say(f'stage "{item.stage.name}": worse than before: {told}{next_step}')

    def _run_stage(self, item: Planned, earlier: Sequence[Checkpoint]) -> None:
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
            tasks=_with_judges(self.recipe, item.stage, {told.stage: told.folder for told in earlier}),
            renderer=self.renderer,
            lineage={
                "stage": item.stage.name,
                "fingerprint": item.fingerprint,
                "parent": item.parent,
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
        if stage in self.recipe.eval.skip:
            return
        if not self.suite.measure(folder, stage, checkpoint, split, self.stop):
            raise self.interrupted()

    def interrupted(self) -> Interrupted:
        return Interrupted(f"stopped; what is done is saved; go on with: {self.how_to_go_on}")

    def test_rows(self) -> None:
        """Every checkpoint on the test split, once all stages are done: no choice was made with these numbers."""
        if self.recipe.eval.start:
            self.evaluate("start", self.start_name, self.start, "test")
        for item in self.plan:
            if not item.dir.passed_on:
                self.evaluate(item.stage.name, item.checkpoint_name, item.dir.checkpoint, "test")

    def report(self) -> None:
        from cascade_rl.eval.matrix import Matrix
        from cascade_rl.observe.report import build
        from cascade_rl.observe.report_distill import recoveries
        from cascade_rl.observe.report_judge import judged_tasks, wins
        from cascade_rl.observe.report_run import read_run
        from cascade_rl.observe.tables import print_matrix, print_recovery, print_stages

        matrix = Matrix.load(self.run.root)
        for split in ("dev", "test"):
            if matrix.checkpoints(split):
                print_matrix(matrix, split)
        view = read_run(self.run.root)
        for stage in view.stages:
            split, found = recoveries(view, stage)
            print_recovery(f"what {stage.name} won back, {split}, in %", found, matrix.checkpoints())
            for task, settings in judged_tasks(view, stage).items():
                split, rate = wins(view, stage, settings)
                if rate.n > 1:
                    told = f"{100 * rate.mean:.1f} ± {100 * rate.stderr:.1f}%"
                    self.say(f'stage "{stage.name}", task "{task}": wins {told} against its start by {settings["task"]}, {split}')
        print_stages(view.stages)
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
