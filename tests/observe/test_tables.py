import io

from rich.console import Console

from cascade_rl.eval.matrix import Evaluation, Matrix
from cascade_rl.eval.stats import mean_and_stderr
from cascade_rl.eval.teachers import recovery
from cascade_rl.observe.report_run import StageView
from cascade_rl.observe.tables import print_matrix, print_recovery, print_stages
from cascade_rl.records import EvalRow
from cascade_rl.run import StageDir


def add(matrix, checkpoint, values, split="dev"):
    scores = {task: {str(i): [value] for i, value in enumerate(row)} for task, row in values.items()}
    rows = []
    for task, prompts in scores.items():
        got = mean_and_stderr(list(prompts.values()))
        rows.append(EvalRow(checkpoint, checkpoint, task, "d", split, "accuracy", got.n, got.mean, got.stderr))
    return matrix.add(Evaluation(checkpoint, split, tuple(rows), scores))


def shown(matrix, width, split="dev"):
    console = Console(file=io.StringIO(), width=width, color_system=None)
    print_matrix(matrix, split, console=console)
    return console.file.getvalue()


def test_matrix_by_hand(tmp_path):
    matrix = add(Matrix(tmp_path), "start", {"math": [0.0] * 10, "chat": [1.0] * 9 + [0.0]})
    matrix = add(matrix, "sft", {"math": [1.0] * 10, "chat": [0.0] * 10, "[b]new": [0.5]})
    lines = [line.strip("│┃ ") for line in shown(matrix, 120).splitlines()]
    assert lines[0] == "accuracy, dev: mean ± standard error in %"
    assert [part.strip() for part in lines[2].split("┃")] == ["stage", "math", "chat", "[b]new"]
    assert [part.strip() for part in lines[4].split("│")] == ["start", "0.0 ± 0.0", "90.0 ±10.0", "–"]
    assert [part.strip() for part in lines[5].split("│")] == ["sft", "100.0 ± 0.0 ▲", "0.0 ± 0.0 ▼", "50.0"]
    assert "▲ ▼ better or worse" in lines[-1]


def test_a_narrow_terminal_turns_the_table(tmp_path):
    matrix = add(Matrix(tmp_path), "start", {f"task{i}": [0.0, 1.0] for i in range(8)})
    wide, narrow = shown(matrix, 160), shown(matrix, 60)
    assert len(wide.splitlines()) == 6
    assert [line.split("│")[1].strip() for line in narrow.splitlines() if "50.0" in line] == [f"task{i}" for i in range(8)]
    assert max(map(len, narrow.splitlines())) <= 60


def test_no_rows_is_said(tmp_path):
    assert shown(Matrix(tmp_path), 80, "test") == "no test evaluation yet\n"


def test_recovery_by_hand(tmp_path):
    """Before 2 of 10, teacher 10, after 6: half of it; where the teacher was not ahead there is nothing to recover."""
    matrix = add(Matrix(tmp_path), "sft", {"chat": [1.0] * 10})
    matrix = add(matrix, "rl", {"chat": [1.0] * 2 + [0.0] * 8})
    matrix = add(matrix, "mopd", {"chat": [1.0] * 6 + [0.0] * 4})
    console = Console(file=io.StringIO(), width=100, color_system=None)
    print_recovery("won back", recovery(matrix, "rl", "mopd", {"d": "sft"}, "dev"), {"sft": "SFT"}, console)
    rows = [[part.strip() for part in line.split("│")[1:-1]] for line in console.file.getvalue().splitlines() if "│" in line]
    assert rows == [["d", "SFT", "20.0", "60.0", "100.0", "50 ± 19"]]
    print_recovery("won back", recovery(matrix, "sft", "mopd", {"d": "rl"}, "dev"), {}, console)
    assert console.file.getvalue().count("–") == 1


def test_what_the_stages_took_by_hand(tmp_path):
    done = StageView(
        1, "sft", "sft", "ab12", StageDir(tmp_path), "done",
        metrics=[{"step": 1, "num_tokens": 900}, {"step": 2, "num_tokens": 1100}], timing=[{"seconds": 40.2}, {"seconds": 35}],
    )  # fmt: skip
    console = Console(file=io.StringIO(), width=100, color_system=None)
    print_stages([done, StageView(2, "pick", "select", "cd34", StageDir(tmp_path), "done")], console)
    rows = [[part.strip() for part in line.split("│")[1:-1]] for line in console.file.getvalue().splitlines() if "│" in line]
    assert rows == [["sft", "sft", "2", "2,000", "1 min 15 s"], ["pick", "select", "–", "–", "–"]]
