"""The regression matrix: checkpoints x tasks, with errors, and which changes are more than noise.

`evaluate` turns graded groups into rows and per-prompt scores; `Matrix` keeps both in the run folder:

    RUN/matrix.json                      {"rows": [EvalRow, ...]}, one row a line; null stands for an error that is not known
    RUN/eval/<checkpoint>.<split>.json   task -> prompt id -> scores of its samples, null where unscored

A cell is (checkpoint, task, split, metric). Cells are never averaged over tasks or splits: there is no single number.
"""

import json
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal

from cascade_rl.errors import DataError, RunError, unknown
from cascade_rl.eval.stats import Estimate, Paired, PromptScores, holm, mean_and_stderr, mean_pass_at_k, paired
from cascade_rl.records import EvalRow, Group, Rollout, Split
from cascade_rl.run import RunDir, read_json, write_atomic

ACCURACY = "accuracy"
SIGNIFICANT = 0.05  # level of a row's tests after the correction for its number of tasks

_SHARES = (ACCURACY, "unscored", "truncated", "format_error_rate", "parsed", "prefers_first", "exact")

Verdict = Literal["rise", "drop", "same"]
TaskScores = Mapping[str, PromptScores]  # prompt id -> scores


@dataclass(frozen=True, slots=True)
class Evaluation:
    """One checkpoint on one split: its rows, and task -> prompt id -> scores."""

    checkpoint: str
    split: Split
    rows: tuple[EvalRow, ...]
    scores: Mapping[str, TaskScores]


@dataclass(frozen=True, slots=True)
class Change:
    """A task's accuracy at one checkpoint against another on the same prompts; p_holm is corrected for the tasks of the row."""

    task: str
    domain: str
    checkpoint: str
    against: str
    paired: Paired
    p_holm: float

    @property
    def verdict(self) -> Verdict:
        if self.p_holm > SIGNIFICANT:
            return "same"
        return "rise" if self.paired.difference > 0 else "drop"


def is_share(metric: str) -> bool:
    """Whether a metric is a share, to be shown in percent; others are tokens, scores, or parts of a reward in a unit of their own."""
    return metric in _SHARES or metric.startswith(("pass@", "agreement"))


def evaluate(groups: Iterable[Group], *, stage: str, checkpoint: str, split: Split) -> Evaluation:
    """Graded groups of any number of tasks -> one row for each task and metric.

    Metrics: `accuracy` (mean reward), `pass@k` for k = 2, 4, 8, ... up to the samples a prompt has (full marks count as a pass),
    `unscored`, `truncated` and `format_error_rate` (shares of samples), `mean_tokens` (sampled tokens an answer), and each part of
    the rewards under its own name, over the samples that have it. A figure that nothing was measured for has no row: a task whose
    every sample is unscored has no accuracy, only `unscored` = 1.

    Raises DataError for ungraded groups, prompts of another split, a prompt that comes twice, or a task of two domains.
    """
    by_task: dict[str, dict[str, Group]] = {}
    for group in groups:
        prompt, seen = group.prompt, by_task.setdefault(group.prompt.task, {})
        where = f'task "{prompt.task}": prompt {prompt.id}'
        if not group.rewards:
            raise DataError(f"{where} has no rewards; grade the groups before they are evaluated")
        if prompt.split != split:
            raise DataError(f'{where} is of split "{prompt.split}", the evaluation of "{split}"; evaluate each split by itself')
        if prompt.id in seen:
            raise DataError(f"{where} comes twice; give each prompt once, with all its samples in one group")
        domain = next(iter(seen.values()), group).prompt.domain
        if prompt.domain != domain:
            raise DataError(f'{where} is of domain "{prompt.domain}", others of "{domain}"; make one task for each domain')
        seen[prompt.id] = group

    rows: list[EvalRow] = []
    scores: dict[str, dict[str, list[float | None]]] = {}
    for task, task_groups in by_task.items():
        scores[task] = {name: [reward.value for reward in group.rewards] for name, group in task_groups.items()}
        domain = next(iter(task_groups.values())).prompt.domain
        figures = _figures(list(task_groups.values()), list(scores[task].values()))
        parts = _parts(list(task_groups.values()))
        figures |= {name: figure for name, figure in parts.items() if name not in figures}
        rows += [
            EvalRow(stage, checkpoint, task, domain, split, metric, figure.n, figure.mean, figure.stderr)
            for metric, figure in figures.items()
            if figure.n
        ]
    return Evaluation(checkpoint, split, tuple(rows), scores)


