"""A toy task and a tiny model that RL can move in seconds, and how tests run an RL stage on them."""

import json
import random
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.model.tiny import make_tiny

from cascade_rl.one_checkpoint import find_checkpoint
from cascade_rl.pipeline import run_recipe
from cascade_rl.protocols import Tools
from cascade_rl.recipe import parse_recipe
from cascade_rl.records import Message, Prompt, Reward, Rollout, Split
from cascade_rl.run import StageDir


@dataclass(frozen=True)
class Letters:
    """Rewards the share of vowels in an answer ("long": its length); `grader` makes it misbehave."""

    name: str = "letters"
    domain: str = "toy"
    max_turns: int = 1
    grader: str = "vowels"

    def prompts(self, split: Split) -> list[Prompt]:
        told = [(Message("user", f"go {i}"),) for i in range(12)]
        return [Prompt(f"{self.name}/{split}/{i}", self.name, self.domain, split, m, thinking=False) for i, m in enumerate(told)]

    def open_tools(self, prompt: Prompt) -> Tools | None:
        return None

    async def grade(self, rollout: Rollout, tools: Tools | None) -> Reward:
        if self.grader == "same":
            return Reward(1.0)
        if self.grader == "down" or (self.grader == "half" and rollout.index % 2):
            return Reward(None, why="the judge is down")
        if self.grader == "long":
            return Reward(min(1.0, len(rollout.answer) / 20))
        vowels = sum(c in "aeiou" for c in rollout.answer) / max(1, len(rollout.answer))
        return Reward(1 - vowels if self.grader == "consonants" else vowels)


def make_letters_model(folder: Path) -> Path:
    """A tiny model that has learnt to answer with a few random letters and to stop."""
    make_tiny("qwen3", folder / "random", max_position_embeddings=256)
    letters = random.Random(0)
    words = ["".join(letters.choices("abcdefghijklmnoprstu", k=letters.randint(2, 6))) for _ in range(200)]
    rows = [{"prompt": f"go {i % 12}", "completion": word} for i, word in enumerate(words)]
    (folder / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    stage = {
        "kind": "sft", "steps": 80, "batch_size": 1, "pack_tokens": 800, "learning_rate": 1e-2,
        "data": [{"rows": str(folder / "rows.jsonl")}],
    }  # fmt: skip
    source = {"source": str(folder / "random"), "dtype": "float32"}
    run_recipe(parse_recipe({"name": "t", "model": source, "stage": [stage]}), folder / "run", say=lambda text: None)
    return find_checkpoint(folder / "run")


def run_rl(model: Path, out: Path, grader: str = "vowels", **changes: Any) -> StageDir:
    """An RL stage of two small steps, run to its end; `changes` are keys of the stage."""
    stage = {
        "kind": "rl", "steps": 2, "prompts_per_step": 4, "group_size": 4, "max_new_tokens": 12, "learning_rate": 1e-3,
        "rollouts_every": 1, "tasks": [{"task": "letters"}], **changes,
    }  # fmt: skip
    table = {
        "name": "t", "model": {"source": str(model), "dtype": "float32"}, "stage": [stage],
        "tasks": {"letters": {"kind": "tests.stages.letters:Letters", "grader": grader}},
    }  # fmt: skip
    run_recipe(parse_recipe(table), out, say=lambda text: None)
    return StageDir(next((out / "stages").iterdir()))


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]
