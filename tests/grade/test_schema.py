"""JSON against a schema."""

import time

import pytest

from cascade_rl import strict_json
from cascade_rl.errors import GraderError
from cascade_rl.grade.schema import compile_schema, grade_json

PERSON = {
    "type": "object",
    "properties": {"name": {"type": "string"}, "age": {"type": "integer", "minimum": 0}},
    "required": ["name", "age"],
    "additionalProperties": False,
}


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ('{"name": "Ada", "age": 36}', 1),
        (' \n{"name": "Ada", "age": 36}\n', 1),
        ('<think>{"a": 1}</think>{"name": "Ada", "age": 36}', 1),
        ('{"name": "Ada", "age": 36.0}', 1),
        ('{"name": "Ada", "age": "36"}', 0),
        ('{"name": "Ada", "age": true}', 0),
        ('{"name": "Ada"}', 0),
        ('{"name": "Ada", "age": 36, "x": 1}', 0),
        ('{"name": "Ada", "age": NaN}', 0),
        ('{"name": "Ada", "age": 36, "age": 37}', 0),
        ('{"name": "Ada", "age": 36} and more', 0),
        ('Here it is: {"name": "Ada", "age": 36}', 0),
        ("{'name': 'Ada', 'age': 36}", 0),
        ('<think>{"name": "Ada", "age": 36}', 0),
        ("[" * 400 + "]" * 400, 0),  # deeper than the validator goes
        ("[" * 100_000, 0),
        ("[" * 100_000 + "]" * 100_000, 0),
        ('{"name": "Ada", "age": ' + "9" * 100_000 + "}", 0),
        ('{"name": "' + "A" * 1_000_000 + '", "age": 1}', 1),
        ("null", 0),
        ("", 0),
    ],
)
def test_verdicts(text: str, value: int) -> None:
    assert grade_json(text, compile_schema(PERSON), allow_fence=False).value == value


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ('```json\n{"name": "Ada", "age": 36}\n```', 1),
        ('```\n{"name": "Ada", "age": 36}\n```', 1),
        ('```json\n{"name": "Ada", "age": 36}\n```\nDone.', 0),
        ('```python\n{"name": "Ada", "age": 36}\n```', 0),
        ('```json\n{"name": "Ada", "age": 36}', 0),
    ],
)
def test_a_fence_counts_only_where_it_is_allowed(text: str, value: int) -> None:
    validator = compile_schema(PERSON)
    assert grade_json(text, validator, allow_fence=True).value == value
    assert grade_json(text, validator, allow_fence=False).value == 0


def test_the_reason_names_the_place() -> None:
    reward = grade_json('{"name": "Ada", "age": -1}', compile_schema(PERSON), allow_fence=False)
    assert reward.parts == {"parses": 1.0, "valid": 0.0}
    assert "at /age" in reward.why
    assert grade_json("{", compile_schema(PERSON), allow_fence=False).parts == {"parses": 0.0, "valid": 0.0}


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "dict"},
        {"properties": 3},
        {"pattern": "("},
        {"minimum": "0"},
        {"$schema": "nope"},
        {"$ref": "#/no"},
        {"$ref": "http://example.com/schema.json"},
        [],
        "x",
    ],
)
def test_a_bad_schema_raises_at_load(schema: object) -> None:
    with pytest.raises(GraderError, match=r"rows\.jsonl:3: not a valid JSON Schema"):
        compile_schema(schema, "rows.jsonl:3")


def test_a_hostile_pattern_does_not_blow_up() -> None:
    validator = compile_schema({"type": "string", "pattern": "^(a+)+$"})
    started = time.perf_counter()
    assert grade_json('"' + "a" * 50_000 + '!"', validator, allow_fence=False).value == 0
    assert time.perf_counter() - started < 5


@pytest.mark.parametrize(
    ("one", "other", "equal"),
    [
        (1, 1.0, True),
        (1, True, False),
        (0, False, False),
        (True, True, True),
        ("1", 1, False),
        (None, None, True),
        (None, 0, False),
        ([1, [2]], [1, [2.0]], True),
        ([1, 2], [2, 1], False),
        ({"a": 1, "b": 2}, {"b": 2, "a": 1}, True),
        ({"a": 1}, {"a": True}, False),
        ({"a": 1}, {"b": 1}, False),
        ([], {}, False),
    ],
)
def test_sameness_of_json_values(one: object, other: object, equal: bool) -> None:
    assert strict_json.same(one, other) is equal
    assert strict_json.same(other, one) is equal


def test_decoder_reads_a_faulty_value_to_its_end() -> None:
    text = 'x {"a": NaN, "b": "}"} tail'
    assert strict_json.Decoder().at(text, 2)[1:] == (text.index(" tail"), "NaN is not a JSON value")
    with pytest.raises(strict_json.JsonFault, match="too large"):
        strict_json.loads("[1e999]")
