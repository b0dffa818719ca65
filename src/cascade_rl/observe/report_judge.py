"""RLHF: what the judge said over a stage, what a rule that no reward saw said meanwhile, and who won against the stage's start."""

from collections.abc import Mapping, Sequence
from typing import Any

from cascade_rl.eval.stats import Estimate, win_rate
from cascade_rl.observe.report_curves import series
from cascade_rl.observe.report_html import Html, join, number, tag
from cascade_rl.observe.report_run import RunView, StageView
from cascade_rl.records import Split

_WINDOW = 5  # steps at either end
_SHOWN = (
    ("judge", "judge's score"), ("rule", "held-out rule"), ("rule_agreement", "their agreement"), ("second", "second judge"),
    ("answer_chars", "answer, characters"), ("thinking_chars", "thinking, characters"), ("silent", "verdicts missing"),
)  # fmt: skip


_METRICS = (
    "agreement", "agreement_first", "agreement_second", "prefers_first", "agreement_unsure", "agreement_sure", "agreement_certain",
    "parsed",
)  # fmt: skip


def judge_section(view: RunView) -> Html | None:
    """None for a run that has neither a judged stage nor a measured judge."""
    shown = [part for part in (_stages(view), _judges(view)) if part is not None]
    return join(*shown) if shown else None


def _judges(view: RunView) -> Html | None:
    """Checkpoints as judges of labelled pairs: agreement, by position and by how sure the verdict was."""
    rows = []
    for split in ("test", "dev"):
        for checkpoint, stage in view.matrix.checkpoints(split).items():
            for task in view.matrix.tasks(split):
                found = [view.matrix.row(checkpoint, task, split, metric) for metric in _METRICS]
                if found[0] is None:
                    continue
                told = [f"{100 * row.mean:.1f} of {row.n}" if row else "–" for row in found]
                head = tag("th", stage, scope="row", title=checkpoint)
                rows.append(tag("tr", head, tag("td", f"{task}, {split}"), *(tag("td", cell) for cell in told)))
    if not rows:
        return None
    names = ("after stage", "pairs", *(metric.replace("_", " ") for metric in _METRICS))
    return join(tag("h3", "Checkpoints as judges, in % of so many verdicts"), _table(names, rows, "judges"))


def _table(names: Sequence[str], rows: Sequence[Html], label: str) -> Html:
    head = tag("tr", *(tag("th", name, scope="col") for name in names))
    table = tag("table", tag("thead", head), tag("tbody", *rows), class_="plain")
    return tag("div", table, class_="scroll", tabindex="0", role="region", aria_label=label)


def _stages(view: RunView) -> Html | None:
    rows = [_row(view, stage, task) for stage in view.stages for task in judged_tasks(view, stage) if stage.metrics]
    if not rows:
        return None
    names = ("stage", "task", *(title for _, title in _SHOWN), "wins against its start")
    note = (
        f"Means of the first and of the last {_WINDOW} steps. The rule and the second judge are no part of the reward: where they fall"
        " while the judge's score rises, the judge is being pleased, not the reader. Wins are by the rule, on the same prompts, a tie"
        " being half."
    )
    return join(_table(names, rows, "judged stages"), tag("p", note, class_="legend"))


def judged_tasks(view: RunView, stage: StageView) -> dict[str, Mapping[str, Any]]:
    """name -> settings of the judged tasks that a stage trains on."""
    tasks = view.recipe.get("tasks", {})
    told = next((told for told in view.recipe.get("stages", []) if told.get("name") == stage.name), {})
    shares = told.get("tasks", []) if told.get("kind") != "pairs" else []  # a list of names, and nothing is trained
    names = [share.get("task") for share in shares]
    return {name: tasks[name] for name in names if tasks.get(name, {}).get("kind") == "judged"}


def wins(view: RunView, stage: StageView, task: Mapping[str, Any]) -> tuple[Split, Estimate]:
    """How often the stage's checkpoint beats the one it began with on the wrapped task's own verdict; on test where that is measured."""
    before = _start(view, stage)
    after = stage.dir.root.name
    split: Split = "test" if after in view.matrix.checkpoints("test") else "dev"
    scores = [view.matrix.scores(name, split).get(task["task"], {}) if name else {} for name in (before, after)]
    return split, win_rate(*scores)


def _start(view: RunView, stage: StageView) -> str:
    """The checkpoint that a stage began with, as the matrix names it; that of a `select` stage is the one which it passed on."""
    parent = stage.lineage.get("parent", "")
    if parent == view.recipe.get("start_fingerprint"):
        return f"00-start-{parent}"
    found = next((other for other in view.stages if other.fingerprint == parent), None)
    if found is None:
        return ""
    return _start(view, found) if found.kind == "select" else found.dir.root.name


def _row(view: RunView, stage: StageView, task: str) -> Html:
    curves, settings = series(stage), judged_tasks(view, stage)[task]
    cells = []
    for name, _ in _SHOWN:
        points = curves.get(f"part.{name}/{task}") or curves.get(f"part.{name}") or []
        values = [value for _, value in points]
        first, last = values[:_WINDOW], values[-_WINDOW:]
        cells.append(tag("td", f"{number(sum(first) / len(first))} → {number(sum(last) / len(last))}" if values else "–"))
    split, rate = wins(view, stage, settings)
    told = f"{100 * rate.mean:.1f} ± {100 * rate.stderr:.1f}% ({settings['task']}, {split})" if rate.n > 1 else "not measured"
    return tag("tr", tag("th", stage.name, scope="row"), tag("td", task), *cells, tag("td", tag("b", told)))
