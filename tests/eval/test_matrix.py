import json
import math

import pytest

from cascade_rl.errors import DataError, RunError
from cascade_rl.eval.matrix import Matrix, best_earlier, evaluate, significant_changes
from cascade_rl.records import EvalRow, Group, Message, Prompt, Reward, Rollout, Turn


def group(prompt_id, rewards, *, task="arith", domain="math", split="dev", tools=(), finishes=None, errors=None, tokens=None):
    """A graded group; `rewards` holds floats, or None for unscored."""
    prompt = Prompt(prompt_id, task, domain, split, (Message("user", "2+3?"),), tools=tools)
    rollouts = []
    for i in range(len(rewards)):
        num = tokens[i] if tokens else 1
        finish = finishes[i] if finishes else "stop"
        turn = Turn((1,), (7,) * num, (-0.5,) * num, finish)
        rollouts.append(Rollout(prompt, (turn,), (), finish, index=i, format_errors=errors[i] if errors else 0))
    return Group(
        prompt, tuple(rollouts), tuple(Reward(r) if r is not None else Reward(None, why="judge is down") for r in rewards)
    )


def figures(evaluation, task="arith"):
    return {row.metric: (row.n, row.mean) for row in evaluation.rows if row.task == task}


def run_eval(groups, checkpoint="01-sft-aa", stage="sft", split="dev"):
    return evaluate(groups, stage=stage, checkpoint=checkpoint, split=split)


def test_rows_by_hand():
    got = run_eval(
        [
            group("a", [1.0, 0.0, 0.0, 0.0], finishes=["stop", "length", "stop", "stop"], tokens=[4, 8, 4, 4]),
            group("b", [1.0, 1.0, None, 1.0]),
        ]
    )
    assert figures(got) == {
        "accuracy": (2, 0.625),  # 1/4 and 3/3
        "pass@2": (2, 0.75),  # 1 - C(3,2)/C(4,2) = 0.5, and 1
        "pass@4": (1, 1.0),  # the second prompt has three scores only
        "unscored": (2, 0.125),
        "truncated": (2, 0.125),
        "mean_tokens": (2, 3.0),  # 5 and 1
    }
    first = got.rows[0]
    assert first == EvalRow("sft", "01-sft-aa", "arith", "math", "dev", "accuracy", 2, 0.625, pytest.approx(0.375))
    assert got.scores == {"arith": {"a": [1.0, 0.0, 0.0, 0.0], "b": [1.0, 1.0, None, 1.0]}}


def test_infrastructure_failures_are_not_zeros():
    got = run_eval([group("a", [None, None]), group("b", [None, None])])
    assert figures(got) == {"unscored": (2, 1.0), "truncated": (2, 0.0), "mean_tokens": (2, 1.0)}


def test_format_errors_are_counted_where_there_are_tools():
    got = run_eval([group("a", [1.0, 0.0], tools=({"type": "function"},), errors=[0, 3])])
    assert figures(got)["format_error_rate"] == (1, 0.5)
    assert "format_error_rate" not in figures(run_eval([group("a", [1.0])]))


def test_two_tasks_whose_ids_both_start_at_0_stay_apart(tmp_path):
    got = run_eval([group("0", [1.0]), group("0", [0.0], task="chat", domain="chat"), group("1", [0.0])])
    assert figures(got, "arith")["accuracy"] == (2, 0.5)
    assert figures(got, "chat")["accuracy"] == (1, 0.0)
    assert Matrix(tmp_path).add(got).scores("01-sft-aa", "dev") == {"arith": {"0": [1.0], "1": [0.0]}, "chat": {"0": [0.0]}}


@pytest.mark.parametrize(
    "groups, says",
    [
        ([group("a", [1.0]), group("a", [0.0])], 'task "arith": prompt a comes twice'),
        ([group("a", [1.0], split="test")], 'of split "test"'),
        ([group("a", [1.0]), group("b", [1.0], domain="chat")], 'of domain "chat", others of "math"'),
        ([Group(group("a", [1.0]).prompt, group("a", [1.0]).rollouts)], "has no rewards"),
    ],
)
def test_what_would_mix_figures_is_refused(groups, says):
    with pytest.raises(DataError, match=says):
        run_eval(groups)


def test_splits_are_never_averaged(tmp_path):
    matrix = Matrix.load(tmp_path).add(run_eval([group("a", [1.0])]))
    matrix = matrix.add(run_eval([group("t", [0.0], split="test")], split="test"))
    assert matrix.row("01-sft-aa", "arith", "dev").mean == 1.0
    assert matrix.row("01-sft-aa", "arith", "test").mean == 0.0
    assert sorted(path.name for path in (tmp_path / "eval").iterdir()) == ["01-sft-aa.dev.json", "01-sft-aa.test.json"]


def test_the_file_is_an_api(tmp_path):
    Matrix.load(tmp_path).add(run_eval([group("a", [1.0]), group("b", [0.0])]))
    row = json.loads((tmp_path / "matrix.json").read_text())["rows"][0]
    assert row == {
        "stage": "sft",
        "checkpoint": "01-sft-aa",
        "task": "arith",
        "domain": "math",
        "split": "dev",
        "metric": "accuracy",
        "n": 2,
        "mean": 0.5,
        "stderr": 0.5,
    }
    assert json.loads((tmp_path / "eval/01-sft-aa.dev.json").read_text()) == {"arith": {"a": [1.0], "b": [0.0]}}


