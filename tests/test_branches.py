"""Side branches: a judge is trained from an older checkpoint and used by a later stage, while the student goes on from its own."""

import json
import random
from pathlib import Path
from typing import Any

import pytest

from cascade_rl.cli import main
from cascade_rl.errors import RecipeError
from cascade_rl.eval.matrix import Matrix, significant_changes
from cascade_rl.one_checkpoint import filter_folder, find_checkpoint
from cascade_rl.pipeline import run_recipe
from cascade_rl.plan import fingerprints, make_plan, starts
from cascade_rl.recipe import Recipe, load_recipe, parse_recipe
from cascade_rl.run import RunDir
from tests.kill_at import check_same, kill_and_resume, results, run_whole
from tests.model.tiny import make_tiny

# The judge learns to say one of three scores at random, which is enough to be read.
RECIPE = """
name = "branches"
[model]
source = "{source}"
dtype = "float32"
[eval]
tasks = ["letters"]
dev = 6
test = 4
max_new_tokens = 8
[tasks.letters]
kind = "tests.stages.letters:Letters"
[tasks.rlhf]
kind = "judged"
task = "letters"
mode = "point"
template = "brief"
thinking_only = false
judge = {{ model = "judge", thinking = false, temperature = 1.0, top_p = 1.0, max_new_tokens = 12 }}
[[stage]]
kind = "sft"
name = "first"
steps = 60
batch_size = 1
pack_tokens = 800
learning_rate = 1e-2
data = [{{ rows = "{rows}/letters.jsonl" }}]
[[stage]]
kind = "sft"
name = "judge"
start = "start"
branch = true
steps = 90
batch_size = 1
pack_tokens = 800
learning_rate = 1e-2
data = [{{ rows = "{rows}/scores.jsonl" }}]
[[stage]]
kind = "rl"
name = "rlhf"
tasks = [{{ task = "rlhf" }}]
steps = 3
prompts_per_step = 4
group_size = 4
max_new_tokens = 12
learning_rate = 1e-3
kl = 0.03
max_unscored = 1.0
dynamic_filtering = false
save_every = 1
"""


@pytest.fixture(scope="module")
def recipe_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("branches")
    source = make_tiny("qwen3", folder / "model", max_position_embeddings=512)
    letters = [{"prompt": f"go {i % 12}", "completion": "aeiou"[i % 5] * (i % 4 + 1)} for i in range(60)]
    some = random.Random(0)
    words = ["".join(some.choices("aeioubcd", k=some.randint(1, 6))) for _ in range(150)]
    scores = [{"prompt": f"Q> go {i % 12}\n1> {word}", "completion": f"Score: {2 + i % 3}"} for i, word in enumerate(words)]
    for name, rows in (("letters", letters), ("scores", scores)):
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (folder / "recipe.toml").write_text(RECIPE.format(source=source, rows=folder))
    return folder / "recipe.toml"


