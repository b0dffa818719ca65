"""What a recipe asks for that this version cannot do, or not here: in words, before anything is started.

Nothing is fetched: what is known of a model on the hub is its name.
"""

import importlib.util
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cascade_rl.errors import CascadeError, RecipeError
from cascade_rl.eval.keep import how_to_make
from cascade_rl.protocols import Task
from cascade_rl.recipe import Recipe
from cascade_rl.stages.on_policy import OnPolicy
from cascade_rl.stages.pairs import Pairs
from cascade_rl.tasks.judged import Judged
from cascade_rl.tasks.preference import Preference, waits
from cascade_rl.tasks.rows import is_hub_id

TRIED_TOKENS = 4_096  # the longest sequences that training has been measured with (benchmarks/long_context.py)
BYTES_PER_PARAMETER = 16  # training in float32: the weight, its gradient, and AdamW's two moments
_SIZE = re.compile(r"(?<![\w.])(\d+(?:\.\d+)?)[bB](?![\w.])")  # "30B" in a name; the active part "A3B" is not what memory holds
_MADE_HERE = ("nano", "smollm2")
# Rows that are published and belong to no task, by the name of their file; a task says itself where its own are.
_PUBLISHED = {"seed_tasks.jsonl": "yizhongw/self-instruct on GitHub, data/seed_tasks.jsonl"}


def shortfalls(recipe: Recipe) -> list[str]:
    """One sentence for each; empty when the recipe can be run as it stands, as far as can be told without starting it."""
    parts = (_model, _data, _pairs, _prompts, _tasks, _judges, _lengths)
    return list(dict.fromkeys(lack for part in parts for lack in part(recipe)))


def _model(recipe: Recipe) -> Iterator[str]:
    source = recipe.model.source
    if Path(source).expanduser().is_dir() or source in _MADE_HERE:
        return
    from cascade_rl.model.sources import is_hub_id

    if not is_hub_id(source):
        yield f"model {source}: no such folder, no model that is made here ({', '.join(_MADE_HERE)}), and no hub id"
        return
    yield f"model {source} is fetched from the hub when the run starts"
    if size := _SIZE.search(source.replace("-", " ").replace("_", " ")):
        billions = float(size[1])
        need, have = billions * BYTES_PER_PARAMETER, os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / 1e9
        if need > have:
            yield (
                f"model {source}: {billions:g}B parameters by its name; training takes some {need:,.0f} GB and this machine has"
                f" {have:,.0f} GB. This version trains in one process on a CPU: no sharding, no GPU, no cluster"
            )


def check_files(recipe: Recipe) -> None:
    """Raises RecipeError that names every file and folder that the recipe reads and that is not there, and where to get each."""
    if missing := [read for read in _reads(recipe) if read.is_missing]:
        listed = "".join(f"\n  {read.path}: {read.what}" for read in {read.path: read for read in missing}.values())
        others = "" if all(read.is_kept for read in missing) else ", and --set tasks.NAME.path=... gives another"
        raise RecipeError(
            f"recipe: {listed.count(chr(10))} of the files and folders that it reads do not exist; a relative path starts at the folder"
            f" you run from{others}{listed}"
        )


def _data(recipe: Recipe) -> Iterator[str]:
    reads = list(_reads(recipe))
    hub = {read.path for read in reads if read.is_hub}
    missing = {read.path for read in reads if read.is_missing and not read.is_kept}  # a file of kept prompts: see _prompts
    if hub and importlib.util.find_spec("datasets") is None:
        yield f"{len(hub)} data sets are on the hub ({min(hub)}, ...): reading them needs pip install 'cascade-rl[hub]' and a network"
    if missing:
        yield f"data that is not there yet: {', '.join(sorted(missing))}"
    if large := hub & {path for stage in recipe.stages for path in stage.files()}:
        yield f"SFT reads its rows into memory whole: {len(large)} sets of the hub, whatever their size"


