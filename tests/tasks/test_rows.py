"""Rows in TRL's layouts, from every kind of source; bad rows are errors with their place."""

import gzip
import json
import sys
import types

import pytest

from cascade_rl.errors import DataError
from cascade_rl.records import Message, ToolCall
from cascade_rl.tasks.rows import conversation, num_context, read_placed, read_rows

USER, ANSWER = {"role": "user", "content": "2+3?"}, {"role": "assistant", "content": "5"}
ROW = {"messages": [USER, ANSWER]}
TOLD = (Message("user", "2+3?"), Message("assistant", "5"))
FUNCTION = {"name": "f", "description": "F.", "parameters": {"type": "object", "properties": {"x": {"type": "integer"}}}}
TOOL = {"type": "function", "function": FUNCTION}


def write_jsonl(path, rows) -> str:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


# Layouts.


@pytest.mark.parametrize(
    "row, context",
    [
        (ROW, 0),
        ({"messages": json.dumps([USER, ANSWER])}, 0),
        ({"prompt": "2+3?", "completion": "5"}, 1),
        ({"prompt": [USER], "completion": [ANSWER]}, 1),
        ({"prompt": json.dumps([USER]), "completion": json.dumps([ANSWER])}, 1),
        ({"messages": [{**USER, "content": [{"type": "text", "text": "2+"}, {"type": "text", "text": "3?"}]}, ANSWER]}, 0),
        ({"messages": None, "prompt": "2+3?", "completion": "5"}, 1),
        ({"instruction": "2+3?", "input": "", "output": "5"}, 1),
        ({"instruction": "2+3?", "instances": [{"input": "", "output": "5"}, {"input": "x", "output": "y"}]}, 1),
    ],
)
def test_layouts_say_the_same(row, context):
    assert conversation(row, "here") == (TOLD, (), False)
    assert num_context(row, "here") == context


def test_what_an_instruction_is_about_stands_below_it():
    messages, *_ = conversation({"instruction": "Add. ", "input": "2 and 3", "output": "5"}, "here")
    assert messages == (Message("user", "Add.\n\n2 and 3"), Message("assistant", "5"))


@pytest.mark.parametrize(
    "message",
    [
        {"role": "assistant", "content": "5", "reasoning_content": "two and three"},
        {"role": "assistant", "content": "5", "thinking": "two and three"},
        {"role": "assistant", "content": "5", "thinking": "two and three", "reasoning_content": "two and three"},
        {"role": "assistant", "content": "<think>two and three</think>5"},
        {"role": "assistant", "content": "<think>\ntwo and three\n</think>\n\n5"},
    ],
)
def test_reasoning_in_a_field_or_inline(message):
    messages, _, thinking = conversation({"messages": [USER, message]}, "here")
    assert messages[1] == Message("assistant", "5", thinking="two and three")
    assert thinking


@pytest.mark.parametrize("message", [{**ANSWER, "thinking": ""}, {**ANSWER, "content": "<think>\n\n</think>\n\n5"}])
def test_empty_reasoning_is_none(message):
    assert conversation({"messages": [USER, message]}, "here") == (TOLD, (), False)


def test_tags_elsewhere_are_text():
    content = "Write <think> first and </think> last."
    messages, _, thinking = conversation({"messages": [{**USER, "content": "<think>"}, {**ANSWER, "content": content}]}, "here")
    assert (messages[0].content, messages[1].content, thinking) == ("<think>", content, False)


def test_thinking_can_be_turned_off_by_a_row():
    row = {"messages": [USER, {**ANSWER, "thinking": "a"}], "chat_template_kwargs": {"enable_thinking": False}}
    assert conversation(row, "here")[2] is False


