"""Curves of a stage as small SVG charts, one for each number that its logs hold, and the table of the stages' lineage."""

import math
from collections.abc import Sequence
from typing import Any

from cascade_rl.observe.report_html import Html, duration, join, large, number, tag
from cascade_rl.observe.report_run import RunView, StageView

WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 300, 132, 52, 8, 10, 20
MAX_POINTS = 240  # buckets per curve; each keeps its lowest and highest point, so that no spike is lost
SMOOTH_FROM = 40  # points from which a running mean is drawn over the raw curve
FIRST = ("loss", "reward", "accuracy", "grad_norm", "learning_rate")

# Drawn domain by domain in their own section: figures named "figure/domain", with what they are.
BY_DOMAIN = {
    "reverse_kl": "reverse KL to the teacher, nats a token",
    "teacher_gap": "mean |log p of the teacher - log p of the student|, nats a token",
    "token_share": "share of the trained tokens",
    "loss_share": "share of the loss",
}

Points = list[tuple[float, float]]


def curves_section(view: RunView) -> Html:
    drawn = []
    with_logs = [stage for stage in view.stages if stage.metrics]
    for stage in with_logs:
        charts = [chart(key, points) for key, points in series(stage).items() if key.partition("/")[0] not in BY_DOMAIN]
        if charts:
            note = f"{stage.num_steps:,} steps" if stage.num_steps else ""
            summary = tag("summary", tag("b", stage.name), " ", tag("small", note))
            drawn.append(tag("details", summary, tag("div", *charts, class_="charts"), open=stage in with_logs[-2:]))
    if not drawn:
        return tag("p", "No curves yet: no stage has written metrics.jsonl.", class_="absent")
    return join(*drawn)


def series(stage: StageView) -> dict[str, Points]:
    """key -> (step, value), of every number in the logs; tokens per second is made of the two logs together."""
    found: dict[str, Points] = {}
    for record in stage.metrics:
        for key, value in record.items():
            if key != "step" and _is_number(value) and _is_number(record.get("step")):
                found.setdefault(key, []).append((record["step"], value))
    tokens = {record.get("step"): record["num_tokens"] for record in stage.metrics if _is_number(record.get("num_tokens"))}
    for record in stage.timing:
        for key, value in record.items():
            if key != "step" and _is_number(value) and _is_number(record.get("step")):
                found.setdefault(key, []).append((record["step"], value))
        if record.get("step") in tokens and _is_number(record.get("seconds")) and record["seconds"] > 0:
            speed = tokens[record["step"]] / record["seconds"]
            found.setdefault("tokens/s", []).append((record["step"], speed))
    order = {key: place for place, key in enumerate(FIRST)}
    return dict(sorted(found.items(), key=lambda item: order.get(item[0], len(FIRST))))


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def chart(key: str, points: Points) -> Html:
    low, high = min(y for _, y in points), max(y for _, y in points)
    first, last = points[0][0], points[-1][0]
    pad = (high - low) * 0.06 or abs(high) * 0.05 or 1.0
    bottom, top = low - pad, high + pad

    def place(x: float, y: float) -> tuple[float, float]:
        across = (x - first) / (last - first) if last > first else 0.5
        return LEFT + across * (WIDTH - LEFT - RIGHT), TOP + (top - y) / (top - bottom) * (HEIGHT - TOP - BOTTOM)

    thinned = thin(points)
    smooth = running_mean(points) if len(points) >= SMOOTH_FROM else []
    lines = [
        tag("path", d=_path([place(*point) for point in thinned]), class_="raw" if smooth else "line"),
        tag("path", d=_path([place(*point) for point in thin(smooth)]), class_="line") if smooth else None,
        tag("circle", cx=f"{place(*points[0])[0]:.1f}", cy=f"{place(*points[0])[1]:.1f}", r=2.5) if len(points) == 1 else None,
    ]
    grid = [
        join(
            tag("line", x1=LEFT, x2=WIDTH - RIGHT, y1=f"{place(first, y)[1]:.1f}", y2=f"{place(first, y)[1]:.1f}"),
            tag("text", number(y, digits=3), x=LEFT - 5, y=f"{place(first, y)[1] + 3.5:.1f}", text_anchor="end"),
        )
        for y in dict.fromkeys((low, high))
    ]
    ends = join(
        tag("text", f"{first:g}", x=LEFT, y=HEIGHT - 6),
        tag("text", f"step {last:g}", x=WIDTH - RIGHT, y=HEIGHT - 6, text_anchor="end") if last > first else None,
    )
    said = f"{key}: from {number(points[0][1])} at step {first:g} to {number(points[-1][1])} at step {last:g}"
    svg = tag("svg", *grid, ends, *lines, viewBox=f"0 0 {WIDTH} {HEIGHT}", role="img", aria_label=said)
    values = ",".join(f"{x:g}:{y:.5g}" for x, y in thinned)
    output = tag("output", number(points[-1][1]))
    return tag("figure", tag("figcaption", tag("span", key), output), svg, class_="chart", data_points=values, data_left=LEFT)


