"""Distillation: who teaches what and why, what was won back of it, and how each domain came nearer to its teacher."""

import math
from collections.abc import Mapping
from typing import Any

from cascade_rl.eval.stats import Paired
from cascade_rl.eval.teachers import Recovery, recovery
from cascade_rl.observe.report_curves import BY_DOMAIN, chart, series
from cascade_rl.observe.report_html import Html, join, tag
from cascade_rl.observe.report_run import RunView, StageView
from cascade_rl.records import Split


def distill_section(view: RunView) -> Html | None:
    """None for a run that neither chose teachers nor learnt from any."""
    learnt = [stage for stage in view.stages if stage.kind == "distill"]
    parts = [part for stage in learnt for part in _stage(view, stage)]
    shown = [part for part in (_teachers(view), *parts) if part is not None]
    return join(*shown) if shown else None


def recoveries(view: RunView, stage: StageView) -> tuple[Split, list[Recovery]]:
    """Of a finished distill stage, by the domains it taught: on test where that is measured, else on dev. Only where the teacher is not
    the student itself."""
    student, teachers = stage.lineage.get("student", ""), stage.lineage.get("teachers", {})
    others = {domain: teacher for domain, teacher in teachers.items() if teacher != student and "/" not in teacher}
    split: Split = "test" if stage.dir.root.name in view.matrix.checkpoints("test") else "dev"
    if not others or not student:
        return split, []
    return split, recovery(view.matrix, student, stage.dir.root.name, others, split)


def named_teachers(view: RunView) -> dict[str, Mapping[str, str]]:
    """distill stage -> domain -> the teacher that the recipe names, which comes before any that was chosen."""
    told = {stage.get("name", ""): stage.get("teachers") for stage in view.recipe.get("stages", []) if isinstance(stage, dict)}
    return {name: teachers for name, teachers in told.items() if isinstance(teachers, dict) and teachers}


def _teachers(view: RunView) -> Html | None:
    if not view.teachers:
        return None
    rows = []
    for domain, told in view.teachers.items():
        facts = told if isinstance(told, dict) else {"checkpoint": told}
        figures = _share(facts.get("mean"), facts.get("stderr")), _share(facts.get("student_mean"), None)
        who = facts.get("stage") or facts.get("checkpoint", "–")
        cells = [tag("td", str(who), title=str(facts.get("checkpoint", ""))), *(tag("td", figure) for figure in figures)]
        instead = [(stage, named[domain]) for stage, named in named_teachers(view).items() if domain in named]
        reasons = [tag("p", f"not used by {stage}: the recipe names {teacher} for it") for stage, teacher in instead]
        reasons.append(tag("p", str(facts.get("reason", ""))))
        rows.append(tag("tr", tag("th", domain, scope="row"), *cells, tag("td", join(*reasons), class_="notes")))
    return join(
        tag("h3", "Teachers, chosen on dev"), _table(("domain", "teacher", "its accuracy", "student's", "why"), rows, "teachers")
    )


def _stage(view: RunView, stage: StageView) -> list[Html | None]:
    curves: dict[str, list[Html]] = {}
    for key, points in series(stage).items():
        figure, _, domain = key.partition("/")
        if figure in BY_DOMAIN and domain:
            curves.setdefault(figure, []).append(chart(domain, points))
    drawn = [
        tag("details", tag("summary", tag("b", f"{stage.name}: "), BY_DOMAIN[figure]), tag("div", *curves[figure], class_="charts"),
            open=figure == "reverse_kl")
        for figure in BY_DOMAIN if figure in curves
    ]  # fmt: skip
    return [_recovery(view, stage), *drawn]


def _recovery(view: RunView, stage: StageView) -> Html | None:
    split, found = recoveries(view, stage)
    if not found:
        return None
    names = view.matrix.checkpoints()
    rows = [
        tag(
            "tr",
            tag("th", told.domain, scope="row"),
            tag("td", names.get(told.teacher, told.teacher)),
            *(tag("td", _share(mean, None)) for mean in (told.before, told.after, told.of_teacher)),
            tag("td", _points(told.lead)),
            tag("td", _points(told.gain), class_="rise" if told.gain.difference > 0 else "drop"),
            tag("td", tag("b", _share(told.recovered, told.stderr))),
        )
        for told in found
    ]
    head = ("domain", "teacher", "before", "after", "of teacher", "teacher was ahead", "won", "recovered")
    note = (
        f"{split}, in %; recovered is (after − before) / (teacher − before) on the same prompts, its error by the delta method. Where the "
        "teacher was hardly ahead, the ratio says little."
    )
    return join(tag("h3", f"What {stage.name} won back"), _table(head, rows, "recovery"), tag("p", note, class_="legend"))


def _table(names: tuple[str, ...], rows: list[Html], label: str) -> Html:
    head = tag("tr", *(tag("th", name, scope="col") for name in names))
    table = tag("table", tag("thead", head), tag("tbody", *rows), class_="plain")
    return tag("div", table, class_="scroll", tabindex="0", role="region", aria_label=label)


def _share(mean: Any, stderr: Any) -> str:
    if not isinstance(mean, int | float) or math.isnan(mean):
        return "–"
    error = f" ± {100 * stderr:.1f}" if isinstance(stderr, int | float) and math.isfinite(stderr) else ""
    return f"{100 * mean:.1f}{error}"


def _points(change: Paired) -> str:
    return f"{100 * change.difference:+.1f} ± {100 * change.stderr:.1f}"
