"""Which demonstrations may be too long, found without a tokenizer: none that is may be missed."""

from pathlib import Path

from tests.model.tiny import make_tiny

from cascade_rl.model.render import load_renderer
from cascade_rl.model.sources import load_tokenizer
from cascade_rl.recipe import parse_recipe
from cascade_rl.records import Message, ToolCall
from cascade_rl.stages.demonstrations import Demonstration, demonstrations, samples

KINDS = ("instructions", "choice", "tools", "schema", "math", "chat", "needle", "program", "repair")


def test_a_sample_of_so_many_tokens_is_never_taken_for_a_shorter_one(tmp_path: Path) -> None:
    make_tiny("qwen3", tmp_path / "model")
    renderer = load_renderer(load_tokenizer(tmp_path / "model"))
    stage = {"kind": "sft", "steps": 1, "data": [{"task": "math"}]}
    recipe = {"name": "t", "tasks": {kind: {"kind": f"nano.{kind}"} for kind in KINDS}, "stage": [stage]}
    tasks = parse_recipe({**recipe, "model": {"source": "nano"}}).tasks
    found = [told for kind in KINDS for told in demonstrations(tasks, kind, "", 20)]
    longest = {}
    for told in found:
        for sample in samples(renderer, [told], "x"):
            assert told.most_tokens >= len(sample), told.where
            longest[told.where] = len(sample)
    assert len(longest) == 20 * len(KINDS)


def test_every_part_of_a_conversation_counts(tmp_path: Path) -> None:
    rows = tmp_path / "rows.jsonl"
    rows.write_text('{"prompt": "a", "completion": "b"}\n')
    (told,) = demonstrations({}, "", str(rows), 0)
    assert told.most_tokens <= 200
    long = "word " * 100
    question, answer = told.messages
    call = ToolCall("f", {"text": long})
    for messages, tools in (
        ((question, Message("assistant", long)), ()),
        ((question, Message("assistant", "b", thinking=long)), ()),
        ((question, Message("assistant", "", tool_calls=(call,))), ()),
        ((question, answer), ({"type": "function", "function": {"name": "f", "description": long}},)),
    ):
        assert Demonstration("x", messages, tools, True, 0).most_tokens > 400
