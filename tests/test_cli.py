"""The command: verbs, exit codes, errors without tracebacks."""

import subprocess
import sys
from pathlib import Path

import pytest

from cascade_rl.cli import main
from tests.model.tiny import make_tiny

ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny("qwen3", tmp_path_factory.mktemp("cli") / "tinymodel", max_position_embeddings=1024)


def test_plan_shows_values_and_starts_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = tmp_path / "run"
    assert main(["plan", str(ROOT / "recipes" / "nano.toml"), "--run", str(run), "--set", "sft.steps=7"]) == 0
    told = capsys.readouterr().out
    assert "steps = 7" in told
    assert "will run" in told
    assert "packed sequences x" in told
    assert "at most, refills and evaluations apart" in told
    assert "cannot be run" not in told
    assert not run.exists()


def test_plan_refuses_the_run_of_another_recipe_as_run_does(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "recipe.resolved.json").write_text('{"name": "another"}')
    assert main(["plan", str(ROOT / "recipes" / "nano.toml"), "--run", str(tmp_path)]) == 1
    assert 'was made by the recipe "another", and this one is "nano"; choose another --run folder' in capsys.readouterr().err


@pytest.mark.parametrize(
    "source, said", [("./nothere", "no such folder"), ("nanoo", "no such folder"), ("org/name", "fetched from the hub")]
)
def test_plan_tells_a_model_that_cannot_be(source: str, said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", str(ROOT / "recipes" / "nano.toml"), "--set", f"model.source={source}"]) == 0
    assert f"model {source}" in (told := " ".join(capsys.readouterr().out.split()))
    assert said in told


def test_help_says_where_models_are_kept(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["--help"])
    assert "$CASCADE_CACHE" in capsys.readouterr().out


@pytest.mark.parametrize(
    "argv, message",
    [
        (["plan", "recipes/nano.toml", "--set", 'eval.tasks=["math","math"]'], 'tasks names "math" twice'),
        (["plan", "nosuch.toml"], "recipe nosuch.toml: no such file"),
        (["plan", "recipes/nano.toml", "--set", "sft.stepz=1"], 'did you mean "steps"?'),
        (["plan", "recipes/nano.toml", "--from", "stf"], 'did you mean "sft"?'),
        (["chat", "nosuch"], "holds no model"),
        (["eval", "nosuch", "--tasks", "nano.math"], "holds no model"),
        (["audit", "nano.math", "--set", "tasks.nano.math.num_train=0"], 'has no prompts in split "train"'),
        (["report", "nosuch"], "nosuch"),
        (["report", "."], "holds no run"),
        (["eval", "nosuch", "--tasks", " , "], "names no task"),
        (["eval", "nosuch", "--tasks", "nano.math", "--set", "eval.dev=5"], "changes nothing of split test; set eval.test"),
        (["chat", "nosuch", "--temperature", "nan"], "--temperature nan"),
        (["chat", "nosuch", "--temperature", "-1"], "--temperature -1.0"),
        (["chat", "nosuch", "--max-new-tokens", "0"], "--max-new-tokens 0"),
    ],
)
def test_errors_are_one_line_and_exit_1(
    argv: list[str], message: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(ROOT)
    assert main(argv) == 1
    told = capsys.readouterr().err
    assert told.startswith("error: ")
    assert message in told
    assert "Traceback" not in told


def test_eval_of_a_model_folder(model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "out"
    sets = ["eval.test=4", "eval.max_new_tokens=6", "model.dtype=float32"]
    argv = ["eval", str(model), "--tasks", "nano.math, nano.choice", "--out", str(out), *(w for s in sets for w in ("--set", s))]
    assert main(argv) == 0
    assert "nano.math" in capsys.readouterr().out
    assert (out / "eval" / "tinymodel.test.json").is_file()
    (out / "recipe.resolved.json").write_text("{}")  # as a run's folder has it
    assert main(argv) == 1
    assert "is a run, whose own matrix would be mixed with these rows" in capsys.readouterr().err
    assert main([*argv[:3], "nano.maths", *argv[4:]]) == 1
    assert 'did you mean "nano.math"?' in capsys.readouterr().err


def test_eval_names_a_task_that_lacks_its_file(model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    argv = [
        "eval",
        str(model),
        "--tasks",
        "gsm8k",
        "--out",
        str(tmp_path / "o"),
        "--set",
        f"tasks.gsm8k.path={tmp_path / 'none.jsonl'}",
    ]
    assert main(argv) == 1
    assert "none.jsonl" in capsys.readouterr().err


@pytest.mark.parametrize(
    "error, message",
    [
        (PermissionError(13, "Permission denied", "/locked/x"), "error: cannot read or write /locked/x: Permission denied\n"),
        (OSError(28, "No space left on device"), "error: No space left on device\n"),
        (OSError("the disk is gone"), "error: the disk is gone\n"),
    ],
)
def test_what_the_system_refuses_is_one_line(
    error: OSError, message: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(args: object) -> None:
        raise error

    monkeypatch.setattr("cascade_rl.cli._report", fail)
    assert main(["report", "x"]) == 1
    assert capsys.readouterr().err == message


def test_chat_goes_on_after_a_line_that_is_no_text(model: Path) -> None:
    argv = [sys.executable, "-m", "cascade_rl.cli", "chat", str(model), "--max-new-tokens", "5"]
    done = subprocess.run(argv, input=b"bad \xff\xfe\n/what\n/quit\n", capture_output=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    told = done.stdout.decode()
    assert "not valid text" in told
    assert told.count("/think on|off") == 2, "the next line is read"


def test_chat_answers_and_obeys_commands(model: Path) -> None:
    argv = [sys.executable, "-m", "cascade_rl.cli", "chat", str(model), "--max-new-tokens", "5"]
    words = "hello\n/think off\nhello again <|im_end|>\n/reset\n/what\n/quit\n"
    done = subprocess.run(argv, input=words, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    assert "/think on|off" in done.stdout
    end_of_file = subprocess.run(argv, input="hi\n", capture_output=True, text=True, timeout=120, check=False)
    assert end_of_file.returncode == 0, end_of_file.stderr
    assert end_of_file.stdout.endswith("you \n"), "the shell's next line is one of its own"
