"""The data step: what is dropped, what stays, what the file says, and that stages ask only what it keeps."""

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest
from tests.model.tiny import make_tiny

from cascade_rl.cli import main
from cascade_rl.errors import DataError, RecipeError
from cascade_rl.eval.keep import Kept, choose_prompts, digest, kept_prompts
from cascade_rl.pipeline import run_recipe
from cascade_rl.plan import make_plan
from cascade_rl.recipe import parse_recipe
from cascade_rl.records import Group, Message, Prompt, Reward, Rollout, Turn
from cascade_rl.run import RunDir
from cascade_rl.shortfall import shortfalls


def prompt(number: int, asks: str = "?") -> Prompt:
    return Prompt(f"t/train/{number}", "t", "toy", "train", (Message("user", f"{number}{asks}"),), reference=number)


def group(number: int, *rewards: float | None) -> Group:
    turn = Turn((1,), (5, 6), (-1.0, -1.0), "stop")
    rollouts = tuple(Rollout(prompt(number), (turn,), (Message("assistant", "x"),), "stop") for _ in rewards)
    return Group(prompt(number), rollouts, tuple(Reward(r, why="?" if r is None else "") for r in rewards))


def numbers(kept: Kept) -> list[int]:
    return [int(p.id.split("/")[-1]) for p in kept.kept]


def test_what_is_always_solved_goes_and_what_is_never_solved_stays_in_part() -> None:
    groups = [
        group(0, 1, 1),
        group(1, 1, 0),
        group(2, 0, 0),
        group(3, 1, None),
        group(4, None, None),
        group(5, 0, None),
        group(6, 0.5, 0.5),
    ]
    told = choose_prompts(groups, 1.0, 0)
    assert numbers(told) == [1, 2, 4, 5, 6]  # half a mark is not full marks
    assert (told.num_prompts, told.num_always, told.num_never, told.num_never_kept, told.num_unscored) == (7, 2, 3, 3, 1)
    assert told.num_tokens == 7 * 2 * 2
    assert numbers(choose_prompts(groups, 0.0, 0)) == [1, 4]
    with pytest.raises(RecipeError, match=r"--keep-unsolved 1.5"):
        choose_prompts(groups, 1.5, 0)


def test_a_tenth_is_a_tenth_and_depends_on_seed_and_id_alone() -> None:
    groups = [group(number, 0, 0) for number in range(200)]
    one = choose_prompts(groups, 0.1, 0)
    assert len(one.kept) == one.num_never_kept == 20
    assert set(numbers(one)) == set(numbers(choose_prompts(groups[::-1], 0.1, 0)))
    assert set(numbers(one)) != set(numbers(choose_prompts(groups, 0.1, 1)))
    assert numbers(one) == sorted(numbers(one))  # in the task's order


def write(folder: Path, kept: Kept) -> str:
    path = folder / "keep.json"
    path.write_text(json.dumps({"made_of": {}, "tasks": {kept.task: kept.told()}}))
    return str(path)


def test_a_file_gives_its_prompts_and_only_to_the_task_it_was_made_of(tmp_path: Path) -> None:
    path = write(tmp_path, choose_prompts([group(0, 1, 1), group(1, 1, 0), group(2, 0, 1)], 1.0, 0))
    prompts = [prompt(number) for number in range(4)]
    assert kept_prompts(path, "t", prompts) == prompts[1:3]
    for task, asked, told in (
        ("other", prompts, 'has no task "other"; it has t'),
        ("t", prompts[:2], "1 of its prompts are not there"),
        ("t", [prompts[0], prompt(1, "!"), prompts[2]], "prompt t/train/1 is another one now"),
    ):
        with pytest.raises(DataError, match=told):
            kept_prompts(path, task, asked)
    with pytest.raises(DataError, match="is no file; make it with `cascade filter"):
        kept_prompts(str(tmp_path / "none.json"), "t", prompts)
    with pytest.raises(DataError, match=r"is a folder; name a file, which `cascade filter .* --out FILE` makes"):
        kept_prompts(str(tmp_path), "t", prompts)
    for content, told in (
        ("[]", "no file of kept prompts"),
        ('{"tasks": {', r"is no JSON \(.*expected a file that `cascade filter` wrote"),
        ("[" * 200_000, r"is no JSON \(nested too deep\)"),
    ):
        Path(path).write_text(content)
        with pytest.raises(DataError, match=told):
            kept_prompts(path, "t", prompts)
    with pytest.raises(DataError, match="keeps no prompt"):
        kept_prompts(write(tmp_path, choose_prompts([group(0, 1, 1)], 1.0, 0)), "t", prompts)


