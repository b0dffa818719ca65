"""Multiple choice: recorded cases, and what must not be read as a choice."""

import json
import time
from pathlib import Path
from typing import Any

import pytest

from cascade_rl.errors import GraderError
from cascade_rl.grade.choices import extract_choice, grade_choice

CASES = [json.loads(line) for line in (Path(__file__).parents[1] / "data" / "choices.jsonl").read_text().splitlines()]


@pytest.mark.parametrize("case", CASES, ids=[case["source"] for case in CASES])
def test_recorded_cases(case: dict[str, Any]) -> None:
    assert extract_choice(case["text"], case["options"]) == case["expected"]


@pytest.mark.parametrize(
    ("text", "letter"),
    [
        ("(B)", "B"),
        ("**c.**", "C"),
        ("b", "B"),
        (r"\boxed{(D)}", "D"),
        (r"\boxed{\mathbf{D}}", "D"),
        (r"$\boxed{b}$", "B"),
        (r"\boxed{A. growth}", "A"),
        (r"\boxed{A growth}", None),
        (r"\boxed{B or C}", None),
        (r"\boxed{A, B}", None),
        (r"\boxed{A/B}", None),
        (r"\boxed{A} or \boxed{B}", None),
        (r"\boxed{A} \boxed{A}", "A"),
        (r"\boxed{A", None),
        (r"\boxed{}", None),
        (r"\boxed{G} Answer: A", None),
        (r"\boxed{\text{Option C}}", "C"),
        (r"The value is \boxed{42}.", None),
        ("Answer:\n\nB", "B"),
        ("The answer is B, because C is not.", "B"),
        ("The answer is A good one", None),
        ("The answer is a matter of taste.", None),
        ("The answer is a.", "A"),
        ("Answer: I don't know", None),
        ("Answer: A, I think.", "A"),
        ("Answer: B or maybe C", None),
        ("Answer: (B) and (C)", None),
        ("Answer: A\nAnswer: B", "B"),
        ("Final answer: option (D)", "D"),
        ("The best choice is C!", "C"),
        ("The answer is not B.", None),
        ("B or C", None),
        ("Because", None),
        ("", None),
        ("</think>Answer: C", "C"),
        ("<think>x</think>Answer: B<think>Answer: C", None),
    ],
)
def test_what_a_text_settles_on(text: str, letter: str | None) -> None:
    assert extract_choice(text, "ABCD") == letter


def test_gold_full_marks_empty_nothing() -> None:
    for gold in "ABCDEFGHIJ":
        for text in (gold, f"\\boxed{{{gold}}}", f"Answer: {gold}", f"So it is.\n\n**Answer: {gold}**"):
            assert grade_choice(text, gold, "ABCDEFGHIJ").value == 1, text
        assert grade_choice("", gold, "ABCDEFGHIJ").value == 0
    assert grade_choice("\\boxed{B}", "A", "ABCD").parts == {"correct": 0.0, "answered": 1.0}


def test_bad_configuration_raises() -> None:
    with pytest.raises(GraderError, match='"E" is not one of the options'):
        grade_choice("A", "E", "ABCD")
    for options in ("", "AA", "ab", ["A", "BC"]):
        with pytest.raises(GraderError, match="upper-case letters"):
            extract_choice("A", options)


@pytest.mark.parametrize(
    "unit", ["\\boxed{", "answer is ", "Answer: A or B ", "{", "}", "*", "\\text{", " ", "A, ", "<think>", "\\"]
)
def test_hostile_text_is_quick(unit: str) -> None:
    started = time.perf_counter()
    assert extract_choice(unit * (1_000_000 // len(unit)), "ABCD") is None
    assert time.perf_counter() - started < 5
