"""The report's first screen: the matrix as heat tables, what changed in words, and the figures at the top."""

import itertools
import math
from collections.abc import Sequence

from cascade_rl.eval.matrix import ACCURACY, Change, Matrix, is_share, significant_changes
from cascade_rl.observe.report_html import Html, join, number, tag
from cascade_rl.observe.report_run import RunView
from cascade_rl.records import EvalRow, Split

SPLITS: Sequence[Split] = ("dev", "test")
Changes = dict[tuple[str, str], Change]  # (checkpoint, task) -> change against another checkpoint
MARKS = {"rise": "▲", "drop": "▼", "back": "↩"}

METRIC_NOTES = {
    ACCURACY: "mean reward of the samples, averaged over prompts",
    "unscored": "share of samples that got no verdict (they count in no other figure)",
    "truncated": "share of samples that ran into the token limit",
    "format_error_rate": "share of samples with a malformed tool call",
    "mean_tokens": "sampled tokens an answer",
    "parsed": "share of a judge's answers that are a verdict",
    "agreement": "share of a judge's verdicts that prefer what the label prefers",
    "agreement_first": "the same where the label prefers the first answer",
    "agreement_second": "the same where the label prefers the second answer",
    "prefers_first": "share of verdicts for the first answer; without a bias as many as labels",
    "agreement_unsure": "agreement where the ranking is 3 or 4",
    "agreement_sure": "agreement where the ranking is 2 or 5",
    "agreement_certain": "agreement where the ranking is 1 or 6",
    "exact": "share of a judge's scores of single answers that are the label's",
    "score_error": "distance of the scores from the label's, of 4 at most",
    "ranking_error": "distance of the ranking from the label's, of 5 at most",
}


def all_changes(matrix: Matrix) -> dict[Split, Changes]:
    """Every evaluated cell against its task's best earlier checkpoint, split by split."""
    return {
        split: {
            (change.checkpoint, change.task): change
            for checkpoint in matrix.checkpoints(split)
            for change in significant_changes(matrix, checkpoint, split=split)
        }
        for split in SPLITS
    }


def won_back(matrix: Matrix, split: Split, changes: Changes) -> Changes:
    """Cells significantly above the checkpoint before, and not above the task's best: recoveries, whole or in part."""
    order = list(of_student(matrix, split))
    found: Changes = {}
    for before, checkpoint in itertools.pairwise(order):
        for change in significant_changes(matrix, checkpoint, against=before, split=split):
            place = (checkpoint, change.task)
            if change.verdict == "rise" and (place not in changes or changes[place].verdict != "rise"):
                found[place] = change
    return found


def of_student(matrix: Matrix, split: Split) -> dict[str, str]:
    """checkpoint -> stage, of those that were the student; a branch makes a judge or a teacher."""
    return {name: stage for name, stage in matrix.checkpoints(split).items() if name not in matrix.branches}


def splits_of(matrix: Matrix) -> list[Split]:
    """The splits that were measured, the one to look at first at the front: test, once every checkpoint has its test row."""
    measured: list[Split] = [split for split in SPLITS if matrix.checkpoints(split)]
    dev, test = (len(matrix.checkpoints(split)) for split in SPLITS)
    return measured[::-1] if test >= dev else measured


def matrix_section(view: RunView, changes: dict[Split, Changes]) -> Html:
    matrix = view.matrix
    if not matrix.rows:
        return tag("p", "No evaluation yet: matrix.json is written after the first stage.", class_="absent")
    splits = splits_of(matrix)
    metrics = list(dict.fromkeys(row.metric for row in matrix.rows))
    tables, lists = [], []
    for split in splits:
        for metric in metrics:
            shown = (split, metric) == (splits[0], metrics[0])
            told = (changes[split], won_back(matrix, split, changes[split])) if metric == ACCURACY else ({}, {})
            tables.append(_table(matrix, split, metric, *told, hidden=not shown))
        lists.append(_change_list(matrix, split, changes[split], hidden=split != splits[0]))
    return join(_switches(splits, metrics), *tables, *lists)


def counted(count: int, word: str = "task") -> str:
    return f"{count} {word}{'' if count == 1 else 's'}"


def _switches(splits: list[Split], metrics: list[str]) -> Html:
    buttons = [
        tag("button", split, type="button", data_split=split, aria_pressed="true" if split == splits[0] else "false")
        for split in splits
    ]
    options = [tag("option", metric, value=metric) for metric in metrics]
    return tag(
        "div",
        tag("div", *buttons, class_="switch", role="group", aria_label="split"),
        tag("label", "metric ", tag("select", *options, id="metric")),
        class_="controls",
    )


