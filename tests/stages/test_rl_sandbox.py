"""A sandbox that is killed from outside in the middle of a step costs one unscored rollout, and not the step."""

import asyncio
import os
import signal
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from tests.sandbox.host import children, needs_sandbox
from tests.stages.letters import Letters, lines, make_letters_model

from cascade_rl.grade.unit_tests import CallTest, Verdict, grade_calls
from cascade_rl.pipeline import run_recipe
from cascade_rl.protocols import Tools
from cascade_rl.recipe import parse_recipe
from cascade_rl.records import Reward, Rollout
from cascade_rl.sandbox.process import Limits, SandboxPool

LIMITS = Limits(cpu_s=20, wall_s=30.0)


@dataclass(frozen=True)
class Counted(Letters):
    """The share of vowels, counted in the sandbox; of the first answer to "go 3" in a sandbox that someone kills, twice."""

    grades_elsewhere: ClassVar[bool] = True
    kills: ClassVar[list[int]] = []

    async def grade(self, rollout: Rollout, tools: Tools | None) -> Reward:
        dies = rollout.index == 0 and rollout.prompt.id.endswith("/3")
        pool = SandboxPool(size=1)
        code = f"import time\ntime.sleep({0.4 * dies})\ndef f(text):\n    return sum(c in 'aeiou' for c in text)"
        vowels = sum(c in "aeiou" for c in rollout.answer)
        try:
            grading = asyncio.ensure_future(grade_calls(code, [CallTest(f"f({rollout.answer!r})", vowels)], LIMITS, pool=pool))
            while dies and not grading.done():
                await asyncio.sleep(0.01)
                self._kill(pool)
            verdict: Verdict = await grading
        finally:
            pool.close()
        if verdict.kind == "unscored":
            return Reward(None, why=verdict.why)
        assert verdict.kind == "passed"
        return Reward(vowels / max(1, len(rollout.answer)))

    def _kill(self, pool: SandboxPool) -> None:
        for server in list(pool._alive):
            inner = children(server.process.pid)
            if len(inner) >= 3 and server.process.pid not in self.kills:
                self.kills.append(server.process.pid)
                os.kill(inner[0], signal.SIGKILL)


@needs_sandbox
def test_a_killed_sandbox_costs_one_rollout(tmp_path: Path) -> None:
    stage = {
        "kind": "rl", "steps": 1, "prompts_per_step": 12, "group_size": 2, "max_new_tokens": 8, "learning_rate": 1e-3,
        "dynamic_filtering": False, "tasks": [{"task": "counted"}],
    }  # fmt: skip
    table = {
        "name": "t", "model": {"source": str(make_letters_model(tmp_path)), "dtype": "float32"}, "stage": [stage],
        "tasks": {"counted": {"kind": "tests.stages.test_rl_sandbox:Counted"}},
    }  # fmt: skip
    Counted.kills.clear()
    run_recipe(parse_recipe(table), tmp_path / "rl", say=lambda text: None)
    (folder,) = (tmp_path / "rl" / "stages").iterdir()
    (told,) = lines(folder / "metrics.jsonl")
    assert told["unscored"] == 1 / 24
    assert told["num_samples"] >= 6  # the others train
    assert (folder / "DONE").exists()
