"""Tool calls as text: the two formats that models write, read and written.

`hermes` is a JSON object in a tag:

    <tool_call>
    {"name": "get_weather", "arguments": {"city": "Paris"}}
    </tool_call>

`xml` gives each argument a tag of its own, its value as raw text that the tool's schema types:

    <tool_call>
    <function=get_weather>
    <parameter=city>
    Paris
    </parameter>
    </function>
    </tool_call>

Model output is hostile. Both readers walk once over the tags of the text, so their time grows linearly with it; a bad block is
counted and never costs the calls around it; nothing inside a think block is a call.
"""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

from cascade_rl.errors import RenderError, unknown
from cascade_rl.model.toolvalues import json_type, typed
from cascade_rl.records import ToolCall
from cascade_rl.strict_json import Decoder, JsonFault, loads, same

ToolFormat = Literal["hermes", "xml"]

# A name ends at the first "<", ">" or line end, so a text of "<function=<function=..." costs no second look at a character.
_TAGS = {
    "hermes": re.compile(r"</?(?:tool_call|think)>"),
    "xml": re.compile(r"</?(?:tool_call|think|function|parameter)>|<(?:function|parameter)=[^<>\n]{1,256}>"),
}
_SPACE = re.compile(r"\s*")


@dataclass(frozen=True, slots=True)
class ParsedCalls:
    """`ParsedCalls("Let me look.", (ToolCall("get_weather", {"city": "Paris"}),), 0)`.

    content: the text outside the calls (think blocks included); stripped where calls or broken blocks were taken out of it, else
    as it was. errors: malformed blocks and tags out of place. A block that is malformed but leaves no doubt about the call (an
    end tag is missing) gives both the call and an error.
    """

    content: str
    calls: tuple[ToolCall, ...]
    errors: int


@dataclass(frozen=True, slots=True)
class _Tag:
    kind: str  # "tool_call", "/tool_call", "function", ...
    name: str  # what stands after "=", else ""
    start: int
    end: int


def parse_tool_calls(text: str, format: ToolFormat, tools: Sequence[Mapping[str, Any]] = ()) -> ParsedCalls:
    """The tool calls of an assistant's text, in order, and what is left of the text.

    tools: function schemas (OpenAI layout, or the bare function object); `xml` needs them to type the values: an argument without
    a schema, or whose text does not fit its type, stays a string. A call of a tool that is not among them is still a call;
    whether it may be called is not the parser's business.
    """
    if format not in get_args(ToolFormat):
        raise RenderError(unknown("tool call format", format, get_args(ToolFormat)))
    reader = _Hermes(text, tools) if format == "hermes" else _Xml(text, tools)
    return reader.read()


class _Reader:
    """One walk over the tags. `at` is the next tag; `keep_from` is where the text that was not decided on yet begins."""

    format: ToolFormat

    def __init__(self, text: str, tools: Sequence[Mapping[str, Any]]) -> None:
        self.text = text
        self.tags = [_tag(match) for match in _TAGS[self.format].finditer(text)]
        self.at = 0
        self.keep_from = 0
        self.kept: list[str] = []
        self.calls: list[ToolCall] = []
        self.errors = 0
        self.schemas = {function["name"]: function.get("parameters") or {} for function in map(_function, tools)}

    def read(self) -> ParsedCalls:
        while self.at < len(self.tags):
            tag = self.tags[self.at]
            self.at += 1
            if tag.kind == "think":
                self._skip_thinking()
            elif tag.kind != "/think":
                self.block(tag)
        if not self.kept and self.keep_from == 0:
            return ParsedCalls(self.text, tuple(self.calls), self.errors)
        self.kept.append(self.text[self.keep_from :])
        return ParsedCalls("".join(self.kept).strip(), tuple(self.calls), self.errors)

    def block(self, tag: _Tag) -> None:
        """Handles what begins with a tag outside any block."""
        raise NotImplementedError

    def drop(self, start: int, end: int) -> None:
        """Takes text[start:end] out of the content and goes on with the first tag after it."""
        self.kept.append(self.text[self.keep_from : start])
        self.keep_from = end
        while self.at < len(self.tags) and self.tags[self.at].start < end:
            self.at += 1

    def next_tag(self) -> _Tag | None:
        return self.tags[self.at] if self.at < len(self.tags) else None

    def is_blank(self, start: int, end: int) -> bool:
        """Whether only white space stands there."""
        skipped = _SPACE.match(self.text, start, end)
        return skipped is not None and skipped.end() == end

    def end_of_block(self, end: int) -> int:
        """The end of a block whose inside ends at `end`: the closing tag, or the end of the text, must follow (else an error)."""
        tag = self.next_tag()
        if tag is None and self.is_blank(end, len(self.text)):
            return len(self.text)
        if tag is None or tag.kind != "/tool_call":
            self.errors += 1
            return end
        if not self.is_blank(end, tag.start):
            self.errors += 1
        return tag.end

    def drop_broken(self, start: int, end: int) -> None:
        """A block that gave no call: away with it up to its closing tag, the next block, or the end of the text."""
        self.errors += 1
        while (tag := self.next_tag()) is not None:
            if tag.start >= end and tag.kind == "/tool_call":
                return self.drop(start, tag.end)
            if tag.start >= end and tag.kind == "tool_call":
                return self.drop(start, tag.start)
            self.at += 1
        return self.drop(start, len(self.text))

    def _skip_thinking(self) -> None:
        while (tag := self.next_tag()) is not None and tag.kind != "/think":
            self.at += 1


