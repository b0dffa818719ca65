"""report.html: a run told in one file, which needs no network and reads nothing but the run folder.

Everything that a model or a data set wrote is text in it, never markup: `report_html.tag` escapes, the rollouts travel as JSON
that holds no `<`, the script puts them in as text, and a content security policy lets no other script run and nothing be loaded.
"""

import base64
import hashlib
import json
from collections.abc import Callable
from importlib.resources import files
from pathlib import Path
from typing import Any

from cascade_rl.errors import CascadeError, RunError
from cascade_rl.observe.report_curves import curves_section, lineage_section
from cascade_rl.observe.report_distill import distill_section
from cascade_rl.observe.report_follow import follow_section, followed
from cascade_rl.observe.report_grid import grid_section
from cascade_rl.observe.report_html import Html, embedded_json, join, tag
from cascade_rl.observe.report_judge import judge_section
from cascade_rl.observe.report_matrix import all_changes, matrix_section
from cascade_rl.observe.report_rollouts import Chosen, choose_rollouts
from cascade_rl.observe.report_run import RunView, read_run
from cascade_rl.observe.report_story import headline, teachers_strip
from cascade_rl.run import RunDir, write_atomic


def build(run_folder: Path) -> Path:
    """Writes RUN/report.html and gives its path. The run may still be going on: what is missing is said, not an error.

    Raises RunError when `run_folder` is not a folder.
    """
    if not run_folder.is_dir():
        raise RunError(f"report: {run_folder} is not a folder; give the folder of a run")
    path = RunDir(run_folder).report
    write_atomic(path, page(read_run(run_folder)))
    return path


def page(view: RunView) -> str:
    """The whole document."""
    chosen = choose_rollouts(view)

    def first_screen() -> Html:
        changes = all_changes(view.matrix)
        title = tag("h2", "Regression matrix", id="matrix")
        return join(headline(view, changes), teachers_strip(view), title, matrix_section(view, changes))

    def follow() -> Html:
        thread.update(followed(view, chosen.rows))
        return follow_section(thread)

    thread: dict[str, Any] = {"stages": {}, "prompts": []}
    documents = _guarded(view, "grid", lambda: _titled("Long documents", "documents", grid_section(view)))
    parts = [
        _guarded(view, "matrix", first_screen),
        tag("h2", "Follow a prompt", id="prompts"),
        _guarded(view, "prompts", follow),
        _guarded(view, "distillation", lambda: _titled("Distillation", "distillation", distill_section(view))),
        _guarded(view, "judges", lambda: _titled("Judges", "judges", judge_section(view))),
        documents,
        tag("h2", "Curves", id="curves"),
        _guarded(view, "curves", lambda: curves_section(view)),
        tag("h2", "Lineage", id="lineage"),
        _guarded(view, "lineage", lambda: lineage_section(view)),
        tag("h2", "Rollouts", id="rollouts"),
        _rollouts_section(chosen),
        _recipe_section(view),
    ]
    problems = [tag("p", "Could not be read: ", problem, class_="problem") for problem in view.problems]
    script, style = _resource("report.js"), _resource("report.css")
    policy = (
        "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'; "
        f"script-src 'sha256-{_sha256(script)}'"
    )
    head = join(
        Html('<meta charset="utf-8">'),
        Html(f'<meta http-equiv="Content-Security-Policy" content="{policy}">'),
        Html('<meta name="viewport" content="width=device-width, initial-scale=1">'),
        tag("title", f"{view.name}: cascade report"),
        tag("style", Html(style)),
    )
    learns = view.teachers or any(stage.kind == "distill" for stage in view.stages)
    some = [name for name, there in (("distillation", learns), ("documents", documents is not None)) if there]
    names = ("matrix", "prompts", *some, "curves", "lineage", "rollouts")
    body = join(
        tag("header", tag("h1", view.name), _subtitle(view), tag("nav", *(tag("a", name, href=f"#{name}") for name in names))),
        tag("main", *problems, *parts),
        tag(
            "script",
            embedded_json({"rows": chosen.rows, "left_out": chosen.left_out, "follow": thread}),
            type="application/json",
            id="rollout-data",
        ),
        tag("script", Html(script)),
    )
    return f'<!doctype html>\n<html lang="en"><head>{head}</head>\n<body>{body}</body></html>\n'


def _titled(title: str, name: str, section: Html | None) -> Html | None:
    """A section that not every run has."""
    return None if section is None else join(tag("h2", title, id=name), section)


def _guarded(view: RunView, name: str, draw: Callable[[], Html | None]) -> Html | None:
    """A section, or a line that says why it cannot be drawn: files of another version must not cost the other sections."""
    try:
        return draw()
    except (CascadeError, OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        return tag("p", f"The {name} cannot be drawn: {type(error).__name__}: {error}", class_="problem")


def _subtitle(view: RunView) -> Html | None:
    model = view.recipe.get("model")
    if not isinstance(model, dict):
        return None
    facts = [str(model.get("source", "")), str(model.get("dtype", "")), f"seed {view.recipe.get('seed', '?')}"]
    return tag("p", "post-training cascade on ", " · ".join(fact for fact in facts if fact))


def _rollouts_section(chosen: Chosen) -> Html:
    if not chosen.rows:
        return tag("p", "No rollouts yet: neither an evaluation nor a stage has written any.", class_="absent")
    filters = [tag("label", f"{name} ", tag("select", data_filter=name)) for name in ("stage", "task", "split", "verdict")]
    return join(
        tag("div", *filters, tag("small", id="count", role="status"), class_="controls"),
        tag(
            "div",
            tag("ul", id="list", class_="list", aria_label="rollouts"),
            tag("div", id="detail", class_="detail"),
            class_="rollouts",
        ),
        tag(
            "noscript", tag("p", "Reading rollouts needs JavaScript; they are in the run folder as JSON lines.", class_="absent")
        ),
    )


def _recipe_section(view: RunView) -> Html | None:
    if not view.recipe:
        return tag("p", "No recipe: recipe.resolved.json is missing.", class_="absent")
    text = json.dumps(view.recipe, indent=2, ensure_ascii=False)
    return join(tag("h2", "Recipe"), tag("details", tag("summary", "every effective value"), tag("pre", text, tabindex="0")))


def _resource(name: str) -> str:
    return files("cascade_rl.observe").joinpath(name).read_text(encoding="utf-8")


def _sha256(text: str) -> str:
    return base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
