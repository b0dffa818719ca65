"""What grading beside sampling saves: steps of an RL stage with and without it, alternating, from one checkpoint.

    python benchmarks/overlap.py runs/nano/stages/02-sft-*/checkpoint --task program
    python benchmarks/overlap.py runs/nano/stages/02-sft-*/checkpoint --task slow

program, repair: the stages code-rl and swe-rl of recipes/nano.toml. slow: prompts of program, whose runs sleep for 0.3 s before their
tests, among three times as many of instructions, whose answers are longer. Both ways sample the same rollouts and must log the same
metrics; verdicts known from before are forgotten each time. Prints seconds a step: all of it, sampling, what of that verdicts were given
in, waiting for the rest of them, training.
"""

import argparse
import json
import tempfile
from dataclasses import dataclass
from pathlib import Path
from statistics import mean
from typing import Any, ClassVar

from cascade_rl.grade.unit_tests import CallTest
from cascade_rl.pipeline import run_recipe
from cascade_rl.protocols import Tools
from cascade_rl.recipe import parse_recipe
from cascade_rl.records import Reward, Rollout
from cascade_rl.tasks import code
from cascade_rl.tasks.code import code_block
from cascade_rl.tasks.nano.program import ProgramTask
from cascade_rl.tasks.nano.repair import RepairTask

PARTS = ("seconds", "sampling_s", "overlapped_s", "grading_s", "training_s")
MIXED = [{"task": "it"}, {"task": "instructions", "weight": 3}]
STAGES: dict[str, dict[str, Any]] = {
    "program": {"prompts_per_step": 32, "max_new_tokens": 64, "tasks": [{"task": "it"}]},
    "repair": {"prompts_per_step": 40, "max_new_tokens": 96, "tasks": [{"task": "it"}]},
    "slow": {"prompts_per_step": 32, "max_new_tokens": 192, "tasks": MIXED},
}


@dataclass(frozen=True, kw_only=True)
class Program(ProgramTask):
    grades_elsewhere: ClassVar[bool] = True


@dataclass(frozen=True, kw_only=True)
class Repair(RepairTask):
    grades_elsewhere: ClassVar[bool] = True


@dataclass(frozen=True, kw_only=True)
class Slow(ProgramTask):
    grades_elsewhere: ClassVar[bool] = True

    async def grade(self, rollout: Rollout, tools: Tools | None = None) -> Reward:
        tests = [CallTest(call, expected) for call, expected in rollout.prompt.reference["tests"]]
        return await self.run_tests(code_block(rollout.answer), tests, setup="import time\ntime.sleep(0.3)")


TASKS: dict[str, Any] = {"program": Program, "repair": Repair, "slow": Slow}


def run(checkpoint: Path, task: str, steps: int, beside: bool, out: Path) -> tuple[list[dict[str, float]], bytes]:
    """Timing of each step, and the metrics' bytes."""
    TASKS[task].grades_elsewhere = beside
    code._VERDICTS.forget()
    stage = {
        "kind": "rl", "steps": steps, "group_size": 8, "max_refills": 0, "learning_rate": 3e-4, "warmup_steps": 3, "save_every": 0,
        "rollouts_every": 0, **STAGES[task],
    }  # fmt: skip
    table = {
        "name": "overlap", "model": {"source": str(checkpoint), "dtype": "float32"}, "stage": [stage],
        "tasks": {"it": {"kind": f"{__name__}:{TASKS[task].__name__}"}, "instructions": {"kind": "nano.instructions"}},
    }  # fmt: skip
    run_recipe(parse_recipe(table), out, say=lambda text: None)
    (place,) = (out / "stages").iterdir()
    timing = [json.loads(line) for line in (place / "timing.jsonl").read_text().splitlines()]
    return timing, (place / "metrics.jsonl").read_bytes()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("checkpoint", type=Path)
    parser.add_argument("--task", choices=TASKS, default="program")
    parser.add_argument("--steps", type=int, default=4)
    parser.add_argument("--rounds", type=int, default=2)
    args = parser.parse_args()
    told: dict[bool, list[dict[str, float]]] = {True: [], False: []}
    metrics = set()
    with tempfile.TemporaryDirectory() as folder:
        run(args.checkpoint, args.task, 1, True, Path(folder) / "warm-up")
        for number in range(args.rounds):
            for beside in (True, False) if number % 2 else (False, True):
                timing, logged = run(args.checkpoint, args.task, args.steps, beside, Path(folder) / f"{number}-{beside}")
                told[beside] += timing
                metrics.add(logged)
    print(f"{args.task}, {len(told[True])} steps each; the same metrics: {'yes' if len(metrics) == 1 else 'NO'}")
    print(f"{'':8}" + "".join(f"{part.removesuffix('_s'):>12}" for part in PARTS))
    for beside, steps in told.items():
        print(f"{'beside' if beside else 'after':8}" + "".join(f"{mean(step[part] for step in steps):12.2f}" for part in PARTS))


if __name__ == "__main__":
    main()
