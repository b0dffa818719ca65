"""End to end on a very small recipe: run, skip, edit, interrupt, kill and resume."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from cascade_rl import pipeline
from cascade_rl.cli import main
from cascade_rl.errors import DataError, Interrupted, ModelError, RecipeError, RunError
from cascade_rl.eval.suite import Suite
from cascade_rl.observe.report_run import read_run
from cascade_rl.one_checkpoint import find_checkpoint
from cascade_rl.pipeline import run_recipe
from cascade_rl.plan import make_plan
from cascade_rl.recipe import Recipe, load_recipe
from cascade_rl.records import Group, Split
from cascade_rl.run import RunDir
from cascade_rl.sample.local import LocalSampler
from tests.kill_at import check_same, kill_and_resume, results, run_whole
from tests.model.tiny import make_tiny

RECIPE = """
name = "tiny"
[model]
source = "{source}"
dtype = "float32"
[eval]
tasks = ["sums", "letters"]
dev = 6
test = 5
samples = 2
max_new_tokens = 8
rollouts_kept = 2
[tasks.sums]
kind = "nano.math"
num_train = 40
num_dev = 6
num_test = 5
[tasks.letters]
kind = "nano.choice"
num_train = 40
num_dev = 6
num_test = 5
[[stage]]
kind = "sft"
name = "first"
steps = 5
batch_size = 1
pack_tokens = 700
save_every = 2
data = [{{ task = "sums" }}, {{ task = "letters" }}]
[[stage]]
kind = "sft"
name = "second"
steps = 3
batch_size = 1
pack_tokens = 700
save_every = 2
data = [{{ task = "sums" }}]
"""


@pytest.fixture(scope="module")
def recipe_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("recipe")
    source = make_tiny("qwen3", folder / "model", max_position_embeddings=1024)
    path = folder / "tiny.toml"
    path.write_text(RECIPE.format(source=source))
    return path


@pytest.fixture(scope="module")
def finished(recipe_file: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of the recipe from start to end, in a process of its own; with the counts of its kill points."""
    return run_whole(recipe_file, tmp_path_factory.mktemp("runs") / "whole")


def test_a_run_leaves_what_the_design_promises(finished: Path) -> None:
    run = RunDir(finished)
    told = json.loads(run.recipe.read_text())
    for index, stage in enumerate(told["stages"], 1):
        place = run.stage(index, stage["name"], stage["fingerprint"])
        assert place.done
        assert (place.checkpoint / "model.safetensors").is_file()
        assert not place.state.exists()  # dead weight once the checkpoint is there
        lines = [json.loads(line) for line in place.metrics.read_text().splitlines()]
        assert [line["step"] for line in lines] == list(range(1, stage["steps"] + 1))
        assert len(place.timing.read_text().splitlines()) == stage["steps"]
        assert json.loads(place.lineage.read_text())["parent"]
    rows = json.loads(run.matrix.read_text())["rows"]
    cells = {(row["stage"], row["task"], row["split"]) for row in rows if row["metric"] == "accuracy"}
    assert cells == {(s, t, x) for s in ("first", "second") for t in ("sums", "letters") for x in ("dev", "test")}
    assert {row["n"] for row in rows if row["split"] == "dev"} == {6}
    assert "<html" in run.report.read_text()


def test_the_checkpoint_loads_with_transformers_alone_and_agrees_with_our_sampler(finished: Path) -> None:
    code = (
        "import sys, json; from transformers import AutoModelForCausalLM, AutoTokenizer\n"
        "m = AutoModelForCausalLM.from_pretrained(sys.argv[1]); t = AutoTokenizer.from_pretrained(sys.argv[1])\n"
        "x = t.apply_chat_template([{'role': 'user', 'content': '2+3?'}], add_generation_prompt=True, return_tensors='pt',"
        " enable_thinking=True, return_dict=True)\n"
        "y = m.generate(**x, max_new_tokens=12, do_sample=False)\n"
        "assert 'cascade_rl' not in sys.modules\n"
        "print(json.dumps([x['input_ids'][0].tolist(), y[0, x['input_ids'].shape[1]:].tolist()]))\n"
    )
    folder = find_checkpoint(finished)
    done = subprocess.run([sys.executable, "-c", code, str(folder)], capture_output=True, text=True, check=True)
    prompt_ids, expected = json.loads(done.stdout)

    from cascade_rl.model.render import RenderConfig, load_renderer
    from cascade_rl.model.sources import load_tokenizer
    from cascade_rl.records import Message, SamplingParams
    from cascade_rl.sample.local import LocalSampler

    renderer = load_renderer(load_tokenizer(folder), RenderConfig())
    assert renderer.prompt([Message("user", "2+3?")], (), True) == prompt_ids
    params = SamplingParams(temperature=0, max_new_tokens=12, stop_ids=renderer.stop_ids)
    turn = LocalSampler(folder, dtype="float32").sample([prompt_ids], 1, params, [0])[0][0]
    assert list(turn.answer_ids) == expected


