"""Runs recipes in processes that are killed (SIGKILL) at chosen moments: `run_until("POINT,POINT...", RECIPE, RUN)`. Each point has a
process of its own, which begins the run or goes on with it and dies there; a point that is not reached is an error.

POINT "replace:N" dies just before the Nth atomic rename (states, checkpoints, matrix rows, DONE: all appear by rename), "DONE:N" or
"matrix.json:N" before the Nth to that name;
"log:N" dies just after the Nth line of a log was written, that is inside a stage; "grade:N" before the Nth round of verdicts, that
is between sampling and training; "sync:N" before the sampler's Nth load, that is with the optimizer moved and nothing logged;
"none" runs to the end, counts them all and prints the counts as JSON.

POINT "random:SEED:NUM" runs the recipe whole in RUN/whole, then kills a run of it NUM times and goes on with it each time, in RUN/0; a run
that comes to its end before has its place taken by RUN/1, and so on. Every other kill comes after a random delay, whatever the run is
doing; the others after a random number of lines of a log, which is inside a stage.
"""

import functools
import importlib
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
TIMEOUT_S = 240


@functools.cache
def server() -> subprocess.Popen[str]:
    """A process that has imported what runs import, and makes a copy of itself for each: imports take longer than these runs."""
    path = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    return subprocess.Popen(
        [sys.executable, str(Path(__file__))],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env={**os.environ, "PYTHONPATH": path},
    )  # fmt: skip


def run_until(points: str, recipe: Path, run: Path) -> str:
    """The run up to each point in turn, each in a process of its own; what they print."""
    asked = server()
    assert asked.stdin is not None
    assert asked.stdout is not None
    asked.stdin.write(json.dumps([points, str(recipe), str(run)]) + "\n")
    asked.stdin.flush()
    answer = json.loads(asked.stdout.readline())
    assert not answer["wrong"], answer
    return answer["output"]


def run_whole(recipe: Path, run: Path) -> Path:
    """A run that is left alone, with the counts of its kill points in RUN/counts."""
    (run / "counts").write_text(run_until("none", recipe, run).split("COUNTS ")[1])
    return run


def kill_and_resume(points: list[str], recipe: Path, run: Path) -> None:
    """Killed at each point in turn, going on every time, and in the end to the end."""
    run_until(",".join([*points, "none"]), recipe, run)


def results(run: Path) -> dict[str, bytes]:
    """Everything that must not depend on interruptions; stages that were set aside apart."""
    kept = ("*.safetensors", "metrics.jsonl", "rollouts.jsonl", "lineage.json", "matrix.json", "teachers.json")
    files = {file for pattern in (*kept, "eval/**/*.json", "eval/**/*.jsonl") for file in run.rglob(pattern) if file.is_file()}
    return {str(file.relative_to(run)): file.read_bytes() for file in sorted(files) if "/old" not in str(file.relative_to(run))}


def check_same(whole: Path, run: Path) -> None:
    expected, found = results(whole), results(run)
    assert expected.keys() == found.keys()
    assert [name for name in expected if expected[name] != found[name]] == []
    assert not list(run.rglob(".*.tmp"))


# --- the other process --------------------------------------------------------------------------------------------------------------


def import_all() -> None:
    """What a run imports, once for all its copies. None of it may start a thread: only the thread that forks lives on in a copy."""
    for name in (
        "cascade_rl.pipeline", "cascade_rl.model.policy", "cascade_rl.sample.local", "cascade_rl.eval.suite",
        "cascade_rl.stages.collect", "cascade_rl.stages.context", "cascade_rl.stages.step",
        "transformers.models.qwen3.modeling_qwen3",
    ):  # fmt: skip
        importlib.import_module(name)


