"""Recipes: strict, with the path of every fault and a way out."""

import json
from pathlib import Path

import pytest

from cascade_rl.errors import RecipeError
from cascade_rl.plan import resolved, start_fingerprint
from cascade_rl.recipe import load_recipe, to_json
from cascade_rl.shortfall import check_files

ROOT = Path(__file__).resolve().parent.parent

GOOD = """
name = "small"
seed = 3
[model]
source = "nano"
[eval]
tasks = ["sums"]
dev = 10
[tasks.sums]
kind = "nano.math"
[[stage]]
kind = "sft"
name = "sft"
steps = 4
data = [{ task = "sums", weight = 2.0 }]
"""


def load(tmp_path: Path, text: str, *overrides: str):
    path = tmp_path / "recipe.toml"
    path.write_text(text)
    return load_recipe(path, overrides)


def test_a_folder_that_bears_the_name_of_a_model_of_the_house_changes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recipe = load(tmp_path, GOOD)
    monkeypatch.chdir(tmp_path)
    before = start_fingerprint(recipe)
    (tmp_path / "nano").mkdir()
    assert start_fingerprint(recipe) == before


@pytest.mark.parametrize("path", sorted((ROOT / "recipes").glob("*.toml")), ids=lambda p: p.name)
def test_every_recipe_of_the_house_parses(path: Path) -> None:
    recipe = load_recipe(path)
    assert recipe.stages
    assert json.loads(json.dumps(to_json(recipe)))["name"] == recipe.name


def test_values_arrive(tmp_path: Path) -> None:
    recipe = load(tmp_path, GOOD)
    assert (recipe.seed, recipe.eval.dev, recipe.eval.tasks) == (3, 10, ("sums",))
    assert recipe.stages[0].data[0].weight == 2.0
    assert recipe.tasks["sums"].name == "sums"


@pytest.mark.parametrize(
    "old, new, message",
    [
        ("steps = 4", "stepz = 4", 'stage "sft": key "stepz" is not known; did you mean "steps"?'),
        ("steps = 4", 'steps = "4"', "stage \"sft\": steps: '4' is not a whole number"),
        ("steps = 4", "steps = true", 'stage "sft": steps: True is not a whole number'),
        ("steps = 4", "steps = 4.0", 'stage "sft": steps: 4.0 is not a whole number'),
        ("steps = 4", 'schedule = "quadratic"', 'schedule: \'quadratic\' is not one of "cosine", "linear", "constant"'),
        ("steps = 4", 'betas = ["a", 0.9]', "is not a list of 2 (a number, a number)"),
        ('tasks = ["sums"]', 'tasks = "sums"', "is not a list, each a string"),
        ("steps = 4", "steps = 0", 'stage "sft": steps = 0 must be at least 1'),
        ("weight = 2.0", "weigth = 2.0", 'stage "sft": data[0]: key "weigth" is not known; did you mean "weight"?'),
        ("weight = 2.0", "weight = 0.0", 'stage "sft": data[0]: weight 0.0 must be more than 0'),
        ('task = "sums"', 'rows = "a.jsonl", task = "sums"', "either task"),
        ('kind = "sft"', 'kind = "stf"', 'stage "sft": kind "stf" is not known; did you mean "sft"?'),
        ('kind = "sft"', "", 'stage "sft": needs kind'),
        ('kind = "nano.math"', 'kind = "nano.maths"', 'did you mean "nano.math"?'),
        ('kind = "nano.math"', 'kind = "nosuch.module:Task"', 'cannot import "nosuch.module"'),
        ("seed = 3", "sed = 3", 'recipe: key "sed" is not known; did you mean "seed"?'),
        ('name = "small"', 'name = " "', "recipe: name must not be empty"),
        ('tasks = ["sums"]', 'tasks = ["smus"]', 'eval: task "smus" is not known; did you mean "sums"?'),
        ('task = "sums"', 'task = "nano.maths"', 'stage "sft": task "nano.maths" is not known; did you mean "nano.math"?'),
        ('kind = "nano.math"', 'kind = "nano.math"\nnum_train = 0', 'stage "sft": task "sums" has no train prompts'),
        ('kind = "nano.math"', 'kind = "nano.math"\nnum_dev = 0', 'eval: task "sums" has no dev prompts'),
        (
            "steps = 4",
            "batch_size = 99_999_999",
            'stage "sft": batch_size x pack_tokens makes one update of up to 204,799,997,952',
        ),
        (
            'kind = "sft"\nname = "sft"\nsteps = 4\ndata',
            'kind = "rl"\nname = "sft"\nprompts_per_step = 999_999\ntasks = [{ task = "sums" }]\n#',
            'stage "sft": prompts_per_step x group_size x max_new_tokens makes one update of up to',
        ),
        ("dev = 10", "dev = -1", "eval: dev = -1 must be 0 or more"),
        ("dev = 10", "temperature = -0.5", "eval: sampling: temperature -0.5"),
        ('source = "nano"', "", 'needs a value for "source"'),
        ("[[stage]]", "[stage]", "stages are written [[stage]]"),
        ('name = "sft"', 'name = "eval"', "is the name of a recipe section"),
        ('name = "sft"', 'name = "a/b"', "it names a folder"),
        ("seed = 3", "seed = = 3", "not TOML"),
        ("dev = 10", 'skip = ["stf"]', 'eval: skip: stage "stf" is not known; did you mean "sft"?'),
        ("[eval]", '[recovery]\ntasks = [{ task = "sums" }]\n[eval]', "recovery] is read only with eval.on_regression"),
        (
            "[eval]",
            '[recovery]\nbranch = true\ntasks = [{ task = "sums" }]\n[eval]\non_regression = "mopd"',
            "recovery: branch is not yours to set",
        ),
        ("dev = 10", 'on_regression = "mopd"', 'on_regression = "mopd" needs a table [recovery]'),
    ],
)
def test_faults_are_named(tmp_path: Path, old: str, new: str, message: str) -> None:
    assert old in GOOD
    with pytest.raises(RecipeError) as caught:
        load(tmp_path, GOOD.replace(old, new, 1))
    assert message in str(caught.value)


