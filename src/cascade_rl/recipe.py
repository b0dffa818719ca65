"""A recipe: TOML to frozen dataclasses, strictly. An unknown key or a wrong type is an error with its path and a way out.

This is the only room that imports pydantic, and only to check the type of single values; what keys exist is read off the
dataclasses themselves.
"""

import dataclasses
import json
import tomllib
import types
import typing
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, dataclass, field
from pathlib import Path
from typing import Any, Literal

from pydantic import TypeAdapter, ValidationError

from cascade_rl.errors import CascadeError, RecipeError, unknown
from cascade_rl.eval.suite import EvalConfig
from cascade_rl.model.render import RenderConfig
from cascade_rl.protocols import Task
from cascade_rl.recipe_checks import check_recipe
from cascade_rl.stages.distill import Distill
from cascade_rl.stages.pairs import Pairs
from cascade_rl.stages.rl import RL
from cascade_rl.stages.select import Select
from cascade_rl.stages.sft import SFT
from cascade_rl.tasks import TASKS, in_words, is_kind, kind_of, load_task_class
from cascade_rl.tasks.judged import Judged

STAGES: dict[str, type] = {"sft": SFT, "rl": RL, "select": Select, "distill": Distill, "pairs": Pairs}


@dataclass(frozen=True)
class ModelConfig:
    """source: "nano" (made from scratch), "smollm2", a folder in Hugging Face layout, or a hub id."""

    source: str
    dtype: Literal["auto", "float32", "bfloat16"] = "auto"


@dataclass(frozen=True)
class Recipe:
    """name: shown in reports. seed: the one seed that everything random derives from. recovery: the distill stage that
    eval.on_regression = "mopd" puts behind every rl stage, with a select stage before it.
    """

    name: str
    model: ModelConfig
    seed: int = 0
    render: RenderConfig = field(default_factory=RenderConfig)
    eval: EvalConfig = field(default_factory=EvalConfig)
    recovery: Distill | None = None
    tasks: Mapping[str, Task] = field(default_factory=dict)
    stages: tuple[Any, ...] = ()

    def __post_init__(self) -> None:
        if not self.name.strip():
            raise ValueError("name must not be empty: it is what reports are headed with, and what tells runs apart")


def load_recipe(path: Path, overrides: Sequence[str] = ()) -> Recipe:
    """Reads and checks a recipe file; `overrides` are "where.key=value" with a TOML value (a bare word is a string)."""
    return parse_recipe(read_recipe(path, overrides))


def read_recipe(path: Path, overrides: Sequence[str] = ()) -> dict[str, Any]:
    """The raw table of a recipe file, with its overrides, as `parse_recipe` takes it."""
    table = read_toml(path, "recipe")
    for override in overrides:
        apply_override(table, override)
    _find_templates(table, path.parent)
    return table


def read_toml(path: Path, what: str) -> dict[str, Any]:
    """The table of a TOML file; `what` it is begins the message of an error."""
    try:
        return tomllib.loads(path.read_text(encoding="utf-8-sig"))
    except FileNotFoundError:
        raise RecipeError(f"{what} {path}: no such file") from None
    except IsADirectoryError:
        raise RecipeError(f"{what} {path}: is a folder; expected a TOML file") from None
    except (ValueError, RecursionError) as error:  # no TOML, no text, a number of thousands of digits, or nested without end
        raise RecipeError(f"{what} {path}: not TOML: {error}") from None


def _find_templates(table: Mapping[str, Any], folder: Path) -> None:
    """Templates are looked for beside the recipe first, then, like all other paths, from the folder one runs from."""
    tasks = table.get("tasks")
    for task in tasks.values() if isinstance(tasks, dict) else ():
        if isinstance(task, dict) and isinstance(name := task.get("template"), str) and (folder / name).is_file():
            task["template"] = str(folder / name)