def thin(points: Sequence[tuple[float, float]], most: int = MAX_POINTS) -> Points:
    """At most 2 * `most` points: the lowest and highest of each bucket, in order, and always the first and last."""
    if len(points) <= 2 * most:
        return list(points)
    kept: Points = [points[0]]
    inner = points[1:-1]
    for bucket in range(most - 1):
        part = inner[bucket * len(inner) // (most - 1) : (bucket + 1) * len(inner) // (most - 1)]
        ends = {min(part, key=lambda point: point[1]), max(part, key=lambda point: point[1])}
        kept += sorted(ends)
    return [*kept, points[-1]]


def running_mean(points: Sequence[tuple[float, float]]) -> Points:
    """Mean over a window of about a twentieth of the curve, centred, narrower at the ends."""
    half = max(2, len(points) // 40)
    sums = [0.0]
    for _, y in points:
        sums.append(sums[-1] + y)
    smooth: Points = []
    for i, (x, _) in enumerate(points):
        reach = min(half, i, len(points) - 1 - i)
        smooth.append((x, (sums[i + reach + 1] - sums[i - reach]) / (2 * reach + 1)))
    return smooth


def _path(places: Sequence[tuple[float, float]]) -> str:
    return "M" + "L".join(f"{x:.1f} {y:.1f}" for x, y in places)


def lineage_section(view: RunView) -> Html:
    if not view.stages:
        return tag("p", "No stages yet: neither recipe.resolved.json nor stages/ is there.", class_="absent")
    names = {stage.fingerprint: stage.name for stage in view.stages}
    start = view.recipe.get("start_fingerprint", "")
    names.setdefault(start, "start")
    head = [
        tag("th", name, scope="col")
        for name in ("stage", "kind", "state", "from", "steps", "tokens", "time", "one step, and notes")
    ]
    source = view.recipe.get("model", {}).get("source", "")
    rows = [tag("tr", _stage_name("start", start), tag("td", str(source), colspan=7), class_="done")] if view.recipe else []
    for place, stage in enumerate(view.stages):
        parent = stage.lineage.get("parent") or (view.stages[place - 1].fingerprint if place else start)
        notes = [tag("p", line) for line in (stage.arithmetic, *map(str, stage.lineage.get("notes", []))) if line]
        cells = [
            tag("td", stage.kind),
            tag("td", stage.status),
            tag("td", names.get(parent, parent) or "–"),
            tag("td", f"{stage.num_steps:,}" if stage.num_steps else "–"),
            tag("td", large(stage.num_tokens) if stage.num_tokens else "–"),
            tag("td", duration(stage.seconds) if stage.seconds else "–"),
            tag("td", *notes, class_="notes"),
        ]
        rows.append(tag("tr", _stage_name(stage.name, stage.fingerprint), *cells, class_=stage.status.replace(" ", "-")))
    table = tag("table", tag("thead", tag("tr", *head)), tag("tbody", *rows), class_="plain lineage")
    return tag("div", table, class_="scroll", tabindex="0", role="region", aria_label="lineage")


def _stage_name(name: str, fingerprint: str) -> Html:
    return tag("th", tag("span", name), tag("small", fingerprint), scope="row", class_="rail")
