"""Model output is hostile: the time to check 100 kB made to upset patterns grows with its length, not faster, and nothing raises."""

import inspect
import time

import pytest
from tests.grade.instructions_table import TABLE

from cascade_rl.grade.instructions import check, compile_instructions
from cascade_rl.grade.instructions.checks import MODES, REFERENCE, STRICT

SIZE = 100_000
PIECES = ["a", "\n", "* ", "\"'", "<<a", "a. B", "?! ", "猫", "1,", "-\n*", 'a"!']
MIXED = ["<i>" + "\n#" * 50_000, "[" * 50_000 + "]" * 50_000, "." * SIZE + "😀", "*" * 50_000 + "a" * 50_000]


@pytest.fixture(autouse=True, scope="module")
def loaded_models():
    """The language model and the sentence model load at first use; that is not what is timed."""
    check(compile_instructions(["change_case:english_lowercase", "sentence:increment"], [{}, {"small_n": 1}]), "hello there.")


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("text", [piece * (SIZE // len(piece)) for piece in PIECES] + MIXED, ids=lambda text: repr(text[:6]))
def test_hostile_text_is_checked_in_linear_time(text, mode):
    def seconds(text: str) -> float:
        start = time.process_time()
        check(checks, text)
        return time.process_time() - start

    middle = len(text) // 2
    quarter = text[middle - SIZE // 8 : middle + SIZE // 8]  # of the middle, where a text of two halves turns
    for name, kwargs, _, _ in TABLE:
        checks = compile_instructions([name], [kwargs], mode)
        # Four times the text takes four times as long; quadratic growth would be sixteen. Half a second is for a busy machine.
        took = seconds(text)
        assert took < 0.5 or took < 0.5 + 8 * seconds(quarter), name


def test_both_modes_take_the_same_arguments():
    for name, strict in STRICT.items():
        mine, theirs = (list(inspect.signature(function).parameters) for function in (strict, REFERENCE[name]))
        assert mine == theirs, name
