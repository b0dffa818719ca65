"""Invariant 2 through `select` and `distill`: killed anywhere and resumed, a run ends with the bytes of one that was left alone."""

import json
from pathlib import Path

import pytest
from tests.kill_at import check_same, kill_and_resume, results, run_whole
from tests.stages.letters import lines, make_letters_model

from cascade_rl.eval.teachers import read_teachers
from cascade_rl.observe.log import Log
from cascade_rl.pipeline import run_recipe
from cascade_rl.plan import make_plan
from cascade_rl.recipe import load_recipe
from cascade_rl.run import RunDir

STEPS = 5

# Two domains, one of which closes on the way, weights by gap, and a learning rate that changes: all that a step may depend on.
RECIPE = """
name = "letters"
[model]
source = "{source}"
dtype = "float32"
[eval]
tasks = ["vowels", "others"]
dev = 12
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
kind = "rl"
name = "teach"
steps = 2
prompts_per_step = 4
group_size = 4
max_new_tokens = 6
learning_rate = 5e-3
tasks = [{{ task = "vowels" }}]
[[stage]]
kind = "rl"
name = "hurt"
steps = 4
prompts_per_step = 6
group_size = 4
max_new_tokens = 6
learning_rate = 1e-2
tasks = [{{ task = "others" }}]
[[stage]]
kind = "select"
significance = 1.0
[[stage]]
kind = "distill"
name = "mopd"
steps = {steps}
prompts_per_step = 4
group_size = 3
max_new_tokens = 6
learning_rate = 5e-3
warmup_steps = 2
schedule = "linear"
balance = "gap"
close_below = 0.02
save_every = 2
rollouts_every = 1
teacher_memory_gb = 0.0
tasks = [{{ task = "vowels" }}, {{ task = "others" }}]
"""


@pytest.fixture(scope="module")
def recipe(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("resume")
    path = folder / "letters.toml"
    path.write_text(RECIPE.format(source=make_letters_model(folder), steps=STEPS))
    return path


@pytest.fixture(scope="module")
def whole(recipe: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return run_whole(recipe, tmp_path_factory.mktemp("runs") / "whole")


def test_what_select_and_distill_leave(recipe: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run, said = RunDir(tmp_path / "run"), []
    run_recipe(load_recipe(recipe), run.root, say=said.append)
    _, hurt, select, mopd = (item.dir for item in make_plan(load_recipe(recipe), run.root))
    told = read_teachers(select.teachers)
    assert run.teachers.read_bytes() == select.teachers.read_bytes()
    assert {domain: teacher.stage for domain, teacher in told.items()} == {"vowels": "teach", "others": "hurt"}
    assert any(f'stage "select": vowels: {told["vowels"].stage}, ' in line for line in said)
    # A checkpoint in, a checkpoint out: the same files, which cost no disk, and no row of their own.
    weights = [place.checkpoint / "model.safetensors" for place in (hurt, select)]
    assert weights[0].samefile(weights[1])
    rows = json.loads(run.matrix.read_text())["rows"]
    assert {row["stage"] for row in rows} == {"teach", "hurt", "mopd"}
    lineage = json.loads(mopd.lineage.read_text())
    assert lineage["student"] == hurt.root.name
    assert lineage["teachers"] == {domain: teacher.checkpoint for domain, teacher in told.items()}

    # The choice is a function of the dev rows: other dev settings make it, and what learns from it, new; others do not.
    def outlook(*changes: str) -> list[str]:
        return [item.outlook for item in make_plan(load_recipe(recipe, list(changes)), run.root)]

    assert outlook() == ["done"] * 4
    assert outlook("eval.test=3", "eval.rollouts_kept=1") == ["done"] * 4
    assert outlook("eval.dev=11") == ["done", "done", "run", "run"]
    assert outlook("tasks.others.grader=down") == ["done", "run", "run", "run"]
    assert outlook("select.significance=0.5") == ["done", "done", "run", "run"]
    before = results(run.root)
    run_recipe(load_recipe(recipe), run.root, say=lambda text: None)
    assert results(run.root) == before

    # The same again, ended inside the fourth step of `mopd`, after a saved state.
    original = Log.write

    def failing(self: Log, record: object) -> None:
        original(self, record)  # type: ignore[arg-type]
        for metrics in (tmp_path / "failed").glob("stages/04-*/metrics.jsonl"):
            if len(lines(metrics)) == 4:
                raise KeyboardInterrupt

    monkeypatch.setattr(Log, "write", failing)
    with pytest.raises(KeyboardInterrupt):
        run_recipe(load_recipe(recipe), tmp_path / "failed", say=lambda text: None)
    monkeypatch.undo()
    assert list((tmp_path / "failed").glob("stages/04-*/state/step-000002"))
    run_recipe(load_recipe(recipe), tmp_path / "failed", say=lambda text: None)
    check_same(run.root, tmp_path / "failed")


@pytest.mark.slow
@pytest.mark.parametrize(
    "point",
    [
        "teachers.json:1",  # chosen, not written
        "checkpoint:3",  # the teachers are there, the linked checkpoint is not
        "DONE:3",
        "teachers.json:2",  # `select` is done, the run's own copy is not
        "step-000002:1",
        "step-000004:1",
        "checkpoint:4",
        "DONE:4",
        "sync:13",  # in the fourth step of `mopd` (3 loads of `teach`, 5 of `hurt`, 1 at its start): trained, nothing logged
        "grade:last",  # in the last step: sampled, not judged
    ],
)
def test_killed_and_resumed_ends_with_the_same_bytes(point: str, recipe: Path, whole: Path, tmp_path: Path) -> None:
    counts = json.loads((whole / "counts").read_text())
    kill_and_resume([point.replace("last", str(counts["grade"]))], recipe, tmp_path / "killed")
    check_same(whole, tmp_path / "killed")


@pytest.mark.slow
def test_killed_twice_inside_distill_it_still_ends_with_the_same_bytes(recipe: Path, whole: Path, tmp_path: Path) -> None:
    # In the third step, after a state of the second; then, gone on from there, in the fourth.
    kill_and_resume(["sync:12", "sync:3"], recipe, tmp_path / "killed")
    check_same(whole, tmp_path / "killed")