def test_an_error_that_is_not_known_is_null_on_disk_and_nan_here(tmp_path):
    Matrix.load(tmp_path).add(run_eval([group("a", [1.0])]))
    assert json.loads((tmp_path / "matrix.json").read_text())["rows"][0]["stderr"] is None
    assert math.isnan(Matrix.load(tmp_path).rows[0].stderr)


def test_reevaluating_replaces_in_place_and_leaves_the_rest(tmp_path):
    other = [group("c", [1.0, 1.0], task="chat", domain="chat")]
    matrix = Matrix.load(tmp_path).add(run_eval([group("a", [1.0, 1.0]), *other]))
    matrix = matrix.add(run_eval([group("a", [1.0])], checkpoint="02-rl-bb", stage="rl"))
    again = matrix.add(run_eval([group("a", [None, None])]))
    assert matrix.row("01-sft-aa", "arith", "dev").mean == 1.0  # the old value is a value
    assert Matrix.load(tmp_path).rows == pytest.approx(again.rows, nan_ok=True) or len(again.rows) == len(
        Matrix.load(tmp_path).rows
    )
    assert again.row("01-sft-aa", "arith", "dev") is None  # nothing is scored now: the accuracy of before is gone
    assert again.row("01-sft-aa", "arith", "dev", "pass@2") is None
    assert again.row("01-sft-aa", "arith", "dev", "unscored").mean == 1.0
    assert again.row("01-sft-aa", "chat", "dev").mean == 1.0
    assert again.row("02-rl-bb", "arith", "dev").mean == 1.0
    assert list(again.checkpoints("dev")) == ["01-sft-aa", "02-rl-bb"]
    assert set(again.scores("01-sft-aa", "dev")) == {"arith", "chat"}


def test_rows_of_an_earlier_recipe_are_dropped(tmp_path):
    matrix = Matrix.load(tmp_path).add(run_eval([group("a", [1.0])])).add(run_eval([group("a", [0.0])], checkpoint="01-sft-bb"))
    assert list(matrix.keep(["00-start", "01-sft-bb"]).checkpoints()) == ["01-sft-bb"]
    assert list(Matrix.load(tmp_path).checkpoints()) == ["01-sft-bb"]


def test_damage_and_bad_names_are_told(tmp_path):
    (tmp_path / "matrix.json").write_text('{"rows": [{"stage": "sft"}]}')
    with pytest.raises(RunError, match="not a matrix"):
        Matrix.load(tmp_path)
    with pytest.raises(RunError, match=r'"\.\./x"'):
        Matrix(tmp_path).add(run_eval([group("a", [1.0])], checkpoint="../x"))


def three_checkpoints(folder):
    """arith: 0 -> 1 -> 0 on 12 prompts; chat: one prompt of 12 gains and then keeps."""
    matrix = Matrix.load(folder)
    for checkpoint, arith, chat in [("start", 0.0, 0.0), ("01-sft-aa", 1.0, 1.0), ("02-rl-bb", 0.0, 1.0)]:
        groups = [group(f"a{i}", [arith]) for i in range(12)]
        groups += [group(f"c{i}", [chat if i == 0 else 0.0], task="chat", domain="chat") for i in range(12)]
        matrix = matrix.add(run_eval(groups, checkpoint=checkpoint, stage=checkpoint))
    return matrix


def test_significant_changes(tmp_path):
    matrix = three_checkpoints(tmp_path)
    assert significant_changes(matrix, "start") == []
    rise, same = significant_changes(matrix, "01-sft-aa")
    assert (rise.task, rise.verdict, rise.against, rise.paired.difference) == ("arith", "rise", "start", 1.0)
    assert rise.paired.p == 2 / 2**12
    assert rise.p_holm == 4 / 2**12  # two tasks in the row
    assert (same.task, same.verdict, same.paired.p) == ("chat", "same", 1.0)  # one prompt of twelve proves nothing
    drop, _ = significant_changes(matrix, "02-rl-bb")
    assert (drop.verdict, drop.against) == ("drop", "01-sft-aa")
    level, _ = significant_changes(matrix, "02-rl-bb", against="start")
    assert (level.verdict, level.paired.difference) == ("same", 0.0)
    with pytest.raises(RunError, match='did you mean "01-sft-aa"'):
        significant_changes(matrix, "01-sft-a")


def test_best_earlier_looks_back_only(tmp_path):
    matrix = three_checkpoints(tmp_path)
    assert best_earlier(matrix, "start", "arith", "dev") is None
    assert best_earlier(matrix, "01-sft-aa", "arith", "dev").checkpoint == "start"
    assert best_earlier(matrix, "02-rl-bb", "chat", "dev").checkpoint == "01-sft-aa"


def test_a_correction_over_the_row_is_made(tmp_path):
    # Each task alone has p = 2/2^6 = 0.031; nine of them in one row prove nothing at 5%.
    matrix = Matrix.load(tmp_path)
    for checkpoint, value in [("start", 0.0), ("01-sft-aa", 1.0)]:
        groups = [group(f"{t}/{i}", [value], task=f"t{t}") for t in range(9) for i in range(6)]
        matrix = matrix.add(run_eval(groups, checkpoint=checkpoint))
    # The Holm factors are 9, 8, ..., 1, kept monotone: all nine stand at 9 * 0.031.
    changes = significant_changes(matrix, "01-sft-aa")
    assert [change.verdict for change in changes] == ["same"] * 9
    assert changes[0].p_holm == pytest.approx(9 * 2 / 2**6)
