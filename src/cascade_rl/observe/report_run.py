"""What the report reads: the files of a run folder, of a run that may still be going on."""

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from cascade_rl.errors import CascadeError, RunError
from cascade_rl.eval.matrix import Matrix
from cascade_rl.observe.log import read_log
from cascade_rl.run import RunDir, StageDir, read_json

Status = Literal["done", "checkpoint deleted", "not finished", "not started"]
Record = dict[str, Any]


@dataclass(frozen=True)
class StageView:
    """One stage as its folder tells it; what is not there is empty."""

    index: int
    name: str
    kind: str
    fingerprint: str
    dir: StageDir
    status: Status
    arithmetic: str = ""
    lineage: Record = field(default_factory=dict)
    metrics: list[Record] = field(default_factory=list)
    timing: list[Record] = field(default_factory=list)

    @property
    def num_steps(self) -> int | None:
        return self.metrics[-1].get("step") if self.metrics else None

    @property
    def num_tokens(self) -> float | None:
        """Tokens trained on, of the lineage's totals or, before it is written, of the log."""
        told = self.lineage.get("totals", {}).get("tokens")
        if told is not None:
            return told
        counted = [record["num_tokens"] for record in self.metrics if "num_tokens" in record]
        return sum(counted) if counted else None

    @property
    def seconds(self) -> float | None:
        counted = [record["seconds"] for record in self.timing if "seconds" in record]
        return sum(counted) if counted else None


@dataclass(frozen=True)
class RunView:
    """A run folder. problems: files that are there and could not be read, with the reason."""

    folder: Path
    name: str
    recipe: Record
    stages: list[StageView]
    matrix: Matrix
    teachers: Record
    problems: list[str]


def read_run(folder: Path) -> RunView:
    """Reads what there is. A missing file leaves its part empty; a damaged one is listed in `problems`."""
    run = RunDir(folder)
    problems: list[str] = []

    def read(path: Path, how: Callable[[Path], Any], empty: Any) -> Any:
        try:
            told = how(path) if path.exists() else empty
            if not isinstance(told, type(empty)):
                raise RunError(f"{path}: holds a {type(told).__name__}, expected a {type(empty).__name__}")
            return told
        except (CascadeError, OSError, ValueError) as error:
            problems.append(str(error).removeprefix(f"{folder}/"))
            return empty

    def stage(index: int, name: str, fingerprint: str, told: Record) -> StageView:
        place = run.stage(index, name, fingerprint)
        return StageView(
            index=index,
            name=name,
            kind=told.get("kind", ""),
            fingerprint=fingerprint,
            dir=place,
            status=_status(place),
            arithmetic=told.get("arithmetic", ""),
            lineage=read(place.lineage, read_json, {}),
            metrics=read(place.metrics, _records, []),
            timing=read(place.timing, _records, []),
        )

    recipe = read(run.recipe, read_json, {})
    told_stages = [told for told in recipe.get("stages", []) if "fingerprint" in told]
    found = [(i, told["name"], told["fingerprint"], told) for i, told in enumerate(told_stages, 1)] or _on_disk(run)
    return RunView(
        folder=folder,
        name=recipe.get("name") or folder.resolve().name,
        recipe=recipe,
        stages=[stage(*each) for each in found],
        matrix=read(run.matrix, lambda _: Matrix.load(folder), Matrix(folder)),
        teachers=read(folder / "teachers.json", read_json, {}),
        problems=problems,
    )


def _status(place: StageDir) -> Status:
    if place.done:
        return "done" if place.whole else "checkpoint deleted"
    return "not finished" if place.root.exists() else "not started"


def _records(path: Path) -> list[Record]:
    return list(read_log(path))


def _on_disk(run: RunDir) -> list[tuple[int, str, str, Record]]:
    """Stages by their folders, for a run whose resolved recipe is missing."""
    names = sorted(path.name for path in run.stages.glob("*") if path.is_dir())
    matches = [match for name in names if (match := re.fullmatch(r"(\d\d)-(.+)-([0-9a-f]+)", name))]
    return [(int(match[1]), match[2], match[3], {}) for match in matches]
