"""States inside a stage: the latest whole one counts, and everything that was saved comes back."""

from pathlib import Path

import pytest
import torch

from cascade_rl.checkpoint import State, drop_state, load_pieces, load_state, save_piece, save_state
from cascade_rl.errors import RunError
from cascade_rl.run import RunDir, StageDir


def state(step: int) -> State:
    return State(step, {"weights": {"a.b": torch.full((2,), float(step))}, "optim": {"a.b": torch.zeros(1)}}, {"feed": [step]})


def test_everything_comes_back_random_numbers_included(tmp_path: Path) -> None:
    place = StageDir(tmp_path)
    assert load_state(place) is None
    torch.manual_seed(3)
    torch.rand(5)
    save_state(place, state(7))
    expected = torch.rand(3)
    torch.manual_seed(0)
    told = load_state(place)
    assert told is not None
    assert (told.step, told.cursor) == (7, {"feed": [7]})
    assert told.tensors["weights"]["a.b"].tolist() == [7.0, 7.0]
    assert told.tensors["optim"]["a.b"].tolist() == [0.0]
    assert torch.equal(torch.rand(3), expected)


def test_the_latest_is_the_one_with_the_most_steps(tmp_path: Path) -> None:
    """A kill between writing a state and dropping the one before leaves both; 10 comes after 9, whatever their names' first letters."""
    place = StageDir(tmp_path)
    save_state(place, state(10))
    kept = place.state / "step-000010"
    aside = kept.rename(tmp_path / "aside")
    save_state(place, state(9))
    aside.rename(kept)
    told = load_state(place)
    assert told is not None
    assert told.step == 10
    save_state(place, state(11))
    assert [folder.name for folder in place.state.iterdir()] == ["step-000011"]
    drop_state(place)
    assert load_state(place) is None


def test_a_half_written_state_is_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = RunDir(tmp_path)
    place = run.stage(1, "sft", "0" * 8)
    save_state(place, state(2))
    foreign = [tmp_path / ".notes.tmp", tmp_path / "home" / ".draft.tmp"]
    for path in foreign:
        path.parent.mkdir(exist_ok=True)
        path.write_text("precious")

    def dies(*args: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("cascade_rl.checkpoint.write_json", dies)
    with pytest.raises(KeyboardInterrupt):
        save_state(place, state(4))
    told = load_state(place)
    assert told is not None
    assert told.step == 2
    run.sweep()
    assert all(path.exists() for path in foreign), "a run folder may hold what is not the run's"
    assert [folder.name for folder in place.state.iterdir()] == ["step-000002"]


@pytest.mark.parametrize(
    "file, content",
    [
        ("tensors.safetensors", b"\x10"),
        ("tensors.safetensors", None),
        ("meta.json", b"{}"),
        ("meta.json", b'{"step": 7, "cur'),
        pytest.param("meta.json", b"[" * 200_000, id="deep"),
        ("meta.json", b'{"step": 999, "cursor": {}}'),
        ("meta.json", None),
    ],
)
def test_a_damaged_state_is_told_with_the_folder_to_delete(file: str, content: bytes | None, tmp_path: Path) -> None:
    place = StageDir(tmp_path)
    save_state(place, state(7))
    damaged = place.state / "step-000007" / file
    damaged.unlink()
    if content is not None:
        damaged.write_bytes(content)
    with pytest.raises(RunError, match=r"step-000007: a saved state that was changed or damaged .* delete this folder"):
        load_state(place)


def test_a_damaged_piece_says_how_the_stage_is_made_anew(tmp_path: Path) -> None:
    stage = StageDir(tmp_path)
    save_piece(stage, {"of": "start"})
    assert load_pieces(stage) == [{"of": "start"}]
    piece = stage.state / "step-000001" / "piece.json"
    for damage in (lambda: piece.write_text("[" * 200_000), piece.unlink):
        damage()
        with pytest.raises(RunError, match=rf"step-000001: a saved piece .* delete {stage.state}, and the stage starts anew"):
            load_pieces(stage)
