"""One prompt through all stages: the score and the answer of each checkpoint, side by side."""

import itertools
from typing import Any

from cascade_rl.observe.report_html import Html, join, tag
from cascade_rl.observe.report_matrix import splits_of
from cascade_rl.observe.report_run import RunView
from cascade_rl.records import Split

Record = dict[str, Any]


def followed(view: RunView, rows: list[Record]) -> Record:
    """{"stages": [...], "prompts": [{"split", "task", "prompt", "scores": [[...] or null a stage]}]}, of the prompts whose answers the
    report shows for more than one checkpoint. Prompts on which the checkpoints differ most come first."""
    shown: dict[tuple[Split, str, str], set[str]] = {}
    for row in rows:
        if row.get("step") is None:
            shown.setdefault((row["split"], row["task"], row["prompt"]), set()).add(row["stage"])
    order: dict[Split, list[tuple[str, str]]] = {
        split: list(view.matrix.checkpoints(split).items()) for split in splits_of(view.matrix)
    }
    scores: dict[Split, Any] = {
        split: {name: view.matrix.scores(name, split) for name, _ in told} for split, told in order.items()
    }
    prompts: list[dict[str, Any]] = []
    for (split, task, prompt), stages in shown.items():
        if len(stages) > 1 and split in order:
            told = [scores[split][name].get(task, {}).get(prompt) for name, _ in order[split]]
            prompts.append({"split": split, "task": task, "prompt": prompt, "scores": told})
    prompts.sort(key=lambda each: (list(order).index(each["split"]), -_changes(each["scores"])))
    return {"stages": {split: [stage for _, stage in told] for split, told in order.items()}, "prompts": prompts}


def _changes(scores: list[Any]) -> float:
    """How far the means of neighbouring checkpoints are apart, in all."""
    known = [[value for value in told or [] if value is not None] for told in scores]
    means = [sum(values) / len(values) for values in known if values]
    return sum(abs(b - a) for a, b in itertools.pairwise(means))


def follow_section(told: Record) -> Html:
    if not told["prompts"]:
        return tag("p", "No prompt has answers of two checkpoints yet.", class_="absent")
    words = "The same question, as each checkpoint answered it; those on which they differ most come first."
    labels = [tag("label", f"{name} ", tag("select", id=f"follow-{name}")) for name in ("split", "task", "prompt")]
    cards = tag("div", id="follow-stages", class_="stages")
    return join(
        tag("p", words, class_="legend"),
        tag("div", *labels, class_="controls"),
        tag("div", id="follow-asked"),
        tag("div", cards, class_="scroll", tabindex="0", role="region", aria_label="stages"),
        tag("noscript", tag("p", "Following a prompt needs JavaScript.", class_="absent")),
    )
