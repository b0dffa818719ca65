"""Invariant 2, with nobody choosing the moments: killed with -9 ten times, the whole cascade ends with the same bytes."""

import json
from pathlib import Path

import pytest

from tests.kill_at import check_same, results, run_until
from tests.model.tiny import make_tiny

RECIPE = """
name = "small"
[model]
source = "{source}"
dtype = "float32"
[eval]
tasks = ["vowels", "others"]
dev = 6
test = 0
max_new_tokens = 6
[tasks.vowels]
kind = "tests.stages.letters:Letters"
domain = "vowels"
[tasks.others]
kind = "tests.stages.letters:Letters"
domain = "others"
grader = "consonants"
[[stage]]
kind = "sft"
steps = 16
batch_size = 1
pack_tokens = 400
learning_rate = 1e-2
save_every = 3
data = [{{ rows = "{rows}" }}]
[[stage]]
kind = "rl"
steps = 4
prompts_per_step = 4
group_size = 4
max_new_tokens = 6
learning_rate = 5e-3
save_every = 1
rollouts_every = 1
tasks = [{{ task = "vowels" }}, {{ task = "others" }}]
[[stage]]
kind = "select"
significance = 1.0
[[stage]]
kind = "distill"
steps = 4
prompts_per_step = 4
group_size = 3
max_new_tokens = 6
learning_rate = 5e-3
warmup_steps = 2
save_every = 2
rollouts_every = 1
tasks = [{{ task = "vowels" }}, {{ task = "others" }}]
"""


@pytest.mark.slow
@pytest.mark.parametrize("seed", [0])
def test_killed_at_ten_random_moments_it_ends_with_the_same_bytes(seed: int, tmp_path: Path) -> None:
    rows = tmp_path / "rows.jsonl"
    words = ["aeiou"[i % 5] + "bcdf"[i % 4] * (i % 3 + 1) for i in range(60)]
    rows.write_text("".join(json.dumps({"prompt": f"go {i % 12}", "completion": word}) + "\n" for i, word in enumerate(words)))
    recipe = tmp_path / "small.toml"
    source = make_tiny("qwen3", tmp_path / "model", max_position_embeddings=256)
    recipe.write_text(RECIPE.format(source=source, rows=rows))
    run_until(f"random:{seed}:10", recipe, tmp_path / "runs")
    whole, *killed = sorted((tmp_path / "runs").iterdir(), reverse=True)
    assert whole.name == "whole"
    assert killed
    assert len([name for name in results(whole) if name.endswith("model.safetensors")]) == 4
    for run in killed:
        check_same(whole, run)
