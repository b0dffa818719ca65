"""SFT as a stage: every choice it offers runs, long samples are refused or counted, and the choices that must not matter do not."""

import json
import typing
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from tests.model.tiny import make_tiny

from cascade_rl.errors import DataError
from cascade_rl.pipeline import run_recipe
from cascade_rl.recipe import ModelConfig, parse_recipe
from cascade_rl.run import StageDir
from cascade_rl.stages.sft import SFT

ROWS = [
    {"messages": [{"role": "user", "content": f"say {word}"}, {"role": "assistant", "content": word * times}]}
    for word, times in (("one", 1), ("two", 2), ("three", 3), ("four", 1), ("five", 30))
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("sft")
    make_tiny("llama", place / "model")
    (place / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    return place


def run(folder: Path, out: Path, model: Mapping[str, Any] = {}, **changes: Any) -> StageDir:
    stage = {
        "kind": "sft", "name": "sft", "steps": 3, "batch_size": 1, "pack_tokens": 256, "learning_rate": 1e-3, "min_learning_rate": 0.0,
        "data": [{"rows": str(folder / "rows.jsonl")}], **changes,
    }  # fmt: skip
    source = {"source": str(folder / "model"), "dtype": "float32", **model}
    run_recipe(parse_recipe({"name": "t", "model": source, "stage": [stage]}), out, say=lambda text: None)
    (place,) = (out / "stages").iterdir()
    return StageDir(place)


def metrics(stage: StageDir) -> list[dict[str, Any]]:
    return [json.loads(line) for line in stage.metrics.read_text().splitlines()]


def choices() -> list[tuple[str, Any]]:
    """Every value of every closed choice of the stage and of the model section."""
    found = []
    for cls in (SFT, ModelConfig):
        for name, hint in typing.get_type_hints(cls).items():
            if typing.get_origin(hint) is typing.Literal:
                found += [(name, value) for value in typing.get_args(hint)]
            elif hint is bool:
                found += [(name, True)]
    return found


@pytest.mark.parametrize("name, value", choices(), ids=lambda x: str(x))
def test_every_choice_runs(name: str, value: Any, folder: Path, tmp_path: Path) -> None:
    if name == "compile":
        pytest.importorskip("torch._inductor")  # part of torch; what it needs besides is a C++ compiler
        import shutil

        if not (shutil.which("g++") or shutil.which("c++")):
            pytest.skip("torch.compile needs a C++ compiler, which this machine has not")
    changes: dict[str, Any] = {"model": {name: value}} if name == "dtype" else {name: value}
    told = metrics(run(folder, tmp_path / "run", **changes))
    assert len(told) == 3
    assert all(line["loss"] > 0 for line in told)


def test_it_learns_its_rows(folder: Path, tmp_path: Path) -> None:
    told = metrics(run(folder, tmp_path / "run", steps=60, learning_rate=2e-2))
    assert told[-1]["loss"] < 0.5 * told[0]["loss"]


def test_micro_batches_checkpointing_and_save_points_do_not_change_the_losses(folder: Path, tmp_path: Path) -> None:
    base = [line["loss"] for line in metrics(run(folder, tmp_path / "base"))]
    for i, changes in enumerate(({"microbatch_tokens": 40}, {"checkpointing": True}, {"save_every": 1})):
        assert [line["loss"] for line in metrics(run(folder, tmp_path / str(i), **changes))] == pytest.approx(base, rel=1e-5)


def test_a_sample_too_long_is_refused_by_name_before_step_1(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"1 samples of .* longer than pack_tokens = 60; the longest, .*rows.jsonl:5"):
        run(folder, tmp_path / "run", pack_tokens=60)
    assert not list((tmp_path / "run").rglob("metrics.jsonl"))


def test_a_later_stages_long_sample_is_refused_before_the_first_stage(folder: Path, tmp_path: Path) -> None:
    source = {"source": str(folder / "model"), "dtype": "float32"}
    rows = [{"rows": str(folder / "rows.jsonl")}]
    stages = [
        {"kind": "sft", "name": name, "steps": 1, "batch_size": 1, "pack_tokens": pack_tokens, "data": rows}
        for name, pack_tokens in (("first", 256), ("second", 60))
    ]
    with pytest.raises(DataError, match=r'stage "second": 1 samples of .* longer than pack_tokens = 60; .*rows.jsonl:5'):
        run_recipe(parse_recipe({"name": "t", "model": source, "stage": stages}), tmp_path / "run", say=lambda text: None)
    assert not list((tmp_path / "run").rglob("metrics.jsonl"))


def test_a_sample_too_long_can_be_skipped_and_is_counted(folder: Path, tmp_path: Path) -> None:
    stage = run(folder, tmp_path / "run", pack_tokens=60, too_long="skip")
    assert json.loads(stage.lineage.read_text())["notes"] == [
        f'1 samples of "{folder / "rows.jsonl"}" skipped: longer than 60 tokens'
    ]


def test_a_sample_longer_than_the_models_context_is_refused(folder: Path, tmp_path: Path) -> None:
    config = folder / "model" / "config.json"
    assert json.loads(config.read_text())["max_position_embeddings"] == 512
    rows = tmp_path / "long.jsonl"
    rows.write_text(json.dumps({"prompt": "q" * 700, "completion": "a"}) + "\n")
    with pytest.raises(
        DataError, match=r"long.jsonl:1 has 7\d\d tokens and the model takes 512; set pack_tokens = 512 and too_long"
    ):
        run(folder, tmp_path / "run", pack_tokens=2000, data=[{"rows": str(rows)}])


def test_only_the_assistants_tokens_train(folder: Path, tmp_path: Path) -> None:
    """The answer's letters and the stop token; not the prompt, and not the empty think block that the prompt's suffix ends with."""
    rows = tmp_path / "one.jsonl"
    rows.write_text(json.dumps(ROWS[0]) + "\n")
    told = metrics(run(folder, tmp_path / "run", steps=1, pack_tokens=31, data=[{"rows": str(rows)}]))[0]
    assert (told["num_tokens"], told["num_computed"], told["num_targets"]) == (31, 31, 4)
