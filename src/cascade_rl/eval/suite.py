"""Fills a checkpoint's row of the matrix: sample, grade, record, task by task; a task already recorded is not asked again."""

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from cascade_rl.errors import RecipeError, unknown
from cascade_rl.eval.matrix import Matrix, evaluate
from cascade_rl.observe.log import rollout_row
from cascade_rl.observe.progress import progress
from cascade_rl.protocols import Task
from cascade_rl.records import Group, Prompt, SamplingParams, Split
from cascade_rl.run import RunDir, read_json, write_atomic, write_json
from cascade_rl.seeds import derive_seed

if TYPE_CHECKING:
    from cascade_rl.model.render import Renderer
    from cascade_rl.sample.local import LocalSampler


# Settings that say which cells there are, and nothing of what stands in one.
_NOT_OF_A_CELL = ("tasks", "only", "dev", "test", "start", "skip", "on_regression")


@dataclass(frozen=True)
class EvalConfig:
    """What fills the regression matrix.

    tasks           names; every stage's checkpoint gets a row over all of them.
    only            task -> the stages that alone are asked it, and nothing else: { agreement = ["judge"] } measures a judge as one.
    dev, test       prompts per task and split (0: the split is left out); after each stage dev, at the end test.
    samples         rollouts a prompt.
    start           also evaluate the model that the run starts from.
    skip            stages that get no row: steps on the way whose figures tell nothing.
    temperature, top_p, max_new_tokens   how to sample; max_new_tokens is the budget of a whole rollout, all its turns together.
    rollouts_kept   prompts per task whose rollouts are kept to read in the report.
    on_regression   when a stage leaves a task significantly below its best earlier checkpoint: "warn", "stop" the run there, or win
                    it back from that checkpoint at once: "mopd".
    """

    tasks: tuple[str, ...] = ()
    only: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    dev: int = 100
    test: int = 200
    samples: int = 1
    start: bool = False
    skip: tuple[str, ...] = ()
    temperature: float = 1.0
    top_p: float = 1.0
    max_new_tokens: int = 192
    rollouts_kept: int = 6
    on_regression: Literal["warn", "stop", "mopd"] = "warn"

    def __post_init__(self) -> None:
        for name in ("dev", "test", "rollouts_kept"):
            if getattr(self, name) < 0:
                raise ValueError(f"{name} = {getattr(self, name)} must be 0 or more")
        if twice := sorted({task for task in self.tasks if self.tasks.count(task) > 1}):
            raise ValueError(f'tasks names "{twice[0]}" twice; a task is asked once')
        if self.samples < 1:
            raise ValueError(f"samples = {self.samples} must be at least 1")
        self.sampling()

    def sampling(self) -> SamplingParams:
        """Raises ValueError for values that cannot be sampled with."""
        return SamplingParams(temperature=self.temperature, top_p=self.top_p, max_new_tokens=self.max_new_tokens)

    def tasks_of(self, stage: str) -> tuple[str, ...]:
        """What a stage's checkpoint is asked."""
        if any(stage in stages for stages in self.only.values()):
            return tuple(task for task in self.tasks if stage in self.only.get(task, ()))
        return tuple(task for task in self.tasks if task not in self.only)

    def num_prompts(self, split: Split) -> int:
        return {"dev": self.dev, "test": self.test}[split]


def check_only(config: EvalConfig, stages: Sequence[Any]) -> None:
    """Whether `only` names tasks and stages that there are. Raises RecipeError."""
    for task, named in config.only.items():
        if task not in config.tasks:
            raise RecipeError(unknown("eval: only: task", task, config.tasks, "the tasks are those of eval.tasks"))
        for stage in named:
            if stage not in (names := [known.name for known in stages]):
                raise RecipeError(unknown(f"eval: only: {task}: stage", stage, names))


