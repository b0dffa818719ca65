"""The distill stage on a tiny model: the student comes to its teacher, every choice runs, and bad teachers are refused at once."""

import json
import shutil
import typing
from pathlib import Path
from typing import Any

import pytest
from tests.model.tiny import make_tiny
from tests.stages.letters import lines, make_letters_model

from cascade_rl.errors import ModelError, RecipeError
from cascade_rl.pipeline import run_recipe
from cascade_rl.plan import teaches_itself
from cascade_rl.recipe import parse_recipe
from cascade_rl.run import StageDir
from cascade_rl.sample.local import LocalSampler
from cascade_rl.stages.distill import Distill

TEACHERS = {"vowels": "teach", "same": "start"}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_letters_model(tmp_path_factory.mktemp("distill"))


@pytest.fixture(scope="module")
def taught(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run whose first stage, RL on vowels, is to be the teacher."""
    run = tmp_path_factory.mktemp("taught")
    stage = {
        "kind": "rl", "name": "teach", "steps": 15, "prompts_per_step": 8, "group_size": 8, "max_new_tokens": 8, "learning_rate": 3e-3,
        "tasks": [{"task": "vowels"}],
    }  # fmt: skip
    run_recipe(parse_recipe(table(model, stage)), run, say=lambda text: None)
    return StageDir(next((run / "stages").iterdir())).checkpoint


def table(model: Path, *stages: dict[str, Any], **others: Any) -> dict[str, Any]:
    kind = "tests.stages.letters:Letters"
    tasks = {name: {"kind": kind, "domain": name} for name in ("vowels", "same")}
    return {"name": "t", "model": {"source": str(model), "dtype": "float32"}, "stage": [*stages], "tasks": tasks, **others}


def distill(model: Path, taught: Path, out: Path, **changes: Any) -> StageDir:
    """A distill stage of two small steps over two domains; `changes` are keys of the stage."""
    stage = {
        "kind": "distill", "steps": 2, "prompts_per_step": 4, "group_size": 4, "max_new_tokens": 12, "learning_rate": 1e-3,
        "warmup_steps": 0, "rollouts_every": 1, "tasks": [{"task": "vowels"}, {"task": "same"}],
        "teachers": {"vowels": str(taught), "same": "start"}, **changes,
    }  # fmt: skip
    run_recipe(parse_recipe(table(model, stage)), out, say=lambda text: None)
    return StageDir(next((out / "stages").iterdir()))


def test_the_student_comes_to_its_teacher_in_one_domain_and_stays_in_the_other(model: Path, taught: Path, tmp_path: Path) -> None:
    stage = distill(model, taught, tmp_path / "run", steps=25, prompts_per_step=16, learning_rate=3e-3, teacher_memory_gb=0.0)
    told = lines(stage.metrics)
    assert told[0]["reverse_kl/same"] < 1e-9, "at first it is its own anchor"

    def early_and_late(figure: str) -> list[float]:
        return [sum(line[figure] for line in part) / 5 for part in (told[:5], told[-5:])]

    first, last = early_and_late("reverse_kl/vowels")
    assert last < 0.5 * first
    first, last = early_and_late("reward/vowels")
    assert last > first + 0.05
    for line in told:
        assert line["on_policy"] == "on-policy: equal up to rounding"
        assert line["token_share/vowels"] + line["token_share/same"] == pytest.approx(1)
    lineage = json.loads(stage.lineage.read_text())
    assert lineage["teachers"] == {"vowels": str(taught), "same": lineage["student"]}


def test_no_teacher_but_the_student_moves_hardly_anything(model: Path, taught: Path, tmp_path: Path) -> None:
    for form in ("sampled_token", "full_vocabulary"):
        teachers = {"vowels": "start", "same": "start"}
        told = lines(distill(model, taught, tmp_path / form, steps=1, teachers=teachers, form=form).metrics)
        assert told[0]["grad_norm"] < 1e-4


def choices() -> list[tuple[str, Any]]:
    """Every value of every closed choice of the stage, and the options that are off by default."""
    found: list[tuple[str, Any]] = [("gap_clip", 0.1), ("extrapolation", 1.25), ("outcome", 1.0), ("close_below", 1e-6)]
    for name, hint in typing.get_type_hints(Distill).items():
        if typing.get_origin(hint) is typing.Literal:
            found += [(name, value) for value in typing.get_args(hint)]
    return found


@pytest.mark.parametrize("name, value", choices(), ids=lambda x: str(x))
def test_every_choice_runs_and_changes_the_update(name: str, value: Any, model: Path, taught: Path, tmp_path: Path) -> None:
    told = lines(distill(model, taught, tmp_path / "run", **{name: value}).metrics)
    assert [line["step"] for line in told] == [1, 2]
    assert all(line["num_targets"] > 0 for line in told)
    if name in ("gap_clip", "extrapolation", "outcome") or (name, value) in (("form", "top_k"), ("balance", "gap")):
        plain = lines(distill(model, taught, tmp_path / "plain").metrics)
        assert plain[0]["teacher_gap/vowels"] == told[0]["teacher_gap/vowels"]
        assert plain[0]["grad_norm"] != told[0]["grad_norm"]


def test_a_domain_whose_gap_has_closed_gives_its_prompts_to_the_others_and_all_closed_end_the_stage(
    model: Path, taught: Path, tmp_path: Path
) -> None:
    told = lines(distill(model, taught, tmp_path / "one", close_below=1e-6).metrics)
    assert [line["token_share/vowels"] for line in told] == [pytest.approx(told[0]["token_share/vowels"]), 1.0]
    assert "teacher_gap/same" not in told[1]
    stage = distill(model, taught, tmp_path / "all", steps=9, close_below=1e9)
    assert len(lines(stage.metrics)) == 1
    assert "ended after step 1" in json.loads(stage.lineage.read_text())["notes"][0]


def test_the_rate_climbs_from_where_the_paper_says() -> None:
    """2e-7 to 2e-6 over 30 steps, linearly, and stays."""
    stage = Distill(tasks=("any",))  # type: ignore[arg-type]
    assert [stage.lr(step) for step in (0, 14, 29, 30, 51)] == pytest.approx([2.6e-7, 1.1e-6, 2e-6, 2e-6, 2e-6])


def test_teachers_see_the_temperature_that_sampled(model: Path, taught: Path, tmp_path: Path) -> None:
    """At any temperature the start as its own teacher is at no distance."""
    told = lines(distill(model, taught, tmp_path / "run", steps=1, temperature=0.6).metrics)
    assert told[0]["teacher_gap/same"] < 1e-5


@pytest.mark.parametrize(
    "changes, message",
    [
        (
            {"teachers": {"vowels": "tech", "same": "start"}},
            r'teacher of vowels: stage "tech" is not known; did you mean "teach"',
        ),
        ({"teachers": {"vowels": "teach", "sam": "start"}}, r'domain "sam" is not known; did you mean "same"'),
        (
            {"teachers": {"vowels": "teach"}},
            r'domain "same" has no teacher: no select stage comes before; add teachers = \{ same =',
        ),
        ({"form": "top_k", "gap_clip": 1.0}, "gap_clip and extrapolation are of the sampled token"),
        ({"outcome": 1.0, "group_size": 1}, "outcome = 1.0 needs group_size"),
        ({"balance_low": 2.0}, "must have 1 between"),
        ({"warmup_from": 1.0, "warmup_steps": 2}, "warmup_from = 1.0 must be at most"),
        ({"balance": "domains"}, "balance"),
    ],
)
def test_faults_are_found_when_the_recipe_is_read(changes: dict[str, Any], message: str, model: Path) -> None:
    teach = {"kind": "rl", "name": "teach", "tasks": [{"task": "vowels"}]}
    stage = {"kind": "distill", "tasks": [{"task": "vowels"}, {"task": "same"}], "teachers": TEACHERS, **changes}
    with pytest.raises(RecipeError, match=message):
        parse_recipe(table(model, teach, stage))


def test_a_student_that_is_every_teacher_is_known_beforehand(model: Path) -> None:
    """Its own checkpoint, also where a choice of teachers stands between; a domain left to the choice, or another teacher, may teach."""
    teach, select = {"kind": "rl", "name": "teach", "tasks": [{"task": "vowels"}]}, {"kind": "select", "name": "chosen"}
    stage = {"kind": "distill", "name": "mopd", "tasks": [{"task": "vowels"}, {"task": "same"}]}
    tasks = {"tasks": ["vowels", "same"]}

    def told(*stages: dict[str, Any], **teachers: str) -> bool:
        recipe = parse_recipe(table(model, *stages, {**stage, "teachers": teachers}, eval=tasks))
        return teaches_itself(recipe, recipe.stages[-1])

    assert told(teach, vowels="teach", same="teach")
    assert told(teach, select, vowels="teach", same="chosen")
    assert not told(teach, vowels="teach", same="start")
    assert not told(teach, select, vowels="teach")


def test_a_select_stage_must_be_able_to_choose(model: Path) -> None:
    teach, select = {"kind": "rl", "name": "teach", "tasks": [{"task": "vowels"}]}, {"kind": "select"}
    stage = {"kind": "distill", "tasks": [{"task": "vowels"}, {"task": "same"}]}
    with pytest.raises(RecipeError, match="comes first and has nothing to choose from"):
        parse_recipe(table(model, select, stage))
    with pytest.raises(RecipeError, match=r"set eval\.tasks and eval\.dev"):
        parse_recipe(table(model, teach, select, stage))
    with pytest.raises(RecipeError, match=r'domain "same" has no teacher: eval\.tasks has no task of it'):
        parse_recipe(table(model, teach, select, stage, eval={"tasks": ["vowels"]}))
    parse_recipe(table(model, teach, select, stage, eval={"tasks": ["vowels", "same"]}))


def test_a_folder_with_another_vocabulary_is_refused_before_the_first_step(
    model: Path, taught: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = make_tiny("qwen3", tmp_path / "other")
    told = json.loads((other / "config.json").read_text())
    (other / "config.json").write_text(json.dumps({**told, "vocab_size": told["vocab_size"] + 1}))
    for door in ("sample", "finished"):
        monkeypatch.setattr(LocalSampler, door, lambda *args: pytest.fail("nothing may be sampled"))
    with pytest.raises(ModelError, match=r'teacher of domain "vowels": .*another vocabulary size'):
        distill(model, other, tmp_path / "run")


def test_a_teacher_of_another_size_teaches(model: Path, tmp_path: Path) -> None:
    wide = make_tiny("qwen3", tmp_path / "wide", hidden_size=32, max_position_embeddings=256)
    told = lines(distill(model, wide, tmp_path / "run").metrics)
    assert told[0]["teacher_gap/vowels"] > 0.1


def test_the_content_of_a_teachers_folder_belongs_to_the_fingerprint(model: Path, taught: Path, tmp_path: Path) -> None:
    from cascade_rl.plan import make_plan

    copy = tmp_path / "copy"
    shutil.copytree(taught, copy)
    stage = {"kind": "distill", "tasks": [{"task": "vowels"}], "teachers": {"vowels": str(copy)}}

    def fingerprint() -> str:
        return make_plan(parse_recipe(table(model, stage)), tmp_path / "run")[0].fingerprint

    first = fingerprint()
    assert fingerprint() == first
    (copy / "config.json").write_text((copy / "config.json").read_text() + "\n")
    assert fingerprint() != first


def test_with_nothing_to_win_back_it_passes_its_start_on_and_with_something_it_trains(
    model: Path, taught: Path, tmp_path: Path
) -> None:
    start = {"vowels": "start", "same": "start"}
    passed = distill(model, taught, tmp_path / "passed", only_if_behind=True, teachers=start)
    assert passed.done
    assert passed.passed_on
    assert not passed.metrics.exists()
    weights = "model.safetensors"
    assert (passed.checkpoint / weights).read_bytes() == (model / weights).read_bytes()
    assert json.loads(passed.lineage.read_text())["notes"] == ["not needed: no earlier checkpoint is better at any domain"]
    trained = distill(model, taught, tmp_path / "trained", only_if_behind=True)
    assert not trained.passed_on
    assert len(lines(trained.metrics)) == 2


def test_a_regression_is_won_back_by_stages_that_the_recipe_need_not_name(model: Path, tmp_path: Path) -> None:
    """One rl stage, and `on_regression = "mopd"`: what follows it is a choice of teachers, and distillation where one is better."""
    rl = {
        "kind": "rl", "name": "if", "steps": 2, "prompts_per_step": 4, "group_size": 4, "max_new_tokens": 8, "learning_rate": 1e-6,
        "tasks": [{"task": "vowels"}],
    }  # fmt: skip
    recovery = {"steps": 1, "prompts_per_step": 4, "max_new_tokens": 8, "warmup_steps": 0, "tasks": [{"task": "vowels"}]}
    told = {"tasks": ["vowels", "same"], "dev": 20, "test": 5, "max_new_tokens": 8, "on_regression": "mopd", "start": True}
    recipe = parse_recipe(table(model, rl, eval=told, recovery=recovery))
    assert [stage.name for stage in recipe.stages] == ["if", "if-select", "if-mopd"]
    run_recipe(recipe, tmp_path, say=lambda text: None)
    rows = json.loads((tmp_path / "matrix.json").read_text())["rows"]
    assert {row["stage"] for row in rows} == {"start", "if"}, "stages that pass their start on have no rows of their own"
    assert StageDir(next((tmp_path / "stages").glob("03-if-mopd-*"))).passed_on
