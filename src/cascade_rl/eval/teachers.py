"""Teachers that choose themselves: the best checkpoint of each domain, read off the matrix, and what distillation won back of it.

A domain is the tag on a task's prompts. Where it has several tasks, their prompts are taken together, each weighing the same.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from cascade_rl.errors import RunError
from cascade_rl.eval.matrix import Matrix
from cascade_rl.eval.stats import Estimate, Paired, PromptScores, mean_and_stderr, paired, prompt_mean, ratio
from cascade_rl.records import Split
from cascade_rl.run import Checkpoint, read_json, write_json


@dataclass(frozen=True, slots=True)
class Teacher:
    """Who teaches a domain, and the dev figures that chose it.

    stage, checkpoint   whose weights, by the stage's name and the checkpoint's in the matrix.
    n, mean, stderr     its accuracy over the domain's prompts; student_mean: that of the current student.
    lead, lead_stderr, p    teacher minus student on the same prompts, and the two-sided p of that; 0, 0 and 1 for the student itself.
    best, best_mean     the stage with the highest mean of all, from which the teacher does not differ significantly.
    reason              the same in words.
    """

    domain: str
    stage: str
    checkpoint: str
    n: int
    mean: float
    stderr: float
    student_mean: float
    lead: float
    lead_stderr: float
    p: float
    best: str
    best_mean: float
    reason: str


def domain_scores(matrix: Matrix, checkpoint: str, split: Split) -> dict[str, dict[str, PromptScores]]:
    """domain -> prompt id -> scores of its samples."""
    scores = matrix.scores(checkpoint, split)
    found: dict[str, dict[str, PromptScores]] = {}
    for task, domain in matrix.tasks(split).items():
        if task in scores:
            found.setdefault(domain, {}).update(scores[task])
    return found


def select(matrix: Matrix, history: Sequence[Checkpoint], significance: float = 0.05, split: Split = "dev") -> dict[str, Teacher]:
    """domain -> the most recent checkpoint that is not significantly worse than the domain's best.

    history: all candidates from old to new; the last is the current student, and may come out as its own teacher: an anchor. Checkpoints
    are compared on the same prompts by `stats.paired`; one is significantly worse when its p is at most `significance`, uncorrected:
    a false alarm only means that a checkpoint as good as the newer one teaches. A significance of 1 takes the best mean as it is.
    Candidates that were not asked all of the domain's prompts do not count. Raises RunError when the student has no scores.
    """
    named: dict[str, Checkpoint] = {}
    for checkpoint in history:  # what a select stage passed on is known by the stage that made it
        named.setdefault(checkpoint.name, checkpoint)
    scores = {name: domain_scores(matrix, name, split) for name in named}
    student = history[-1].name
    if not scores[student]:
        raise RunError(
            f'select: {student} has no "{split}" scores in the matrix to choose teachers by; set eval.tasks and eval.{split}'
        )
    chosen = {}
    for domain, of_student in scores[student].items():
        candidates = {name: told[domain] for name, told in scores.items() if told.get(domain, {}).keys() == of_student.keys()}
        estimates = {name: mean_and_stderr(list(told.values())) for name, told in candidates.items()}
        known = [name for name in candidates if estimates[name].n]
        if student not in known:
            continue  # nothing of it was scored: the domain has no teacher
        best = max(known, key=lambda name: estimates[name].mean)
        behind = {name: paired(candidates[best], candidates[name]) for name in known}
        teacher = next(name for name in reversed(known) if behind[name].difference >= 0 or behind[name].p > significance)
        lead = paired(of_student, candidates[teacher])
        figures = estimates[teacher]
        chosen[domain] = Teacher(
            domain, named[teacher].stage, teacher, figures.n, figures.mean, figures.stderr, estimates[student].mean,
            lead.difference, lead.stderr, lead.p, named[best].stage, estimates[best].mean,
            _reason(teacher, student, best, figures, estimates[best], behind[teacher], lead, named, len(known)),
        )  # fmt: skip
    return chosen


def _reason(
    teacher: str, student: str, best: str, figures: Estimate, of_best: Estimate, behind: Paired, lead: Paired,
    named: Mapping[str, Checkpoint], num: int,
) -> str:  # fmt: skip
    if teacher == best:
        told = f"the best of {num} checkpoints at {_percent(figures)}"
    else:
        told = (
            f"the most recent that is not significantly below the best, {named[best].stage} at {_percent(of_best)}: itself at"
            f" {_percent(figures)}, {_points(behind)} (p {behind.p:.2g})"
        )
    if teacher == student:
        return f"the current student, its own anchor: {told}"
    return f"{told}; the current student is {_points(lead, -1)} from it (p {lead.p:.2g})"


def _percent(figures: Estimate) -> str:
    return f"{100 * figures.mean:.1f} ± {100 * figures.stderr:.1f}%"


def _points(change: Paired, sign: int = 1) -> str:
    return f"{100 * sign * change.difference:+.1f} ± {100 * change.stderr:.1f} points"


# --- teachers.json ------------------------------------------------------------------------------------------------------------------


def write_teachers(path: Path, teachers: Mapping[str, Teacher]) -> None:
    """domain -> the fields of its Teacher; an error that is not known is null."""
    table = {domain: {key: _or_null(value) for key, value in asdict(told).items()} for domain, told in teachers.items()}
    write_json(path, table)


def read_teachers(path: Path) -> dict[str, Teacher]:
    names = [field.name for field in fields(Teacher)]

    def teacher(told: Mapping[str, Any]) -> Teacher:
        values: dict[str, Any] = {name: math.nan if told[name] is None else told[name] for name in names}
        return Teacher(**values)

    try:
        return {domain: teacher(told) for domain, told in read_json(path).items()}
    except (KeyError, TypeError, AttributeError) as error:
        raise RunError(f"{path}: not a table of teachers ({error}); each domain holds {', '.join(names)}") from None


def _or_null(value: object) -> object:
    return None if isinstance(value, float) and math.isnan(value) else value


# --- recovery -----------------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Recovery:
    """What distillation won back in one domain: (after - before) / (teacher - before), on the same prompts.

    gain: after - before; lead: teacher - before. recovered is NaN where the teacher was not ahead; its error is by the delta method.
    """

    domain: str
    teacher: str
    n: int
    before: float
    after: float
    of_teacher: float
    gain: Paired
    lead: Paired
    recovered: float
    stderr: float


def recovery(matrix: Matrix, before: str, after: str, teachers: Mapping[str, str], split: Split) -> list[Recovery]:
    """For each domain -> checkpoint of `teachers` whose scores, as those of both others, are in the matrix."""
    scores = {name: domain_scores(matrix, name, split) for name in {before, after, *teachers.values()}}
    found = []
    for domain, teacher in teachers.items():
        tables = [scores[name].get(domain, {}) for name in (before, after, teacher)]
        means = [{prompt: mean for prompt, told in table.items() if (mean := prompt_mean(told)) is not None} for table in tables]
        shared = sorted(means[0].keys() & means[1].keys() & means[2].keys())
        if not shared:
            continue
        start, end, goal = ([told[prompt] for prompt in shared] for told in means)
        gain, lead = paired(tables[0], tables[1]), paired(tables[0], tables[2])
        share = ratio([b - a for a, b in zip(start, end, strict=True)], [b - a for a, b in zip(start, goal, strict=True)])
        recovered, stderr = share if lead.difference > 0 else (math.nan, math.nan)
        first, last, best = (math.fsum(values) / len(shared) for values in (start, end, goal))
        found.append(Recovery(domain, teacher, len(shared), first, last, best, gain, lead, recovered, stderr))
    return found
