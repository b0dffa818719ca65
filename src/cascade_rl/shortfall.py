"""What a recipe asks for that this version cannot do, or not here: in words, before anything is started.

Nothing is fetched: what is known of a model on the hub is its name.
"""

import importlib.util
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from cascade_rl.recipe import Recipe
from cascade_rl.tasks.judged import Judged
from cascade_rl.tasks.rows import is_hub_id

TRIED_TOKENS = 4_096  # the longest sequences that training has been measured with (benchmarks/long_context.py)
BYTES_PER_PARAMETER = 16  # training in float32: the weight, its gradient, and AdamW's two moments
_SIZE = re.compile(r"(?<![\w.])(\d+(?:\.\d+)?)[bB](?![\w.])")  # "30B" in a name; the active part "A3B" is not what memory holds
_MADE_HERE = ("nano", "smollm2")


def shortfalls(recipe: Recipe) -> list[str]:
    """One sentence for each; empty when the recipe can be run as it stands, as far as can be told without starting it."""
    return [*_model(recipe), *_data(recipe), *_tasks(recipe), *_judges(recipe), *_lengths(recipe)]


def _model(recipe: Recipe) -> Iterator[str]:
    source = recipe.model.source
    if Path(source).expanduser().is_dir() or source in _MADE_HERE:
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


def _data(recipe: Recipe) -> Iterator[str]:
    hub, missing = set(), set()
    for path, reads_hub in _paths(recipe):
        if not Path(path).expanduser().exists():
            (hub if reads_hub and is_hub_id(path) else missing).add(path)
    if hub and importlib.util.find_spec("datasets") is None:
        yield f"{len(hub)} data sets are on the hub ({min(hub)}, ...): reading them needs pip install 'cascade-rl[hub]' and a network"
    if missing:
        yield f"data that is not there yet: {', '.join(sorted(missing))}"
    if large := hub & {path for stage in recipe.stages for path in stage.files()}:
        yield f"SFT reads its rows into memory whole: {len(large)} sets of the hub, whatever their size"


def _paths(recipe: Recipe) -> Iterator[tuple[str, bool]]:
    """Every place that data is read from, and whether it may be a hub id."""
    for task in recipe.tasks.values():
        for key in ("path", "archives"):
            if path := getattr(task, key, ""):
                yield str(path), key == "path" and getattr(task, "reads_hub", False)
    for stage in recipe.stages:
        for path in stage.files():
            yield path, True


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