def _figures(groups: Sequence[Group], scores: Sequence[PromptScores]) -> dict[str, Estimate]:
    def over_rollouts(figure: Callable[[Rollout], float]) -> Estimate:
        return mean_and_stderr([[float(figure(rollout)) for rollout in group.rollouts] for group in groups])

    figures = {ACCURACY: mean_and_stderr(scores)}
    most = max(len(samples) for samples in scores)
    figures |= {f"pass@{k}": mean_pass_at_k(scores, k) for k in (2**i for i in range(1, most.bit_length()))}
    figures["unscored"] = mean_and_stderr([[float(score is None) for score in samples] for samples in scores])
    figures["truncated"] = over_rollouts(lambda rollout: rollout.finish != "stop")
    if any(group.prompt.tools for group in groups):
        figures["format_error_rate"] = over_rollouts(lambda rollout: rollout.format_errors > 0)
    figures["mean_tokens"] = over_rollouts(lambda rollout: rollout.num_sampled)
    return figures


def _parts(groups: Sequence[Group]) -> dict[str, Estimate]:
    """The parts of the rewards, such as "agreement" of a judge: each over the prompts that have it."""
    names = dict.fromkeys(name for group in groups for reward in group.rewards for name in reward.parts)
    return {name: mean_and_stderr([[reward.parts.get(name) for reward in group.rewards] for group in groups]) for name in names}


@dataclass(frozen=True)
class Matrix:
    """The rows of a run, as read from `folder`. `add` writes and gives the new matrix; the old value stays as it was.

    matrix = Matrix.load(run_folder).add(evaluate(groups, stage="sft", checkpoint="02-sft-ab12", split="dev"))
    matrix.row("02-sft-ab12", "arith", "dev").mean

    branches: checkpoints of stages whose result is a judge or a teacher and never the student; they have rows, but nothing is a
    regression against them, nor are they one.
    """

    folder: Path
    rows: tuple[EvalRow, ...] = ()
    branches: frozenset[str] = frozenset()

    @classmethod
    def load(cls, folder: Path) -> "Matrix":
        """The matrix of a run folder; without rows when it has none yet."""
        run = RunDir(folder)
        path, branches = run.matrix, _branches(run)
        if not path.exists():
            return cls(folder, branches=branches)
        try:
            rows = [_row(told) for told in read_json(path)["rows"]]
        except (KeyError, TypeError) as error:
            raise RunError(
                f"{path}: not a matrix ({error}): expected rows of {', '.join(EvalRow.__slots__)}; the file is another's or was damaged;"
                f" choose another folder, or delete it to have it made anew"
            ) from None
        return cls(folder, tuple(rows), branches)

    def add(self, evaluation: Evaluation) -> "Matrix":
        """Append rows and scores; whatever was there of the same checkpoint, tasks and split is replaced in its place."""
        checkpoint, split = evaluation.checkpoint, evaluation.split
        scores = {**self.scores(checkpoint, split), **evaluation.scores}
        fresh = {_cell(row): row for row in evaluation.rows}
        kept = {
            _cell(row): row
            for row in self.rows
            if _cell(row) in fresh or (row.checkpoint, row.split) != (checkpoint, split) or row.task not in evaluation.scores
        }
        # Scores first: a crash in between never leaves rows without the scores behind them.
        write_atomic(self.scores_path(checkpoint, split), json.dumps(scores, ensure_ascii=False, allow_nan=False) + "\n")
        return self._write(tuple((kept | fresh).values()))

    def keep(self, checkpoints: Sequence[str]) -> "Matrix":
        """Drop the rows of all other checkpoints (those of an earlier version of the recipe); their score files stay."""
        rows = tuple(row for row in self.rows if row.checkpoint in checkpoints)
        return self if rows == self.rows else self._write(rows)

    def _write(self, rows: tuple[EvalRow, ...]) -> "Matrix":
        lines = [json.dumps(_jsonable(row), ensure_ascii=False, allow_nan=False) for row in rows]
        write_atomic(RunDir(self.folder).matrix, '{"rows": [\n' + ",\n".join(lines) + "\n]}\n")
        return replace(self, rows=rows)

    def scores_path(self, checkpoint: str, split: Split) -> Path:
        if not checkpoint or "/" in checkpoint or checkpoint.startswith("."):
            raise RunError(f'matrix: checkpoint name "{checkpoint}" names files; it must have no "/" and no leading "."')
        return RunDir(self.folder).evals / f"{checkpoint}.{split}.json"

    def scores(self, checkpoint: str, split: Split) -> dict[str, TaskScores]:
        """task -> prompt id -> scores; empty when this checkpoint was not evaluated on this split."""
        path = self.scores_path(checkpoint, split)
        return read_json(path) if path.exists() else {}

    def row(self, checkpoint: str, task: str, split: Split, metric: str = ACCURACY) -> EvalRow | None:
        wanted = (checkpoint, task, split, metric)
        return next((row for row in self.rows if _cell(row) == wanted), None)

    def checkpoints(self, split: Split | None = None) -> dict[str, str]:
        """checkpoint -> stage, in the order in which they were first evaluated (on `split`, if given)."""
        return {row.checkpoint: row.stage for row in self.rows if split is None or row.split == split}

    def tasks(self, split: Split | None = None) -> dict[str, str]:
        """task -> domain, in the order of the rows."""
        return {row.task: row.domain for row in self.rows if split is None or row.split == split}


