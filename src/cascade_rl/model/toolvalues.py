"""Arguments of tool calls that come as raw text, and the values that they mean under the tool's schema."""

from collections.abc import Mapping, Sequence
from typing import Any

from cascade_rl.strict_json import JsonFault, loads


def typed(raw: str, schema: Any) -> Any:
    """The value that a raw text means under a parameter's schema; the text itself where it fits none of the types."""
    types = _types(schema)
    for kind in ("null", "boolean", "integer", "number", "array", "object"):
        if kind in types:
            fits, value = _read_as(raw.strip(), kind)
            if fits:
                return value
    return raw


def _read_as(text: str, kind: str) -> tuple[bool, Any]:
    if kind == "boolean" and text.lower() in ("true", "false"):  # Python's spelling too
        return True, text.lower() == "true"
    try:
        value = loads(text)
    except JsonFault:
        return False, None
    found = json_type(value)
    return found == kind or (kind == "number" and found == "integer"), value


def _types(schema: Any) -> set[str]:
    """The JSON types that a parameter's schema names; empty where it names none."""
    if not isinstance(schema, Mapping):
        return set()
    declared = schema.get("type")
    if isinstance(declared, str):
        return {declared}
    if isinstance(declared, Sequence):
        return {name for name in declared if isinstance(name, str)}
    for key in ("anyOf", "oneOf"):
        if isinstance(schema.get(key), Sequence):
            return set().union(*(_types(option) for option in schema[key]))
    if isinstance(schema.get("enum"), Sequence):
        return {json_type(value) for value in schema["enum"]}
    return {json_type(schema["const"])} if "const" in schema else set()


def json_type(value: Any) -> str:
    """The JSON name of a value's type; bool before int, since a bool is an int in Python."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "boolean"
    if isinstance(value, int):
        return "integer"
    if isinstance(value, float):
        return "number"
    if isinstance(value, str):
        return "string"
    return "object" if isinstance(value, Mapping) else "array"