@pytest.mark.parametrize(
    "call",
    [
        {"type": "function", "function": {"name": "f", "arguments": {"x": 1}}},
        {"type": "function", "id": "a", "function": {"name": "f", "arguments": '{"x": 1}'}},
        {"name": "f", "arguments": {"x": 1}},
    ],
)
@pytest.mark.parametrize("tools", [[TOOL], [FUNCTION], json.dumps([TOOL]), [json.dumps(FUNCTION)]])
def test_tools_and_calls(call, tools):
    calling = {"role": "assistant", "content": None, "tool_calls": [call]}
    row = {"messages": [USER, calling, {"role": "tool", "content": "9", "name": "f"}, ANSWER], "tools": tools}
    messages, found, _ = conversation(row, "here")
    assert messages[1] == Message("assistant", "", tool_calls=(ToolCall("f", {"x": 1}),))
    assert messages[2] == Message("tool", "9")
    assert found == (TOOL,)


@pytest.mark.parametrize("arguments", [None, "", {}])
def test_missing_arguments_are_none_at_all(arguments):
    calling = {"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": arguments}}]}
    messages, *_ = conversation({"messages": [USER, calling]}, "here")
    assert messages[1].tool_calls == (ToolCall("f", {}),)


def call_row(function) -> dict:
    return {"messages": [USER, {"role": "assistant", "tool_calls": [{"function": function}]}]}


@pytest.mark.parametrize(
    "row, complaint",
    [
        ({}, 'expected the field "messages", or "prompt" and "completion"; it has none'),
        ({"text": "x"}, "plain text has no turns"),
        ({"instruction": "x", "instances": []}, 'needs "input" and "output" as texts'),
        ({"instruction": "x", "output": ["y"]}, 'needs "input" and "output" as texts'),
        ({"prompt": "x", "chosen": "a", "rejected": "b"}, "preference row"),
        ({"conversations": []}, 'rename "conversations" to "messages"'),
        ({**ROW, "prompt": "x", "completion": "y"}, "keep one of them"),
        ({"prompt": "x", "completion": [ANSWER]}, "both be texts or both be lists"),
        ({"messages": []}, "expected a list of messages with at least one"),
        ({"messages": "hello"}, "expected a list of messages"),
        ({"messages": [USER, "5"]}, r"\"messages\"\[1\] is '5', expected an object"),
        (
            {"messages": [USER, {"role": "asistant", "content": "5"}]},
            r'\[1\]: role "asistant" is not known; did you mean "assistant"',
        ),
        ({"messages": [{"from": "human", "value": "x"}]}, 'rename "from" and "value"'),
        ({"messages": [USER, {**ANSWER, "content": 5}]}, r"\[1\]: content is 5, expected text"),
        ({"messages": [{**USER, "content": [{"type": "image"}]}, ANSWER]}, "images and other parts"),
        ({"messages": [USER, {"role": "assistant", "content": ""}]}, "without content, reasoning or tool calls"),
        ({"messages": [USER, {**ANSWER, "content": "<think>a"}]}, "never closed"),
        ({"messages": [USER, {**ANSWER, "content": "<think>a</think>b", "thinking": "c"}]}, "reasoning twice"),
        ({"messages": [USER, {**ANSWER, "reasoning_content": "a", "thinking": "b"}]}, "differ"),
        ({"messages": [USER, {**ANSWER, "thinking": ["a"]}]}, "thinking is"),
        ({"messages": [{**USER, "thinking": "a"}, ANSWER]}, "only assistant messages can"),
        ({"messages": [USER]}, "ends with a user message"),
        ({"messages": [USER, {"role": "system", "content": "x"}, ANSWER]}, "message 1 is a system message"),
        ({"messages": [USER, {"role": "tool", "content": "x"}, ANSWER]}, "no tool call stands before it"),
        ({"messages": [USER, ANSWER, {"role": "tool", "content": "x"}, ANSWER]}, "no tool call stands before it"),
        ({**ROW, "tools": "[{"}, "text but not JSON"),
        ({**ROW, "tools": [{"type": "function"}]}, r'"tools"\[0\] has no function name'),
        ({**ROW, "tools": 5}, '"tools" is 5'),
        ({**ROW, "chat_template_kwargs": {"enable_thinking": "no"}}, "expected true or false"),
        (call_row({"name": "f", "arguments": [1]}), r"tool_calls\[0\]: arguments are \[1\], expected an object"),
        (call_row({"name": "f", "arguments": "{x}"}), "arguments are not JSON"),
        (call_row({"arguments": {}}), "no function name"),
    ],
)
def test_bad_rows_say_where_and_what(row, complaint):
    with pytest.raises(DataError, match=complaint) as caught:
        conversation(row, "data.jsonl:7")
    assert str(caught.value).startswith("data.jsonl:7")


