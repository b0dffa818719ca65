"""Runs a recipe and kills its own process (SIGKILL) at a chosen moment: `python kill_at.py POINT RECIPE RUN`.

POINT "replace:N" dies just before the Nth atomic rename (states, checkpoints, matrix rows, DONE: all appear by rename);
"log:N" dies just after the Nth line of a log was written, that is inside a stage; "grade:N" before the Nth round of verdicts, that
is between sampling and training; "sync:N" before the sampler's Nth load, that is with the optimizer moved and nothing logged;
"none" counts them all and prints the counts as JSON.
"""

import json
import os
import signal
import sys
from collections import Counter
from pathlib import Path

from cascade_rl.observe.log import Log
from cascade_rl.pipeline import run_recipe
from cascade_rl.recipe import load_recipe
from cascade_rl.sample.local import LocalSampler
from cascade_rl.stages import collect

point, recipe, run = sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3])
wanted, _, number = point.partition(":")
seen: Counter[str] = Counter()


def reach(kind: str) -> None:
    seen[kind] += 1
    if kind == wanted and seen[kind] == int(number):
        os.kill(os.getpid(), signal.SIGKILL)


replace, write, load, grade_all = os.replace, Log.write, LocalSampler.load, collect.grade_all


def counted_replace(source, target):
    reach("replace")
    replace(source, target)


def counted_write(self, record):
    write(self, record)
    reach("log")


def counted_load(self, weights, version):
    reach("sync")
    load(self, weights, version)


def counted_grade_all(groups, tasks):
    reach("grade")
    return grade_all(groups, tasks)


os.replace, Log.write = counted_replace, counted_write  # type: ignore[assignment]
LocalSampler.load, collect.grade_all = counted_load, counted_grade_all
run_recipe(load_recipe(recipe), run, say=lambda text: None)
print("COUNTS", json.dumps(seen))