def _branches(run: RunDir) -> frozenset[str]:
    """As the resolved recipe has them; none for a folder of `cascade eval`, or a file of another kind."""
    try:
        told = read_json(run.recipe) if run.recipe.is_file() else {}
    except RunError:  # whoever shows the run says so; the figures are still good
        return frozenset()
    stages = told.get("stages", []) if isinstance(told, dict) else []
    return frozenset(
        run.stage(index, stage["name"], stage["fingerprint"]).root.name
        for index, stage in enumerate(stages, 1)
        if isinstance(stage, dict) and stage.get("branch") and {"name", "fingerprint"} <= stage.keys()
    )


def best_earlier(matrix: Matrix, checkpoint: str, task: str, split: Split) -> EvalRow | None:
    """The highest accuracy on `task` among the checkpoints before this one (the first of equals); None when there is none."""
    order = list(matrix.checkpoints())
    before = [earlier for earlier in order[: order.index(checkpoint)] if earlier not in matrix.branches]
    rows = [matrix.row(earlier, task, split) for earlier in before]
    return max((row for row in rows if row is not None), key=lambda row: row.mean, default=None)


def significant_changes(matrix: Matrix, checkpoint: str, against: str | None = None, split: Split = "dev") -> list[Change]:
    """Every task of `checkpoint` compared on the same prompts with `against` (None: with each task's best earlier checkpoint; a branch
    is compared only when it is asked for by name).

    All tasks are listed; `verdict` says which of them changed. The p values are corrected (Holm) over the tasks, so that the
    chance of even one false alarm in a row of the matrix is about 5%. The best of many earlier checkpoints is in part lucky:
    against it a "drop" is a little eager and a "rise" a little shy.
    """
    known = matrix.checkpoints()
    for name in (checkpoint,) if against is None else (checkpoint, against):
        if name not in known:
            raise RunError(unknown("matrix: checkpoint", name, known))
    if against is None and checkpoint in matrix.branches:
        return []
    found: list[Change] = []
    scores = matrix.scores(checkpoint, split)
    for task, domain in matrix.tasks(split).items():
        earlier = best_earlier(matrix, checkpoint, task, split) if against is None else matrix.row(against, task, split)
        if earlier is None or matrix.row(checkpoint, task, split) is None:
            continue
        before = matrix.scores(earlier.checkpoint, split).get(task, {})
        comparison = paired(before, scores.get(task, {}))
        if comparison.n:
            found.append(Change(task, domain, checkpoint, earlier.checkpoint, comparison, 1.0))
    corrected = holm([change.paired.p for change in found])
    return [replace(change, p_holm=p) for change, p in zip(found, corrected, strict=True)]


def _cell(row: EvalRow) -> tuple[str, str, str, str]:
    return (row.checkpoint, row.task, row.split, row.metric)


def _row(told: Mapping[str, Any]) -> EvalRow:
    fields: dict[str, Any] = {**told, "stderr": math.nan if told["stderr"] is None else told["stderr"]}
    return EvalRow(**fields)


def _jsonable(row: EvalRow) -> dict[str, str | float | None]:
    return {**asdict(row), "stderr": None if math.isnan(row.stderr) else row.stderr}
