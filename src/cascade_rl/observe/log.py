"""Append-only JSONL logs that survive a kill, and the row layout of rollouts.

A log line is written whole and flushed; what a kill tore off is cut on the next open. A resumed stage cuts its logs back to the
length that its saved state names, so that they end with the same bytes as without the kill.
"""

import json
import math
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

from cascade_rl.errors import RunError
from cascade_rl.records import Group, Message

MAX_TOKENS_PER_CHARACTER = 4  # a byte-level tokenizer spells one UTF-8 character with at most four tokens


class Log:
    """An append-only JSONL file.

    with Log(stage.metrics) as log:
        log.write({"step": 1, "loss": 2.31, "grad_norm": None})  # {"step": 1, "loss": 2.31}: unmeasured is absent, never 0
        cursor = log.position()  # saved with the state; log.truncate_to(cursor) on resume
    """

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self.path = path
        self._file = open(path, "a+b")  # noqa: SIM115 (closed by close())
        _cut_torn_line(self._file)

    def write(self, record: Mapping[str, Any]) -> None:
        """Append one line and flush it. Keys whose value is None are left out; NaN and infinity raise ValueError."""
        known = {key: value for key, value in record.items() if value is not None}
        try:
            line = json.dumps(known, ensure_ascii=False, allow_nan=False, default=_plain)
        except ValueError:
            raise ValueError(f"{self.path.name}: {_not_finite(known)}; leave an unmeasured value out, or None") from None
        self._file.write(line.encode("utf-8", errors="replace") + b"\n")
        self._file.flush()

    def position(self) -> int:
        """Length in bytes; always the end of a line."""
        return self._file.seek(0, os.SEEK_END)

    def truncate_to(self, position: int) -> None:
        """Cut everything after `position`, which must be an earlier `position()` of this log."""
        length = self.position()
        if not 0 <= position <= length:
            raise RunError(f"{self.path}: has {length} bytes, resuming needs {position}; the log was changed from outside")
        if position:
            self._file.seek(position - 1)
            if self._file.read(1) != b"\n":
                raise RunError(f"{self.path}: byte {position} is inside a line; the log was changed from outside")
        self._file.truncate(position)
        self._file.flush()

    def sync(self) -> None:
        """Wait until everything written is on the disk; call it before a state that names `position()` is saved."""
        os.fsync(self._file.fileno())

    def close(self) -> None:
        self._file.close()

    def __enter__(self) -> "Log":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()


def read_log(path: Path) -> Iterator[dict[str, Any]]:
    """The records of a log, also of one that is being written: a torn last line is not read. A missing file has no records."""
    if not path.exists():
        return
    with open(path, "rb") as file:
        for number, line in enumerate(file, start=1):
            if not line.endswith(b"\n"):
                return
            try:
                yield json.loads(line)
            except (ValueError, RecursionError) as error:
                raise RunError(f"{path}:{number}: not JSON ({error}); the log was changed or damaged from outside") from None


def rollout_row(
    group: Group,
    index: int,
    decode: Callable[[Sequence[int]], str],
    *,
    stage: str,
    step: int | None = None,
    trained: bool = False,
    advantage: float | None = None,
) -> dict[str, Any]:
    """One rollout as a line of rollouts.jsonl, for people and for the report.

    segments: alternating stretches of the token sequence, in order. {"kind": "context", "text", "num_tokens"} is what was put
    before the model; {"kind": "sampled" | "trained", "tokens": [text, ...], "logps": [float, ...]} is what it wrote: "trained"
    where the update used it. Tokens that only together spell a character are one entry, whose logp is their sum. messages is the
    parsed view of the same: role, content, thinking, tool_calls.

    `decode` turns a list of token ids into text, special tokens included. `stage` and `step` say when it was sampled (no step: an
    evaluation).
    """
    prompt, rollout = group.prompt, group.rollouts[index]
    reward = group.rewards[index] if group.rewards else None
    segments: list[dict[str, Any]] = []
    for turn in rollout.turns:
        segments.append({"kind": "context", "text": decode(list(turn.context_ids)), "num_tokens": len(turn.context_ids)})
        if turn.fork:
            segments[-1]["fork"] = True
        tokens, logps = _token_texts(turn.answer_ids, turn.logps, decode)
        segments.append({"kind": "trained" if trained else "sampled", "tokens": tokens, "logps": logps})
    row = {
        "stage": stage,
        "step": step,
        "split": prompt.split,
        "prompt": prompt.id,
        "task": prompt.task,
        "domain": prompt.domain,
        "index": index,
        "version": rollout.turns[-1].version if rollout.turns else None,
        "finish": rollout.finish,
        "num_tokens": rollout.num_sampled,
        "format_errors": rollout.format_errors,
        "advantage": advantage,
        "reward": {"value": reward.value, "parts": dict(reward.parts), "why": reward.why} if reward else None,
        "messages": [_message(message) for message in rollout.messages],
        "segments": segments,
    }
    return {key: value for key, value in row.items() if value is not None}


def _message(message: Message) -> dict[str, Any]:
    told: dict[str, Any] = {"role": message.role, "content": message.content}
    if message.thinking is not None:
        told["thinking"] = message.thinking
    if message.tool_calls:
        told["tool_calls"] = [{"name": call.name, "arguments": dict(call.arguments)} for call in message.tool_calls]
    return told


def _token_texts(
    ids: Sequence[int], logps: Sequence[float], decode: Callable[[Sequence[int]], str]
) -> tuple[list[str], list[float]]:
    """The text that each token adds. A token is decoded after the one before it, since some tokenizers drop a leading space at
    the start of a text; tokens that end inside a UTF-8 character are joined with those that complete it."""
    texts: list[str] = []
    joined_logps: list[float] = []
    anchor: list[int] = []
    start = 0
    for end in range(1, len(ids) + 1):
        run = list(ids[start:end])
        before, after = decode(anchor), decode([*anchor, *run])
        text = after[len(before) :] if after.startswith(before) else decode(run)
        if text.endswith("\ufffd") and len(run) < MAX_TOKENS_PER_CHARACTER and end < len(ids):
            continue
        texts.append(text)
        joined_logps.append(round(math.fsum(logps[start:end]), 4))
        anchor, start = run, end
    return texts, joined_logps


def _plain(value: Any) -> Any:
    """numpy and torch scalars as Python numbers."""
    if hasattr(value, "item"):
        return value.item()
    raise TypeError(f"a log takes JSON values and scalars, not {type(value).__name__}")


def _not_finite(record: Mapping[str, Any]) -> str:
    for key, value in record.items():
        value = value.item() if hasattr(value, "item") else value
        if isinstance(value, float) and not math.isfinite(value):
            return f'"{key}" is {value}, a log takes finite numbers'
    return "a value is not finite, or the record is not JSON"


def _cut_torn_line(file: Any) -> None:
    end = file.seek(0, os.SEEK_END)
    position, chunk = end, 1 << 16
    while position:
        start = max(0, position - chunk)
        file.seek(start)
        newline = file.read(position - start).rfind(b"\n")
        if newline >= 0:
            position = start + newline + 1
            break
        position = start
    if position != end:
        file.truncate(position)