def test_what_is_done_is_skipped_and_an_edit_reruns_that_stage_and_later(recipe_file: Path, finished: Path) -> None:
    outlook = {item.stage.name: item.outlook for item in make_plan(load_recipe(recipe_file), finished)}
    assert outlook == {"first": "done", "second": "done"}
    edited = load_recipe(recipe_file, ["second.learning_rate=2e-5"])
    assert [item.outlook for item in make_plan(edited, finished)] == ["done", "run"]
    edited = load_recipe(recipe_file, ["first.learning_rate=2e-5"])
    assert [item.outlook for item in make_plan(edited, finished)] == ["run", "run"]
    again = make_plan(load_recipe(recipe_file), finished, start_from="second")
    assert [item.outlook for item in again] == ["done", "run"]
    before = results(finished)
    said: list[str] = []
    run_recipe(load_recipe(recipe_file), finished, say=said.append)
    assert results(finished) == before
    assert sum("skipped" in line for line in said) == 2


def test_from_and_only(recipe_file: Path, finished: Path, tmp_path: Path) -> None:
    recipe = load_recipe(recipe_file)
    with pytest.raises(RecipeError, match='did you mean "second"'):
        make_plan(recipe, finished, start_from="secnd")
    with pytest.raises(RecipeError, match="earlier stages are not done: first"):
        make_plan(recipe, tmp_path / "new", only="second")
    run = tmp_path / "only"
    run_recipe(recipe, run, only="first", say=lambda text: None)
    assert [folder.name[:8] for folder in (run / "stages").iterdir()] == ["01-first"]
    assert [item.outlook for item in make_plan(recipe, run, start_from="first", only="second")] == ["run", "run"]
    run_recipe(recipe, run, only="first", start_from="first", say=lambda text: None)
    names = sorted(folder.name[:9] for folder in (run / "stages").iterdir())
    assert names == ["01-first-", "old1-01-f"]  # nothing is lost


def test_from_makes_all_later_stages_new_even_when_it_stops_there(recipe_file: Path, finished: Path, tmp_path: Path) -> None:
    run, recipe = tmp_path / "run", load_recipe(recipe_file)
    shutil.copytree(finished, run)
    run_recipe(recipe, run, start_from="first", only="first", say=lambda text: None)
    assert [item.outlook for item in make_plan(recipe, run)] == ["done", "run"], "the second came of the first's old weights"
    run_recipe(recipe, run, say=lambda text: None)
    again, whole = results(run), results(finished)
    rows = [sorted(json.loads(told.pop("matrix.json"))["rows"], key=str) for told in (again, whole)]
    assert rows[0] == rows[1], "rows that left the matrix with their stage are back"
    assert again == whole


def test_other_weights_get_rows_of_their_own(recipe_file: Path, finished: Path, tmp_path: Path) -> None:
    run, recipe = tmp_path / "run", load_recipe(recipe_file)
    shutil.copytree(finished, run)
    told = json.loads((run / "matrix.json").read_text())
    for row in told["rows"]:
        row["mean"] = 77.0
    (run / "matrix.json").write_text(json.dumps(told))
    (second,) = (run / "stages").glob("02-second-*")
    shutil.rmtree(second / "checkpoint")
    shutil.copytree(load_recipe(recipe_file).model.source, second / "checkpoint")
    run_recipe(recipe, run, say=lambda text: None)
    means = {row["stage"]: row["mean"] for row in json.loads((run / "matrix.json").read_text())["rows"]}
    assert means["first"] == 77.0, "recorded"
    assert means["second"] != 77.0, "a row belongs to weights, not to the name of their folder"


def test_a_deleted_checkpoint_is_made_again(recipe_file: Path, finished: Path, tmp_path: Path) -> None:
    run, recipe = tmp_path / "run", load_recipe(recipe_file)
    shutil.copytree(finished, run)
    (second,) = (run / "stages").glob("02-second-*")
    shutil.rmtree(second / "checkpoint")
    assert [item.outlook for item in make_plan(recipe, run)] == ["done", "run"]


