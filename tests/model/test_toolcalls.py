"""Tool-call parsers and writers: recorded cases, hostile text, and writing followed by reading."""

import json
import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cascade_rl.errors import RenderError
from cascade_rl.model.toolcalls import ToolFormat, format_tool_call, parse_tool_calls
from cascade_rl.records import ToolCall

CASES = [json.loads(line) for line in (Path(__file__).parents[1] / "data" / "toolcalls.jsonl").read_text().splitlines()]
FORMATS: dict[str, ToolFormat] = {"hermes": "hermes", "qwen3_coder": "xml"}
WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}, "days": {"type": "integer"}}},
    },
}
GOOD = {
    "hermes": '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Bern"}}\n</tool_call>',
    "xml": "<tool_call>\n<function=get_weather>\n<parameter=city>\nBern\n</parameter>\n</function>\n</tool_call>",
}


def plain(text: str, format: ToolFormat, tools: Any = (WEATHER,)) -> tuple[str, list[tuple[str, dict[str, Any]]], int]:
    parsed = parse_tool_calls(text, format, tools)
    return parsed.content, [(call.name, dict(call.arguments)) for call in parsed.calls], parsed.errors


@pytest.mark.parametrize("case", CASES, ids=[case["name"] for case in CASES])
def test_recorded_cases(case: dict[str, Any]) -> None:
    content, calls, errors = plain(case["text"], FORMATS[case["format"]], case["tools"])
    assert {"content": content, "calls": [list(call) for call in calls], "errors": errors} == case["expected"]


