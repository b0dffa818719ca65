import json
import math

import numpy as np
import pytest

from cascade_rl.errors import RunError
from cascade_rl.observe.log import Log, read_log, rollout_row
from cascade_rl.records import Group, Message, Prompt, Reward, Rollout, ToolCall, Turn


def test_each_record_is_one_line_and_unmeasured_is_absent(tmp_path):
    path = tmp_path / "new" / "metrics.jsonl"
    with Log(path) as log:
        log.write({"step": 1, "loss": np.float32(0.5), "kl": None, "text": "a\nb é"})
        assert path.read_text() == '{"step": 1, "loss": 0.5, "text": "a\\nb é"}\n'  # flushed already
        log.sync()


@pytest.mark.parametrize("value", [math.nan, math.inf, np.float32("nan")])
def test_what_is_not_finite_is_refused_by_name(tmp_path, value):
    with Log(tmp_path / "m.jsonl") as log:
        with pytest.raises(ValueError, match='"grad_norm" is'):
            log.write({"loss": 1.0, "grad_norm": value})
        assert log.position() == 0


def test_resume_gives_the_same_bytes(tmp_path):
    whole, killed = tmp_path / "whole.jsonl", tmp_path / "killed.jsonl"
    with Log(whole) as log:
        for step in range(5):
            log.write({"step": step})
    with Log(killed) as log:
        for step in range(3):
            log.write({"step": step})
        saved = log.position()
        log.write({"step": 3})
    with open(killed, "ab") as file:
        file.write(b'{"step": 4, "los')  # the kill came here
    with Log(killed) as log:
        assert log.position() > saved
        log.truncate_to(saved)
        assert log.position() == saved
        for step in range(3, 5):
            log.write({"step": step})
    assert killed.read_bytes() == whole.read_bytes()


@pytest.mark.parametrize("size", [10, 70_000])
def test_a_torn_line_is_cut_on_open(tmp_path, size):
    path = tmp_path / "m.jsonl"
    path.write_bytes(b'{"a": 1}\n' + b"x" * size)
    assert list(read_log(path)) == [{"a": 1}]
    Log(path).close()
    assert path.read_bytes() == b'{"a": 1}\n'
    path.write_bytes(b"x" * size)
    Log(path).close()
    assert path.read_bytes() == b""


def test_truncating_to_a_place_that_never_was_is_refused(tmp_path):
    with Log(tmp_path / "m.jsonl") as log:
        log.write({"a": 1})
        with pytest.raises(RunError, match="has 9 bytes, resuming needs 50"):
            log.truncate_to(50)
        with pytest.raises(RunError, match="inside a line"):
            log.truncate_to(4)
        log.truncate_to(0)
        assert log.position() == 0


def test_reading_tells_damage_with_its_line(tmp_path):
    path = tmp_path / "m.jsonl"
    assert list(read_log(path)) == []
    path.write_text('{"a": 1}\nnonsense\n')
    with pytest.raises(RunError, match=r"m\.jsonl:2"):
        list(read_log(path))
    path.write_text("[" * 200_000 + "\n")
    with pytest.raises(RunError, match=r"m\.jsonl:1: not JSON"):
        list(read_log(path))


def test_lone_surrogates_do_not_stop_a_run(tmp_path):
    with Log(tmp_path / "m.jsonl") as log:
        log.write({"text": "a\ud800b"})
    assert list(read_log(tmp_path / "m.jsonl")) == [{"text": "a?b"}]


def decode_bytes(ids):
    return bytes(ids).decode("utf-8", errors="replace")


def graded(turns, reward, messages=()):
    prompt = Prompt("chat/dev/0", "chat", "chat", "dev", (Message("user", "Hi"),))
    return Group(prompt, (Rollout(prompt, turns, messages, "stop"),), (reward,))


def test_rollout_row_by_hand():
    turns = (
        Turn(tuple(b"Hi>"), tuple("oé!".encode()), (-0.1, -0.5, -0.25, -1.0), "stop", version=3),
        Turn(tuple(b"[r]"), (65,), (-2.0,), "stop", version=3),
    )
    call = Message("assistant", "", thinking="hm", tool_calls=(ToolCall("f", {"x": 1}),))
    group = graded(turns, Reward(0.5, {"half": 1.0}, "half right"), (call, Message("tool", "r"), Message("assistant", "A")))
    row = rollout_row(group, 0, decode_bytes, stage="rl", step=7, trained=True, advantage=-0.5)
    assert json.loads(json.dumps(row)) == {
        "stage": "rl",
        "step": 7,
        "split": "dev",
        "prompt": "chat/dev/0",
        "task": "chat",
        "domain": "chat",
        "index": 0,
        "version": 3,
        "finish": "stop",
        "num_tokens": 5,
        "format_errors": 0,
        "advantage": -0.5,
        "reward": {"value": 0.5, "parts": {"half": 1.0}, "why": "half right"},
        "messages": [
            {"role": "assistant", "content": "", "thinking": "hm", "tool_calls": [{"name": "f", "arguments": {"x": 1}}]},
            {"role": "tool", "content": "r"},
            {"role": "assistant", "content": "A"},
        ],
        "segments": [
            {"kind": "context", "text": "Hi>", "num_tokens": 3},
            {"kind": "trained", "tokens": ["o", "é", "!"], "logps": [-0.1, -0.75, -1.0]},  # é is two tokens, joined
            {"kind": "context", "text": "[r]", "num_tokens": 3},
            {"kind": "trained", "tokens": ["A"], "logps": [-2.0]},
        ],
    }


def test_unscored_keeps_its_reason_and_no_value():
    row = rollout_row(graded((), Reward(None, why="sandbox died")), 0, decode_bytes, stage="rl")
    assert row["reward"] == {"value": None, "parts": {}, "why": "sandbox died"}
    assert "step" not in row
    assert "advantage" not in row


def test_leading_spaces_that_a_decoder_drops_are_kept():
    words = {1: "▁the", 2: "▁cat", 3: "s"}

    def decode(ids):
        return "".join(words[i] for i in ids).replace("▁", " ").removeprefix(" ")

    row = rollout_row(graded((Turn((1,), (1, 2, 3), (0.0,) * 3, "stop"),), Reward(1.0)), 0, decode, stage="rl")
    assert row["segments"][1]["tokens"] == ["the", " cat", "s"]


def test_bytes_that_never_become_a_character_do_not_swallow_the_rest():
    ids = (*b"ok", 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, *b"end", 0xC3)
    row = rollout_row(graded((Turn((1,), ids, (-1.0,) * len(ids), "length"),), Reward(0.0)), 0, decode_bytes, stage="rl")
    tokens, logps = row["segments"][1]["tokens"], row["segments"][1]["logps"]
    assert "".join(tokens) == "ok" + "\ufffd" * 5 + "end\ufffd"
    assert sum(logps) == -len(ids)
