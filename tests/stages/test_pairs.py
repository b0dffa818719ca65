"""A stage that makes preference pairs of a policy's own answers, and the tasks that read them."""

import json
import re
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.model.tiny import make_tiny

from cascade_rl import pipeline
from cascade_rl.cli import main
from cascade_rl.errors import DataError, RecipeError, RunError
from cascade_rl.eval.matrix import Matrix
from cascade_rl.grade.judge.own import score_of
from cascade_rl.one_checkpoint import find_checkpoint
from cascade_rl.pipeline import run_recipe
from cascade_rl.plan import budget, fingerprints, make_plan, with_pairs
from cascade_rl.recipe import Recipe, parse_recipe, to_json
from cascade_rl.run import read_json
from cascade_rl.sample.local import LocalSampler
from cascade_rl.shortfall import shortfalls
from cascade_rl.stages.context import StageContext

SPLITS = ("train", "dev", "test")


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny("qwen3", tmp_path_factory.mktemp("pairs") / "model", max_position_embeddings=512)


def recipe(model: Path | str, grader: str = "long", pairs: dict[str, Any] | None = None, **changes: Any) -> Recipe:
    """A trunk of one stage, pairs of its answers and its start's, and a judge beside it that learns from them."""
    sft = {"kind": "sft", "steps": 1, "batch_size": 1, "pack_tokens": 400, "data": [{"task": "judging"}]}
    trunk = {"kind": "rl", "name": "rl", "steps": 1, "prompts_per_step": 2, "group_size": 2, "tasks": [{"task": "letters"}],
             "max_new_tokens": 6, "overlong": "mask", "dynamic_filtering": False}  # fmt: skip
    made = {
        "kind": "pairs", "tasks": ["letters"], "answers_of": ["start", "rl"], "samples": 2, "train": 6, "dev": 4, "test": 3,
        "tie_share": 0.2, "max_new_tokens": 10, "save_every": 5, **(pairs or {}),
    }  # fmt: skip
    table = {
        "name": "t", "model": {"source": str(model), "dtype": "float32"},
        "tasks": {
            "letters": {"kind": "tests.stages.letters:Letters", "grader": grader},
            "judging": {"kind": "preference", "stage": "pairs", "template": "brief", "thinking": False},
        },
        "eval": {"tasks": ["letters", "judging"], "only": {"judging": ["judge"]}, "dev": 2, "test": 2, "max_new_tokens": 6},
        "stage": [trunk, made, {**sft, "name": "judge", "start": "start", "branch": True}],
        **changes,
    }  # fmt: skip
    return parse_recipe(table)


def rows(run: Path) -> list[dict[str, Any]]:
    (file,) = run.glob("stages/02-pairs-*/pairs.jsonl")
    return [json.loads(line) for line in file.read_text().splitlines()]