@dataclass(frozen=True)
class _Read:
    """A place that data is read from, whether it may be a hub id, and what it is in words. is_kept: a file of `cascade filter`."""

    path: str
    reads_hub: bool
    what: str
    is_kept: bool = False

    @property
    def is_hub(self) -> bool:
        return self.reads_hub and is_hub_id(self.path) and not self._exists

    @property
    def is_missing(self) -> bool:
        return not self._exists and not self.is_hub

    @property
    def _exists(self) -> bool:
        place = Path(self.path).expanduser()
        return place.is_file() if self.is_kept else place.exists()


def _reads(recipe: Recipe) -> Iterator[_Read]:
    """Every place that the tasks in use and the stages read data from."""
    used = dict.fromkeys([*recipe.eval.tasks, *(name for stage in recipe.stages for name in stage.task_names())])
    used |= dict.fromkeys(task.task for name in list(used) if isinstance(task := recipe.tasks[name], Judged))
    for name in used:
        yield from _reads_of(recipe.tasks[name])
    for stage in recipe.stages:
        for path in stage.files():
            published = _PUBLISHED.get(Path(path).name, "")
            yield _Read(path, True, f'rows of stage "{stage.name}"' + (f", from {published}" if published else ""))
        for share in stage.tasks if isinstance(stage, OnPolicy) else ():
            if share.keep:
                what = f'prompts that stage "{stage.name}" keeps; {how_to_make(share.keep, share.task)}'
                yield _Read(share.keep, False, what, is_kept=True)


def _reads_of(task: Task) -> Iterator[_Read]:
    published = getattr(task, "published", "")
    for key in ("path", "archives"):
        if path := getattr(task, key, ""):
            told = f'task "{task.name}"' + (f", from {published}" if published and key == "path" else f", {key}")
            yield _Read(str(path), key == "path" and getattr(task, "reads_hub", False), told)


def _pairs(recipe: Recipe) -> Iterator[str]:
    """Pairs that a finished stage made, and that were damaged since."""
    for task in recipe.tasks.values():
        if isinstance(task, Preference) and task.file is not None:
            try:
                task.pairs()
            except CascadeError as error:
                yield str(error)


def _prompts(recipe: Recipe) -> Iterator[str]:
    """Files of kept prompts that do not fit, and pairs of tasks with tools: as far as the prompts are here."""
    here = {name: task for name, task in recipe.tasks.items() if _is_here(task)}
    for stage in recipe.stages:
        if isinstance(stage, OnPolicy | Pairs):
            try:
                stage.check_prompts(here)
            except CascadeError as error:
                yield str(error)


def _is_here(task: Task) -> bool:
    """Whether a task's prompts can be had now: nothing is missing, to be fetched, or yet to be made by a stage."""
    if isinstance(task, Judged):
        return _is_here(task.source)
    to_fetch = getattr(task, "tokenizer", "") or any(read.is_missing or read.is_hub for read in _reads_of(task))
    return not to_fetch and not waits(task)


def _tasks(recipe: Recipe) -> Iterator[str]:
    used: dict[str, list[str]] = {}
    for stage in recipe.stages:
        for name in stage.rewarded_tasks():
            used.setdefault(name, []).append(stage.name)
    for name, stages in used.items():
        if differs := getattr(recipe.tasks[name], "differs", ""):
            yield f'task "{name}" (in {", ".join(stages)}): {differs}'


def _judges(recipe: Recipe) -> Iterator[str]:
    used = {name for stage in recipe.stages for name in stage.rewarded_tasks()}
    for name, task in recipe.tasks.items():
        if isinstance(task, Judged) and name in used:
            for who, config in task.judges().items():
                if config.url:
                    yield f'task "{name}": its {who}, {config.model}, must be answering at {config.url}'


def _lengths(recipe: Recipe) -> Iterator[str]:
    long = [(stage.name, most) for stage in recipe.stages if (most := longest(stage)) > TRIED_TOKENS]
    if long:
        told = ", ".join(f"{name} {most:,}" for name, most in long)
        yield f"training on sequences longer than {TRIED_TOKENS:,} tokens was never measured: {told}"


def longest(stage: Any) -> int:
    """Tokens of the longest sequence, or answer, that a stage's settings allow; 0 for a stage that samples and trains nothing."""
    return max(getattr(stage, "pack_tokens", 0), getattr(stage, "max_new_tokens", 0))
