"""Which rollouts the report shows, and cut to a length that can be read."""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cascade_rl.errors import CascadeError
from cascade_rl.observe.report_run import RunView

MAX_ROLLOUTS = 16  # of one task, split and stage; whole groups, at least the first and the last
MAX_CONTEXT_CHARACTERS = 4000  # of one stretch of context
MAX_SAMPLED_TOKENS = 1500  # of one stretch of sampled tokens
MAX_MESSAGE_CHARACTERS = 8000

Record = dict[str, Any]
GroupKey = tuple[Any, Any]  # step, prompt id


@dataclass(frozen=True)
class Chosen:
    """rows: what is shown. left_out: how many rollouts of a stage, task and split are not."""

    rows: list[Record]
    left_out: list[Record]


def choose_rollouts(view: RunView) -> Chosen:
    """Evaluation rollouts of the checkpoints in the matrix, then training rollouts of each stage.

    Raises nothing for what is missing; a damaged file is skipped from its bad line on and added to view.problems.
    """
    rows: list[Record] = []
    left_out: list[Record] = []
    for path in _files(view):
        try:
            counted = _groups(path)
            kept = {place for groups in counted.values() for place in _spread(groups)}
            rows += [clip(row) for row in _rows_at(path, kept)]
            for (stage, task, split), groups in counted.items():
                missing = sum(map(len, groups.values())) - len(_spread(groups))
                if missing:
                    left_out.append({"stage": stage, "task": task, "split": split, "num": missing})
        except (CascadeError, OSError, ValueError, KeyError, TypeError, RecursionError) as error:
            view.problems.append(f"{path.relative_to(view.folder)}: {error or type(error).__name__}")
    return Chosen(rows, left_out)


def _files(view: RunView) -> Iterator[Path]:
    for split in ("dev", "test"):
        for checkpoint in view.matrix.checkpoints(split):  # type: ignore[arg-type]
            yield from sorted((view.folder / "eval" / f"{checkpoint}.{split}.rollouts").glob("*.jsonl"))
    for stage in view.stages:
        if stage.dir.rollouts.exists():
            yield stage.dir.rollouts


def _groups(path: Path) -> dict[tuple[str, str, str], dict[GroupKey, list[int]]]:
    """(stage, task, split) -> group -> byte offsets of its rows; a first pass that keeps no row in memory."""
    found: dict[tuple[str, str, str], dict[GroupKey, list[int]]] = {}
    with open(path, "rb") as file:
        offset = 0
        for line in file:
            if line.endswith(b"\n"):  # a torn last line is still being written
                row = json.loads(line)
                groups = found.setdefault((row["stage"], row["task"], row["split"]), {})
                groups.setdefault((row.get("step"), row["prompt"]), []).append(offset)
            offset += len(line)
    return found


def _spread(groups: dict[GroupKey, list[int]]) -> list[int]:
    """Offsets of whole groups, evenly from the first to the last, for at most MAX_ROLLOUTS rollouts (or two groups)."""
    members = list(groups.values())
    largest = max(map(len, members))
    count = min(len(members), max(2, MAX_ROLLOUTS // largest))
    chosen = {round(i * (len(members) - 1) / max(1, count - 1)) for i in range(count)}
    return [offset for i in sorted(chosen) for offset in members[i]]


def _rows_at(path: Path, offsets: set[int]) -> Iterator[Record]:
    with open(path, "rb") as file:
        for offset in sorted(offsets):
            file.seek(offset)
            yield json.loads(file.readline())


def clip(row: Record) -> Record:
    """The row with long texts cut in their middle, which says so."""
    segments = []
    for segment in row.get("segments", []):
        if segment["kind"] == "context":
            segments.append({**segment, "text": _middle(segment["text"], MAX_CONTEXT_CHARACTERS)})
            continue
        tokens, logps = segment["tokens"], segment.get("logps", [])
        if len(tokens) > MAX_SAMPLED_TOKENS:
            head, tail = MAX_SAMPLED_TOKENS * 2 // 3, MAX_SAMPLED_TOKENS // 3
            gone = len(tokens) - head - tail
            segments.append({"kind": segment["kind"], "tokens": tokens[:head], "logps": logps[:head]})
            segments.append({"kind": "cut", "text": f" … {gone:,} tokens not shown … "})
            tokens, logps = tokens[-tail:], logps[-tail:]
        segments.append({"kind": segment["kind"], "tokens": tokens, "logps": logps})
    messages = []
    for message in row.get("messages", []):
        texts = {key: _middle(message[key], MAX_MESSAGE_CHARACTERS) for key in ("content", "thinking") if key in message}
        messages.append({**message, **texts})
    return {**row, "segments": segments, "messages": messages}


def _middle(text: str, most: int) -> str:
    if len(text) <= most:
        return text
    return f"{text[: most * 2 // 3]}\n… {len(text) - most:,} characters not shown …\n{text[-(most // 3) :]}"