def parse_recipe(table: Mapping[str, Any]) -> Recipe:
    """A parsed TOML table to a Recipe; every fault is a RecipeError that names the key's path."""
    table = dict(table)
    stage_tables = table.pop("stage", [])
    task_tables = table.pop("tasks", {})
    if not isinstance(stage_tables, list) or not isinstance(task_tables, dict):
        raise RecipeError("recipe: stages are written [[stage]] and tasks [tasks.NAME]")
    known = [f.name for f in dataclasses.fields(Recipe) if f.name not in ("tasks", "stages")]
    for key in table:
        if key not in known:
            raise RecipeError(unknown("recipe: key", key, [*known, "stage", "tasks"]))
    stages = tuple(_stage(t, i) for i, t in enumerate(stage_tables, 1))
    names = [stage.name for stage in stages]
    for name in names:
        if names.count(name) > 1:
            raise RecipeError(f'recipe: two stages are named "{name}"; a stage\'s name is its key, so give each its own')
        if name == "start":
            raise RecipeError('recipe: stage name "start" means the model that the run starts from; choose another')
        if name in known or name == "tasks":
            raise RecipeError(f'recipe: stage name "{name}" is the name of a recipe section; choose another')
        if not name or not all(c.isalnum() or c in "-_" for c in name):
            raise RecipeError(f'recipe: stage name "{name}" must be letters, digits, "-" and "_" (it names a folder)')
    tasks = {name: _task(name, t) for name, t in task_tables.items()}
    recipe = build(Recipe, table, "recipe", tasks=tasks, stages=stages)
    recipe = dataclasses.replace(recipe, stages=_with_recovery(recipe))
    named = [("eval", name) for name in recipe.eval.tasks]
    named += [(f'stage "{stage.name}"', name) for stage in recipe.stages for name in stage.task_names()]
    for where, name in named:
        if name not in tasks:  # a task of the house with its default settings needs no table of its own
            if not is_kind(name):
                raise RecipeError(
                    unknown(
                        f"{where}: task",
                        name,
                        {*tasks, *TASKS},
                        'or make it in a table [tasks.NAME], or write "package.module:name" for one of your own',
                    )
                )
            tasks[name] = _task(name, {"kind": name})
    for task in [task for task in tasks.values() if isinstance(task, Judged) and task.task not in tasks]:
        if "." in task.task:  # of the house, with its default settings
            tasks[task.task] = _task(task.task, {"kind": task.task})
    tasks |= {name: task.link(tasks) for name, task in tasks.items() if isinstance(task, Judged)}
    recipe = dataclasses.replace(recipe, tasks=dict(sorted(tasks.items())))
    check_recipe(recipe)
    return recipe


def _with_recovery(recipe: Recipe) -> tuple[Any, ...]:
    """The stages, each rl stage followed by the two that win back what it cost, where the recipe wants that."""
    if recipe.eval.on_regression != "mopd":
        if recipe.recovery is not None:
            raise RecipeError('recipe: [recovery] is read only with eval.on_regression = "mopd"; set that, or leave it out')
        return recipe.stages
    if recipe.recovery is None:
        raise RecipeError('eval: on_regression = "mopd" needs a table [recovery]: the settings of the distill stage to run then')
    for key in ("name", "start", "branch", "only_if_behind"):
        if getattr(recipe.recovery, key) != getattr(Distill(tasks=recipe.recovery.tasks), key):
            raise RecipeError(f"recovery: {key} is not yours to set: it follows from the stage behind which the recovery stands")
    stages: list[Any] = []
    for stage in recipe.stages:
        stages.append(stage)
        if isinstance(stage, RL) and not stage.branch:
            stages.append(Select(name=f"{stage.name}-select"))
            stages.append(dataclasses.replace(recipe.recovery, name=f"{stage.name}-mopd", only_if_behind=True))
    names = [stage.name for stage in stages]
    if twice := [name for name in names if names.count(name) > 1]:
        raise RecipeError(f'recipe: the stage that wins back would be named "{twice[0]}", which is taken; rename that stage')
    return tuple(stages)