def test_lists_without_end_are_no_toml(tmp_path: Path) -> None:
    deep = "[" * 100_000
    with pytest.raises(RecipeError, match="not TOML"):
        load(tmp_path, f"seed = {deep}")
    with pytest.raises(RecipeError, match=r"recipe: seed: .* is not a whole number"):
        load(tmp_path, GOOD, f"seed={deep}")


def test_a_stage_without_a_name_is_called_by_its_kind(tmp_path: Path) -> None:
    with pytest.raises(RecipeError, match=r'stage "sft": steps: .* is not a whole number'):
        load(tmp_path, GOOD.replace('name = "sft"\n', "", 1), "sft.steps=many")


def test_two_stages_of_one_name_are_refused(tmp_path: Path) -> None:
    with pytest.raises(RecipeError, match='two stages are named "sft"'):
        load(tmp_path, GOOD + '[[stage]]\nkind = "sft"\nname = "sft"\ndata = [{ task = "sums" }]\n')


def test_a_missing_recipe_and_a_folder_are_named(tmp_path: Path) -> None:
    with pytest.raises(RecipeError, match="no such file"):
        load_recipe(tmp_path / "none.toml")
    with pytest.raises(RecipeError, match="is a folder"):
        load_recipe(tmp_path)


def test_overrides(tmp_path: Path) -> None:
    recipe = load(tmp_path, GOOD, "sft.steps=9", "eval.dev=5", "model.dtype=float32", "seed=8", "tasks.sums.num_dev=50")
    assert (recipe.stages[0].steps, recipe.eval.dev, recipe.model.dtype, recipe.seed) == (9, 5, "float32", 8)
    assert recipe.tasks["sums"].num_dev == 50


def test_an_override_reaches_a_task_whose_name_has_dots(tmp_path: Path) -> None:
    text = GOOD.replace('tasks = ["sums"]', 'tasks = ["nano.math"]')
    assert load(tmp_path, text, "tasks.nano.math.num_dev=50").tasks["nano.math"].num_dev == 50