def test_rows_lost_with_the_matrix_are_made_again(recipe_file: Path, finished: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    shutil.copytree(finished, run)
    (run / "matrix.json").unlink()
    run_recipe(load_recipe(recipe_file), run, say=lambda text: None)
    told = [sorted(json.loads((place / "matrix.json").read_text())["rows"], key=str) for place in (run, finished)]
    assert told[0] == told[1]


def test_a_data_file_belongs_to_the_fingerprint(recipe_file: Path, tmp_path: Path) -> None:
    rows = tmp_path / "rows.jsonl"
    recipe = f"""
name = "rows"
[model]
source = "{load_recipe(recipe_file).model.source}"
[tasks.own]
kind = "rows"
path = "{rows}"
reward = "tests.test_pipeline:full_marks"
[[stage]]
kind = "rl"
name = "rl"
tasks = [{{ task = "own" }}]
"""
    (tmp_path / "recipe.toml").write_text(recipe)
    fingerprints = set()
    for text in ("one", "two", "two"):
        rows.write_text(json.dumps({"prompt": text}) + "\n")
        fingerprints.add(make_plan(load_recipe(tmp_path / "recipe.toml"), tmp_path / "run")[0].fingerprint)
    assert len(fingerprints) == 2


def full_marks(completions: list[str], **columns: object) -> list[float]:
    return [1.0] * len(completions)


def test_a_bad_row_of_a_later_stage_is_found_before_any_work(recipe_file: Path, tmp_path: Path) -> None:
    rows, edited, run = tmp_path / "rows.jsonl", tmp_path / "edited.toml", tmp_path / "run"
    rows.write_text('{"prompt": "a", "completion": "b"}\n{"prompt": "a"}\n')
    head, _, tail = recipe_file.read_text().rpartition('task = "sums"')
    edited.write_text(f'{head}rows = "{rows}"{tail}')
    with pytest.raises(DataError, match=r"rows\.jsonl:2: "):
        run_recipe(load_recipe(edited), run)
    assert not run.exists()


def test_an_evaluation_of_more_prompts_than_there_are_is_told_of(recipe_file: Path) -> None:
    said: list[str] = []
    pipeline._check_data(load_recipe(recipe_file, ["eval.dev=100000"]), said.append)
    (told,) = said
    assert told == "eval.dev = 100,000 prompts of each task, and sums has 6, letters has 6; all that are there are asked"
    pipeline._check_data(load_recipe(recipe_file), said.append)
    assert said == [told]


def test_a_teacher_folder_is_checked_before_any_work(recipe_file: Path, tmp_path: Path) -> None:
    def with_teacher(folder: Path) -> Recipe:
        stage = f'[[stage]]\nkind = "distill"\nsteps = 1\nteachers = {{ math = "{folder}" }}\ntasks = [{{ task = "sums" }}]\n'
        path = tmp_path / "taught.toml"
        path.write_text(recipe_file.read_text() + stage)
        return load_recipe(path)

    whole = with_teacher(recipe_file.parent / "model")
    assert [item.stage.name for item in make_plan(whole, tmp_path / "run")] == ["first", "second", "distill"]
    pipeline._check_data(whole)
    with pytest.raises(RecipeError, match=r"no model folder: it holds no config\.json"):
        make_plan(with_teacher(tmp_path), tmp_path / "run")
    other = make_tiny("qwen3", tmp_path / "other")
    words = json.loads((other / "tokenizer.json").read_text())
    words["normalizer"] = {"type": "Lowercase"}
    (other / "tokenizer.json").write_text(json.dumps(words))
    with pytest.raises(ModelError, match="another tokenizer than the student"):
        run_recipe(with_teacher(other), tmp_path / "run")
    assert not list((tmp_path / "run").glob("stages/*"))


def test_a_significant_drop_is_told_or_stops_the_run(recipe_file: Path, finished: Path, tmp_path: Path) -> None:
    """The dev scores of the second stage are replaced by zeros, those of the first by ones."""
    run = tmp_path / "run"
    shutil.copytree(finished, run)
    for place in (run / "eval").glob("*.dev.json"):
        value = 1.0 if "first" in place.name else 0.0
        told = json.loads(place.read_text())
        many = {f"sums/dev/{i}": [value] for i in range(30)}
        place.write_text(json.dumps(told | {"sums": many}))
    told = json.loads((run / "matrix.json").read_text())
    for row in told["rows"]:
        if (row["task"], row["split"], row["metric"]) == ("sums", "dev", "accuracy"):
            row["mean"] = 1.0 if row["stage"] == "first" else 0.0
    (run / "matrix.json").write_text(json.dumps(told))
    said: list[str] = []
    run_recipe(load_recipe(recipe_file), run, say=said.append)
    assert any('stage "second": worse than before: sums fell by 100.0%' in line for line in said)
    recovery = ["eval.on_regression=mopd", 'recovery.tasks=[{task="sums"}]']
    run_recipe(load_recipe(recipe_file, recovery), run, say=said.append)
    assert "win it back" not in said[-2] + said[-1], "sft stages have no recovery behind them"
    with pytest.raises(RunError, match="made something worse: sums fell by 100"):
        run_recipe(load_recipe(recipe_file, ["eval.on_regression=stop"]), run, say=said.append)


def test_a_folder_of_another_recipe_is_refused_and_one_without_a_common_stage_told_of(
    recipe_file: Path, finished: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, said = tmp_path / "run", []
    shutil.copytree(finished, run)
    before = results(run)
    with pytest.raises(RunError, match='was made by the recipe "tiny", and this one is "other"; choose another --run folder'):
        run_recipe(load_recipe(recipe_file, ["name=other"]), run, say=said.append)
    assert results(run) == before
    monkeypatch.setattr(pipeline._Walk, "all_stages", lambda self, start_from: None)
    monkeypatch.setattr(pipeline._Walk, "test_rows", lambda self: None)
    run_recipe(load_recipe(recipe_file, ["seed=5"]), run, say=said.append)
    assert any("none of its 2 finished stages is one of this recipe as it is now" in line for line in said)
    said.clear()
    shutil.rmtree(run)
    shutil.copytree(finished, run)
    run_recipe(load_recipe(recipe_file, ["second.steps=9"]), run, say=said.append)
    assert not any("finished stages" in line for line in said)


def test_a_stage_whose_checkpoint_was_deleted_is_not_done(recipe_file: Path, finished: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    shutil.copytree(finished, run)
    shutil.rmtree(next(run.glob("stages/02-*")) / "checkpoint")
    first, second = make_plan(load_recipe(recipe_file), run)
    assert (first.in_words, second.outlook) == ("done, will be skipped", "run")
    assert second.in_words == "will run again: it was done, and its checkpoint was deleted since"
    assert find_checkpoint(run) == first.dir.checkpoint
    assert read_run(run).stages[1].status == "checkpoint deleted"


def test_a_stage_on_the_way_can_go_without_rows(recipe_file: Path, finished: Path, tmp_path: Path) -> None:
    run = shutil.copytree(finished, tmp_path / "run")
    run_recipe(load_recipe(recipe_file, ['eval.skip=["first"]']), run, say=lambda text: None)
    assert {row["stage"] for row in json.loads((run / "matrix.json").read_text())["rows"]} == {"second"}


def test_two_runs_in_one_folder_are_refused(recipe_file: Path, finished: Path) -> None:
    with RunDir(finished).lock(), pytest.raises(RunError, match="another process"):
        run_recipe(load_recipe(recipe_file), finished, say=lambda text: None)


@pytest.mark.slow
@pytest.mark.parametrize("place", ["step", "state", "between", "checkpoint", "done", "row", "late"])
def test_killed_and_resumed_ends_with_the_same_bytes(place: str, recipe_file: Path, finished: Path, tmp_path: Path) -> None:
    """Invariant 2. Renames, in order: recipe, two states, checkpoint, lineage and DONE of the first stage, its rows, and so on."""
    counts = json.loads((finished / "counts").read_text())
    assert counts["log"] == 16  # 8 steps, one line each in metrics and timing
    point = {
        "step": "log:7",  # in the fourth step, after a saved state
        "state": "replace:5",  # while the second state is being written
        "between": "replace:12",  # after the first stage, among its rows
        "checkpoint": "replace:6",
        "done": "replace:8",
        "row": "replace:14",
        "late": f"replace:{counts['replace'] - 2}",
    }[place]
    run = tmp_path / "killed"
    kill_and_resume([point], recipe_file, run)
    check_same(finished, run)


@pytest.mark.slow
def test_ctrl_c_saves_and_says_how_to_go_on(recipe_file: Path, finished: Path, tmp_path: Path) -> None:
    run = tmp_path / "stopped"
    command = [sys.executable, "-m", "cascade_rl.cli", "run", str(recipe_file), "--run", str(run), "--set", "first.save_every=0"]
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env={**os.environ, "COLUMNS": "200"}
    )
    deadline = time.monotonic() + 120
    while not list(run.glob("stages/*/metrics.jsonl")) and time.monotonic() < deadline and process.poll() is None:
        time.sleep(0.02)
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=120)
    assert process.returncode == 130, errors
    assert f"go on with: cascade run {recipe_file} --run {run} --set first.save_every=0" in errors
    resumed = subprocess.run(command, capture_output=True, text=True, timeout=240, check=False)
    assert resumed.returncode == 0, resumed.stderr
    whole, again = results(finished), results(run)
    assert [name for name in whole if whole[name] != again.get(name)] == []


@pytest.mark.parametrize(
    "hardware, dtype, said", [(False, "bfloat16", True), (True, "bfloat16", False), (False, "float32", False)]
)
def test_bfloat16_without_hardware_for_it_is_told(
    recipe_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, hardware: bool, dtype: str, said: bool
) -> None:
    monkeypatch.setattr("cascade_rl.model.policy.multiplies_bf16", lambda device: hardware)
    lines: list[str] = []
    recipe = load_recipe(recipe_file, [f"model.dtype={dtype}", "first.steps=1", "eval.dev=0", "eval.test=0"])
    run_recipe(recipe, tmp_path / "run", only="first", say=lines.append)
    assert any('"auto" takes the faster' in line for line in lines) == said


@pytest.mark.parametrize("verb", ["run", "plan"])
def test_a_folder_that_is_no_run_is_left_as_it_is(
    recipe_file: Path, tmp_path: Path, verb: str, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = tmp_path / "rows"
    (rows / "eval").mkdir(parents=True)
    (rows / "matrix.json").write_text('{"rows": []}')
    (tmp_path / "file").write_text("mine")
    assert main([verb, str(recipe_file), "--run", str(rows)]) == 1
    assert 'rows: is no folder of a run ("eval" is in it)' in capsys.readouterr().err
    assert sorted(path.name for path in rows.iterdir()) == ["eval", "matrix.json"]
    assert main([verb, str(recipe_file), "--run", str(tmp_path / "file")]) == 1
    assert "is a file, where a folder is to be" in capsys.readouterr().err
    (rows / "recipe.resolved.json").write_text("[]")
    assert main([verb, str(recipe_file), "--run", str(rows)]) == 1
    assert "is no resolved recipe" in capsys.readouterr().err


def test_an_interrupt_in_the_last_task_of_a_row_begins_no_stage(
    recipe_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recipe = load_recipe(recipe_file, ["first.steps=1", "eval.test=0"])
    ask, asked = Suite.ask, list[str]()

    def interrupted_in_the_last(suite: Suite, sampler: LocalSampler, task: str, split: Split) -> list[Group]:
        asked.append(task)
        if len(asked) == len(recipe.eval.tasks):
            os.kill(os.getpid(), signal.SIGINT)
        return ask(suite, sampler, task, split)

    monkeypatch.setattr(Suite, "ask", interrupted_in_the_last)
    with pytest.raises(Interrupted, match="stopped; what is done is saved"):
        run_recipe(recipe, tmp_path / "run")
    assert [item.outlook for item in make_plan(recipe, tmp_path / "run")] == ["done", "run"]
    assert not list((tmp_path / "run" / "stages").glob("02-*"))


def test_a_damaged_checkpoint_of_a_run_is_made_again_once_deleted(recipe_file: Path, tmp_path: Path) -> None:
    recipe, run = load_recipe(recipe_file, ["first.steps=1", "second.steps=1", "eval.dev=0", "eval.test=0"]), tmp_path / "run"
    run_recipe(recipe, run, only="first")
    (checkpoint,) = run.glob("stages/01-*/checkpoint")
    (checkpoint / "model.safetensors").write_bytes(b"cut")
    with pytest.raises(ModelError, match="delete the folder, and the run makes the stage again"):
        run_recipe(recipe, run)
    shutil.rmtree(checkpoint)
    run_recipe(recipe, run)
    assert [item.outlook for item in make_plan(recipe, run)] == ["done", "done"]
