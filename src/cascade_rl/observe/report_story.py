"""The report's opening: where the run stands, what rose and fell since SFT, and who taught what."""

import math
from collections.abc import Iterable

from cascade_rl.eval.matrix import Change, significant_changes
from cascade_rl.observe.report_distill import named_teachers, recoveries
from cascade_rl.observe.report_html import Html, duration, join, large, tag
from cascade_rl.observe.report_matrix import Changes, counted, of_student, splits_of, won_back
from cascade_rl.observe.report_run import RunView
from cascade_rl.records import Split


def headline(view: RunView, changes: dict[Split, Changes]) -> Html:
    """A few sentences on what became of the tasks, and a row of figures."""
    done = sum(stage.status == "done" for stage in view.stages)
    tokens = sum(stage.num_tokens or 0 for stage in view.stages)
    seconds = sum(stage.seconds or 0 for stage in view.stages)
    figures = [(f"{done} of {len(view.stages)}", "stages done")] if view.stages else []
    if tokens:
        figures.append((large(tokens), "tokens trained on"))
    if seconds:
        figures.append((duration(seconds), "of training"))
    split: Split | None = next((split for split in splits_of(view.matrix) if len(of_student(view.matrix, split)) > 1), None)
    sentence = ""
    if split:
        names = of_student(view.matrix, split)
        first, last = _first(view, split), list(names)[-1]
        verdicts = [change.verdict for change in significant_changes(view.matrix, last, against=first, split=split)]
        drops = [change for change in changes[split].values() if change.verdict == "drop"]
        rose, fell, same = (verdicts.count(word) for word in ("rise", "drop", "same"))
        figures += [(f"▲ {rose}", "tasks risen"), (f"▼ {fell}", "tasks fallen"), (f"{same}", "within noise")]
        counts = [f"{counted(rose)} rose", f"{fell or 'none'} fell", f"{same} cannot be told apart from noise" if same else ""]
        sentence = f"From {names[first]} to {names[last]}, on {split}: {', '.join(filter(None, counts))}. "
        back = won_back(view.matrix, split, changes[split]).values()
        sentence += " ".join(filter(None, (_lost(drops, names), _back(back, names), _still_below(drops, last))))
    tiles = [tag("div", tag("dd", figure), tag("dt", label)) for figure, label in figures]
    return join(tag("p", sentence, class_="story") if sentence else None, tag("dl", *tiles, class_="tiles") if tiles else None)


def _first(view: RunView, split: Split) -> str:
    """What the last checkpoint is compared with: the last SFT stage that others follow, else the first checkpoint."""
    order = list(of_student(view.matrix, split))
    taught = {stage.dir.root.name for stage in view.stages if stage.kind == "sft"}
    return next((checkpoint for checkpoint in reversed(order[:-1]) if checkpoint in taught), order[0])


def _lost(drops: list[Change], stages: dict[str, str]) -> str:
    """Each task once, with the stage that cost it most."""
    if not drops:
        return "No stage lost what an earlier one had won."
    worst: dict[str, Change] = {}
    for change in sorted(drops, key=lambda change: change.paired.difference):
        worst.setdefault(change.task, change)
    told = [f"{task} at {stages[each.checkpoint]} (−{-100 * each.paired.difference:.1f})" for task, each in worst.items()]
    return f"Below a task's best earlier checkpoint: {_some(told)}."


def _back(back: Iterable[Change], stages: dict[str, str]) -> str:
    told = [f"{each.task} at {stages[each.checkpoint]} (+{100 * each.paired.difference:.1f})" for each in back]
    return f"Won back: {_some(told)}." if told else ""


def _still_below(drops: list[Change], last: str) -> str:
    """What the last checkpoint has not won back; "" where it alone lost anything, which is told already."""
    left = [f"{each.task} (−{-100 * each.paired.difference:.1f})" for each in drops if each.checkpoint == last]
    return f"Still below at the end: {_some(left)}." if left and len(left) < len(drops) else ""


def _some(told: list[str], most: int = 3) -> str:
    return ", ".join(told[:most]) + (f", and {len(told) - most} more" if len(told) > most else "")


def teachers_strip(view: RunView) -> Html | None:
    """One line for each distill stage: domain and teacher, and what was won back of its lead. None where nothing was distilled."""
    lines = []
    for stage in view.stages:
        taught = stage.lineage.get("teachers") if stage.kind == "distill" else None
        if not isinstance(taught, dict) or not taught:
            continue
        names = view.matrix.checkpoints()
        student = stage.lineage.get("student", "")
        won = {told.domain: told for told in recoveries(view, stage)[1]}
        named = named_teachers(view).get(stage.name, {})
        chips, own = [], []
        for domain, teacher in taught.items():
            if teacher == student:
                own.append(domain)
                continue
            who = names.get(teacher, str(teacher).rstrip("/").rpartition("/")[2])
            told = won.get(domain)
            share = f" {_percent(told.recovered, told.stderr)} won back" if told and math.isfinite(told.recovered) else ""
            why = "named in the recipe" if domain in named else "chosen on dev"
            chips.append(tag("li", tag("b", domain), f" ← {who}", tag("small", share), title=f"{teacher}, {why}"))
        if own:
            chips.append(tag("li", ", ".join(own), " ← itself", class_="own", title="the student was as good as any"))
        lines.append(tag("div", tag("span", f"taught {stage.name}:"), tag("ul", *chips), class_="teachers"))
    return join(*lines) if lines else None


def _percent(share: float, stderr: float) -> str:
    return f"{100 * share:.0f}" + (f" ± {100 * stderr:.0f}%" if math.isfinite(stderr) else "%")