def _table(matrix: Matrix, split: Split, metric: str, changes: Changes, back: Changes, *, hidden: bool) -> Html:
    tasks, stages = matrix.tasks(split), matrix.checkpoints(split)
    rows = {(row.checkpoint, row.task): row for row in matrix.rows if row.split == split and row.metric == metric}
    peaks = {task: max((row.mean for (_, name), row in rows.items() if name == task), default=0) for task in tasks}
    head = [
        tag("th", tag("span", task), tag("small", domain) if domain != task else None, scope="col")
        for task, domain in tasks.items()
    ]
    body = []
    for checkpoint, stage in stages.items():
        cells = []
        for task in tasks:
            row = rows.get((checkpoint, task))
            peak = 1.0 if is_share(metric) else peaks[task]
            unscored = matrix.row(checkpoint, task, split, "unscored") if metric == ACCURACY else None
            place = (checkpoint, task)
            cells.append(_cell(row, changes.get(place), back.get(place), peak, unscored, stages))
        fingerprint = checkpoint.rpartition("-")[2]
        body.append(tag("tr", tag("th", tag("span", stage), tag("small", fingerprint), scope="row", title=checkpoint), *cells))
    unit = " in %" if is_share(metric) else ""
    note = METRIC_NOTES.get(metric, "chance that at least one of k samples gets full marks" if metric.startswith("pass@") else "")
    told = tag("div", tag("b", f"{metric}, {split}"), f": mean ± standard error over prompts{unit}", f"; {note}" if note else "")
    corner = tag("th", tag("span", "after stage"), scope="col")
    return tag(
        "div",
        tag("table", tag("caption", told), tag("thead", tag("tr", corner, *head)), tag("tbody", *body), class_="matrix"),
        class_="scroll",
        data_of_split=split,
        data_of_metric=metric,
        hidden=hidden,
        tabindex="0",
        role="region",
        aria_label=f"{metric}, {split}",
    )


def _cell(
    row: EvalRow | None, change: Change | None, back: Change | None, peak: float, unscored: EvalRow | None, stages: dict[str, str]
) -> Html:
    if row is None:
        return tag("td", tag("span", "–", class_="none", title="not measured"))
    mark = None
    said = f"{row.stage}, {row.task}: {_figure(row)}, {row.n} prompts"
    if change:
        points = f"{100 * change.paired.difference:+.1f} ± {_error(change.paired.stderr, 100)}"
        said += f"; {points} against {stages[change.against]}, p {_p(change.p_holm)} ({change.verdict})"
        if change.verdict != "same":
            mark = tag("em", f"{MARKS[change.verdict]} {abs(100 * change.paired.difference):.1f}")
    if back:
        gain = 100 * back.paired.difference
        said += f"; {gain:+.1f} ± {_error(back.paired.stderr, 100)} against {stages[back.against]} (won back)"
        mark = join(mark, " " if mark else None, tag("em", f"{MARKS['back']} {gain:.1f}", class_="back"))
    if unscored and unscored.mean > 0:
        said += f"; {100 * unscored.mean:.1f}% of its samples unscored"
        mark = join(mark, tag("em", f"{100 * unscored.mean:.2g}% unscored", class_="unscored"))
    scale = 100 if is_share(row.metric) else 1
    error = tag("small", f"±{_error(row.stderr, scale)}") if math.isfinite(row.stderr) else None
    link = tag(
        "a", tag("span", tag("b", f"{row.mean * scale:.1f}"), " ", error), mark,
        href="#rollouts", title=said, aria_label=said, data_stage=row.stage, data_task=row.task, data_split=row.split,
    )  # fmt: skip
    heat = min(1.0, max(0.0, row.mean / peak)) if peak > 0 else 0.0
    verdict = change.verdict if change else None
    return tag("td", link, class_=verdict, style=f"--heat:{heat:.3f}")


def _change_list(matrix: Matrix, split: Split, changes: Changes, *, hidden: bool) -> Html:
    stages = matrix.checkpoints(split)
    told = [change for change in changes.values() if change.verdict != "same"]
    legend = tag(
        "p",
        tag("span", "▲ 4.2", class_="key rise"), " or ", tag("span", "▼ 4.2", class_="key drop"),
        " points above or below the task's best earlier checkpoint; ", tag("span", "↩ 4.2", class_="key back"),
        " points won back: above the checkpoint before, and not above the best. Marked where the difference on the same prompts is "
        "more than noise (paired sign-flip test, 5% for all tasks of a row together). Choose a cell to read its rollouts.",
        class_="legend",
    )  # fmt: skip
    if not told:
        return tag("div", legend, data_of_split=split, hidden=hidden)
    head = [tag("th", name, scope="col") for name in ("stage", "task", "change in points", "against", "prompts", "p")]
    rows = [
        tag(
            "tr",
            tag("td", stages[change.checkpoint]),
            tag("td", change.task),
            tag("td", tag("b", _signed(change)), f" ± {_error(change.paired.stderr, 100)}", class_=change.verdict),
            tag("td", stages[change.against]),
            tag("td", str(change.paired.n)),
            tag("td", _p(change.p_holm)),
        )
        for change in sorted(told, key=lambda change: (change.verdict != "drop", list(stages).index(change.checkpoint)))
    ]
    drops = sum(change.verdict == "drop" for change in told)
    summary = tag("summary", f"{counted(drops, 'drop')} and {counted(len(told) - drops, 'rise')} in numbers")
    table = tag("table", tag("thead", tag("tr", *head)), tag("tbody", *rows), class_="plain")
    return tag("div", legend, tag("details", summary, tag("div", table, class_="scroll")), data_of_split=split, hidden=hidden)


def _signed(change: Change) -> str:
    return f"{'▲' if change.verdict == 'rise' else '▼'} {100 * change.paired.difference:+.1f}"


def _figure(row: EvalRow) -> str:
    scale, unit = (100, "%") if is_share(row.metric) else (1, "")
    return f"{row.mean * scale:.1f} ± {_error(row.stderr, scale)}{unit}"


def _error(stderr: float, scale: float) -> str:
    return f"{stderr * scale:.1f}" if math.isfinite(stderr) else "?"


def _p(value: float) -> str:
    return "< 0.001" if value < 0.001 else number(value)
