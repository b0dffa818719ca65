"""RunDir: every path of a run on disk, and the atomic writes that keep it whole.

A reader of a run folder never sees half a file: everything is written beside its place, flushed to disk and renamed.
"""

import contextlib
import fcntl
import json
import os
import shutil
from collections.abc import Generator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cascade_rl.errors import RunError


def write_atomic(path: Path, content: str | bytes) -> None:
    """Put `content` at `path` such that a crash at any moment leaves either the old file or the new one."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temp = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    with open(temp, "wb") as file:
        file.write(content.encode() if isinstance(content, str) else content)
        file.flush()
        os.fsync(file.fileno())
    os.replace(temp, path)
    _sync_folder(path.parent)


def write_json(path: Path, value: Any) -> None:
    """JSON, indented, one trailing newline; NaN and infinity are refused (they are not JSON)."""
    write_atomic(path, json.dumps(value, indent=2, ensure_ascii=False, allow_nan=False) + "\n")


def read_json(path: Path) -> Any:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:  # no JSON, no text, a number of thousands of digits, or nested without end
        raise RunError(
            f"{path}: not JSON ({error}); the file was changed or damaged from outside; restore it, or delete it to have it made anew"
        ) from None


@contextlib.contextmanager
def folder_atomic(path: Path) -> Generator[Path]:
    """Yields an empty folder to fill; it takes the place of `path` (replacing an old one) when the block ends well."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temp = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    shutil.rmtree(temp, ignore_errors=True)
    temp.mkdir()
    try:
        yield temp
    except BaseException:
        shutil.rmtree(temp, ignore_errors=True)
        raise
    for file in sorted(temp.rglob("*")):
        if file.is_file():
            with open(file, "rb") as handle:
                os.fsync(handle.fileno())
    _sync_folder(temp)
    if path.exists():
        shutil.rmtree(path)
    os.replace(temp, path)
    _sync_folder(path.parent)


def link_folder(source: Path, target: Path) -> None:
    """A copy of a folder whose files are the same files under another name, which costs no disk; copies where there are no links."""
    shutil.copytree(source, target, copy_function=_link, dirs_exist_ok=True)


def _link(source: str, target: str) -> None:
    try:
        os.link(source, target)
    except OSError:
        shutil.copy2(source, target)


def _sync_folder(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


@dataclass(frozen=True)
class StageDir:
    """The folder of one stage: `RUN/stages/NN-name-FINGERPRINT`."""

    root: Path

    @property
    def checkpoint(self) -> Path:
        """The stage's result in Hugging Face layout; there only when whole."""
        return self.root / "checkpoint"

    @property
    def state(self) -> Path:
        """What resuming needs: step-NNNNNN folders, each there only when whole."""
        return self.root / "state"

    @property
    def metrics(self) -> Path:
        """One JSON line a step; deterministic values only, so that a resumed run has the same bytes."""
        return self.root / "metrics.jsonl"

    @property
    def timing(self) -> Path:
        """One JSON line a step with wall time and tokens: what may differ between two equal runs."""
        return self.root / "timing.jsonl"

    @property
    def rollouts(self) -> Path:
        return self.root / "rollouts.jsonl"

    @property
    def lineage(self) -> Path:
        return self.root / "lineage.json"

    @property
    def teachers(self) -> Path:
        """What a `select` stage found: domain -> teacher, with the numbers that chose it."""
        return self.root / "teachers.json"

    @property
    def pairs(self) -> Path:
        """What a `pairs` stage made: preference pairs, one JSON line each."""
        return self.root / "pairs.jsonl"

    @property
    def passed_on(self) -> bool:
        """Whether the stage, done, trained nothing: its checkpoint is the one that it started from."""
        return bool(read_json(self.lineage).get("passed_on"))

    @property
    def done_file(self) -> Path:
        return self.root / "DONE"

    @property
    def done(self) -> bool:
        return self.done_file.exists()

    @property
    def whole(self) -> bool:
        """Done, and its checkpoint was not deleted since."""
        return self.done and (self.checkpoint / "config.json").is_file()


@dataclass(frozen=True)
class Checkpoint:
    """A stage's result as others name it: `Checkpoint("sft", "02-sft-4e4b3e3f", folder)`. name: as in the matrix."""

    stage: str
    name: str
    folder: Path


@dataclass(frozen=True)
class RunDir:
    """The folder of a run."""

    root: Path

    @property
    def recipe(self) -> Path:
        return self.root / "recipe.resolved.json"

    @property
    def matrix(self) -> Path:
        return self.root / "matrix.json"

    @property
    def evals(self) -> Path:
        """Per-prompt scores and rollouts behind the matrix."""
        return self.root / "eval"

    @property
    def stages(self) -> Path:
        return self.root / "stages"

    def facets(self, checkpoint: str, split: str) -> Path:
        """Task -> prompt id -> what the prompt is like (length, depth, kind), for tables of scores."""
        return self.evals / f"{checkpoint}.{split}.facets.json"

    @property
    def teachers(self) -> Path:
        """That of the last `select` stage."""
        return self.root / "teachers.json"

    @property
    def report(self) -> Path:
        return self.root / "report.html"

    def sweep(self) -> None:
        """Removes what a killed process left half-written; only under the run's lock, and only where a run writes."""
        written = (self.recipe, self.matrix, self.teachers, self.report)
        left = [file for path in written for file in self.root.glob(f".{path.name}.*.tmp")]
        left += [file for folder in (self.stages, self.evals) for file in folder.rglob(".*.tmp")]
        for path in left:
            shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)

    def stage(self, index: int, name: str, fingerprint: str) -> StageDir:
        return StageDir(self.stages / f"{index:02d}-{name}-{fingerprint}")

    @contextlib.contextmanager
    def lock(self) -> Generator[None]:
        """One process at a time may write to a run; the lock dies with its process."""
        self.root.mkdir(parents=True, exist_ok=True)
        with open(self.root / ".lock", "w") as handle:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise RunError(
                    f"run {self.root}: another process is writing to it; wait for it, end it, or choose another --run folder"
                ) from None
            yield
