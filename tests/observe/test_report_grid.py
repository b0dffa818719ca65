"""The grid of depth and length in the report: hand-made scores, and what a real evaluation writes for it."""

import re
from pathlib import Path
from typing import Any

import pytest
from tests.model.tiny import make_tiny

from cascade_rl.errors import DataError
from cascade_rl.eval.matrix import Evaluation, Matrix
from cascade_rl.observe.report import build
from cascade_rl.observe.report_grid import grid_section
from cascade_rl.observe.report_run import read_run
from cascade_rl.one_checkpoint import evaluate_folder
from cascade_rl.pipeline import run_recipe
from cascade_rl.recipe import parse_recipe
from cascade_rl.records import EvalRow, Split
from cascade_rl.run import RunDir, read_json, write_json

Told = dict[str, tuple[dict[str, Any], list[float | None]]]  # prompt -> facets, scores


def write(folder: Path, stage: str, told: Told, split: Split = "dev", task: str = "long") -> None:
    checkpoint = f"01-{stage}-abcd"
    row = EvalRow(stage, checkpoint, task, "long", split, "accuracy", len(told), 0.5, 0.1)
    scores = {prompt: each for prompt, (_, each) in told.items()}
    Matrix.load(folder).add(Evaluation(checkpoint, split, (row,), {task: scores}))
    write_json(RunDir(folder).facets(checkpoint, split), {task: {prompt: facets for prompt, (facets, _) in told.items()}})


def at(depth: float, length: int, kind: str = "needle") -> dict[str, Any]:
    return {"depth": depth, "length": length, "kind": kind}


HAND: Told = {
    "a": (at(0.0, 1000), [1.0, 0.0]),
    "b": (at(0.0, 1000), [1.0, None]),
    "c": (at(0.5, 1000, "hop"), [0.0]),
    "d": (at(0.5, 2000), [1.0]),
    "e": (at(0.5, 2000), [None]),
    "f": ({"length": 2000, "kind": "sum"}, [1.0]),
}


def tables(folder: Path) -> list[list[list[str]]]:
    """The text of each table's cells, row by row."""
    html = grid_section(read_run(folder)) or ""
    found = []
    for table in re.findall(r"<table.*?</table>", html):
        rows = re.findall(r"<tr>(.*?)</tr>", table)
        found.append([[re.sub(r"<[^>]*>", "", cell) for cell in re.findall(r"<t[hd][^>]*>.*?</t[hd]>", row)] for row in rows])
    return found


def test_cells_are_means_of_prompts_by_hand(tmp_path: Path) -> None:
    """0% at 1,000: a has 0.5 and b, one sample unscored, 1. Nothing scored stands at e; f has no depth."""
    write(tmp_path, "sft", HAND)
    by_depth, by_kind = tables(tmp_path)
    assert by_depth == [["depth", "1,000", "2,000"], ["0%", "75 n 2", "–"], ["50%", "0 n 1", "100 n 1"]]
    assert by_kind == [
        ["kind", "1,000", "2,000"], ["hop", "0 n 1", "–"], ["needle", "75 n 2", "100 n 1"], ["sum", "–", "100 n 1"],
    ]  # fmt: skip


def test_checkpoints_stand_side_by_side_and_test_goes_before_dev(tmp_path: Path) -> None:
    one: Told = {"a": (at(1.0, 500), [1.0])}
    write(tmp_path, "sft", HAND)
    write(tmp_path, "sft", one, "test")
    write(tmp_path, "rl", one, "test")
    assert tables(tmp_path) == [[["depth", "500"], ["100%", "100 n 1"]]] * 2
    html = grid_section(read_run(tmp_path)) or ""
    assert re.findall(r"<caption><b>(\w+)</b>", html) == ["sft", "rl"]
    assert "long, test" in html


def test_many_lengths_are_put_into_bins(tmp_path: Path) -> None:
    write(tmp_path, "sft", {f"p{i}": (at(0.0, 1000 + 100 * i), [float(i < 9)]) for i in range(17)})
    ((head, row),) = tables(tmp_path)
    assert head == ["depth", "1,000 to 1,200", *(f"{n:,} to {n + 200:,}" for n in range(1200, 2600, 200))]
    assert row[:6] == ["0%", "100 n 3", "100 n 2", "100 n 2", "100 n 2", "0 n 2"]