class _Hermes(_Reader):
    format: ToolFormat = "hermes"

    def __init__(self, text: str, tools: Sequence[Mapping[str, Any]]) -> None:
        super().__init__(text, tools)
        self.decoder = Decoder()

    def block(self, tag: _Tag) -> None:
        start = _after_space(self.text, tag.end)
        if tag.kind == "/tool_call" or (start < len(self.text) and self.text[start] != "{"):
            self.errors += 1  # a tag in prose: the text stays
            return
        try:
            value, end, fault = self.decoder.at(self.text, start)
        except JsonFault:
            return self.drop_broken(tag.start, tag.end)
        call = None if fault else _call_of(value)
        if call is None:
            return self.drop_broken(tag.start, end)
        self.calls.append(call)
        while (inner := self.next_tag()) is not None and inner.start < end:
            self.at += 1  # tags inside the JSON are text
        self.drop(tag.start, self.end_of_block(end))


class _Xml(_Reader):
    format: ToolFormat = "xml"

    def block(self, tag: _Tag) -> None:
        if tag.kind == "function":  # without its wrapper: taken only when it is complete, for it may be prose
            self._function_block(tag, tag, wrapped=False)
            return
        following = self.next_tag()
        if tag.kind == "tool_call" and following is None and self.is_blank(tag.end, len(self.text)):
            self.drop_broken(tag.start, tag.end)
        elif tag.kind == "tool_call" and following and following.kind == "function" and self.is_blank(tag.end, following.start):
            self.at += 1
            self._function_block(tag, following, wrapped=True)
        else:
            self.errors += 1  # a tag in prose: the text stays

    def _function_block(self, opening: _Tag, function: _Tag, *, wrapped: bool) -> None:
        before = self.at
        pairs, end, faults, complete = self._parameters(function.end)
        names = [name for name, _ in pairs]
        if not complete or len(set(names)) != len(names):
            if wrapped:
                self.drop_broken(opening.start, min(end, len(self.text)))
            else:
                self.errors += 1
                self.at = max(self.at, before)  # prose or a torn call: the text stays, its tags are not looked at again
            return
        properties = self.schemas.get(function.name, {}).get("properties") or {}
        arguments = {name: typed(raw, properties.get(name)) for name, raw in pairs}
        self.calls.append(ToolCall(function.name, arguments))
        self.errors += bool(faults)
        if wrapped:
            end = self.end_of_block(end)
        else:
            self.errors += 1
            tag = self.next_tag()
            end = tag.end if tag and tag.kind == "/tool_call" and self.is_blank(end, tag.start) else end
        self.drop(opening.start, end)

    def _parameters(self, position: int) -> tuple[list[tuple[str, str]], int, int, bool]:
        """Name and raw value of each parameter from `position` on, the end of the function, faults, and whether it was closed."""
        pairs: list[tuple[str, str]] = []
        faults = 0
        while (tag := self.next_tag()) is not None:
            faults += not self.is_blank(position, tag.start)
            if tag.kind == "/tool_call":  # `</function>` is missing, but all parameters are closed
                return pairs, tag.start, faults + 1, True
            if tag.kind == "tool_call":
                return pairs, tag.start, faults, False
            self.at += 1
            position = tag.end
            if tag.kind == "/function":
                return pairs, position, faults, True
            if tag.kind != "parameter":
                faults += 1
                continue
            value_end, position, closed = self._value_end(tag.end)
            if value_end < 0:
                return pairs, position, faults, False
            faults += not closed
            pairs.append((tag.name, _trim(self.text[tag.end : value_end])))
        return pairs, len(self.text), faults, False

    def _value_end(self, start: int) -> tuple[int, int, bool]:
        """(end of the value from `start` on, where to go on, whether `</parameter>` was there); -1 for a value that never ends.

        Values are raw text, so a tag inside one is only a tag where it can be one: `</parameter>` when another tag of the format
        or the end of the text follows it; a tag that shows that `</parameter>` was forgotten only at the start of a line; and
        the first two tags of a new block wherever they are (the block before them is torn).
        """
        while (tag := self.next_tag()) is not None:
            following = self.tags[self.at + 1] if self.at + 1 < len(self.tags) else None
            after = following.start if following else len(self.text)
            adjoins = self.is_blank(tag.end, after)
            next_kind = following.kind if following else "end"
            if tag.kind == "/parameter":
                if adjoins and next_kind in ("parameter", "/function", "/tool_call", "end"):
                    self.at += 1
                    return tag.start, tag.end, True
            elif tag.kind == "tool_call" and adjoins and next_kind == "function":
                return -1, tag.start, False
            elif self.text[tag.start - 1] == "\n":
                forgotten = (
                    tag.kind == "parameter"
                    or (tag.kind == "/function" and adjoins and next_kind in ("/tool_call", "end"))
                    or (tag.kind == "/tool_call" and adjoins and next_kind in ("tool_call", "end"))
                )
                if forgotten:
                    return tag.start, tag.start, False
            self.at += 1
        return -1, len(self.text), False


