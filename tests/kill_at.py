"""Runs a recipe and kills its own process (SIGKILL) at a chosen moment: `python kill_at.py POINT RECIPE RUN`.

POINT "replace:N" dies just before the Nth atomic rename (states, checkpoints, matrix rows, DONE: all appear by rename), "DONE:N" or
"matrix.json:N" before the Nth to that name;
"log:N" dies just after the Nth line of a log was written, that is inside a stage; "grade:N" before the Nth round of verdicts, that
is between sampling and training; "sync:N" before the sampler's Nth load, that is with the optimizer moved and nothing logged;
"none" counts them all and prints the counts as JSON. `run_until` does it in a process of its own.

POINT "random:SEED:NUM" runs the recipe whole in RUN/whole, then kills a run of it NUM times and goes on with it each time, in RUN/0; a run
that comes to its end before has its place taken by RUN/1, and so on. Every other kill comes after a random delay, whatever the run is
doing; the others after a random number of lines of a log, which is inside a stage.
"""

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def run_until(point: str, recipe: Path, run: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(Path(__file__)), point, str(recipe), str(run)]
    path = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    return subprocess.run(
        command, capture_output=True, text=True, timeout=240, check=False, env={**os.environ, "PYTHONPATH": path}
    )


def run_whole(recipe: Path, run: Path) -> Path:
    """A run that is left alone, with the counts of its kill points in RUN/counts."""
    done = run_until("none", recipe, run)
    assert done.returncode == 0, done.stderr
    (run / "counts").write_text(done.stdout.split("COUNTS ")[1])
    return run


def kill_and_resume(points: list[str], recipe: Path, run: Path) -> None:
    """Killed at each point in turn, going on every time, and in the end to the end."""
    for point in points:
        killed = run_until(point, recipe, run)
        assert killed.returncode == -signal.SIGKILL, killed.stderr
    resumed = run_until("none", recipe, run)
    assert resumed.returncode == 0, resumed.stderr


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


def child(recipe: Path, run: Path, most_lines: int = 0) -> int:
    """The recipe in a copy of this process, which has imported everything; gives the copy's id.

    most_lines: the copy kills itself after so many lines of its logs (0: never).
    """
    from cascade_rl.observe.log import Log
    from cascade_rl.pipeline import run_recipe
    from cascade_rl.recipe import load_recipe

    pid = os.fork()
    if pid:
        return pid
    write, left = Log.write, [most_lines]

    def counted_write(self, record):
        write(self, record)
        left[0] -= 1
        if not left[0]:
            os.kill(os.getpid(), signal.SIGKILL)

    Log.write = counted_write  # type: ignore[assignment]
    try:
        run_recipe(load_recipe(recipe), run, say=lambda text: None)
    except BaseException as error:
        print(f"{type(error).__name__}: {error}", file=sys.stderr, flush=True)
        os._exit(1)
    os._exit(0)


def ended(pid: int) -> bool:
    """Waits for a copy; whether it came to its end, and was not killed."""
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    assert code in (0, -signal.SIGKILL), code
    return code == 0


def kill_at_random(seed: int, num: int, recipe: Path, run: Path) -> None:
    import cascade_rl.eval.suite
    import cascade_rl.model.policy
    import cascade_rl.pipeline
    import cascade_rl.sample.local
    import cascade_rl.stages.context
    import cascade_rl.stages.step  # noqa: F401

    begin = time.monotonic()
    assert ended(child(recipe, run / "whole"))
    seconds = time.monotonic() - begin
    rng, killed, finished = random.Random(seed), 0, 0
    while killed < num:
        if killed % 2:
            over = ended(child(recipe, run / str(finished), most_lines=rng.randint(1, 12)))
        else:
            pid = child(recipe, run / str(finished))
            time.sleep(rng.uniform(0, seconds / 3))
            os.kill(pid, signal.SIGKILL)  # harmless where it has ended: it is not yet waited for
            over = ended(pid)
        killed, finished = killed + (not over), finished + over
    print("KILLED", killed, "RUNS", finished + 1)
    assert ended(child(recipe, run / str(finished)))


def main() -> None:
    if sys.argv[1].startswith("random:"):
        _, seed, num = sys.argv[1].split(":")
        return kill_at_random(int(seed), int(num), Path(sys.argv[2]), Path(sys.argv[3]))
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


if __name__ == "__main__":
    main()
