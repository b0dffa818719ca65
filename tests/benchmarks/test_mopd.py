"""The benchmark of MOPD takes a run of the nano recipe as it is: who is the student, who may teach, what is measured and trained."""

import runpy
from pathlib import Path
from typing import Any

import pytest

from cascade_rl.errors import RunError
from cascade_rl.recipe import load_recipe, to_json
from cascade_rl.run import RunDir, write_json

ROOT = Path(__file__).parents[2]
PASSED_ON = ("select", "pairs")


@pytest.fixture(scope="module")
def benchmark() -> dict[str, Any]:
    return runpy.run_path(str(ROOT / "benchmarks" / "mopd.py"), run_name="benchmark")


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder that a run of the nano recipe leaves, without weights."""
    run = RunDir(tmp_path_factory.mktemp("run") / "nano")
    told = to_json(load_recipe(ROOT / "recipes" / "nano.toml", ["seed=3"]))
    for index, stage in enumerate(told["stages"], 1):
        stage["fingerprint"] = f"{index:08x}"
        place = run.stage(index, stage["name"], stage["fingerprint"])
        write_json(place.checkpoint / "config.json", {})
        write_json(place.lineage, {"passed_on": stage["kind"] in PASSED_ON})
        place.done_file.touch()
    write_json(run.recipe, told)
    return run.root


def test_the_student_and_its_teachers_stand_before_the_distillation(benchmark: dict[str, Any], run: Path, tmp_path: Path) -> None:
    seed = benchmark["Seed"](run, tmp_path, "multi-rl")
    assert [checkpoint.stage for checkpoint in seed.history] == ["sft", "if-rl", "multi-rl"]
    assert seed.student.folder == run / "stages" / "04-multi-rl-00000004" / "checkpoint"
    assert (seed.number, seed.name) == (3, "seed-3")
    recipe = load_recipe(ROOT / "recipes" / "nano.toml")
    assert tuple(seed.tasks) == recipe.eval.tasks
    distilled = next(stage for stage in recipe.stages if stage.name == "mopd").task_names()
    assert seed.trained == [task for task in recipe.eval.tasks if task in distilled]
    assert set(seed.tasks) - set(seed.trained) == {"long", "chat-thinking"}
    # As the run asked them, but for the number of prompts.
    assert seed.recipe.tasks["chat-thinking"].thinking_share == 1
    assert seed.recipe.tasks["long"].lengths == recipe.tasks["long"].lengths  # type: ignore[attr-defined]
    assert {(task.num_dev, task.num_test) for task in seed.recipe.tasks.values()} == {(200, 300)}


def test_a_later_student_has_more_teachers_and_no_branch_among_them(benchmark: dict[str, Any], run: Path, tmp_path: Path) -> None:
    seed = benchmark["Seed"](run, tmp_path, "swe-rl")
    stages = [checkpoint.stage for checkpoint in seed.history]
    assert stages == ["sft", "if-rl", "multi-rl", "mopd", "rlhf", "long-rl", "code-rl", "swe-rl"]
    assert set(seed.tasks) - set(seed.trained) == {"chat-thinking"}, "the second distillation trains long documents too"
    last = benchmark["Seed"](run, tmp_path, "mopd-again")
    assert last.trained == last.tasks, "no distillation comes after it"


@pytest.mark.parametrize(
    "student, says",
    [
        ("multi-lr", 'stage "multi-lr" is not known; did you mean "multi-rl"'),
        ("judge", "--student judge: a branch"),
        ("copy", "--student copy: .* choose of: none"),
        ("select", "cannot be the student; choose of: sft, if-rl, multi-rl$"),
    ],
)
def test_what_cannot_be_the_student_is_told(
    benchmark: dict[str, Any], run: Path, tmp_path: Path, student: str, says: str
) -> None:
    with pytest.raises(RunError, match=says):
        benchmark["Seed"](run, tmp_path, student)


def test_a_run_must_have_come_to_its_student(benchmark: dict[str, Any], run: Path, tmp_path: Path) -> None:
    done = next((run / "stages").glob("*-if-rl-*")) / "DONE"
    done.unlink()
    try:
        with pytest.raises(RunError, match='stage "if-rl" is not finished'):
            benchmark["Seed"](run, tmp_path, "multi-rl")
    finally:
        done.touch()
