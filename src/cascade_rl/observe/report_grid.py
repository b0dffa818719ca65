"""Scores by what the prompts are like: depth of the needle x length of the document, and kind of question x length.

One heat table for each checkpoint, side by side, drawn from the scores of single prompts and their facets.
"""

from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from statistics import fmean
from typing import Any

from cascade_rl.observe.report_html import Html, join, tag
from cascade_rl.observe.report_run import RunView
from cascade_rl.records import Split
from cascade_rl.run import RunDir, read_json

MOST_VALUES = 8  # of a facet; more are put into as many bins of equal width
Scored = list[tuple[Mapping[str, Any], float]]  # facets and mean score of each prompt
Cells = dict[tuple[Any, Any], list[float]]  # (row, column) -> scores


def grid_section(view: RunView) -> Html | None:
    """None for a run without a task of long documents. On test prompts where a task has been asked those, else on dev."""
    shown = [_task(view, task) for task in view.matrix.tasks()]
    found = [part for part in shown if part is not None]
    if not found:
        return None
    note = (
        "Accuracy in %, with the number of prompts. Depth is where the first fact of the answer stands: 0% is the start of the document, "
        "100% its end, next to the question."
    )
    return join(*found, tag("p", note, class_="legend"))


def _task(view: RunView, task: str) -> Html | None:
    for split in ("test", "dev"):
        grids = {stage: _rows(view, checkpoint, split, task) for checkpoint, stage in view.matrix.checkpoints(split).items()}
        grids = {stage: rows for stage, rows in grids.items() if rows}
        if not grids:
            continue
        parts = [tag("h3", f"{task}, {split}: depth x length"), _tables(grids, "depth", _percent)]
        kinds = {facets["kind"] for rows in grids.values() for facets, _ in rows if "kind" in facets}
        if len(kinds) > 1:
            parts += [tag("h3", f"{task}, {split}: question x length"), _tables(grids, "kind", str)]
        return join(*parts)
    return None


def _rows(view: RunView, checkpoint: str, split: Split, task: str) -> Scored:
    """Of each scored prompt that has a length."""
    place = RunDir(view.folder).facets(checkpoint, split)
    facets: Mapping[str, Mapping[str, Any]] = read_json(place).get(task, {}) if place.exists() else {}
    scores = view.matrix.scores(checkpoint, split).get(task, {})
    told = {prompt: [score for score in samples if score is not None] for prompt, samples in scores.items()}
    return [(facets[prompt], fmean(each)) for prompt, each in told.items() if each and "length" in facets.get(prompt, {})]


def _tables(grids: Mapping[str, Scored], facet: str, label: Callable[[Any], str]) -> Html | None:
    every = [facets for rows in grids.values() for facets, _ in rows if facet in facets]
    if not every:
        return None
    rows, columns = _values([facets[facet] for facets in every]), _values([facets["length"] for facets in every])
    tables = []
    for stage, scored in grids.items():
        cells: Cells = {}
        for facets, score in scored:
            if facet in facets:
                cells.setdefault((rows[facets[facet]], columns[facets["length"]]), []).append(score)
        places = list(dict.fromkeys(rows.values())), list(dict.fromkeys(columns.values()))
        tables.append(_table(stage, facet, cells, *places, label))
    return tag("div", *tables, class_="grids")


def _values(values: Sequence[Any]) -> dict[Any, Any]:
    """Each value -> the row or column it stands in, in order: itself, or (low, high) of its bin where there are many numbers."""
    distinct = sorted(set(values))
    if len(distinct) <= MOST_VALUES or not all(isinstance(value, int | float) for value in distinct):
        return {value: value for value in distinct}
    low, high = distinct[0], distinct[-1]
    edges = [low + (high - low) * number / MOST_VALUES for number in range(MOST_VALUES)] + [high]
    bins = list(pairwise(edges))
    return {value: next(bin_ for bin_ in bins if value <= bin_[1]) for value in distinct}


def _table(
    stage: str, facet: str, cells: Cells, rows: Sequence[Any], columns: Sequence[Any], label: Callable[[Any], str]
) -> Html:
    head = tag("tr", tag("th", facet, scope="col"), *(tag("th", _label(column, _count), scope="col") for column in columns))
    body = [
        tag("tr", tag("th", _label(row, label), scope="row"), *(_cell(cells.get((row, column)), facet) for column in columns))
        for row in rows
    ]
    table = tag("table", tag("caption", tag("b", stage)), tag("thead", head), tag("tbody", *body), class_="matrix grid")
    return tag("div", table, class_="scroll", tabindex="0", role="region", aria_label=f"{stage}: {facet} x length")


def _cell(scores: Sequence[float] | None, facet: str) -> Html:
    if not scores:
        return tag("td", tag("span", "–", class_="none", title=f"no prompt of this {facet} and length"))
    mean = fmean(scores)
    heat = min(1.0, max(0.0, mean))
    said = f"{100 * mean:.1f}% of {len(scores)} prompts"
    return tag("td", tag("b", f"{100 * mean:.0f}"), " ", tag("small", f"n {len(scores)}"), style=f"--heat:{heat:.3f}", title=said)


def _label(value: Any, how: Callable[[Any], str]) -> str:
    return f"{how(value[0])} to {how(value[1])}" if isinstance(value, tuple) else how(value)


def _percent(share: float) -> str:
    return f"{100 * share:.0f}%"


def _count(length: float) -> str:
    return f"{length:,.0f}"