@dataclass(frozen=True)
class Suite:
    """The tasks, format and settings that every checkpoint of a run is measured with."""

    config: EvalConfig
    tasks: Mapping[str, Task]
    renderer: "Renderer"
    run: RunDir
    dtype: str
    seed: int
    say: Callable[[str], None] = print

    def fingerprint(self, model: str, task: str, split: Split) -> str:
        """Of everything a cell of the matrix depends on: the model's own fingerprint, the settings, and the prompts as they are now."""
        settings = {k: v for k, v in asdict(self.config).items() if k not in _NOT_OF_A_CELL}
        prompts = [[prompt.id, repr(prompt.messages), repr(prompt.reference)] for prompt in self.prompts(task, split)]
        told = [model, settings, prompts, self.dtype, self.seed, task, repr(self.tasks[task])]
        return hashlib.sha256(json.dumps(told, sort_keys=True, default=str).encode()).hexdigest()[:12]

    def prompts(self, task: str, split: Split) -> Sequence[Prompt]:
        return self.tasks[task].prompts(split)[: self.config.num_prompts(split)]

    def measure(self, folder: Path, stage: str, checkpoint: str, split: Split, stop: Callable[[], bool]) -> bool:
        """Evaluates the checkpoint in `folder` on the tasks not yet recorded; False when `stop` ended it early."""
        asked = self.config.tasks_of(stage)
        if not self.config.num_prompts(split) or not asked:
            return True
        from cascade_rl.model.sources import fingerprint

        ledger = self.run.evals / f"{checkpoint}.{split}.done.json"
        recorded = read_json(ledger) if ledger.exists() else {}
        model = fingerprint(folder)
        wanted = {task: self.fingerprint(model, task, split) for task in asked}
        # The ledger alone is not enough: rows leave the matrix with their stage, and may come back with it.
        shown = {row.task for row in Matrix.load(self.run.root).rows if (row.checkpoint, row.split) == (checkpoint, split)}
        open_tasks = [task for task in asked if recorded.get(task) != wanted[task] or task not in shown]
        if not open_tasks:
            return True
        from cascade_rl.sample.local import LocalSampler

        sampler = LocalSampler(folder, dtype=self.dtype)
        with progress(f"{stage}: {split}", len(open_tasks)) as bar:
            for number, task in enumerate(open_tasks, 1):
                if stop():
                    return False
                groups = self.ask(sampler, task, split)
                Matrix.load(self.run.root).add(evaluate(groups, stage=stage, checkpoint=checkpoint, split=split))
                self._keep_rollouts(groups, stage, checkpoint, task, split)
                self._keep_facets(groups, checkpoint, task, split)
                recorded = {**recorded, task: wanted[task]}
                write_json(ledger, recorded)
                rewards = [reward for group in groups for reward in group.rewards]
                if unscored := [reward for reward in rewards if reward.value is None]:
                    told = f"{len(unscored)} of {len(rewards)} answers are unscored; the first: {unscored[0].why}"
                    self.say(f'{stage}: {split}: task "{task}": {told}')
                scores = [reward.value for reward in rewards if reward.value is not None]
                tokens = sum(r.num_sampled for group in groups for r in group.rollouts)
                bar.step(number, {task: sum(scores) / len(scores)} if scores else {}, tokens=tokens)
        return True

    def ask(self, sampler: "LocalSampler", task: str, split: Split) -> list[Group]:
        """Sampled and graded groups of one task. The seed depends on the prompt alone, so checkpoints meet the same luck."""
        seed = derive_seed(self.seed, "eval", split)
        prompts = self.prompts(task, split)
        groups = rollout_groups(sampler, self, prompts, seed)
        return groups

    def _keep_rollouts(self, groups: Sequence[Group], stage: str, checkpoint: str, task: str, split: Split) -> None:
        """RUN/eval/<checkpoint>.<split>.rollouts/<task>.jsonl: a few rollouts to read, token by token."""
        rows = [
            rollout_row(group, index, self.renderer.decode, stage=stage)
            for group in groups[: self.config.rollouts_kept]
            for index in range(len(group.rollouts))
        ]
        place = self.run.evals / f"{checkpoint}.{split}.rollouts" / f"{task}.jsonl"
        write_atomic(place, "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows))

    def _keep_facets(self, groups: Sequence[Group], checkpoint: str, task: str, split: Split) -> None:
        """RUN/eval/<checkpoint>.<split>.facets.json: task -> prompt id -> what the prompt is like, where the task says."""
        told = {group.prompt.id: dict(group.prompt.facets) for group in groups if group.prompt.facets}
        place = self.run.facets(checkpoint, split)
        kept = read_json(place) if place.exists() else {}
        if told or task in kept:
            write_json(place, {**kept, task: told})


def rollout_groups(sampler: "LocalSampler", suite: Suite, prompts: Sequence[Prompt], seed: int) -> list[Group]:
    from cascade_rl.sample.verdicts import sample_and_grade

    config = suite.config
    return sample_and_grade(sampler, suite.renderer, suite.tasks, prompts, config.samples, config.sampling(), seed)
