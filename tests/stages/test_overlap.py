"""Grading beside sampling changes nothing but the time: the same bytes, whatever the order in which answers and verdicts come."""

import asyncio
import json
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
from tests.kill_at import ROOT, results
from tests.sandbox.host import needs_sandbox
from tests.stages.letters import Letters, lines, make_letters_model

import cascade_rl.sample.rollout as rollout_room
from cascade_rl.grade.unit_tests import CallTest, grade_calls
from cascade_rl.pipeline import run_recipe
from cascade_rl.protocols import Tools
from cascade_rl.recipe import parse_recipe
from cascade_rl.records import Reward, Rollout
from cascade_rl.sandbox.process import Limits


@dataclass(frozen=True)
class Slow(Letters):
    """Verdicts that take a while, each another one each time; one in eight crashes, and always the same ones."""

    grades_elsewhere: ClassVar[bool] = True

    async def grade(self, rollout: Rollout, tools: Tools | None) -> Reward:
        await asyncio.sleep(random.uniform(0, 0.02))
        if len(rollout.answer) % 8 == 5:
            raise OSError("the server went away")
        return await super().grade(rollout, tools)


@dataclass(frozen=True)
class Endless(Letters):
    """Programs that would sleep for a minute."""

    grades_elsewhere: ClassVar[bool] = True

    async def grade(self, rollout: Rollout, tools: Tools | None) -> Reward:
        print("GRADING", flush=True)
        code = f"import time\ntime.sleep(60)\n# {rollout.index} {rollout.prompt.id}"
        return (await grade_calls(code, [CallTest("1", 1)], Limits(cpu_s=5, wall_s=90.0))).reward()


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_letters_model(tmp_path_factory.mktemp("letters"))


@pytest.fixture
def two_threads() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


def table_of(model: Path, kind: str, **changes: Any) -> dict[str, Any]:
    stage = {
        "kind": "rl",
        "group_size": 12,
        "max_new_tokens": 12,
        "learning_rate": 1e-3,
        "rollouts_every": 1,
        "max_unscored": 1.0,
    }
    tasks = {"slow": {"kind": f"tests.stages.test_overlap:{kind}"}, "plain": {"kind": "tests.stages.letters:Letters"}}
    return {"name": "t", "model": {"source": str(model), "dtype": "float32"}, "stage": [{**stage, **changes}], "tasks": tasks}


def run(model: Path, out: Path) -> dict[str, bytes]:
    table = table_of(model, "Slow", steps=2, prompts_per_step=6, tasks=[{"task": "slow"}, {"task": "plain"}])
    table["eval"] = {"tasks": ["slow"], "dev": 6, "test": 0, "max_new_tokens": 12}
    run_recipe(parse_recipe(table), out, say=lambda text: None)
    return results(out)


@pytest.mark.usefixtures("two_threads")
def test_the_same_bytes_with_and_without(model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    beside = run(model, tmp_path / "beside")
    monkeypatch.setattr(Slow, "grades_elsewhere", False)
    after = run(model, tmp_path / "after")
    monkeypatch.setattr(Slow, "grades_elsewhere", True)
    monkeypatch.setattr(rollout_room, "EagerSampler", type("Nobody", (), {}))
    at_once = run(model, tmp_path / "at-once")
    assert any(name.endswith("rollouts.jsonl") for name in beside)
    assert b"the server went away" in b"".join(beside.values())
    assert [name for name in beside if not beside[name] == after[name] == at_once[name]] == []
    assert beside.keys() == after.keys() == at_once.keys()
    (told, none) = [lines(next(out.glob("stages/*/timing.jsonl"))) for out in (tmp_path / "beside", tmp_path / "after")]
    assert all(line["overlapped_s"] > 0 for line in told)
    assert all(line["overlapped_s"] == 0 for line in none)


@pytest.mark.slow
@needs_sandbox
def test_ctrl_c_twice_ends_the_program_whatever_is_being_graded(model: Path, tmp_path: Path) -> None:
    table = table_of(model, "Endless", steps=1, prompts_per_step=6, tasks=[{"task": "slow"}])
    code = (
        "import json, pathlib, sys; from cascade_rl.pipeline import run_recipe; from cascade_rl.recipe import parse_recipe\n"
        "run_recipe(parse_recipe(json.loads(sys.argv[1])), pathlib.Path(sys.argv[2]))"
    )
    argv = [sys.executable, "-c", code, json.dumps(table), str(tmp_path / "run")]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=ROOT) as child:
        assert child.stdout is not None
        assert any("GRADING" in line for line in child.stdout)
        for _ in range(2):
            child.send_signal(signal.SIGINT)
            time.sleep(0.2)
        begin = time.monotonic()
        told = child.communicate(timeout=200)[1]
    assert told.rstrip().endswith("KeyboardInterrupt")
    assert time.monotonic() - begin < 40  # Python's own end takes a few seconds; the programs would take minutes