def test_runs_without_long_documents_have_no_section_and_names_stay_text(tmp_path: Path) -> None:
    write(tmp_path / "plain", "sft", {"a": ({}, [1.0])})
    assert grid_section(read_run(tmp_path / "plain")) is None
    assert "documents" not in build(tmp_path / "plain").read_text().split("<main>")[0].split("</style>")[1]
    write(tmp_path / "odd", "sft", {"a": (at(0.0, 10, "<b>"), [1.0]), "b": (at(0.0, 10), [0.0])}, task="<script>")
    assert "<b>:" not in (html := grid_section(read_run(tmp_path / "odd")) or "")
    assert "&lt;script&gt;" in html
    assert "&lt;b&gt;" in html


def test_damaged_facets_cost_only_their_section(tmp_path: Path) -> None:
    write(tmp_path, "sft", HAND)
    RunDir(tmp_path).facets("01-sft-abcd", "dev").write_text('{"long": {"a": {"length": []}')
    text = build(tmp_path).read_text()
    assert "The grid cannot be drawn" in text
    assert 'class="matrix"' in text


RECIPE: dict[str, Any] = {
    "name": "t",
    "eval": {"tasks": ["long", "sums"], "dev": 12, "test": 0, "max_new_tokens": 4},
    "tasks": {
        "long": {"kind": "nano.long", "lengths": [60, 90], "num_train": 4, "num_dev": 12, "num_test": 4},
        "sums": {"kind": "nano.math", "num_train": 4, "num_dev": 12, "num_test": 4},
    },
}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny("qwen3", tmp_path_factory.mktemp("tiny"), max_position_embeddings=2048)


def test_an_evaluation_writes_what_the_grid_needs(model: Path, tmp_path: Path) -> None:
    recipe = parse_recipe({**RECIPE, "model": {"source": str(model), "dtype": "float32"}})
    evaluate_folder(recipe, model, ["long", "sums"], "dev", tmp_path)
    prompts = recipe.tasks["long"].prompts("dev")
    facets = read_json(RunDir(tmp_path).facets(model.name, "dev"))
    assert facets == {"long": {prompt.id: dict(prompt.facets) for prompt in prompts}}
    assert len(tables(tmp_path)) == 2
    assert "Long documents" in build(tmp_path).read_text()


def test_a_prompt_longer_than_the_context_is_refused_before_any_work(model: Path, tmp_path: Path) -> None:
    """Of all tasks that are asked or trained, whatever the order: nothing is evaluated, no stage has started."""
    long = {"kind": "nano.long", "lengths": [60, 16_000], "num_train": 12, "num_dev": 12}
    huge = {**RECIPE["tasks"], "huge": long}
    table = {**RECIPE, "tasks": huge, "model": {"source": str(model), "dtype": "float32"}}
    said = r"prompt huge/\w+/\d+: has \d\d,?\d{3} tokens, which leaves no room to answer in the model's 2,?048"
    with pytest.raises(DataError, match=said):
        evaluate_folder(parse_recipe(table), model, ["sums", "huge"], "dev", tmp_path / "eval")
    stage = {"kind": "rl", "steps": 1, "prompts_per_step": 2, "group_size": 2, "tasks": [{"task": "sums"}, {"task": "huge"}]}
    with pytest.raises(DataError, match=said):
        run_recipe(parse_recipe({**table, "stage": [stage]}), tmp_path / "run", say=lambda _: None)
    asked = {**RECIPE["eval"], "tasks": ["sums", "huge"]}
    with pytest.raises(DataError, match=said):
        run_recipe(parse_recipe({**table, "eval": asked, "stage": [{**stage, "tasks": [{"task": "sums"}]}]}), tmp_path / "run")
    assert not list(tmp_path.rglob("stages/*"))
    assert not list(tmp_path.rglob("eval/*.json"))