def copied(act: Callable[..., None], *args: Any) -> int:
    """Runs `act` in a copy of this process; gives the copy's id."""
    sys.stdout.flush()
    if pid := os.fork():
        return pid
    signal.alarm(TIMEOUT_S)
    try:
        act(*args)
    except BaseException as error:
        print(f"{type(error).__name__}: {error}", flush=True)
        os._exit(1)
    sys.stdout.flush()
    os._exit(0)


def code_of(pid: int) -> int:
    """Waits for a copy; its exit code, negative for a signal."""
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def run_to(point: str, recipe: Path, run: Path) -> None:
    """The run in this process, which dies at the point."""
    from cascade_rl.observe.log import Log
    from cascade_rl.pipeline import run_recipe
    from cascade_rl.recipe import load_recipe
    from cascade_rl.sample.local import LocalSampler
    from cascade_rl.stages import collect

    wanted, _, number = point.partition(":")
    seen: Counter[str] = Counter()

    def reach(kind: str) -> None:
        seen[kind] += 1
        if kind == wanted and seen[kind] == int(number):
            os.kill(os.getpid(), signal.SIGKILL)

    replace, write, load = os.replace, Log.write, LocalSampler.load

    def counted_replace(source, target):
        reach("replace")
        reach(Path(target).name)
        replace(source, target)

    def counted_write(self, record):
        write(self, record)
        reach("log")

    def counted_load(self, weights, version):
        reach("sync")
        load(self, weights, version)

    class CountedVerdicts(collect.Verdicts):
        def finish(self, groups):
            reach("grade")
            return super().finish(groups)

    os.replace, Log.write = counted_replace, counted_write  # type: ignore[assignment]
    LocalSampler.load, collect.Verdicts = counted_load, CountedVerdicts
    run_recipe(load_recipe(recipe), run, say=lambda text: None)
    print("COUNTS", json.dumps(seen))


def kill_at_random(seed: int, num: int, recipe: Path, run: Path) -> None:
    def ended(pid: int) -> bool:
        code = code_of(pid)
        assert code in (0, -signal.SIGKILL), code
        return code == 0

    begin = time.monotonic()
    assert ended(copied(run_to, "none", recipe, run / "whole"))
    seconds = time.monotonic() - begin
    rng, killed, finished = random.Random(seed), 0, 0
    while killed < num:
        point = f"log:{rng.randint(1, 12)}" if killed % 2 else "none"
        pid = copied(run_to, point, recipe, run / str(finished))
        if point == "none":
            time.sleep(rng.uniform(0, seconds / 3))
            os.kill(pid, signal.SIGKILL)  # harmless where it has ended: it is not yet waited for
        over = ended(pid)
        killed, finished = killed + (not over), finished + over
    print("KILLED", killed, "RUNS", finished + 1)
    assert ended(copied(run_to, "none", recipe, run / str(finished)))


def dies(points: str, recipe: Path, run: Path) -> str:
    """The run up to each point in turn; what went otherwise than told, "" if nothing did."""
    for point in [points] if points.startswith("random:") else points.split(","):
        kind, _, told = point.partition(":")
        if kind == "random":
            seed, num = map(int, told.split(":"))
            code = code_of(copied(kill_at_random, seed, num, recipe, run))
        else:
            code = code_of(copied(run_to, point, recipe, run))
        if code != (0 if kind in ("none", "random") else -signal.SIGKILL):
            return f"{point} ended with {code}"
    return ""


def serve() -> None:
    """Answers the lines of `run_until`; what copies print goes with the answer."""
    import_all()
    for line in sys.stdin:
        points, recipe, run = json.loads(line)
        with tempfile.TemporaryFile("w+") as printed:
            ours = os.dup(1), os.dup(2)
            for stream in (1, 2):
                os.dup2(printed.fileno(), stream)
            wrong = dies(points, Path(recipe), Path(run))
            for stream, kept in enumerate(ours, 1):
                os.dup2(kept, stream)
                os.close(kept)
            printed.seek(0)
            print(json.dumps({"wrong": wrong, "output": printed.read()}), flush=True)


if __name__ == "__main__":
    serve()
