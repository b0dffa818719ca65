"""Calls against expected calls, and against possible answers."""

import random
from typing import Any

import pytest

from cascade_rl.errors import GraderError
from cascade_rl.grade.toolcalls import first_possible, grade_calls, grade_no_call, grade_possible
from cascade_rl.records import ToolCall

A, B = ToolCall("a", {"x": 1}), ToolCall("b", {})
PLAY = {
    "name": "play",
    "parameters": {
        "type": "object",
        "properties": {
            "artist": {"type": "string"},
            "minutes": {"type": "integer"},
            "volume": {"type": "number"},
            "loud": {"type": "boolean"},
            "tags": {"type": "array", "items": {"type": "string"}},
            "range": {"type": "object", "properties": {"low": {"type": "integer"}, "high": {"type": "integer"}}},
        },
        "required": ["artist"],
    },
}


@pytest.mark.parametrize(
    ("calls", "expected", "free", "ordered"),
    [
        ([A], [A], 1, 1),
        ([A, B], [A, B], 1, 1),
        ([B, A], [A, B], 1, 0),
        ([A, A], [A], 0, 0),
        ([A], [A, A], 0, 0),
        ([A, A], [A, B], 0, 0),
        ([], [A], 0, 0),
        ([ToolCall("a", {"x": 1.0})], [A], 1, 1),
        ([ToolCall("a", {"x": True})], [A], 0, 0),
        ([ToolCall("a", {"x": "1"})], [A], 0, 0),
        ([ToolCall("a", {"x": 1, "y": 2})], [A], 0, 0),
        ([ToolCall("A", {"x": 1})], [A], 0, 0),
        ([ToolCall("a", {"x": [[[1]]]})], [A], 0, 0),
    ],
)
def test_exact_calls(calls: list[ToolCall], expected: list[ToolCall], free: int, ordered: int) -> None:
    assert grade_calls(calls, expected, ordered=False).value == free
    assert grade_calls(calls, expected, ordered=True).value == ordered


def possible(call: dict[str, Any], **allowed: Any) -> float | None:
    return grade_possible([ToolCall("play", call)], [{"play": allowed}], [PLAY]).value


@pytest.mark.parametrize(
    ("call", "allowed", "value"),
    [
        ({"artist": "Queen"}, {"artist": ["Queen"]}, 1),
        ({"artist": "queen "}, {"artist": ["ABBA", "Queen"]}, 1),
        ({"artist": "San Diego CA"}, {"artist": ["San Diego, CA"]}, 1),
        ({"artist": "ABBA"}, {"artist": ["Queen"]}, 0),
        ({}, {"artist": ["Queen", ""]}, 0),  # the tool needs it
        ({"artist": "Q"}, {"artist": ["Q"], "minutes": [5]}, 0),
        ({"artist": "Q"}, {"artist": ["Q"], "minutes": ["", 5]}, 1),
        ({"artist": "Q", "minutes": 5}, {"artist": ["Q"], "minutes": ["", 5]}, 1),
        ({"artist": "Q", "minutes": 6}, {"artist": ["Q"], "minutes": ["", 5]}, 0),
        ({"artist": "Q", "minutes": ""}, {"artist": ["Q"], "minutes": ["", 5]}, 0),
        ({"artist": "Q", "minutes": 5}, {"artist": ["Q"]}, 0),
        ({"artist": "Q", "minutes": "5"}, {"artist": ["Q"], "minutes": [5]}, 0),
        ({"artist": "Q", "minutes": True}, {"artist": ["Q"], "minutes": [1]}, 0),
        ({"artist": "Q", "minutes": "total"}, {"artist": ["Q"], "minutes": ["total"]}, 1),
        ({"artist": "Q", "volume": 1}, {"artist": ["Q"], "volume": [1.0]}, 1),
        ({"artist": "Q", "volume": 0.1}, {"artist": ["Q"], "volume": [0.2]}, 0),
        ({"artist": "Q", "loud": True}, {"artist": ["Q"], "loud": [True]}, 1),
        ({"artist": "Q", "loud": 1}, {"artist": ["Q"], "loud": [True]}, 0),
        ({"artist": "Q", "loud": "true"}, {"artist": ["Q"], "loud": [True]}, 0),
        ({"artist": "Q", "tags": ["Rock", "live"]}, {"artist": ["Q"], "tags": [["rock", "Live"]]}, 1),
        ({"artist": "Q", "tags": ["live", "rock"]}, {"artist": ["Q"], "tags": [["rock", "live"]]}, 0),
        ({"artist": "Q", "range": {"low": 1, "high": 2}}, {"artist": ["Q"], "range": [{"low": [1, 0], "high": [2]}]}, 1),
        ({"artist": "Q", "range": {"low": 1}}, {"artist": ["Q"], "range": [{"low": [1], "high": [2, ""]}]}, 1),
        ({"artist": "Q", "range": {"low": 1}}, {"artist": ["Q"], "range": [{"low": [1], "high": [2]}]}, 0),
        ({"artist": "Q", "range": {"low": 1, "x": 1}}, {"artist": ["Q"], "range": [{"low": [1]}]}, 0),
    ],
)
def test_possible_answers(call: dict[str, Any], allowed: dict[str, Any], value: int) -> None:
    assert possible(call, **allowed) == value