@pytest.mark.parametrize(
    "override, message",
    [
        ("sft.stps=9", 'did you mean "steps"?'),
        ("stf.steps=9", 'did you mean "sft"?'),
        ("sft.steps", "expected stage.key=value"),
        ("=3", "expected stage.key=value"),
        ("sft.steps=fast", "'fast' is not a whole number"),
        ("seed.x=1", "not a table"),
    ],
)
def test_faulty_overrides_are_named(tmp_path: Path, override: str, message: str) -> None:
    with pytest.raises(RecipeError) as caught:
        load(tmp_path, GOOD, override)
    assert message in str(caught.value)


def test_a_task_of_ones_own_is_found_by_module_and_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "my_task.py").write_text(
        "from dataclasses import dataclass\n@dataclass(frozen=True)\nclass Mine:\n    name: str = 'mine'\n    size: int = 3\n"
        "    def prompts(self, split): ...\n    def grade(self, rollout, tools): ...\n    def open_tools(self, prompt): ...\n"
        "class Plain: ...\n@dataclass\nclass Half:\n    prompts = grade = print\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    recipe = load(tmp_path, GOOD.replace('kind = "nano.math"', 'kind = "my_task:Mine"\nsize = 7'))
    assert recipe.tasks["sums"].size == 7
    assert recipe.tasks["sums"].name == "sums"
    with pytest.raises(RecipeError, match='module "my_task" has no "Yours"'):
        load(tmp_path, GOOD.replace('kind = "nano.math"', 'kind = "my_task:Yours"'))
    with pytest.raises(RecipeError, match='task "sums": my_task:Plain is no dataclass'):
        load(tmp_path, GOOD.replace('kind = "nano.math"', 'kind = "my_task:Plain"'))
    with pytest.raises(RecipeError, match='task "sums": my_task:Half has no open_tools'):
        load(tmp_path, GOOD.replace('kind = "nano.math"', 'kind = "my_task:Half"'))


def test_the_resolved_recipe_has_every_value_and_the_arithmetic(tmp_path: Path) -> None:
    told = resolved(load(tmp_path, GOOD))
    stage = told["stages"][0]
    assert stage["kind"] == "sft"
    assert stage["betas"] == [0.9, 0.98]
    assert stage["arithmetic"].startswith("8 packed sequences x 2048 tokens = 1 update")
    assert len(stage["fingerprint"]) == 8


def test_editing_a_stage_changes_its_fingerprint_and_later_ones_only(tmp_path: Path) -> None:
    three = GOOD + "".join(f'[[stage]]\nkind = "sft"\nname = "sft{i}"\nsteps = 4\ndata = [{{ task = "sums" }}]\n' for i in (2, 3))
    base = [stage["fingerprint"] for stage in resolved(load(tmp_path, three))["stages"]]
    edited = [stage["fingerprint"] for stage in resolved(load(tmp_path, three, "sft2.steps=5"))["stages"]]
    assert [a == b for a, b in zip(base, edited, strict=True)] == [True, False, False]
    assert base == [stage["fingerprint"] for stage in resolved(load(tmp_path, three, "sft2.save_every=7"))["stages"]]
    assert base == [stage["fingerprint"] for stage in resolved(load(tmp_path, three, "eval.dev=3"))["stages"]]
    seeded = [stage["fingerprint"] for stage in resolved(load(tmp_path, three, "seed=9"))["stages"]]
    assert all(a != b for a, b in zip(base, seeded, strict=True))


def test_the_content_of_a_rows_file_is_part_of_the_fingerprint(tmp_path: Path) -> None:
    rows = tmp_path / "rows.jsonl"
    text = GOOD.replace('task = "sums"', f'rows = "{rows}"')
    with pytest.raises(RecipeError, match=r'do not exist.*\n.*rows.jsonl: rows of stage "sft"'):
        check_files(load(tmp_path, text))
    missing = resolved(load(tmp_path, text))["stages"][0]["fingerprint"]
    rows.write_text('{"prompt": "a", "completion": "b"}\n')
    first = resolved(load(tmp_path, text))["stages"][0]["fingerprint"]
    assert first != missing
    rows.write_text('{"prompt": "a", "completion": "c"}\n')
    assert resolved(load(tmp_path, text))["stages"][0]["fingerprint"] != first
