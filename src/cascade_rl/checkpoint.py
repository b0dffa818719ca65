"""Training state inside a stage: weights, optimizer, RNG and cursor, so that a killed run goes on with the same bytes.

A state is a folder `state/step-NNNNNN` with `tensors.safetensors` and `meta.json`. It appears by one rename, so a folder that is
there is whole; the one before it is removed only afterwards.
"""

import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from cascade_rl.errors import RunError
from cascade_rl.run import StageDir, folder_atomic, read_json, write_json


@dataclass(frozen=True)
class State:
    """step: optimizer steps done. tensors: by group, e.g. {"weights": {...}, "optim": {...}}. cursor: JSON values, such as the
    place in the data and the lengths of the logs at that step."""

    step: int
    tensors: Mapping[str, Mapping[str, torch.Tensor]]
    cursor: Mapping[str, Any]


def save_state(stage: StageDir, state: State) -> None:
    flat = {f"{group}/{key}": t.contiguous() for group, named in state.tensors.items() for key, t in named.items()}
    flat["rng"] = torch.get_rng_state()
    target = stage.state / _folder_name(state.step)
    with folder_atomic(target) as folder:
        save_file(flat, folder / "tensors.safetensors")
        write_json(folder / "meta.json", {"step": state.step, "cursor": state.cursor})
    for old in stage.state.glob("step-*"):
        if old != target:
            shutil.rmtree(old)


def load_state(stage: StageDir) -> State | None:
    """The latest whole state, with torch's RNG put back; None when the stage has not saved one. Raises RunError for a damaged one."""
    if not stage.state.is_dir():
        return None
    saved = sorted(stage.state.glob("step-*"))
    if not saved:
        return None
    try:
        meta = read_json(saved[-1] / "meta.json")
        step, cursor = int(meta["step"]), meta["cursor"]
        flat = load_file(saved[-1] / "tensors.safetensors")
        torch.set_rng_state(flat.pop("rng"))
        if saved[-1].name != _folder_name(step):
            raise RunError(f"its meta.json is of step {step}")
    except (RunError, OSError, SafetensorError, KeyError, TypeError, ValueError) as error:
        raise RunError(
            f"{saved[-1]}: a saved state that was changed or damaged from outside ({type(error).__name__}: {error});"
            " delete this folder, and the stage starts anew"
        ) from None
    tensors: dict[str, dict[str, torch.Tensor]] = {}
    for name, tensor in flat.items():
        group, _, key = name.partition("/")
        tensors.setdefault(group, {})[key] = tensor
    return State(step=step, tensors=tensors, cursor=cursor)


def save_piece(stage: StageDir, value: Any) -> None:
    """The next of the pieces that a stage consists of (JSON), beside those before it."""
    with folder_atomic(stage.state / _folder_name(1 + len(list(stage.state.glob("step-*"))))) as folder:
        write_json(folder / "piece.json", value)


def load_pieces(stage: StageDir) -> list[Any]:
    """All saved pieces, in order. Raises RunError for a damaged one."""
    pieces = []
    for folder in sorted(stage.state.glob("step-*")):
        try:
            pieces.append(read_json(folder / "piece.json"))
        except (RunError, OSError):
            raise RunError(
                f"{folder}: a saved piece that was changed or damaged from outside; delete {stage.state}, and the stage starts anew"
            ) from None
    return pieces


def _folder_name(step: int) -> str:
    return f"step-{step:06d}"


def drop_state(stage: StageDir) -> None:
    """Once a stage is done its state is dead weight (three times the model): only the checkpoint stays."""
    shutil.rmtree(stage.state, ignore_errors=True)
