"""What is wrong with a task of the user's is told with the task and the line of its code, not as a traceback of ours."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from cascade_rl.errors import CascadeError, DataError, RecipeError
from cascade_rl.protocols import Task
from cascade_rl.recipe import load_recipe
from cascade_rl.records import Message, Prompt
from cascade_rl.tasks import prompts_of

RECIPE = '[model]\nsource = "nano"\n[tasks.mine]\nkind = "{module}:Mine"\n[[stage]]\nkind = "rl"\ntasks = [{{ task = "mine" }}]\n'
MINE = """
from dataclasses import dataclass
@dataclass(frozen=True)
class Mine:
    name: str = "mine"
    domain: str = "d"
    max_turns: int = 1
{body}
    def prompts(self, split):
        return [{{}}["answer"]]
    def open_tools(self, prompt):
        return None
    async def grade(self, rollout, tools):
        return None
"""


def load(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, module: str, text: str) -> Task:
    (tmp_path / f"{module}.py").write_text(text)
    (tmp_path / "r.toml").write_text('name = "r"\n' + RECIPE.format(module=module))
    monkeypatch.syspath_prepend(str(tmp_path))
    return load_recipe(tmp_path / "r.toml").tasks["mine"]


@pytest.mark.parametrize(
    "module, text, message",
    [
        ("broken_a", "def f(:\n", r'task "mine": importing "broken_a" failed: SyntaxError: .*broken_a.py, line 1'),
        ("broken_b", "\nx = 1 / 0\n", r"importing \"broken_b\" failed: ZeroDivisionError: division by zero \(broken_b.py:2\)"),
        (
            "broken_c",
            MINE.format(body="    def __post_init__(self):\n        self.name = 1\n"),
            r'task "mine": cannot be made: FrozenInstanceError: .*',
        ),
    ],
)
def test_code_that_cannot_be_loaded(
    module: str, text: str, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(RecipeError, match=message):
        load(tmp_path, monkeypatch, module, text)


def test_prompts_that_fail_name_the_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    task = load(tmp_path, monkeypatch, "broken_d", MINE.format(body=""))
    with pytest.raises(DataError, match=r"""task "mine": prompts\("train"\) failed: KeyError: 'answer' \(broken_d.py:\d+\)"""):
        prompts_of(task, "train")


class Given:
    """A task whose prompts are what it is given."""

    name, domain, max_turns = "mine", "d", 1

    def __init__(self, prompts: Callable[[], Any]) -> None:
        self.made = prompts

    def prompts(self, split: str) -> Any:
        return self.made()


def prompt(number: int = 0, task: str = "mine", split: Any = "train") -> Prompt:
    return Prompt(f"mine/{split}/{number}", task, "d", split, (Message("user", "?"),))


def refuse() -> None:
    raise DataError("rows.jsonl:3: bad")


@pytest.mark.parametrize(
    "made, message",
    [
        (lambda: ["2+3?"], r'prompts\("train"\)\[0\] is a str; expected a Prompt'),
        (lambda: None, "TypeError: 'NoneType' object is not iterable"),
        (lambda: [prompt(task="yours")], 'prompt mine/train/0 has task "yours"; expected "mine"'),
        (lambda: [prompt(split="dev")], 'has split "dev"; expected "train"'),
        (lambda: [prompt(), prompt()], "two prompts of split train have the id mine/train/0"),
        (refuse, "^rows.jsonl:3: bad$"),
    ],
)
def test_prompts_that_are_none(made: Callable[[], Any], message: str) -> None:
    with pytest.raises(CascadeError, match=message):
        prompts_of(Given(made), "train")  # type: ignore[arg-type]


def test_good_prompts_pass_as_they_are() -> None:
    good = [prompt(0), prompt(1)]
    assert prompts_of(Given(lambda: good), "train") is good  # type: ignore[arg-type]