def format_tool_call(call: ToolCall, format: ToolFormat) -> str:
    """A call as a model is to write it; `parse_tool_calls` reads it back unchanged (xml: with a schema that types its arguments).

    Raises RenderError for a call that the format cannot express: a value that is not JSON, or (xml) a name or string that holds
    the format's own tags where they would end it.
    """
    if format not in get_args(ToolFormat):
        raise RenderError(unknown("tool call format", format, get_args(ToolFormat)))
    try:
        text = _write_hermes(call) if format == "hermes" else _write_xml(call)
        back = parse_tool_calls(text, format, [_schema_of(call)])
        exact = not back.errors and not back.content and len(back.calls) == 1 and _same_call(back.calls[0], call)
    except (TypeError, ValueError, RecursionError) as error:
        raise RenderError(
            f'tool call "{call.name}": an argument is not a JSON value ({error}); expected null, booleans, '
            "finite numbers, strings, lists and objects with string keys"
        ) from None
    if not exact:
        raise RenderError(
            f'tool call "{call.name}": the {format} format cannot express its name or one of its arguments, which holds '
            "the format's own tags or is not a JSON value; change it, or use the hermes format"
        )
    return text


def _write_hermes(call: ToolCall) -> str:
    body = json.dumps({"name": call.name, "arguments": dict(call.arguments)}, ensure_ascii=False, allow_nan=False)
    return f"<tool_call>\n{body}\n</tool_call>"


def _write_xml(call: ToolCall) -> str:
    lines = ["<tool_call>", f"<function={call.name}>"]
    for name, value in call.arguments.items():
        written = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, allow_nan=False)
        lines += [f"<parameter={name}>", written, "</parameter>"]
    return "\n".join([*lines, "</function>", "</tool_call>"])


def _schema_of(call: ToolCall) -> dict[str, Any]:
    properties = {name: {"type": json_type(value)} for name, value in call.arguments.items()}
    return {"name": call.name, "parameters": {"type": "object", "properties": properties}}


def _same_call(one: ToolCall, other: ToolCall) -> bool:
    return one.name == other.name and same(dict(one.arguments), dict(other.arguments))


def _function(tool: Mapping[str, Any]) -> Mapping[str, Any]:
    """The function object of a tool schema, in either layout."""
    function = tool.get("function", tool)
    if not isinstance(function, Mapping) or not isinstance(function.get("name"), str):
        raise RenderError(
            f"tool schema {str(tool)[:200]} has no function name; expected "
            '{"type": "function", "function": {"name": ..., "parameters": ...}}'
        )
    return function


def _tag(match: re.Match[str]) -> _Tag:
    kind, _, name = match.group()[1:-1].partition("=")
    return _Tag(kind, name.strip(), match.start(), match.end())


def _after_space(text: str, start: int) -> int:
    skipped = _SPACE.match(text, start)
    return skipped.end() if skipped else start


def _call_of(value: Any) -> ToolCall | None:
    """The call that a hermes object means, or None. Arguments may be an object or, as some models write, its JSON in a string."""
    if not isinstance(value, dict) or not isinstance(value.get("name"), str) or not value["name"]:
        return None
    arguments = value.get("arguments")
    if isinstance(arguments, str):
        try:
            arguments = loads(arguments)
        except JsonFault:
            return None
    return ToolCall(value["name"], arguments) if isinstance(arguments, dict) else None


def _trim(value: str) -> str:
    """Without the line end after the opening tag and the one before the closing tag, which belong to the format."""
    return value.removeprefix("\n").removesuffix("\n")
