"""Runs a recipe and kills its own process (SIGKILL) at a chosen moment: `python kill_at.py POINT RECIPE RUN`.

POINT "replace:N" dies just before the Nth atomic rename (states, checkpoints, matrix rows, DONE: all appear by rename);
"log:N" dies just after the Nth line of a log was written, that is inside a stage; "none" counts both and prints the counts.
"""

import os
import signal
import sys
from collections import Counter
from pathlib import Path

from cascade_rl.observe.log import Log
from cascade_rl.pipeline import run_recipe
from cascade_rl.recipe import load_recipe

point, recipe, run = sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3])
wanted, _, number = point.partition(":")
seen: Counter[str] = Counter()


def reach(kind: str) -> None:
    seen[kind] += 1
    if kind == wanted and seen[kind] == int(number):
        os.kill(os.getpid(), signal.SIGKILL)


replace, write = os.replace, Log.write


def counted_replace(source, target):
    reach("replace")
    replace(source, target)


def counted_write(self, record):
    write(self, record)
    reach("log")


os.replace, Log.write = counted_replace, counted_write  # type: ignore[assignment]
run_recipe(load_recipe(recipe), run, say=lambda text: None)
print(f"COUNTS {seen['replace']} {seen['log']}")
