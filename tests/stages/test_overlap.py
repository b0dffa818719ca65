"""Grading beside sampling changes nothing but the time: the same bytes, whatever the order in which answers and verdicts come."""

import asyncio
import random
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
from tests.kill_at import results
from tests.stages.letters import Letters, lines, make_letters_model

import cascade_rl.sample.rollout as rollout_room
from cascade_rl.pipeline import run_recipe
from cascade_rl.protocols import Tools
from cascade_rl.recipe import parse_recipe
from cascade_rl.records import Reward, Rollout


@dataclass(frozen=True)
class Slow(Letters):
    """Verdicts that take a while, each another one each time; one in eight crashes, and always the same ones."""

    grades_elsewhere: ClassVar[bool] = True

    async def grade(self, rollout: Rollout, tools: Tools | None) -> Reward:
        await asyncio.sleep(random.uniform(0, 0.02))
        if len(rollout.answer) % 8 == 5:
            raise OSError("the server went away")
        return await super().grade(rollout, tools)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_letters_model(tmp_path_factory.mktemp("letters"))


@pytest.fixture
def two_threads() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


def run(model: Path, out: Path) -> dict[str, bytes]:
    stage = {
        "kind": "rl", "steps": 2, "prompts_per_step": 6, "group_size": 12, "max_new_tokens": 12, "learning_rate": 1e-3,
        "rollouts_every": 1, "max_unscored": 1.0, "tasks": [{"task": "slow"}, {"task": "plain"}],
    }  # fmt: skip
    table: dict[str, Any] = {
        "name": "t", "model": {"source": str(model), "dtype": "float32"}, "stage": [stage],
        "eval": {"tasks": ["slow"], "dev": 6, "test": 0, "max_new_tokens": 12},
        "tasks": {"slow": {"kind": "tests.stages.test_overlap:Slow"}, "plain": {"kind": "tests.stages.letters:Letters"}},
    }  # fmt: skip
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
