"""What of an answer is its code, and what settings a task that runs code takes."""

import asyncio
from typing import Any

import pytest
from tests.sandbox.host import needs_sandbox

from cascade_rl.errors import RecipeError
from cascade_rl.grade.unit_tests import CallTest, Verdict
from cascade_rl.tasks import code
from cascade_rl.tasks.code import code_block
from cascade_rl.tasks.nano import NANO_TASKS, ProgramTask

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
    source = 'def f(x):\n    "Like ```this``` one."\n    return x\n'
    assert code_block(f"```python\n{source}```") == source


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


@needs_sandbox
def test_the_same_answer_is_run_once_and_one_that_ran_out_of_memory_again(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []
    grade = code.grade_calls

    async def counted(source: str, *args: Any, **options: Any) -> Verdict:
        asked.append(source)
        return await grade(source, *args, **options)

    monkeypatch.setattr(code, "grade_calls", counted)
    code._VERDICTS.forget()
    task = ProgramTask(time_limit_s=1)
    tests = [CallTest("f(1)", 1)]

    async def graded(*sources: str) -> list[float | None]:
        return [reward.value for reward in await asyncio.gather(*(task.run_tests(source, tests) for source in sources))]

    right, wrong, greedy = "def f(x): return x", "def f(x): return 2", "x = [0] * 10**11"
    assert asyncio.run(graded(right, wrong, right, right, wrong)) == [1, 0, 1, 1, 0]
    assert asyncio.run(graded(right)) == [1]
    assert sorted(asked) == sorted([right, wrong])
    assert asyncio.run(graded(greedy)) == asyncio.run(graded(greedy)) == [0]
    assert asked.count(greedy) == 2
    other = [CallTest("f(1)", 2)]
    assert asyncio.run(task.run_tests(right, other)).value == 0
