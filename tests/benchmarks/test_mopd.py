"""The benchmark of MOPD takes a run of the nano recipe as it is: who is the student, who may teach, what is measured and trained."""

import json
import runpy
import shutil
from pathlib import Path
from typing import Any

import pytest

from cascade_rl.errors import RunError
from cascade_rl.recipe import load_recipe, to_json
from cascade_rl.run import RunDir, read_json, write_json

ROOT = Path(__file__).parents[2]
PASSED_ON = ("select", "pairs")


@pytest.fixture(scope="module")
def benchmark() -> dict[str, Any]:
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(ROOT / "benchmarks"))  # where Python finds its tables when it is run as a script
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
    assert (seed.number, seed.name) == (3, "multi-rl/seed-3")
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
        ("copy", "--student copy: .* nor can a stage before it: name a later one"),
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


def test_what_is_no_run_is_told_in_words(benchmark: dict[str, Any], run: Path, tmp_path: Path) -> None:
    evaluation, ablation, file, damaged = (tmp_path / name for name in ("eval", "ablation", "file", "damaged"))
    write_json(RunDir(evaluation).matrix, {"rows": []})
    write_json(ablation / "ablation.json", {})
    file.write_text("")
    write_json(RunDir(damaged).recipe, {})
    for place, says in (
        (tmp_path / "none", "is not there; give the folder of `cascade run --run`"),
        (evaluation, "holds no run; give"),
        (ablation, "holds no run; give .*FOLDER/VARIANT/seed-N"),
        (file, "is a file; give"),
        (damaged, "holds no run; give"),
    ):
        with pytest.raises(RunError, match=rf"--runs {place}: {says}"):
            benchmark["load_seeds"]([run, place], tmp_path / "work", "multi-rl")
    with pytest.raises(RunError, match=rf"--work {file}: is a file"):
        benchmark["load_seeds"]([run], file, "multi-rl")
    with pytest.raises(RunError, match=rf"{run} and {run} are both of seed 3"):
        benchmark["load_seeds"]([run, run], tmp_path / "work", "multi-rl")
    assert not (tmp_path / "work").exists()


def test_a_run_that_measures_nothing_is_told_of(benchmark: dict[str, Any], run: Path, tmp_path: Path) -> None:
    told = read_json(RunDir(run).recipe)
    shutil.copytree(run, tmp_path / "run")
    for tasks in ([], ["long"]):  # the first distillation trains no long documents
        write_json(RunDir(tmp_path / "run").recipe, {**told, "eval": {**told["eval"], "tasks": tasks}})
        with pytest.raises(RunError, match=rf"--runs {tmp_path / 'run'}: the benchmark needs eval.tasks, .* has none"):
            benchmark["Seed"](tmp_path / "run", tmp_path, "multi-rl")


FIGURES = {
    "recovery": {
        "domains": [{"domain": "math", "before": 0.5, "after": 0.7, "of_teacher": 0.9, "recovered": 0.5, "stderr": 0.1}],
        "regressed": ["math"], "teachers": {"math": {"stage": "sft"}}, "fell": [],
    },
    "efficiency": {
        "domain": "math", "teacher": {"mean": 0.9, "stderr": 0.01},
        "ways": {"mopd": {"curve": [{"mean": 0.5, "stderr": 0.01, "steps": 0, "rollouts": 0, "tokens": 0, "seconds": 0}], "reached": None}},
    },
    "ablation": {"no warm-up": {"domains": [{"recovered": 0.5, "stderr": 0.1}]}},
}  # fmt: skip


def test_figures_of_another_student_or_seed_stay(
    benchmark: dict[str, Any], run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    out, main = tmp_path / "out.json", benchmark["main"]
    parts = {part: lambda seed, figures=figures: figures for part, figures in FIGURES.items()}
    monkeypatch.setitem(main.__globals__, "PARTS", parts)

    def call(student: str, *runs: Path) -> None:
        words = ["--runs", *map(str, runs), "--student", student, "--work", str(tmp_path / "work"), "--out", str(out)]
        monkeypatch.setattr("sys.argv", ["mopd.py", *words])
        main()

    write_json(out, {"recovery": {"seed-0": FIGURES["recovery"]}})  # before a student was part of the key
    call("multi-rl", run)
    call("swe-rl", run)
    told = json.loads(out.read_text())
    assert list(told["recovery"]) == ["seed-0", "multi-rl/seed-3", "swe-rl/seed-3"]
    assert list(told["efficiency"]) == ["multi-rl/seed-3", "swe-rl/seed-3"]
    shown = capsys.readouterr().out
    assert shown.count("student swe-rl") == 3, "a table for each part"
    assert "50.0 ± 10.0" in shown
    for damaged in ("{", "[]", '{"recovery": 1}'):
        out.write_text(damaged)
        with pytest.raises(RunError, match=r"out\.json: "):
            call("multi-rl", run)
        assert f": {run}" not in capsys.readouterr().out, "nothing was begun"
    out.unlink()
    out.mkdir()
    with pytest.raises(RunError, match="is no file of this benchmark's figures"):
        call("multi-rl", run)