# Sources.


def test_jsonl_plain_and_compressed(tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_text(f"{json.dumps(ROW)}\n\n{json.dumps({'prompt': 'é', 'completion': 'x'})}\n", encoding="utf-8")
    packed = tmp_path / "a.jsonl.gz"
    packed.write_bytes(gzip.compress(path.read_bytes()))
    for source in (path, packed):
        placed = read_placed(source)
        assert [place for place, _ in placed] == [f"{source}:1", f"{source}:3"], "places are line numbers"
        assert read_rows(str(source)) == [ROW, {"prompt": "é", "completion": "x"}]


def test_a_byte_order_mark_is_no_part_of_the_first_row(tmp_path):
    (tmp_path / "a.jsonl").write_bytes(b'\xef\xbb\xbf{"prompt": "a"}\n')
    assert read_rows(tmp_path / "a.jsonl") == [{"prompt": "a"}]


@pytest.mark.parametrize(
    "content, complaint",
    [
        (b'{"messages": []}\n{"messages":', r"a\.jsonl:2: not JSON"),
        (b"[1]\n", r"a\.jsonl:1: a JSON list, expected an object"),
        (b'{"a": 1}\n{"a": "\xff"}\n', r"a\.jsonl:\d+: cannot be read"),
        (b"\n\n", "holds no rows"),
        (b'{"a": 1}\n{"a": "x\\ud800"}\n', r"a\.jsonl:2: .*\\ud800 is half of a surrogate pair"),
        (b'{"a": 1}\n{"\\uDC00": 1}\n', r"a\.jsonl:2: .*\\udc00 is half of a surrogate pair"),
        (b'{"a": ' + b"[" * 100_000 + b"]" * 100_000 + b"}\n", r"a\.jsonl:1: .*nested too deep"),
        (b'{"a": ' + b"[" * 101 + b"]" * 101 + b"}\n", r"a\.jsonl:1: .*nested more than 100 deep"),
    ],
)
def test_bad_files_say_where(tmp_path, content, complaint):
    (tmp_path / "a.jsonl").write_bytes(content)
    with pytest.raises(DataError, match=complaint):
        read_rows(tmp_path / "a.jsonl")


def test_a_surrogate_pair_and_a_deep_row_are_read(tmp_path):
    (tmp_path / "a.jsonl").write_text('{"a": "\\ud83d\\ude00", "b": ' + "[" * 99 + "]" * 99 + "}\n")
    assert read_rows(tmp_path / "a.jsonl")[0]["a"] == "😀"


def test_json_inside_a_field_keeps_the_same_rules():
    for arguments in ('{"x": "\\ud800"}', '{"x": ' + "[" * 100_000 + "]" * 100_000 + "}"):
        with pytest.raises(DataError, match=r"here: .*arguments are not JSON"):
            conversation(call_row({"name": "f", "arguments": arguments}), "here")
    for row in ({"messages": '[{"role": "\\ud800"}]'}, {"prompt": "a", "completion": '[{"role": "\\ud800"}]'}):
        with pytest.raises(DataError, match=r'here: "(messages|completion)": .*half of a surrogate pair'):
            conversation(row, "here")


def test_a_truncated_archive_is_an_error(tmp_path):
    whole = gzip.compress(b"".join(json.dumps({"a": i}).encode() + b"\n" for i in range(5000)))
    (tmp_path / "a.jsonl.gz").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(DataError, match="cannot be read"):
        read_rows(tmp_path / "a.jsonl.gz")


def write_parquet(path, rows) -> None:
    pyarrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    path.parent.mkdir(parents=True, exist_ok=True)
    parquet.write_table(pyarrow.Table.from_pylist(rows), path)


def test_parquet_drops_the_nulls_that_its_tables_add(tmp_path):
    """A table holds every key of every row: two calls with different arguments come back with nulls for the other's."""
    rows = [call_row({"name": "f", "arguments": {"x": 1}}), call_row({"name": "g", "arguments": {"y": "a"}})]
    write_parquet(tmp_path / "a.parquet", rows)
    found = read_placed(tmp_path / "a.parquet")
    assert [place for place, _ in found] == [f"{tmp_path}/a.parquet:1", f"{tmp_path}/a.parquet:2"]
    assert [conversation(row, "here")[0][1].tool_calls for _, row in found] == [
        (ToolCall("f", {"x": 1}),),
        (ToolCall("g", {"y": "a"}),),
    ]


def test_a_broken_parquet_file(tmp_path):
    pytest.importorskip("pyarrow")
    (tmp_path / "a.parquet").write_bytes(b"no table")
    with pytest.raises(DataError, match="cannot be read as Parquet"):
        read_rows(tmp_path / "a.parquet")


def test_without_pyarrow_the_way_out_is_named(tmp_path, monkeypatch):
    (tmp_path / "a.parquet").write_bytes(b"")
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(DataError, match=r"pip install 'cascade-rl\[parquet\]'"):
        read_rows(tmp_path / "a.parquet")


def test_a_folder_laid_out_as_on_the_hub(tmp_path):
    write_parquet(tmp_path / "data" / "train-00000-of-00002.parquet", [{"prompt": "a", "completion": "b"}])
    write_parquet(tmp_path / "data" / "train-00001-of-00002.parquet", [{"prompt": "c", "completion": "d"}])
    write_jsonl(tmp_path / "data" / "validation.jsonl", [{"prompt": "e", "completion": "f"}])
    assert [row["prompt"] for row in read_rows(tmp_path)] == ["a", "c"]
    assert [row["prompt"] for row in read_rows(tmp_path, "dev")] == ["e"]
    with pytest.raises(DataError, match='split "test" is not known; known: dev, train'):
        read_rows(tmp_path, "test")


def test_a_folder_without_splits(tmp_path):
    with pytest.raises(DataError, match="holds no file that can be read"):
        read_rows(tmp_path)
    write_jsonl(tmp_path / "rows.jsonl", [ROW])
    assert read_rows(tmp_path) == [ROW]


def test_a_hub_data_set(monkeypatch):
    asked = []

    def load_dataset(name, config, split):
        asked.append((name, config, split))
        if name == "us/none":
            raise FileNotFoundError("no such data set\nand more")
        return [{**ROW, "tools": None}]

    monkeypatch.setitem(sys.modules, "datasets", types.SimpleNamespace(load_dataset=load_dataset))
    assert read_placed("us/them:main", "dev") == [("us/them:main:validation:1", ROW)]
    assert read_rows("us/them") == [ROW]
    assert asked == [("us/them", "main", "validation"), ("us/them", None, "train")]
    with pytest.raises(DataError, match=r'data "us/none": the hub did not give its split "train" \(no such data set\)'):
        read_rows("us/none")


def test_without_datasets_the_way_out_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(DataError, match=r"pip install 'cascade-rl\[hub\]'"):
        read_rows("us/them")


def test_a_missing_file_is_not_taken_for_a_hub_id(tmp_path):
    for source in (tmp_path / "none.jsonl", "data/none.jsonl", "none"):
        with pytest.raises(DataError, match="no such file or folder"):
            read_rows(source)
    (tmp_path / "a.csv").write_text("x")
    with pytest.raises(DataError, match="cannot read this kind of file"):
        read_rows(tmp_path / "a.csv")