def parse_overrides(name: str, source: str, tasks: Sequence[str], overrides: Sequence[str]) -> Recipe:
    """A recipe without stages, for evaluating a model: everything else comes from overrides."""
    table: dict[str, Any] = {"name": name, "model": {"source": source}, "eval": {"tasks": list(tasks)}}
    for override in overrides:
        apply_override(table, override)
    return parse_recipe(table)


def to_json(value: Any) -> Any:
    """A recipe (or a part) as JSON values, every default spelled out. Tasks and stages say their kind."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = {f.name: to_json(getattr(value, f.name)) for f in dataclasses.fields(value) if f.init and f.repr}
        stage = next((kind for kind, cls in STAGES.items() if cls is type(value)), None)
        kind = stage or (kind_of(value) if isinstance(value, Task) else None)
        return {"kind": kind, **fields} if kind else fields
    if isinstance(value, Mapping):
        return {key: to_json(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [to_json(item) for item in value]
    return value


def _stage(table: Any, number: int) -> Any:
    named = isinstance(table, dict) and isinstance(table.get("name", table.get("kind")), str)
    where = f'stage "{stage_name(table)}"' if named else f"stage number {number}"
    return _by_kind(table, where, lambda kind: STAGES.get(kind) or _refuse(unknown(f"{where}: kind", kind, STAGES)))


def _task(name: str, table: Any) -> Task:
    where = f'task "{name}"'
    if isinstance(table, dict):
        table = {"kind": name, **table}
    try:
        return _by_kind(table, where, lambda kind: _task_class(kind, where), name=name)
    except CascadeError:
        raise
    except Exception as error:  # a task of the user's may do anything when it is made
        raise RecipeError(f"{where}: cannot be made: {in_words(error)}") from error


def _task_class(kind: str, where: str) -> type:
    found = load_task_class(kind, where)
    if not dataclasses.is_dataclass(found):
        raise RecipeError(f"{where}: {kind} is no dataclass; a task is a frozen dataclass whose fields are its settings")
    if missing := [name for name in ("prompts", "grade", "open_tools") if not callable(getattr(found, name, None))]:
        raise RecipeError(f"{where}: {kind} has no {' and no '.join(missing)}; a task needs prompts, grade and open_tools")
    return found


def _by_kind(table: Any, where: str, find: typing.Callable[[str], type], **fixed: Any) -> Any:
    if not isinstance(table, dict):
        raise RecipeError(f"{where}: expected a table, found {table!r}")
    table = dict(table)
    kind = table.pop("kind", None)
    if not isinstance(kind, str):
        raise RecipeError(f'{where}: needs kind = "...", a string')
    return build(find(kind), table, where, **fixed)


def _refuse(message: str) -> typing.NoReturn:
    raise RecipeError(message)


def build(cls: Any, table: Mapping[str, Any], where: str, **fixed: Any) -> Any:
    """An instance of dataclass `cls` from a table: unknown keys refused, missing ones named, values checked by type."""
    if not isinstance(table, Mapping):
        raise RecipeError(f"{where}: expected a table, found {table!r}")
    hints = typing.get_type_hints(cls)
    fields = {f.name: f for f in dataclasses.fields(cls) if f.init and f.repr}  # what is not shown is no setting
    values = {key: value for key, value in fixed.items() if key in fields}
    for key, value in table.items():
        if key not in fields or key in fixed:
            raise RecipeError(unknown(f"{where}: key", key, [name for name in fields if name not in fixed]))
        values[key] = _value(hints[key], value, f"{where}: {key}")
    for name, f in fields.items():
        if name not in values and f.default is MISSING and f.default_factory is MISSING:
            raise RecipeError(f'{where}: needs a value for "{name}" ({_type_name(hints[name])})')
    try:
        return cls(**values)
    except RecipeError:
        raise
    except ValueError as error:
        raise RecipeError(f"{where}: {error}") from None


def _value(hint: Any, value: Any, where: str) -> Any:
    if dataclasses.is_dataclass(hint):
        return build(hint, value, where)
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    if origin is types.UnionType or origin is typing.Union:
        nested = next((arg for arg in args if dataclasses.is_dataclass(arg)), None)
        if nested is not None and value is not None:
            return build(nested, value, where)
    if origin is tuple and args and dataclasses.is_dataclass(args[0]):
        if not isinstance(value, list):
            raise RecipeError(f"{where}: expected a list of tables, found {value!r}")
        return tuple(build(args[0], item, f"{where}[{i}]") for i, item in enumerate(value))
    try:
        # JSON mode: a list is a tuple's only spelling there, everything else stays strict (no "1" for 1, no 1 for true).
        return TypeAdapter(hint).validate_json(json.dumps(value, default=str), strict=True)
    except ValidationError as error:
        first = error.errors()[0]
        place = "".join(f"[{p}]" if isinstance(p, int) else f".{p}" for p in first["loc"])
        raise RecipeError(f"{where}{place}: {value!r} is not {_type_name(hint)} ({first['msg']})") from None


_TYPE_NAMES = {str: "a string", int: "a whole number", float: "a number", bool: "true or false", type(None): "none"}


def _type_name(hint: Any) -> str:
    """A type in the words of a recipe: `int` is "a whole number", `Literal["a", "b"]` is 'one of "a", "b"'."""
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    if origin is Literal:
        return "one of " + ", ".join(json.dumps(arg) for arg in args)
    if origin in (types.UnionType, typing.Union):
        return " or ".join(_type_name(arg) for arg in args)
    if origin is tuple and args[-1] is not ...:
        return f"a list of {len(args)} ({', '.join(_type_name(arg) for arg in args)})"
    if origin in (tuple, list) or (isinstance(origin, type) and issubclass(origin, Sequence)):
        return f"a list, each {_type_name(args[0])}"
    if dataclasses.is_dataclass(hint) or (isinstance(origin, type) and issubclass(origin, Mapping)):
        return "a table"
    return _TYPE_NAMES.get(hint, str(hint))


def stage_name(table: Mapping[str, Any]) -> str:
    """The name of a stage in a raw recipe table: its own, or its kind."""
    return str(table.get("name", table.get("kind")))


def apply_override(table: dict[str, Any], override: str) -> None:
    """Applies "stage.key=value", "eval.key=value", "tasks.NAME.key=value" or "seed=value" to a raw recipe table."""
    path, equals, text = override.partition("=")
    keys = path.strip().split(".")
    if keys[0] == "tasks" and len(keys) > 3:  # a task's name may have dots of its own: tasks.nano.math.num_dev=50
        told = table.get("tasks")
        heads = [i for i in range(2, len(keys)) if isinstance(told, dict) and ".".join(keys[1:i]) in told]
        split = max(heads, default=len(keys) - 1)
        keys = ["tasks", ".".join(keys[1:split]), *keys[split:]]
    if not equals or not all(keys):
        raise RecipeError(f"--set {override}: expected stage.key=value, for example sft.steps=100 or eval.dev=50")
    try:
        value = tomllib.loads(f"value = {text.strip()}")["value"]
    except (ValueError, RecursionError):
        value = text.strip()  # a bare word is meant as a string
    stages = {stage_name(t): t for t in table.get("stage", []) if isinstance(t, dict)}
    sections = [f.name for f in dataclasses.fields(Recipe) if f.name != "stages"]
    first = keys[0]
    if first in stages and len(keys) > 1:
        place: Any = stages[first]
    elif first in sections:
        place = table if len(keys) == 1 else table.setdefault(first, {})
    else:
        raise RecipeError(unknown(f"--set {override}: stage or section", first, [*stages, *sections]))
    for key in keys[1:-1]:
        place = place.setdefault(key, {}) if isinstance(place, dict) else place
    if not isinstance(place, dict):
        raise RecipeError(f"--set {override}: {'.'.join(keys[:-1])} is not a table")
    place[keys[-1]] = value