@pytest.mark.parametrize("format", ["hermes", "xml"])
class TestBothFormats:
    def test_text_without_calls_is_left_alone(self, format: ToolFormat) -> None:
        assert plain("  It rains.\n", format) == ("  It rains.\n", [], 0)

    def test_think_blocks_are_not_scanned(self, format: ToolFormat) -> None:
        thought = f"<think>I could write {GOOD[format]}</think>"
        assert plain(f"{thought}No call.", format) == (f"{thought}No call.", [], 0)
        assert plain(f"<think>and so on {GOOD[format]}", format)[1] == []
        assert len(plain(thought + GOOD[format], format)[1]) == 1

    @pytest.mark.parametrize("glue", ["", "\n", "\nThen:\n"])
    def test_a_bad_block_costs_no_other(self, format: ToolFormat, glue: str) -> None:
        for bad in (GOOD[format][:-32], GOOD[format][:-20], "<tool_call>\n", "<tool_call>nonsense</tool_call>", "</tool_call>"):
            _, calls, errors = plain(GOOD[format] + glue + bad + glue + GOOD[format], format)
            assert len(calls) >= 2, bad
            assert calls[0] == calls[-1] == ("get_weather", {"city": "Bern"}), bad
            assert errors >= 1, bad

    def test_every_prefix_is_quick_and_never_raises(self, format: ToolFormat) -> None:
        text = "Let me look.\n" + "\n".join([GOOD[format]] * 12) + "\nDone."
        started = time.process_time()
        counts = [len(parse_tool_calls(text[:end], format, [WEATHER]).calls) for end in range(len(text) + 1)]
        assert time.process_time() - started < 5
        assert counts == sorted(counts)
        assert counts[-1] == 12

    @pytest.mark.parametrize(
        "unit",
        [
            *("<tool_call>", "</tool_call>", '<tool_call>{"', '<tool_call>{"a":[', '<tool_call>{"name": "a", "arguments": {}}'),
            *("<function=", "<function=a>", "<tool_call><function=a>", "<parameter=a>", "\n<parameter=a>\n", "</parameter>"),
            *("<tool_call><function=a><parameter=b>", "<function=a>\n<parameter=b>\n", "</function>", "<tool_call>\n\n\n\n"),
            *("<think>", "[", '{"a":', "\\"),
        ],
    )
    def test_hostile_text_takes_linear_time(self, format: ToolFormat, unit: str) -> None:
        for text in (unit * (100_000 // len(unit)), GOOD[format][:40] + unit * (100_000 // len(unit))):
            started = time.process_time()
            parse_tool_calls(text, format, [WEATHER])
            assert time.process_time() - started < 2

    def test_a_call_in_an_argument_is_text(self, format: ToolFormat) -> None:
        call = ToolCall("save", {"text": "see <tool_call>, </tool_call>, <think> & </parameter>, <function=x>"})
        assert plain(format_tool_call(call, format), format) == ("", [(call.name, dict(call.arguments))], 0)


@pytest.mark.parametrize(
    "body",
    [
        '{"name": "f", "name": "g", "arguments": {}}',
        '{"name": "f", "arguments": {"a": 1, "a": 2}}',
        '{"name": "f", "arguments": {"a": -Infinity}}',
        '{"name": "f", "arguments": {"a": 1e999}}',
        '{"name": "f", "arguments": {"a": ' + "9" * 5000 + "}}",
        '{"name": "f", "arguments": {"a": ' + "[" * 20000 + "]" * 20000 + "}}",
        '{"name": "f", "arguments": "{\\"a\\": NaN}"}',
        '{"name": "f", "arguments": "[1]"}',
        '{"name": "f", "arguments": [1]}',
        '{"name": "f"}',
        '{"name": 3, "arguments": {}}',
        "{'name': 'f', 'arguments': {}}",
    ],
)
def test_hermes_refuses_what_is_not_one_strict_call(body: str) -> None:
    content, calls, errors = plain(f"<tool_call>\n{body}\n</tool_call>\n{GOOD['hermes']}", "hermes")
    assert (content, calls, errors) == ("", [("get_weather", {"city": "Bern"})], 1)


def test_hermes_block_with_a_missing_end_tag_keeps_its_call_and_counts() -> None:
    assert plain(GOOD["hermes"][:-13] + GOOD["hermes"], "hermes")[1:] == ([("get_weather", {"city": "Bern"})] * 2, 1)
    assert plain(GOOD["hermes"].replace("}}", "}}}"), "hermes") == ("", [("get_weather", {"city": "Bern"})], 1)


def xml(value: str, schema: Any) -> Any:
    tool = {"name": "f", "parameters": {"type": "object", "properties": {"p": schema}}}
    text = f"<tool_call>\n<function=f>\n<parameter=p>\n{value}\n</parameter>\n</function>\n</tool_call>"
    return parse_tool_calls(text, "xml", [tool]).calls[0].arguments["p"]


@pytest.mark.parametrize(
    ("value", "schema", "meant"),
    [
        ("3", {"type": "integer"}, 3),
        (" 3 ", {"type": "integer"}, 3),
        ("3.5", {"type": "integer"}, "3.5"),
        ("three", {"type": "integer"}, "three"),
        ("9" * 5000, {"type": "integer"}, "9" * 5000),
        ("3", {"type": "number"}, 3),
        ("3.5", {"type": "number"}, 3.5),
        ("NaN", {"type": "number"}, "NaN"),
        ("3", {"type": "string"}, "3"),
        ("3", {}, "3"),
        ("3", None, "3"),
        ("false", {"type": "boolean"}, False),
        ("yes", {"type": "boolean"}, "yes"),
        ("null", {"type": ["integer", "null"]}, None),
        ("null", {"type": "integer"}, "null"),
        ("3", {"type": ["string", "integer"]}, 3),
        ("[1, 2]", {"type": "array"}, [1, 2]),
        ("{'a': 1}", {"type": "object"}, "{'a': 1}"),
        ('{"a": 1, "a": 2}', {"type": "object"}, '{"a": 1, "a": 2}'),
        ("2", {"anyOf": [{"type": "integer"}, {"type": "null"}]}, 2),
        ("2", {"enum": [1, 2]}, 2),
        ("\n a \n", {"type": "string"}, "\n a \n"),
        ("__import__('os')", {"type": "object"}, "__import__('os')"),
    ],
)
def test_xml_values_are_typed_by_the_schema(value: str, schema: Any, meant: Any) -> None:
    found = xml(value, schema)
    assert found == meant
    assert type(found) is type(meant)


def test_xml_repeated_parameter_is_refused() -> None:
    block = GOOD["xml"].replace("</function>", "<parameter=city>\nRome\n</parameter>\n</function>")
    assert plain(block + GOOD["xml"], "xml") == ("", [("get_weather", {"city": "Bern"})], 1)


def test_xml_bare_function_in_prose_is_no_call() -> None:
    text = "Write `<function=name>` first."
    assert plain(text, "xml") == (text, [], 1)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)
tagged = st.lists(
    st.sampled_from(
        ["<tool_call>", "</tool_call>", "<function=f>", "</function>", "<parameter=p>", "</parameter>", "\n", "x", "<think>"]
    )
).map("".join)
names = st.text(st.characters(categories=("L", "N"), include_characters="_.-"), min_size=1, max_size=20)


def schema_for(call: ToolCall) -> dict[str, Any]:
    kinds = {bool: "boolean", int: "integer", float: "number", str: "string", list: "array", dict: "object", type(None): "null"}
    properties = {name: {"type": kinds[type(value)]} for name, value in call.arguments.items()}
    return {"type": "function", "function": {"name": call.name, "parameters": {"type": "object", "properties": properties}}}


@given(names, st.dictionaries(names, json_values, max_size=4))
@settings(deadline=None)
def test_hermes_reads_what_it_writes(name: str, arguments: dict[str, Any]) -> None:
    call = ToolCall(name, arguments)
    assert plain(format_tool_call(call, "hermes"), "hermes") == ("", [(name, arguments)], 0)


@given(names, st.dictionaries(names, json_values | tagged, max_size=4))
@settings(deadline=None)
def test_xml_reads_what_it_writes_or_refuses_to_write(name: str, arguments: dict[str, Any]) -> None:
    call = ToolCall(name, arguments)
    try:
        text = format_tool_call(call, "xml")
    except RenderError:
        assert any("<" in json.dumps(value) for value in arguments.values())  # only tags can be inexpressible
        return
    assert plain(text, "xml", [schema_for(call)]) == ("", [(name, arguments)], 0)


@pytest.mark.parametrize("arguments", [{"a": float("nan")}, {"a": object()}, {"a": {1: 2}}, {"a": {3}}])
@pytest.mark.parametrize("format", ["hermes", "xml"])
def test_a_call_that_cannot_be_written_raises(format: ToolFormat, arguments: dict[str, Any]) -> None:
    with pytest.raises(RenderError, match="JSON value"):
        format_tool_call(ToolCall("f", arguments), format)


def test_unknown_format_is_named() -> None:
    with pytest.raises(RenderError, match='did you mean "hermes"'):
        parse_tool_calls("", "hermess")  # type: ignore[arg-type]