def test_the_digest_is_of_what_is_asked_and_what_is_right() -> None:
    one = prompt(1)
    assert digest(one) == digest(prompt(1))
    for change in ({"reference": 2}, {"messages": (Message("user", "other"),)}, {"thinking": False}):
        assert digest(dataclasses.replace(one, **change)) != digest(one)  # type: ignore[arg-type]


def table(model: Path, keep: str) -> dict[str, Any]:
    share = {"task": "choice", **({"keep": keep} if keep else {})}
    stage = {"kind": "rl", "steps": 1, "prompts_per_step": 2, "group_size": 2, "max_new_tokens": 4, "dynamic_filtering": False,
             "rollouts_every": 1, "max_unscored": 1.0, "tasks": [share]}  # fmt: skip
    return {"name": "t", "model": {"source": str(model), "dtype": "float32"}, "stage": [stage],
            "tasks": {"choice": {"kind": "nano.choice", "num_train": 12}}}  # fmt: skip


@pytest.mark.parametrize("option", [["--samples", "0"], ["--num", "-1"], ["--keep-unsolved", "2"]])
def test_options_out_of_bounds(option: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["filter", "none", "--tasks", "nano.math", *option]) == 1
    assert f"error: {option[0]} " in capsys.readouterr().err


def test_filter_replaces_no_file_but_its_own(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "recipe.toml"
    argv = ["filter", str(tmp_path / "no-model"), "--tasks", "nano.choice", "--out", str(out)]
    for content in ("name = 't'", "{}", '{"tasks": 1}'):
        out.write_text(content)
        assert main(argv) == 1
        assert f"--out {out}: is there already, and no file that `cascade filter` wrote" in capsys.readouterr().err
        assert out.read_text() == content
    write(tmp_path, choose_prompts([group(1, 1, 0)], 1.0, 0))
    assert main([*argv[:-1], str(tmp_path / "keep.json")]) == 1
    assert "holds no model" in capsys.readouterr().err, "one of its own may be made again"


def test_from_the_verb_to_the_stage(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A random model solves none of twelve prompts; a third of them is kept, the same ones each time, and only these are asked."""
    model, out = make_tiny("qwen3", tmp_path / "model", max_position_embeddings=1024), str(tmp_path / "keep.json")
    sets = ("tasks.choice.kind=nano.choice", "tasks.choice.num_train=12", "eval.max_new_tokens=4")
    argv = ["filter", str(model), "--tasks", "choice", "--samples", "2", "--keep-unsolved", "0.34", "--out", out]
    argv += [word for told in sets for word in ("--set", told)]
    assert main(argv) == 0
    shown = capsys.readouterr().out
    assert "never solved" in shown
    assert "seconds" in shown
    first = Path(out).read_bytes()
    told = json.loads(first)["tasks"]["choice"]
    assert (told["num_prompts"], told["num_never"], told["num_never_kept"], len(told["kept"])) == (12, 12, 4, 4)
    assert 12 * 2 <= told["num_tokens"] <= 12 * 2 * 4
    assert main(argv) == 0
    assert Path(out).read_bytes() == first  # no times in it: its content belongs to fingerprints

    recipe = parse_recipe(table(model, out))
    run_recipe(recipe, tmp_path / "run", say=lambda text: None)
    (stage,) = RunDir(tmp_path / "run").root.glob("stages/*")
    asked = {json.loads(line)["prompt"] for line in (stage / "rollouts.jsonl").read_text().splitlines()}
    assert asked
    assert asked <= set(told["kept"])

    plain = make_plan(parse_recipe(table(model, "")), tmp_path / "run")[0].fingerprint
    kept = make_plan(recipe, tmp_path / "run")[0].fingerprint
    changed = json.loads(first)
    changed["tasks"]["choice"]["kept"].pop(next(iter(told["kept"])))
    Path(out).write_text(json.dumps(changed))
    assert len({plain, kept, make_plan(recipe, tmp_path / "run")[0].fingerprint}) == 3
    other = table(model, out)
    other["tasks"]["choice"]["seed"] = 1
    with pytest.raises(DataError, match="made with other settings"):
        run_recipe(parse_recipe(other), tmp_path / "other", say=lambda text: None)


def test_a_file_that_does_not_fit_is_told_of_by_plan_and_run_before_any_work(tmp_path: Path) -> None:
    keep = tmp_path / "keep.json"
    for content, says in (("{", "is no JSON"), ('{"tasks": {}}', 'has no task "choice"'), ("", "is no JSON")):
        keep.write_text(content)
        recipe = parse_recipe(table(tmp_path / "nowhere", str(keep)))
        (told,) = [told for told in shortfalls(recipe) if "keep" in told]
        assert told.startswith(f'stage "rl": keep: {keep} {says}')
        with pytest.raises(DataError, match=says):
            run_recipe(recipe, tmp_path / "run", say=lambda text: None)
    keep.unlink()
    (told,) = [told for told in shortfalls(recipe) if "keep" in told]
    way_out = f"make it with `cascade filter CHECKPOINT --tasks choice --out {keep}`"
    assert told == f'stage "rl": keep: {keep} is no file; {way_out}'
    with pytest.raises(RecipeError, match=r"1 of the files .* do not exist") as raised:
        run_recipe(recipe, tmp_path / "run", say=lambda text: None)
    assert str(raised.value).endswith(f'\n  {keep}: prompts that stage "rl" keeps; {way_out}')
    assert "tasks.NAME.path" not in str(raised.value), "no way out for a file of kept prompts"
    assert not (tmp_path / "run").exists()


def test_a_missing_file_is_told_of_though_its_task_is_not_there_either(tmp_path: Path) -> None:
    told = table(tmp_path / "nowhere", str(tmp_path / "keep.json"))
    told["tasks"]["choice"] = {"kind": "gsm8k", "path": str(tmp_path / "none.jsonl")}
    recipe = parse_recipe(told)
    lacks = shortfalls(recipe)
    assert [f"data that is not there yet: {tmp_path / 'none.jsonl'}" in each for each in lacks].count(True) == 1
    assert [each.startswith('stage "rl": keep: ') for each in lacks].count(True) == 1
    with pytest.raises(RecipeError, match=r"2 of the files .* do not exist; .* tasks.NAME.path"):
        run_recipe(recipe, tmp_path / "run", say=lambda text: None)


def test_a_share_is_checked_though_another_waits_for_its_pairs(tmp_path: Path) -> None:
    keep = tmp_path / "keep.json"
    keep.write_text("{")
    told = table(tmp_path / "nowhere", str(keep))
    told["tasks"]["judging"] = {"kind": "preference", "stage": "pairs"}
    told["stage"][0]["tasks"].append({"task": "judging"})
    told["stage"].insert(0, {"kind": "pairs", "tasks": ["choice"], "train": 2, "dev": 0, "test": 0})
    with pytest.raises(DataError, match="is no JSON"):
        run_recipe(parse_recipe({**told, "eval": {"dev": 0, "test": 0}}), tmp_path / "run", say=lambda text: None)
