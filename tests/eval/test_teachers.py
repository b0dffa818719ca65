"""Who becomes a teacher, and what was won back: on matrices whose scores are written down."""

from pathlib import Path

import pytest

from cascade_rl.errors import RunError
from cascade_rl.eval.matrix import Evaluation, Matrix
from cascade_rl.eval.teachers import read_teachers, recovery, select, write_teachers
from cascade_rl.records import EvalRow
from cascade_rl.run import Checkpoint

NUM = 40
HISTORY = [Checkpoint(stage, f"0{i}-{stage}", Path(stage)) for i, stage in enumerate(("sft", "if-rl", "multi-rl"), 1)]


def write(folder: Path, right: dict[str, dict[str, int]], split: str = "dev") -> Matrix:
    """stage -> task -> how many of its 40 prompts are solved: the first so many, so that checkpoints agree on the easy ones."""
    matrix = Matrix(folder)
    for stage, tasks in right.items():
        name = next(told.name for told in HISTORY if told.stage == stage)
        scores = {task: {f"{task}/{i}": [float(i < solved)] for i in range(NUM)} for task, solved in tasks.items()}
        rows = tuple(
            EvalRow(stage, name, task, task.split("-")[0], split, "accuracy", NUM, solved / NUM, 0.0)  # type: ignore[arg-type]
            for task, solved in tasks.items()
        )
        matrix = matrix.add(Evaluation(name, split, rows, scores))  # type: ignore[arg-type]
    return matrix


def chosen(folder: Path, sft: int, if_rl: int, multi_rl: int, significance: float = 0.05) -> tuple[str, str]:
    right = {"sft": {"chat": sft}, "if-rl": {"chat": if_rl}, "multi-rl": {"chat": multi_rl}}
    teacher = select(write(folder, right), HISTORY, significance)["chat"]
    return teacher.stage, teacher.reason


def test_the_best_of_the_whole_history_teaches_where_the_student_is_significantly_worse(tmp_path: Path) -> None:
    stage, reason = chosen(tmp_path, 36, 20, 22)
    assert stage == "sft"
    assert reason == (
        "the best of 3 checkpoints at 90.0 ± 4.8%; the current student is -35.0 ± 7.6 points from it (p 5e-05)"
    ).replace("5e-05", reason.split("(p ")[1].rstrip(")"))


def test_of_those_not_significantly_worse_the_most_recent_teaches(tmp_path: Path) -> None:
    """36 against 34 differ on two prompts: p = 0.5. With significance 1 the best mean is taken as it is."""
    stage, reason = chosen(tmp_path, 36, 34, 20)
    assert stage == "if-rl"
    assert "not significantly below the best, sft at 90.0 ± 4.8%: itself at 85.0 ± 5.7%, -5.0 ± 3.5 points (p 0.5)" in reason
    assert chosen(tmp_path / "best", 36, 34, 20, significance=1.0)[0] == "sft"


@pytest.mark.parametrize("student", [36, 35, 40])
def test_the_student_is_its_own_anchor_where_it_is_as_good(student: int, tmp_path: Path) -> None:
    stage, reason = chosen(tmp_path, 36, 20, student)
    assert stage == "multi-rl"
    assert reason.startswith("the current student, its own anchor: ")


def test_five_prompts_lost_are_noise_and_six_are_not(tmp_path: Path) -> None:
    """All of m differing prompts on one side: p = 2 / 2^m, 0.0625 for five and 0.03125 for six."""
    assert chosen(tmp_path / "5", 36, 0, 31)[0] == "multi-rl"
    assert chosen(tmp_path / "6", 36, 0, 30)[0] == "sft"


def test_tasks_of_one_domain_are_taken_together(tmp_path: Path) -> None:
    """The domain is what stands before the dash. Three prompts lost in each of two tasks: noise in each, not in both."""
    right = {"sft": {"chat-a": 30, "chat-b": 30}, "multi-rl": {"chat-a": 27, "chat-b": 27}}
    teacher = select(write(tmp_path, right), HISTORY)["chat"]
    assert (teacher.stage, teacher.n) == ("sft", 80)
    assert teacher.lead == pytest.approx(6 / 80)


def test_a_select_stage_between_changes_nothing_and_unmeasured_checkpoints_do_not_count(tmp_path: Path) -> None:
    matrix = write(tmp_path, {"sft": {"chat": 36}, "multi-rl": {"chat": 20}})
    passed_on = Checkpoint("select", HISTORY[-1].name, Path("select"))
    told = select(matrix, [Checkpoint("start", "00-start", Path("start")), *HISTORY, passed_on])["chat"]
    assert told.stage == "sft"
    assert "the best of 2 checkpoints" in told.reason
    with pytest.raises(RunError, match='02-if-rl has no "dev" scores'):
        select(matrix, HISTORY[:2])


def test_the_table_is_read_back_as_it_was_written(tmp_path: Path) -> None:
    told = select(write(tmp_path, {"sft": {"chat": 36}, "multi-rl": {"chat": 20}}), HISTORY)
    write_teachers(tmp_path / "teachers.json", told)
    assert read_teachers(tmp_path / "teachers.json") == told
    (tmp_path / "teachers.json").write_text('{"chat": {"stage": "sft"}}')
    with pytest.raises(RunError, match="not a table of teachers"):
        read_teachers(tmp_path / "teachers.json")


def test_recovery_by_hand(tmp_path: Path) -> None:
    """Before 20, teacher 36, after 32: 12 of 16 won back; where the teacher is the student there is nothing to win back."""
    right = {"sft": {"chat": 36, "math": 10}, "if-rl": {"chat": 20, "math": 10}, "multi-rl": {"chat": 32, "math": 10}}
    matrix = write(tmp_path, right, "test")
    teachers = {"chat": "01-sft", "math": "02-if-rl"}
    chat, math = recovery(matrix, "02-if-rl", "03-multi-rl", teachers, "test")
    assert (chat.before, chat.after, chat.of_teacher) == pytest.approx((0.5, 0.8, 0.9))
    assert chat.recovered == pytest.approx(0.75)
    # part - 0.75 whole: 12 prompts at 1/4, 4 at -3/4, 24 at 0, with mean 0; over the mean lead of 0.4
    spread = (12 / 16 + 4 * 9 / 16) / (NUM - 1)
    assert chat.stderr == pytest.approx((spread / NUM) ** 0.5 / 0.4)
    assert math.recovered != math.recovered
