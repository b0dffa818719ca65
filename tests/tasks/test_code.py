"""What of an answer is its code, and what settings a task that runs code takes."""

import pytest

from cascade_rl.errors import RecipeError
from cascade_rl.tasks.code import code_block
from cascade_rl.tasks.nano import NANO_TASKS

CODE = "def f(x):\n    return x\n"


@pytest.mark.parametrize(
    "answer",
    [
        CODE,
        f"```python\n{CODE}```",
        f"Here it is:\n```\n{CODE}```\nDone.",
        f"```python3\n{CODE}```",
        f"```py title=a.py\n{CODE}```",
        f"~~~python\n{CODE}~~~",
        f"````python\n{CODE}````",
        f"```python\n{CODE}",  # never closed
        f"```python\n{CODE}```".replace("\n", "\r\n"),
        f"```python\ndef f(x): ...\n```\nBetter:\n```python\n{CODE}```",
        f"```python\n{CODE}```\nIt prints\n```\n3\n```",
        f"  ```Python\n{CODE}  ```",
    ],
)
def test_the_code_of_an_answer(answer: str) -> None:
    assert code_block(answer) == CODE


def test_a_fence_in_a_line_of_the_code_does_not_end_it() -> None:
    code = 'def f(x):\n    "Like ```this``` one."\n    return x\n'
    assert code_block(f"```python\n{code}```") == code


def test_many_fences_take_linear_time() -> None:
    assert code_block("```a\n" * 20_000)


@pytest.mark.parametrize(
    ("setting", "told"),
    [
        ({"time_limit_s": 0}, "time_limit_s 0 must be 1 to 3,600"),
        ({"memory_mb": 10**20}, "memory_mb 1"),
        ({"max_constant": 1}, "2 to 1,000"),
    ],
)
def test_settings_out_of_bounds_are_named(setting: dict[str, int], told: str) -> None:
    with pytest.raises(RecipeError, match=told):
        NANO_TASKS["program"](**setting)  # type: ignore[operator]