@pytest.fixture(scope="module")
def finished(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    run = tmp_path_factory.mktemp("run") / "whole"
    run_recipe(recipe(model), run, say=lambda text: None)
    return run


def test_a_pair_is_two_answers_to_a_prompt_of_its_split_the_better_first(finished: Path) -> None:
    made = rows(finished)
    assert {row["split"] for row in made} == set(SPLITS)
    for row in made:
        assert row["id"].startswith(f"letters/{row['split']}/")
        assert row["prompt"] == [{"role": "user", "content": f"go {row['id'].split('/')[2]}"}]
        assert row["helpfulness"] == [score_of(len(row[key][0]["content"]) / 20, 0, 1) for key in ("chosen", "rejected")]
        assert set(row["of"]) <= {"start", "rl"}
    assert {stage for row in made for stage in row["of"]} == {"start", "rl"}
    ties = [row for row in made if row["helpfulness"][0] == row["helpfulness"][1]]
    assert all(row["split"] == "train" for row in ties)
    others = [row for row in made if row["split"] == "train" and row not in ties]
    assert len(ties) == round(0.25 * len(others))
    assert all(row["helpfulness"][0] > row["helpfulness"][1] for row in others)


def test_a_judge_learns_from_them_and_is_measured_by_those_of_other_prompts(model: Path, finished: Path) -> None:
    matrix = Matrix.load(finished)
    assert {(row.stage, row.task) for row in matrix.rows} == {("rl", "letters"), ("judge", "judging")}
    plan = make_plan(recipe(model), finished)
    assert [item.outlook for item in plan] == ["done"] * 3
    assert find_checkpoint(finished).parent.name.startswith("02-pairs"), "the same files as of the stage before it"
    assert [item.start for item in plan] == ["start", "rl", "start"]
    told = read_json(plan[1].dir.lineage)
    assert told["passed_on"]
    assert "train" in told["notes"][0]
    assert not plan[1].dir.state.exists()
    before = (finished / "matrix.json").read_bytes()
    run_recipe(recipe(model), finished, say=lambda text: None)
    assert (finished / "matrix.json").read_bytes() == before


def test_stopped_between_two_pieces_it_goes_on_to_the_same_bytes(
    model: Path, finished: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save, finished_turns, asked = StageContext.save_piece, LocalSampler.finished, []

    def saved(self: StageContext, value: Any, *, last: bool) -> None:
        save(self, value, last=last)
        if len(list(self.dir.state.glob("step-*"))) == 3:
            raise KeyboardInterrupt

    def sampled(self: LocalSampler, contexts: Any, *rest: Any) -> Any:
        asked.append(len(contexts))
        return finished_turns(self, contexts, *rest)

    monkeypatch.setattr(StageContext, "save_piece", saved)
    with pytest.raises(KeyboardInterrupt):
        run_recipe(recipe(model), tmp_path, say=lambda text: None)
    assert make_plan(recipe(model), tmp_path)[1].outlook == "resume"
    monkeypatch.setattr(StageContext, "save_piece", save)
    monkeypatch.setattr(LocalSampler, "finished", sampled)
    # Another size of the pieces changes nothing: 13 prompts of the start are done, 13 of the other are not.
    run_recipe(recipe(model, pairs={"save_every": 100}), tmp_path, only="pairs", say=lambda text: None)
    assert asked == [13, 2], "the second is the test row of the stage before"
    for name in ("pairs.jsonl", "metrics.jsonl", "lineage.json"):
        one, two = ((*run.glob(f"stages/02-pairs-*/{name}"),)[0].read_bytes() for run in (finished, tmp_path))
        assert one == two


def test_a_judge_without_demonstrations_is_an_error_before_any_work(model: Path, tmp_path: Path) -> None:
    told = recipe(model)
    thinking = {**told.tasks, "judging": replace(told.tasks["judging"], thinking=True)}  # type: ignore[type-var]
    with pytest.raises(RecipeError, match=r'"judging" has no demonstrations to imitate; .* thinking = false'):
        run_recipe(replace(told, tasks=thinking), tmp_path, say=lambda text: None)
    assert not list(tmp_path.glob("stages/*"))


def test_pairs_that_were_deleted_are_made_again(model: Path, finished: Path, tmp_path: Path) -> None:
    plan = make_plan(recipe(model), finished)
    kept = plan[1].dir.pairs.rename(tmp_path / "kept")
    try:
        again = make_plan(recipe(model), finished)
        assert [item.outlook for item in again] == ["done", "run", "done"]
        assert again[1].in_words == "will run again: it was done, and its file of pairs was deleted since"
    finally:
        kept.rename(plan[1].dir.pairs)


def changed(before: Recipe, after: Recipe) -> set[str]:
    one, two = fingerprints(before), fingerprints(after)
    return {name for name in one if one[name] != two.get(name)}


def test_what_pairs_depend_on_and_what_depends_on_them() -> None:
    plain = recipe("nano")
    assert changed(plain, recipe("nano", pairs={"samples": 3})) == {"pairs", "judge"}
    assert changed(plain, recipe("nano", "vowels")) == {"rl", "pairs", "judge"}
    assert not changed(plain, recipe("nano", pairs={"save_every": 7}))
    assert changed(plain, recipe("nano", pairs={"answers_of": ["start"]})) == {"pairs", "judge"}
    more = {"kind": "rl", "name": "more", "tasks": [{"task": "letters"}]}
    stages = [{"kind": "pairs", "tasks": ["letters"]}, more]
    with_pairs, without = (
        fingerprints(parse_recipe({"name": "t", "model": {"source": "nano"}, "stage": told,
                                   "tasks": {"letters": {"kind": "tests.stages.letters:Letters"}}}))
        for told in (stages, [more])
    )  # fmt: skip
    assert with_pairs["more"] == without["more"], "they are no part of the student's way"


def test_a_choice_of_teachers_knows_nothing_of_what_only_later_stages_are_asked() -> None:
    def chosen(only: dict[str, Any], tasks: list[str]) -> str:
        sft = {"kind": "sft", "data": [{"task": "nano.chat"}]}
        stages = [{**sft, "name": "sft"}, {"kind": "select"}, {**sft, "name": "judge", "branch": True}]
        told = {"tasks": tasks, "only": only}
        return fingerprints(parse_recipe({"name": "t", "model": {"source": "nano"}, "eval": told, "stage": stages}))["select"]

    plain = chosen({}, ["nano.chat"])
    assert chosen({"nano.judge": ["judge"]}, ["nano.chat", "nano.judge"]) == plain
    assert chosen({}, ["nano.chat", "nano.judge"]) != plain
    assert chosen({"nano.judge": ["sft"]}, ["nano.chat", "nano.judge"]) != plain


def test_the_budget() -> None:
    told = budget(recipe("nano").stages[1])
    assert (told.prompts, told.rollouts, told.tokens) == (13, 52, 520)


@pytest.mark.parametrize(
    "changes, says",
    [
        ({"pairs": {"tasks": []}}, "needs tasks"),
        ({"pairs": {"tasks": ["letters", "letters"]}}, "names one twice"),
        ({"pairs": {"answers_of": ["rl", "rl"]}}, "names one twice"),
        ({"pairs": {"answers_of": ["judge"]}}, 'answers_of: stage "judge" is not known'),
        ({"pairs": {"answers_of": [], "samples": 1}}, "makes no pair"),
        ({"pairs": {"tie_share": 1.0}}, "tie_share"),
        ({"pairs": {"worst": 1.0}}, "must be less than best"),
        ({"pairs": {"temperature": 0.0}}, "greedy answers"),
        ({"pairs": {"name": "others"}}, 'reads the pairs of stage "pairs"'),
        ({"pairs": {"name": "others"}, "eval": {}}, 'task "judging": stage "pairs" is not known'),
        ({"eval": {"tasks": ["judging"]}}, r"only = \{ judging = "),
        ({"eval": {"tasks": ["judging"], "only": {"judging": ["rl"]}}}, "cannot be asked"),
        ({"eval": {"tasks": ["letters"], "only": {"judging": ["judge"]}}}, 'only: task "judging" is not known'),
        ({"eval": {"tasks": ["letters"], "only": {"letters": ["juge"]}}}, 'did you mean "judge"'),
        ({"pairs": {"dev": 0}}, r'eval: dev = 2, but task "judging" has no dev prompts: .*\(pairs.dev = 0\)'),
        ({"pairs": {"test": 0}}, r'eval: test = 2, but task "judging" has no test prompts: .*\(pairs.test = 0\)'),
        (
            {"eval": {"tasks": ["letters"], "only": {"letters": ["rl"]}, "skip": ["rl"]}},
            'stage "rl" has no row, since it is one of eval.skip',
        ),
        ({"eval": {"tasks": ["letters"], "only": {"letters": ["pairs"]}}}, 'stage "pairs" has no row, since it trains nothing'),
    ],
)
def test_what_cannot_be_is_an_error_before_any_work(changes: dict[str, Any], says: str) -> None:
    with pytest.raises(RecipeError, match=says):
        recipe("nano", **changes)


def test_splits_that_nothing_reads_may_be_left_out() -> None:
    recipe("nano", pairs={"dev": 0}, eval={"tasks": ["judging"], "only": {"judging": ["judge"]}, "dev": 0, "test": 2})
    recipe("nano", pairs={"dev": 0, "test": 0}, eval={"tasks": ["letters"], "dev": 2})


def test_pairs_of_pairs_need_the_same_splits() -> None:
    more = {"kind": "pairs", "name": "more", "tasks": ["judging"], "train": 2, "dev": 0, "test": 1}
    told = to_json(recipe("nano", eval={}))
    tasks = {name: {key: value for key, value in task.items() if key != "name"} for name, task in told["tasks"].items()}
    table = {"name": "t", "model": {"source": "nano"}, "tasks": tasks, "stage": [*told["stages"], more]}
    parse_recipe(table)
    table["stage"][1]["test"] = 0
    with pytest.raises(RecipeError, match=r'stage "more": test = 1, but task "judging" has no test prompts'):
        parse_recipe(table)


def test_pairs_of_a_task_with_tools_are_refused_by_plan_and_run_before_any_work(tmp_path: Path) -> None:
    stage = {"kind": "pairs", "tasks": ["nano.tools"], "train": 2, "dev": 0, "test": 0}
    told = parse_recipe({"name": "t", "model": {"source": "nano"}, "stage": [stage]})
    (lack,) = shortfalls(told)
    assert re.match(r'stage "pairs": task "nano.tools": prompt \S+ has tools, .* name tasks without tools', lack)
    with pytest.raises(DataError, match="name tasks without tools"):
        run_recipe(told, tmp_path / "run", say=lambda text: None)
    assert not (tmp_path / "run").exists()


def test_a_damaged_file_of_pairs_says_in_plan_and_run_how_it_is_made_anew(
    model: Path, finished: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run = tmp_path / "run"
    shutil.copytree(finished, run)
    pairs = make_plan(recipe(model), run)[1].dir.pairs
    whole = pairs.read_bytes()
    for damaged, says in (
        (whole[:-20], rf"pairs\.jsonl:{len(whole.splitlines())}: "),
        (b"\xff" + whole, "no text in UTF-8"),
        (whole.replace(b'"chosen"', b'"chosem"'), "pairs.jsonl:1: has "),
        (b"", "has no rows"),
    ):
        pairs.write_bytes(damaged)
        (lack,) = shortfalls(with_pairs(recipe(model), make_plan(recipe(model), run)))
        assert re.search(f"(?s){says}.*delete it, and the same command", lack)
        assert "HelpSteer3" not in lack, "nobody publishes it"
        with pytest.raises(
            DataError, match=rf'(?s){says}.*Stage "pairs" made this file whole, .*; delete it, and the same command'
        ):
            run_recipe(recipe(model), run, say=lambda text: None)
    monkeypatch.setattr("cascade_rl.recipe.load_recipe", lambda *_: recipe(model))
    assert main(["plan", "x.toml", "--run", str(run)]) == 0
    assert "so it was damaged since; delete it" in " ".join(capsys.readouterr().out.split())
    pairs.unlink()
    run_recipe(recipe(model), run, say=lambda text: None)
    assert make_plan(recipe(model), run)[1].dir.pairs.read_bytes() == whole


def test_fewer_prompts_than_asked_for_are_told_of() -> None:
    said: list[str] = []
    stage = {"kind": "pairs", "tasks": ["chat"], "train": 7, "dev": 3, "test": 0}
    chat = {"kind": "nano.chat", "num_train": 5, "num_dev": 3}
    told = parse_recipe({"name": "t", "model": {"source": "nano"}, "stage": [stage], "tasks": {"chat": chat}})
    pipeline._check_data(told, said.append)
    assert said == ["pairs.train = 7 prompts of each task, and chat has 5; all that are there are asked"]


def test_answers_that_are_all_as_good_or_without_a_verdict_stop_the_stage(model: Path, tmp_path: Path) -> None:
    for grader, says in (("same", "two answers of different scores"), ("down", "16 of 16 answers have no verdict")):
        told = recipe(model, grader, {"answers_of": ["start"], "samples": 4, "save_every": 4})
        alone = parse_only_pairs(told)
        with pytest.raises(RunError, match=says):
            run_recipe(alone, tmp_path / grader, say=lambda text: None)


def parse_only_pairs(told: Recipe) -> Recipe:
    from dataclasses import replace

    return replace(told, stages=told.stages[1:2], eval=replace(told.eval, tasks=(), only={}))
