"""Tool calls against the calls that were expected: exactly, or one of several allowed values for each argument (BFCL's way)."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from cascade_rl.errors import GraderError
from cascade_rl.records import Reward, ToolCall
from cascade_rl.strict_json import same

MAX_CALLS = 64  # more than any row expects; matching is cubic in it


def grade_calls(calls: Sequence[ToolCall], expected: Sequence[ToolCall], *, ordered: bool) -> Reward:
    """1 if the calls are the expected ones, each exactly as often (and in this order, if `ordered`), else 0.

    Arguments are compared as JSON values: 1 equals 1.0, but not true and not "1". Raises GraderError if nothing is expected (use
    `grade_no_call`).
    """
    if not expected:
        raise GraderError(
            "tool calls: no expected call; expected at least one (a prompt that needs none is graded by grade_no_call)"
        )
    return _verdict(calls, len(expected), lambda call, i: _same_call(call, expected[i]), ordered)


def grade_possible(
    calls: Sequence[ToolCall], possible: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]], *, ordered: bool = False
) -> Reward:
    """1 if each expected call is met by a call of its own and none is left over, else 0.

    possible: one object an expected call, {function name: {argument: [allowed values]}}; "" among the values means that the
    argument may be left out. A value must have the type that the tool's schema declares (or that of an allowed value, for rows
    that allow a variable's name); an integer serves as a number. Strings are compared without case, white space and the
    punctuation `,./-_*^`, with one kind of quotes; each entry of an object has its own list of allowed values.
    Raises GraderError for a `possible` that no call could meet.
    """
    wanted = [_wanted(entry, _schemas(tools)) for entry in possible]
    if not wanted:
        raise GraderError("tool calls: no possible answer; expected at least one call")
    return _verdict(calls, len(wanted), lambda call, i: _meets(call, *wanted[i]), ordered)


def grade_no_call(calls: Sequence[ToolCall], answer: str, format_errors: int = 0) -> Reward:
    """1 if the answer is words and no tool was called (nor a call tried), else 0: for prompts that no tool can serve."""
    value = float(not calls and not format_errors and bool(answer.strip()))
    why = f"called {calls[0].name[:80]}" if calls else "a malformed call" if format_errors else "words" if value else "no answer"
    return Reward(value, {"correct": value, "calls": float(len(calls))}, why)


def first_possible(possible: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]]) -> tuple[ToolCall, ...]:
    """One right answer: of each argument the first allowed value; arguments that may be left out are, unless the tool needs them.

    Raises GraderError as `grade_possible` does.
    """
    calls = []
    for name, arguments, schema in (_wanted(entry, _schemas(tools)) for entry in possible):
        needed = set(schema.get("required") or ())
        chosen = {key: _first(allowed) for key, allowed in arguments.items() if key in needed or not _optional(allowed)}
        calls.append(ToolCall(name, chosen))
    return tuple(calls)


def _verdict(calls: Sequence[ToolCall], expected: int, fits: Callable[[ToolCall, int], bool], ordered: bool) -> Reward:
    parts = {"correct": 0.0, "calls": float(len(calls))}
    if len(calls) != expected:
        return Reward(0.0, parts, f"{len(calls)} calls, expected {expected}")
    if expected > MAX_CALLS:
        raise GraderError(f"tool calls: {expected} expected calls; expected at most {MAX_CALLS}")
    table = [[i == j and fits(call, i) if ordered else fits(call, i) for i in range(expected)] for j, call in enumerate(calls)]
    unmet = expected - _matched(table)
    parts["correct"] = float(not unmet)
    return Reward(
        parts["correct"], parts, "all calls as expected" if not unmet else f"{unmet} of {expected} expected calls not made"
    )


def _matched(table: Sequence[Sequence[bool]]) -> int:
    """Size of the largest matching of calls (rows) and expected calls (columns), by augmenting paths (Kuhn)."""
    taken_by: dict[int, int] = {}

    def place(row: int, seen: set[int]) -> bool:
        for column, fits in enumerate(table[row]):
            if fits and column not in seen:
                seen.add(column)
                if column not in taken_by or place(taken_by[column], seen):
                    taken_by[column] = row
                    return True
        return False

    return sum(place(row, set()) for row in range(len(table)))


def _same_call(call: ToolCall, expected: ToolCall) -> bool:
    return call.name == expected.name and same(dict(call.arguments), dict(expected.arguments))


# --- one of several allowed values ------------------------------------------------------------------------------------------


def _schemas(tools: Sequence[Mapping[str, Any]]) -> dict[str, Mapping[str, Any]]:
    return {function["name"]: function for function in (tool.get("function", tool) for tool in tools)}


def _wanted(
    entry: Mapping[str, Any], schemas: Mapping[str, Mapping[str, Any]]
) -> tuple[str, Mapping[str, Any], Mapping[str, Any]]:
    """(function name, allowed values by argument, schema of the arguments) of one expected call, checked."""
    if len(entry) != 1:
        raise GraderError(f"tool calls: possible answer {str(entry)[:200]} must have exactly one function name")
    ((name, arguments),) = entry.items()
    if name not in schemas:
        raise GraderError(f'tool calls: possible answer names "{name}", which is none of the tools: {", ".join(sorted(schemas))}')
    if not isinstance(arguments, Mapping) or any(not isinstance(allowed, list) or not allowed for allowed in arguments.values()):
        raise GraderError(
            f'tool calls: possible answer for "{name}" must give each argument a list of one or more allowed values'
        )
    return name, arguments, schemas[name].get("parameters") or {}


def _meets(call: ToolCall, name: str, wanted: Mapping[str, Any], schema: Mapping[str, Any]) -> bool:
    if call.name != name or any(key not in call.arguments for key in schema.get("required") or ()):
        return False
    return _entries_meet(call.arguments, wanted, schema.get("properties") or {})


def _entries_meet(entries: Mapping[str, Any], wanted: Mapping[str, Any], properties: Mapping[str, Any]) -> bool:
    """Every entry is wanted and has an allowed value; every entry that is missing may be."""
    if any(key not in wanted for key in entries):
        return False
    return all(
        _allowed(entries[key], allowed, properties.get(key) or {}) if key in entries else _optional(allowed)
        for key, allowed in wanted.items()
    )


def _allowed(value: Any, allowed: Any, schema: Mapping[str, Any]) -> bool:
    options = allowed if isinstance(allowed, list) else [allowed]  # a few rows leave the list out
    declared = schema.get("type")
    options = [option for option in options if option != "" or declared == "string"] or options
    fitting = _has_type(value, declared) or any(type(value) is type(option) for option in options)
    return fitting and any(_is(value, option, schema) for option in options)


def _is(value: Any, option: Any, schema: Mapping[str, Any]) -> bool:
    if isinstance(value, str) and isinstance(option, str):
        return _loose(value) == _loose(option)
    if isinstance(value, Mapping) and isinstance(option, Mapping):
        return _entries_meet(value, option, schema.get("properties") or {})
    if isinstance(value, list) and isinstance(option, list):
        inner = schema.get("items") or {}
        return len(value) == len(option) and all(_is(a, b, inner) for a, b in zip(value, option, strict=True))
    return same(value, option)


def _has_type(value: Any, declared: Any) -> bool:
    kinds: dict[str, tuple[type, ...]] = {
        "string": (str,), "integer": (int,), "number": (int, float), "boolean": (bool,),
        "array": (list,), "object": (dict,), "null": (type(None),),
    }  # fmt: skip
    if not isinstance(declared, str) or declared not in kinds:
        return True
    return isinstance(value, kinds[declared]) and (declared == "boolean" or not isinstance(value, bool))


def _loose(text: str) -> str:
    """Spelling variants of the same value: case, white space, quotes and light punctuation do not count."""
    return "".join(sign for sign in text.casefold() if sign not in " \t\n,./-_*^").replace("'", '"')


def _optional(allowed: Any) -> bool:
    return isinstance(allowed, list) and "" in allowed


def _first(allowed: Any) -> Any:
    """The first allowed value that says something; inside an object each entry holds allowed values in turn."""
    options = allowed if isinstance(allowed, list) else [allowed]
    return _settle(next((option for option in options if option != ""), options[0]))


def _settle(option: Any) -> Any:
    if isinstance(option, Mapping):
        return {key: _first(allowed) for key, allowed in option.items() if not _optional(allowed)}
    return [_settle(item) for item in option] if isinstance(option, list) else option
