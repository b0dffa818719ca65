"""Invariant 2 in an RL stage: killed anywhere and resumed, it ends with the bytes of a run that was left alone."""

import json
from collections.abc import Sequence
from pathlib import Path

import pytest
from tests.kill_at import check_same, kill_and_resume, results, run_whole
from tests.stages.letters import lines, make_letters_model

from cascade_rl.pipeline import run_recipe
from cascade_rl.recipe import load_recipe
from cascade_rl.records import Group
from cascade_rl.sample.verdicts import Verdicts
from cascade_rl.stages import collect

STEPS = 5

# Two tasks, groups that are refilled, a KL to the start, and a learning rate that changes: all that a step may depend on.
RECIPE = """
name = "letters"
[model]
source = "{source}"
dtype = "float32"
[tasks.all]
kind = "tests.stages.letters:Letters"
[tasks.half]
kind = "tests.stages.letters:Letters"
grader = "half"
[[stage]]
kind = "rl"
steps = {steps}
prompts_per_step = 5
group_size = 3
max_new_tokens = 5
learning_rate = 3e-3
min_learning_rate = 1e-4
schedule = "cosine"
kl = 0.1
max_unscored = 1.0
save_every = 2
rollouts_every = 1
tasks = [{{ task = "all", weight = 2 }}, {{ task = "half" }}]
"""


@pytest.fixture(scope="module")
def recipe(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("resume")
    path = folder / "letters.toml"
    path.write_text(RECIPE.format(source=make_letters_model(folder), steps=STEPS))
    return path


@pytest.fixture(scope="module")
def whole(recipe: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that was left alone, in a process of its own, with the counts of its kill points."""
    return run_whole(recipe, tmp_path_factory.mktemp("runs") / "whole")


def check_resumed(whole: Path, run: Path) -> None:
    check_same(whole, run)
    assert {Path(name).name for name in results(run)} >= {"model.safetensors", "metrics.jsonl", "rollouts.jsonl", "lineage.json"}
    timing = lines(next(run.glob("stages/01-*/timing.jsonl")))
    assert [line["step"] for line in timing] == list(range(1, STEPS + 1))


def test_a_failure_inside_a_step_leaves_nothing_behind(recipe: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same in one process, quickly: the third step is logged, the fourth is sampled and gets no further."""
    run_recipe(load_recipe(recipe), tmp_path / "whole", say=lambda text: None)
    run = tmp_path / "run"

    class Failing(Verdicts):
        def finish(self, groups: Sequence[Group]) -> list[Group]:
            for metrics in run.glob("stages/*/metrics.jsonl"):
                if len(lines(metrics)) == 3:
                    raise KeyboardInterrupt
            return super().finish(groups)

    monkeypatch.setattr(collect, "Verdicts", Failing)
    with pytest.raises(KeyboardInterrupt):
        run_recipe(load_recipe(recipe), run, say=lambda text: None)
    monkeypatch.undo()
    assert list(run.glob("stages/*/state/step-000002"))
    run_recipe(load_recipe(recipe), run, say=lambda text: None)
    check_resumed(tmp_path / "whole", run)


@pytest.mark.slow
@pytest.mark.parametrize("place", ["sampled", "trained", "logged", "between", "state", "saved", "checkpoint", "done", "early"])
def test_killed_and_resumed_ends_with_the_same_bytes(place: str, recipe: Path, whole: Path, tmp_path: Path) -> None:
    """Renames, in order: recipe, meta and folder of two states, checkpoint, lineage, DONE. Loads of the sampler: one more than steps."""
    counts = json.loads((whole / "counts").read_text())
    stage = next((whole / "stages").iterdir())
    assert counts["sync"] == STEPS + 1
    rows = lines(stage / "rollouts.jsonl")
    written = [
        2 + sum(row["step"] == step for row in rows) for step in range(1, STEPS + 1)
    ]  # lines of each step, in all three logs
    assert sum(written) == counts["log"]
    told = {
        "sampled": f"grade:{counts['grade']}",  # in the last step, before its (last) verdicts
        "trained": "sync:5",  # in the fourth step: the optimizer has moved, nothing is logged
        "logged": f"log:{sum(written[:3]) - 2}",  # in the third step, among its rollouts
        "between": f"log:{sum(written[:3])}",  # the third step is whole, the state is that of the second
        "state": "replace:5",  # while the second state is being written
        "saved": "replace:6",  # the last step is done, its checkpoint is not
        "checkpoint": "replace:7",
        "done": "replace:8",
        "early": "sync:2",  # before there is a state: it starts again
    }[place]
    run = tmp_path / "killed"
    kill_and_resume([told], recipe, run)
    check_resumed(whole, run)


@pytest.mark.slow
def test_killed_twice_it_still_ends_with_the_same_bytes(recipe: Path, whole: Path, tmp_path: Path) -> None:
    # In the third step; then, gone on from the second, in the third again.
    kill_and_resume(["sync:4", "sync:2"], recipe, tmp_path / "killed")
    check_resumed(whole, tmp_path / "killed")
