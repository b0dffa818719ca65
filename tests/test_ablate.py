"""`cascade ablate`: what a variant makes of a recipe, runs that share what they have in common, figures with their errors."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from cascade_rl.ablate import BASE, Ablation, Cell, Variant, load_ablation
from cascade_rl.ablate_table import MEAN, lines, show
from cascade_rl.cli import main
from cascade_rl.errors import RecipeError
from cascade_rl.plan import make_plan
from cascade_rl.recipe import parse_recipe, read_toml
from cascade_rl.run import RunDir, write_json
from tests.stages.letters import make_letters_model

RL: dict[str, Any] = {"kind": "rl", "prompts_per_step": 4, "group_size": 4, "max_new_tokens": 6, "learning_rate": 5e-3}
TABLE: dict[str, Any] = {
    "name": "t",
    "model": {"source": "nowhere", "dtype": "float32"},
    "eval": {"tasks": ["vowels", "others"], "dev": 4, "test": 6, "max_new_tokens": 6},
    "tasks": {
        "vowels": {"kind": "tests.stages.letters:Letters", "domain": "vowels"},
        "others": {"kind": "tests.stages.letters:Letters", "domain": "others", "grader": "consonants"},
    },
    "stage": [
        {**RL, "name": "up", "steps": 2, "tasks": [{"task": "vowels"}]},
        {**RL, "name": "both", "steps": 1, "tasks": [{"task": "vowels", "weight": 3}, {"task": "others"}]},
    ],
}


def names(variant: Variant) -> list[str]:
    return [stage["name"] for stage in variant.apply(TABLE)["stage"]]


def test_a_variant_changes_one_thing_of_the_recipe() -> None:
    assert names(Variant(BASE)) == ["up", "both"]
    assert names(Variant("v", without=("up",))) == ["both"]
    assert names(Variant("v", order=("both", "up"))) == ["both", "up"]
    changed = Variant("v", set=("both.kl=0.5", "eval.test=9")).apply(TABLE)
    assert changed["stage"][1]["kl"] == 0.5
    assert changed["eval"]["test"] == 9
    assert "kl" not in TABLE["stage"][1]
    # 2 steps on vowels and 1 on 3/4 vowels and 1/4 others are 2.75 and 0.25 steps' worth of prompts in 3 steps.
    (mixed,) = Variant("v", mix=("up", "both")).apply(TABLE)["stage"]
    assert (mixed["name"], mixed["steps"], mixed["group_size"]) == ("mixed", 3, 4)
    assert mixed["tasks"] == [{"task": "vowels", "weight": 2.75}, {"task": "others", "weight": 0.25}]
    assert parse_recipe(Variant("v", mix=("up", "both")).apply(TABLE)).stages[0].steps == 3


@pytest.mark.parametrize(
    "variant, message",
    [
        (Variant("v", without=("bot",)), 'variant "v": stage "bot" is not known; did you mean "both"'),
        (Variant("v", order=("up",)), "order up must name two or more of the stages that are left"),
        (Variant("v", mix=("up",)), "needs the names of two or more rl stages"),
        (Variant("v", set=("nosuch.kl=1",)), 'stage or section "nosuch" is not known'),
        (Variant("v"), 'variant "v": changes nothing of the recipe'),
        (Variant("v", without=("up", "both")), 'variant "v": leaves no stage'),
    ],
)
def test_a_change_that_cannot_be_made_is_refused(variant: Variant, message: str) -> None:
    with pytest.raises(RecipeError, match=message):
        variant.apply(TABLE)


def test_an_order_permutes_the_stages_that_it_names() -> None:
    table = {"stage": [{"kind": "rl", "name": name} for name in "abcd"]}
    stages = Variant("v", order=("d", "b")).apply(table)["stage"]
    assert [stage["name"] for stage in stages] == ["a", "d", "c", "b"]


def test_the_shipped_ablation_fits_the_nano_recipe() -> None:
    folder = Path(__file__).parents[1] / "recipes"
    for variant in load_ablation(folder / "ablations" / "nano.toml").variants:
        parse_recipe(variant.apply(read_toml(folder / "nano.toml", "recipe")))


def test_mixing_stages_that_differ_otherwise_is_refused() -> None:
    table = {**TABLE, "stage": [TABLE["stage"][0], {**TABLE["stage"][1], "group_size": 8}]}
    with pytest.raises(RecipeError, match="up and both differ in group_size"):
        Variant("v", mix=("up", "both")).apply(table)
    (mixed,) = Variant("v", mix=("up", "both"), set=("mixed.group_size=6",)).apply(table)["stage"]
    assert mixed["group_size"] == 6
    # Steps of another size: 1 step of 8 prompts is 2 of 4, so 2 + 2 steps, 3.5 of them on vowels.
    table = {**TABLE, "stage": [TABLE["stage"][0], {**TABLE["stage"][1], "prompts_per_step": 8}]}
    (mixed,) = Variant("v", mix=("up", "both")).apply(table)["stage"]
    assert (mixed["steps"], mixed["prompts_per_step"]) == (4, 4)
    assert mixed["tasks"] == [{"task": "vowels", "weight": 3.5}, {"task": "others", "weight": 0.5}]


@pytest.mark.parametrize(
    "text, message",
    [
        ("seeds = [0]", "names no variant"),
        ("seeds = [1, 1]\n[variant.a]\nwithout = ['x']", "must be one or more different numbers"),
        ("[variant.a]\nwithot = ['x']", 'variant "a": key "withot" is not known; did you mean "without"'),
        ("[variant.base]\nwithout = ['x']", 'not "base"'),
    ],
)
def test_a_spec_is_read_strictly(text: str, message: str, tmp_path: Path) -> None:
    (tmp_path / "a.toml").write_text(text)
    with pytest.raises(RecipeError, match=message):
        load_ablation(tmp_path / "a.toml")


def cell(variant: str, seed: int, **scores: list[float]) -> Cell:
    told = {task: {f"p{i}": value for i, value in enumerate(values)} for task, values in scores.items()}
    return Cell(variant, seed, Path("x"), "c", "test", told, 8)


def test_figures_by_hand() -> None:
    cells = [
        cell(BASE, 0, a=[0.0, 1.0], b=[0.5, 0.5]), cell("v", 0, a=[1.0, 1.0], b=[0.5, 0.5]),
        cell(BASE, 1, a=[1.0, 1.0], b=[0.5, 0.5]), cell("v", 1, a=[1.0, 1.0], b=[0.0, 0.0]),
    ]  # fmt: skip
    a, b, mean = lines(cells, "v")
    assert (a.task, b.task, mean.task) == ("a", "b", MEAN)
    # Differences of a: +1, 0 under seed 0, none under seed 1. Over seeds 0.5 and 0: mean 0.25, sd sqrt(0.125), over sqrt 2 is 0.25.
    assert a.difference is not None
    assert a.difference.mean == 0.25
    assert a.difference.stderr_seeds == pytest.approx(0.25)
    assert a.difference.stderr_prompts == pytest.approx(0.25)  # prompts 0.5 and 0, again
    # b: 0 and -0.5: -0.25 ± 0.25 over seeds; over prompts both are -0.25, so 0.
    assert b.difference is not None
    assert (b.difference.mean, b.difference.stderr_prompts) == (-0.25, 0)
    assert b.difference.error == pytest.approx(0.25)
    # The mean over tasks: 0.25 and -0.25 under the two seeds.
    assert mean.difference is not None
    assert mean.difference.mean == pytest.approx(0)
    assert mean.difference.stderr_seeds == pytest.approx(0.25)
    assert mean.difference.stderr_prompts == pytest.approx(0.125)  # sqrt(0.25^2 + 0^2) / 2
    assert lines(cells, BASE)[0].difference is None
    assert lines(cells, BASE)[0].accuracy.mean == 0.75
    assert lines(cells[:2], "v")[0].accuracy.stderr_seeds is None  # one seed: not known, as opposed to 0


def test_the_table_shows_what_is_there(capsys: pytest.CaptureFixture[str]) -> None:
    cells = [cell(BASE, 0, a=[0.0] * 9 + [1.0]), cell("v", 0, a=[1.0] * 9 + [0.0])]
    show([Variant(BASE), Variant("v", without=("x",)), Variant("later")], cells, Console(width=120))
    told = capsys.readouterr().out
    assert "90.0  +80.0 ± 20.0 ▲" in told
    assert "v: without x" in told
    assert "later" not in told
    assert "one seed says nothing of luck in training" in told


def recipe_text(model: Path) -> str:
    lines = ["name = 't'", f"[model]\nsource = '{model}'\ndtype = 'float32'"]
    lines.append("[eval]\ntasks = ['vowels', 'others']\ndev = 4\ntest = 6\nmax_new_tokens = 6\nstart = true")
    lines.append("[tasks.vowels]\nkind = 'tests.stages.letters:Letters'\ndomain = 'vowels'")
    lines.append("[tasks.others]\nkind = 'tests.stages.letters:Letters'\ndomain = 'others'\ngrader = 'consonants'")
    for name, task in (("one", "vowels"), ("two", "others")):
        lines.append(f"[[stage]]\nname = '{name}'\ntasks = [{{ task = '{task}' }}]\nsteps = 1")
        lines += [f"{key} = {value!r}" for key, value in RL.items()]
    return "\n".join(lines)


def test_the_plan_says_what_each_run_would_train_or_link_and_starts_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "r.toml").write_text(recipe_text(Path("nano")))
    (tmp_path / "v.toml").write_text(
        "seeds = [0, 1]\n[variant.short]\nset = ['two.steps=2']\n[variant.kl]\nset = ['one.kl=0.5']\n"
    )
    out = tmp_path / "out"
    argv = ["ablate", str(tmp_path / "r.toml"), str(tmp_path / "v.toml"), "--out", str(out), "--plan"]

    def told() -> list[str]:
        assert main(argv) == 0
        return [re.sub(r"  [0-9a-f]{8}  ", " ", line.strip()) for line in capsys.readouterr().out.splitlines()]

    first = told()
    # Another seed is another run, so that nothing is shared between seeds; 16 rollouts a step.
    assert first[:9] == [
        "[1/6] base, seed 0: the recipe as it stands", "1. one will run", "2. two will run",
        "[2/6] short, seed 0: set two.steps=2", "1. one the same as in base/seed-0, will be linked", "2. two will run",
        "[3/6] kl, seed 0: set one.kl=0.5", "1. one will run", "2. two will run",
    ]  # fmt: skip
    assert first[9:11] == ["[4/6] base, seed 1: the recipe as it stands", "1. one will run"]
    assert first[-1] == (
        "6 runs of 12 stages; 10 of these are to be run, of at most 192 rollouts together, refills and evaluations apart"
    )
    assert not out.exists()
    # What a run has is skipped, and others take it over from there, whatever their order.
    recipe = parse_recipe({**read_toml(tmp_path / "r.toml", "recipe"), "seed": 0})
    place = make_plan(recipe, out / "short" / "seed-0")[0].dir
    place.checkpoint.mkdir(parents=True)
    (place.checkpoint / "config.json").write_text("{}")
    place.done_file.write_text("")
    second = told()
    assert second[1] == "1. one the same as in short/seed-0, will be linked"
    assert second[4] == "1. one done, will be skipped"


@pytest.mark.slow
def test_variants_run_share_what_is_equal_and_are_never_run_twice(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "r.toml").write_text(recipe_text(make_letters_model(tmp_path)))
    (tmp_path / "v.toml").write_text(
        "seeds = [0, 1]\n[variant.short]\nwithout = ['two']\n[variant.mixed]\nmix = ['one', 'two']\n"
    )
    argv = ["ablate", str(tmp_path / "r.toml"), str(tmp_path / "v.toml"), "--out", str(tmp_path / "out")]
    assert main(argv) == 0
    first = capsys.readouterr().out
    told = json.loads((tmp_path / "out" / "ablation.json").read_text())
    assert [variant["name"] for variant in told["variants"]] == ["base", "short", "mixed"]
    base, short, mixed = told["variants"]
    assert [run["seed"] for run in mixed["runs"]] == [0, 1]
    assert (base["rollouts"], short["rollouts"], mixed["rollouts"]) == (32, 16, 32)
    assert base["tasks"]["vowels"]["difference"] is None
    assert set(short["tasks"]) == {"vowels", "others", MEAN}
    assert short["tasks"][MEAN]["difference"]["stderr_seeds"] is not None
    # The first stage of base is the first of `short`: trained once, the same file; and so are its row and the start's.
    weights = [
        next((tmp_path / "out" / v / "seed-0" / "stages").glob("01-one-*/checkpoint/model.safetensors"))
        for v in ("base", "short")
    ]
    assert weights[0].samefile(weights[1])
    assert 'stage "one": done before' in first
    # Rows that were taken over say what a run of its own would have said.
    assert main(["run", str(tmp_path / "r.toml"), "--run", str(tmp_path / "alone"), "--only", "one"]) == 0
    rows = [
        json.loads((place / "matrix.json").read_text())["rows"]
        for place in (tmp_path / "out" / "short" / "seed-0", tmp_path / "alone")
    ]
    key = ("checkpoint", "task", "split", "metric", "mean")
    taken, own = ({tuple(row[k] for k in key) for row in found} for found in rows)
    assert taken == own

    def never(*_: Any) -> None:
        raise AssertionError("ran again")

    monkeypatch.setattr("cascade_rl.stages.rl.RL.run", never)
    monkeypatch.setattr("cascade_rl.eval.suite.Suite.ask", never)
    capsys.readouterr()
    assert main(argv) == 0
    assert json.loads((tmp_path / "out" / "ablation.json").read_text()) == told
    assert "base: the recipe as it stands" in capsys.readouterr().out


@pytest.mark.parametrize("plan", [["--plan"], []], ids=["plan", "run"])
def test_a_folder_that_cannot_be_had_is_told_of_before_any_run(
    plan: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "r.toml").write_text(recipe_text(Path("nano")))
    (tmp_path / "v.toml").write_text("seeds = [0, 1]\n[variant.a]\nset = ['one.kl=0.5']\n")
    out = tmp_path / "out"
    argv = ["ablate", str(tmp_path / "r.toml"), str(tmp_path / "v.toml"), "--out", str(out), *plan]
    out.write_text("")
    assert main(argv) == 1
    assert f"--out: {out} is a file" in capsys.readouterr().err
    out.unlink()
    write_json(RunDir(out).recipe, {"name": "t"})
    assert main(argv) == 1
    assert f"--out {out}: is a run itself" in capsys.readouterr().err
    RunDir(out).recipe.unlink()
    other = RunDir(out / "a" / "seed-1")
    write_json(other.recipe, {"name": "another"})
    assert main(argv) == 1
    told = capsys.readouterr().err
    assert f'run {other.root}: was made by the recipe "another", and this one is "t"; choose another --out folder' in told
    assert list(out.rglob("stages")) == []


def test_a_faulty_override_is_blamed_on_itself(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "r.toml").write_text(recipe_text(tmp_path))
    (tmp_path / "v.toml").write_text("[variant.a]\nset = ['one.kl=0.5']\n")

    def told(*overrides: str) -> str:
        sets = [word for override in overrides for word in ("--set", override)]
        assert main(["ablate", str(tmp_path / "r.toml"), str(tmp_path / "v.toml"), "--plan", *sets]) == 1
        return capsys.readouterr().err

    assert told("one.kl=much").startswith('error: --set one.kl=much: stage "one": kl: ')
    assert told("eval.dev=3", "seed=5").startswith("error: --set seed=5: the seeds of an ablation are those of its file")
    assert told("eval.dev=0", "eval.test=0").startswith("error: recipe: eval measures nothing")
    (tmp_path / "v.toml").write_text("[variant.a]\nset = ['seed=5']\n")
    assert told().startswith('error: variant "a": --set seed=5: the seeds of an ablation')
    (tmp_path / "r.toml").write_text(recipe_text(tmp_path).replace("steps = 1", "steps = 0"))
    assert told("eval.dev=3").startswith('error: stage "one": steps'), "a fault of the recipe itself is not the override's"


def test_every_variant_is_checked_before_one_runs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "r.toml").write_text(recipe_text(tmp_path))
    (tmp_path / "v.toml").write_text("[variant.a]\nset = ['one.stepz=3']\n")
    assert main(["ablate", str(tmp_path / "r.toml"), str(tmp_path / "v.toml"), "--out", str(tmp_path / "out")]) == 1
    told = capsys.readouterr().err
    assert 'variant "a": stage "one": key "stepz" is not known; did you mean "steps"' in told
    (tmp_path / "v.toml").write_text("""[variant.a]\nset = ["one.tasks=[{ task = 'vowels', keep = 'no/keep.json' }]"]\n""")
    assert main(["ablate", str(tmp_path / "r.toml"), str(tmp_path / "v.toml"), "--out", str(tmp_path / "out")]) == 1
    assert "no/keep.json: prompts that stage" in capsys.readouterr().err, "a file that only a later run reads"
    assert not (tmp_path / "out").exists()
    assert Ablation().seeds == (0,)