@pytest.fixture(scope="module")
def finished(recipe_file: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return run_whole(recipe_file, tmp_path_factory.mktemp("runs") / "whole")


def stages(*told: dict[str, Any], tasks: dict[str, Any] | None = None) -> Recipe:
    """A recipe of SFT stages (or others) by their changes; nothing of it is run."""
    base = {"kind": "sft", "data": [{"task": "nano.chat"}]}
    tables = [base | change if change.get("kind", "sft") == "sft" else change for change in told]
    return parse_recipe({"name": "t", "model": {"source": "nano"}, "tasks": tasks or {}, "stage": tables})


JUDGED = {"rlhf": {"kind": "judged", "task": "nano.chat", "judge": {"model": "judge"}}}
RLHF = {"kind": "rl", "name": "rlhf", "tasks": [{"task": "rlhf"}]}
TRUNK = ({"name": "sft"}, {"name": "more"}, {"name": "judge", "start": "sft", "branch": True}, RLHF)


def test_the_trunk_goes_on_beside_a_branch() -> None:
    assert starts(stages(*TRUNK, tasks=JUDGED).stages) == ["start", "sft", "sft", "more"]
    assert starts(stages({"name": "a"}, {"name": "b", "start": "start"}, {"name": "c"}).stages) == ["start", "start", "b"]


def changed(before: Recipe, after: Recipe) -> set[str]:
    one, two = fingerprints(before), fingerprints(after)
    return {name for name in one if one[name] != two.get(name)}


def test_an_edit_makes_new_what_came_of_it_and_nothing_else() -> None:
    plain = stages(*TRUNK, tasks=JUDGED)

    def edited(name: str) -> Recipe:
        return stages(*({**stage, "steps": 7} if stage["name"] == name else stage for stage in TRUNK), tasks=JUDGED)

    assert changed(plain, edited("sft")) == {"sft", "more", "judge", "rlhf"}
    assert changed(plain, edited("more")) == {"more", "rlhf"}  # the judge began before it
    assert changed(plain, edited("judge")) == {"judge", "rlhf"}  # whose rewards are its words
    other_start = stages(*({**stage, "start": "more"} if stage["name"] == "judge" else stage for stage in TRUNK), tasks=JUDGED)
    assert changed(plain, other_start) == {"judge", "rlhf"}


def test_a_branch_that_nothing_uses_changes_nothing_else() -> None:
    with_branch = stages({"name": "sft"}, {"name": "side", "branch": True}, {"name": "more"})
    without = stages({"name": "sft"}, {"name": "more"})
    assert fingerprints(with_branch)["more"] == fingerprints(without)["more"]


def test_what_a_judged_stage_depends_on(tmp_path: Path) -> None:
    def recipe(judge: dict[str, Any] | None = None, **task: Any) -> Recipe:
        told = {"rlhf": {**JUDGED["rlhf"], **task, "judge": {"model": "judge", **(judge or {})}}}
        return stages(*TRUNK, tasks=told)

    plain = recipe()
    assert changed(plain, recipe({"temperature": 0.1})) == {"rlhf"}
    assert changed(plain, recipe(pairs="circular")) == {"rlhf"}
    assert not changed(
        plain, recipe({"timeout_s": 9.0, "retries": 0, "concurrency": 2}, timeout_s=7.0)
    )  # only how long one waits
    file = tmp_path / "judge.txt"
    found = []
    for text in ("{{question}} {{answer_1}} {{answer_2}}", "{{question}} {{answer_2}} {{answer_1}}"):
        file.write_text(text)
        found.append(fingerprints(recipe(template=str(file)))["rlhf"])
    assert found[0] != found[1]
    chat = {"talk": {"kind": "nano.chat", "num_train": 50}}
    ones = [stages(*TRUNK, tasks={**JUDGED, **chat, "rlhf": {**JUDGED["rlhf"], "task": "talk"}})]
    chat["talk"]["num_train"] = 60
    ones.append(stages(*TRUNK, tasks={**JUDGED, **chat, "rlhf": {**JUDGED["rlhf"], "task": "talk"}}))
    assert changed(*ones) == {"rlhf"}


def test_a_select_stage_chooses_from_branches_too() -> None:
    def recipe(steps: int) -> Recipe:
        side = {"kind": "sft", "data": [{"task": "nano.chat"}], "name": "side", "branch": True, "steps": steps}
        first = {"kind": "sft", "data": [{"task": "nano.chat"}], "name": "sft"}
        told = {"name": "t", "model": {"source": "nano"}, "eval": {"tasks": ["nano.chat"]}}
        return parse_recipe({**told, "stage": [first, side, {"kind": "select", "name": "select"}]})

    assert changed(recipe(5), recipe(6)) == {"side", "select"}


@pytest.mark.parametrize(
    "told, tasks, says",
    [
        ([{"name": "a", "start": "b"}, {"name": "b"}], {}, 'stage "a": start "b" is not known'),
        ([{"name": "a", "start": "a"}], {}, 'start "a" is not known'),
        ([RLHF], JUDGED, 'stage "rlhf": task "rlhf": judge "judge" is not known'),
        ([RLHF, {"name": "judge", "branch": True}], JUDGED, 'judge "judge" is not known'),
        ([{"name": "judge"}, RLHF], {"rlhf": {**JUDGED["rlhf"], "task": "chatter"}}, 'task "rlhf": task "chatter" is not known'),
        ([{"name": "a", "data": [{"task": "rlhf"}]}], JUDGED, "has no demonstrations"),
        ([{"name": "judge"}, RLHF], {"rlhf": {**JUDGED["rlhf"], "source": 1}}, 'key "source" is not known'),
    ],
)
def test_names_that_lead_nowhere_are_errors_before_any_work(told: list[dict[str, Any]], tasks: dict[str, Any], says: str) -> None:
    with pytest.raises(RecipeError, match=says):
        stages(*told, tasks=tasks)


def test_a_judged_task_measures_no_checkpoint() -> None:
    with pytest.raises(RecipeError, match=r'measure with "nano\.chat"'):
        parse_recipe({"name": "t", "model": {"source": "nano"}, "tasks": JUDGED, "eval": {"tasks": ["rlhf"]}})


def test_nor_is_it_evaluated_filtered_or_audited_by_itself(
    recipe_file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    named = ["rlhf", "--recipe", str(recipe_file)]
    for command in (["audit", *named], ["eval", str(tmp_path), "--tasks", *named]):
        assert main(command) == 1
        assert "is judged: its scores compare" in capsys.readouterr().err
    with pytest.raises(RecipeError, match="is judged"):
        filter_folder(load_recipe(recipe_file), tmp_path, ["rlhf"], tmp_path / "k.json", samples=2, num=1, keep_unsolved=0.0)


def test_a_setting_of_a_judge_can_be_set(recipe_file: Path) -> None:
    recipe = load_recipe(recipe_file, ["tasks.rlhf.judge.temperature=0.25"])
    assert recipe.tasks["rlhf"].judge.temperature == 0.25  # type: ignore[attr-defined]


def test_a_template_is_found_beside_the_recipe(recipe_file: Path) -> None:
    (recipe_file.parent / "mine.txt").write_text("{{question}} {{answer}}")
    recipe = load_recipe(recipe_file, ["tasks.rlhf.template=mine.txt"])
    assert recipe.tasks["rlhf"].template == str(recipe_file.parent / "mine.txt")  # type: ignore[attr-defined]


def test_a_run_with_a_judge_of_its_own(recipe_file: Path, finished: Path) -> None:
    run = RunDir(finished)
    first, judge, rlhf = make_plan(load_recipe(recipe_file), finished)
    assert [item.outlook for item in (first, judge, rlhf)] == ["done"] * 3
    lineage = [json.loads(item.dir.lineage.read_text()) for item in (first, judge, rlhf)]
    assert [told["parent"] for told in lineage] == [first.parent, first.parent, first.fingerprint]
    assert find_checkpoint(finished) == rlhf.dir.checkpoint
    rows = {row.stage for row in Matrix.load(run.root).rows}
    assert rows == {"first", "judge", "rlhf"}
    lines = [json.loads(line) for line in rlhf.dir.metrics.read_text().splitlines()]
    assert all(1 <= line["part.judge"] <= 5 for line in lines)
    assert all(line["part.silent"] < 0.5 for line in lines)
    assert {"part.rule", "part.rule_agreement", "part.answer_chars", "kl_start"} <= lines[0].keys()
    assert sum(line["num_samples"] for line in lines) > 0
    page = run.report.read_text()
    assert 'id="judges"' in page
    assert "letters, test" in page, "wins by the held-out rule against the stage's start"


def test_a_branch_is_no_regression_and_none_is_one_against_it(finished: Path) -> None:
    matrix = Matrix.load(finished)
    first, judge, rlhf = matrix.checkpoints("dev")
    assert matrix.branches == {judge}
    assert significant_changes(matrix, judge) == []
    assert [change.against for change in significant_changes(matrix, rlhf)] == [first]


def test_the_run_finds_no_work_the_second_time(recipe_file: Path, finished: Path) -> None:
    before, said = results(finished), []
    run_recipe(load_recipe(recipe_file), finished, say=said.append)
    assert results(finished) == before
    assert sum("skipped" in line for line in said) == 3


@pytest.mark.slow
@pytest.mark.parametrize("point", ["grade:2", "sync:3", "DONE:2", "DONE:3"])
def test_killed_and_resumed_ends_with_the_same_bytes(point: str, recipe_file: Path, finished: Path, tmp_path: Path) -> None:
    kill_and_resume([point], recipe_file, tmp_path / "killed")
    check_same(finished, tmp_path / "killed")