def test_possible_answers_of_several_calls_take_any_order_but_one_each() -> None:
    wanted = [{"play": {"artist": ["Q", "A"]}}, {"play": {"artist": ["Q"]}}]
    q, a = ToolCall("play", {"artist": "Q"}), ToolCall("play", {"artist": "A"})
    assert grade_possible([q, a], wanted, [PLAY]).value == 1  # the first call must be matched with the second wish
    assert grade_possible([a, q], wanted, [PLAY]).value == 1
    assert grade_possible([q, a], wanted, [PLAY], ordered=True).value == 0
    assert grade_possible([a, a], wanted, [PLAY]).value == 0
    assert grade_possible([q], wanted, [PLAY]).value == 0
    assert grade_possible([q, a, q], wanted, [PLAY]).value == 0


def test_matching_is_found_whatever_the_order() -> None:
    wanted = [{"play": {"artist": [chr(65 + k) for k in range(i, 12)]}} for i in range(12)]
    calls = [ToolCall("play", {"artist": chr(65 + k)}) for k in range(12)]
    for seed in range(20):
        assert grade_possible(random.Random(seed).sample(calls, 12), wanted, [PLAY]).value == 1


def test_first_possible_is_always_right() -> None:
    wanted = [
        {"play": {"artist": ["Q"], "minutes": ["", 5], "range": [{"low": [1, 2], "high": ["", 3]}], "tags": [["a", "b"]]}},
        {"play": {"artist": ["", "A"]}},
    ]
    calls = first_possible(wanted, [PLAY])
    assert calls[0].arguments == {"artist": "Q", "range": {"low": 1}, "tags": ["a", "b"]}
    assert calls[1].arguments == {"artist": "A"}
    assert grade_possible(calls, wanted, [PLAY]).value == 1
    assert grade_possible([], wanted, [PLAY]).value == 0


@pytest.mark.parametrize(
    ("calls", "answer", "errors", "value"),
    [([], "I cannot.", 0, 1), ([], "", 0, 0), ([], " \n", 0, 0), ([A], "I cannot.", 0, 0), ([], "<tool_call>{", 1, 0)],
)
def test_no_call(calls: list[ToolCall], answer: str, errors: int, value: int) -> None:
    assert grade_no_call(calls, answer, errors).value == value


def test_bad_configuration_raises() -> None:
    with pytest.raises(GraderError, match="no expected call"):
        grade_calls([], [], ordered=True)
    for wanted in ([], [{"sing": {}}], [{}], [{"play": {"artist": "Q"}}], [{"play": {"artist": []}}], [{"play": {}, "sing": {}}]):
        with pytest.raises(GraderError, match="tool calls:"):
            grade_possible([], wanted, [PLAY])
