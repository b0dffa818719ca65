"""Reward functions with TRL's signature: what they are given, what they may give back, and every example of the document."""

import asyncio
import dataclasses
import importlib
import json
import math
import re
import shlex
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from cascade_rl.algo.advantages import mean_centred
from cascade_rl.cli import main
from cascade_rl.errors import DataError, GraderError, RecipeError
from cascade_rl.protocols import gold_rollout
from cascade_rl.recipe import parse_recipe, to_json
from cascade_rl.records import Group, Message, Prompt, Reward, Rollout, ToolCall, Turn
from cascade_rl.sample.verdicts import grade_all
from cascade_rl.stages.collect import tally
from cascade_rl.tasks import custom
from cascade_rl.tasks.custom import RowsTask

ROOT = Path(__file__).resolve().parents[2]
HERE = __name__
DIALOGUE = [{"role": "system", "content": "Be short."}, {"role": "user", "content": "2+3?"}]
given: dict[str, Any] = {}  # what the last reward function was called with
gives: list[Any] = [None]  # what `scripted` gives back


def scripted(**kwargs: Any) -> Any:
    given.clear()
    given.update(kwargs)
    if isinstance(gives[0], BaseException):
        raise gives[0]
    return gives[0]


def other(completions: list[str], **kwargs: Any) -> list[float | None]:
    return [None if text == "none" else len(text) / 10 for text in completions]


async def later(completions: list[str], **kwargs: Any) -> list[float]:
    await asyncio.sleep(0)
    return [float(len(text)) for text in completions]


def named(completions: list[str], answer: list[str]) -> list[bool]:
    return [text == right for text, right in zip(completions, answer, strict=True)]


def slow(completions: list[str], **kwargs: Any) -> list[float]:
    time.sleep(2 if completions == ["slow"] else 0)
    return [1.0]


running: list[int] = [0, 0]  # now, at most


def alone(completions: list[str], **kwargs: Any) -> list[float]:
    running[0] += 1
    running[1] = max(running)
    time.sleep(0.005)
    running[0] -= 1
    return [float(completions[0])]


NUMBER = 3


def rows(tmp_path: Path, *told: dict[str, Any]) -> str:
    path = tmp_path / "rows.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in told))
    return str(path)


def task_of(path: str, *functions: str, **settings: Any) -> RowsTask:
    reward = tuple(f"{HERE}:{name}" for name in functions or ("scripted",))
    return RowsTask(path=path, reward=reward, split="train", **settings)


@pytest.fixture
def task(tmp_path: Path) -> RowsTask:
    return task_of(rows(tmp_path, {"prompt": "2+3?", "answer": "5"}))


def judge(task: RowsTask, content: str = "5", prompt: Prompt | None = None, **message: Any) -> Reward:
    prompt = prompt or task.prompts("train")[0]
    (group,) = grade_all([Group(prompt, (gold_rollout(prompt, [Message("assistant", content, **message)]),))], {task.name: task})
    return group.rewards[0]


# --- what a function is given -------------------------------------------------------------------------------------------------------


def test_a_text_prompt_gives_texts_and_columns_as_lists(tmp_path: Path) -> None:
    task = task_of(rows(tmp_path, {"prompt": "2+3?", "answer": "5", "level": 2}, {"prompt": "1+1?", "answer": "2"}))
    gives[0] = [1]
    prompts = task.prompts("train")
    rollout = dataclasses.replace(
        gold_rollout(prompts[0], [Message("assistant", "five", thinking="2 and 3")]), turns=(Turn((1,), (7, 2), (-1.0, -1.0), "stop"),)
    )  # fmt: skip
    assert asyncio.run(task.grade(rollout)).value == 1.0
    assert given == {
        "prompts": ["2+3?"], "completions": ["five"], "completion_ids": [[7, 2]], "answer": ["5"], "level": [2],
    }  # fmt: skip
    judge(task, prompt=prompts[1])
    assert given["level"] == [None]  # a column that this row lacks


@pytest.mark.parametrize("layout", ["prompt", "messages"])
def test_a_conversation_gives_lists_of_messages(tmp_path: Path, layout: str) -> None:
    task = task_of(rows(tmp_path, {layout: DIALOGUE, "answer": "5"}))
    gives[0] = [0.5]
    assert task.prompts("train")[0].messages == (Message("system", "Be short."), Message("user", "2+3?"))
    assert judge(task, "five", thinking="2 and 3", tool_calls=(ToolCall("f", {"x": 1}),)).value == 0.5
    assert given["prompts"] == [DIALOGUE]
    (completion,) = given["completions"]
    assert completion == [
        {
            "role": "assistant",
            "content": "five",
            "reasoning_content": "2 and 3",
            "tool_calls": [{"type": "function", "function": {"name": "f", "arguments": {"x": 1}}}],
        }
    ]
    judge(task, "five")
    assert given["completions"] == [[{"role": "assistant", "content": "five"}]]


def test_a_row_with_an_answer_does_not_show_it_and_may_use_it_as_gold(tmp_path: Path) -> None:
    answered = [*DIALOGUE, {"role": "assistant", "content": "5", "reasoning_content": "2 and 3"}]
    path = rows(tmp_path, {"messages": answered}, {"prompt": "1+1?", "completion": "2"}, {"prompt": "2+2?"})
    for gold in (True, False):
        first, second, third = task_of(path, gold=gold).prompts("train")
        assert [len(p.messages) for p in (first, second, third)] == [2, 1, 1]
        assert first.gold == ((Message("assistant", "5", thinking="2 and 3"),) if gold else ())
        assert second.gold == ((Message("assistant", "2"),) if gold else ())
        assert third.gold == ()
    gives[0] = [1.0]
    judge(task_of(path), prompt=second)
    assert "completion" not in given


def test_a_function_without_kwargs_gets_what_it_names(tmp_path: Path) -> None:
    task = task_of(rows(tmp_path, {"prompt": "2+3?", "answer": "5", "level": 2}), "named")
    assert (judge(task, "5").value, judge(task, "6").value) == (1.0, 0.0)


def test_splits_are_by_the_prompt_and_repeatable(tmp_path: Path) -> None:
    path = rows(tmp_path, *({"prompt": f"{i}?", "n": n} for i in range(60) for n in (1, 2)))
    task = RowsTask(path=path, reward=f"{HERE}:scripted")
    texts = {split: [p.messages[0].content for p in task.prompts(split)] for split in ("train", "dev", "test")}
    assert sum(map(len, texts.values())) == 120
    assert not set(texts["train"]) & (set(texts["dev"]) | set(texts["test"]))
    assert len(dataclasses.replace(task, num_prompts=5).prompts("train")) == 5


# --- what it gives back -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "score, value",
    [
        (True, 1.0), (False, 0.0), (0, 0.0), (0.0, 0.0), (-2, -2.0), (0.25, 0.25),
        (np.float32(0.5), 0.5), (np.int64(3), 3.0), (np.bool_(True), 1.0), (torch.tensor(0.5), 0.5),
    ],
)  # fmt: skip
def test_numbers_of_every_kind_and_a_zero_is_a_zero(task: RowsTask, score: Any, value: float) -> None:
    gives[0] = [score]
    reward = judge(task)
    assert reward.value == value
    assert reward.parts == {"scripted": value}


@pytest.mark.parametrize("scores", [(1.0,), np.array([1.0]), torch.tensor([1.0])])
def test_sequences_of_every_kind(task: RowsTask, scores: Any) -> None:
    gives[0] = scores
    assert judge(task).value == 1.0


@pytest.mark.parametrize(
    "scores, message",
    [
        ([1.0, 1.0, 1.0], "gave 3 scores for 1 completion"),
        ([], "gave 0 scores for 1 completion"),
        (np.ones(2), "gave 2 scores"),
        (1.0, r"gave 1.0 \(float\) for 1 completion"),
        (None, r"gave None \(NoneType\)"),
        ("1", "gave '1'"),
        ({"score": 1.0}, "gave {'score'"),
        (["1.0"], "gave the score '1.0'"),
        ([[1.0]], r"gave the score \[1.0\]"),
    ],
)
def test_the_wrong_number_of_scores_is_an_error_that_names_the_function(task: RowsTask, scores: Any, message: str) -> None:
    """One score for several completions must never be spread over them, nor two be cut to one."""
    gives[0] = scores
    with pytest.raises(GraderError, match=f'reward function "{re.escape(HERE)}:scripted" {message}'):
        judge(task)


def test_none_is_unscored_and_left_out_of_the_sum(tmp_path: Path) -> None:
    path = rows(tmp_path, {"prompt": "2+3?"})
    both = task_of(path, "scripted", "other", weights=(1.0, 0.5))
    gives[0] = [0.25]
    told = judge(both, "12345678")
    assert told.value == pytest.approx(0.25 + 0.5 * 0.8)
    assert told.parts == {"scripted": 0.25, "other": 0.8}
    gives[0] = [None]
    assert judge(both, "12345678").value == pytest.approx(0.4)
    assert judge(both, "12345678").parts == {"other": 0.8}
    gives[0] = [0.0]
    assert judge(both, "none").value == 0.0  # a score of 0 is a score
    gives[0] = [None]
    silent = judge(both, "none")
    assert silent.value is None
    assert silent.why == "no verdict: scripted and other gave None"


@pytest.mark.parametrize("score", [math.nan, math.inf, -math.inf, np.float32("nan"), 10**400, 1e308])
def test_what_is_not_finite_is_unscored(task: RowsTask, score: Any) -> None:
    gives[0] = [score]
    reward = judge(task)
    assert reward.value is None
    assert re.search(r'reward function ".*:scripted" gave (nan|-?inf|1e\+308)', reward.why)


@pytest.mark.parametrize(
    "error", [ZeroDivisionError("x"), StopIteration(), TimeoutError("server"), SystemExit(3), GraderError("z")]
)
def test_a_function_that_raises_leaves_its_rollout_unscored(task: RowsTask, error: BaseException) -> None:
    gives[0] = error
    reward = judge(task)
    assert reward.value is None
    assert f'reward function "{HERE}:scripted" raised' in reward.why
    assert type(error).__name__ in reward.why


def test_async_functions(tmp_path: Path) -> None:
    assert judge(task_of(rows(tmp_path, {"prompt": "2+3?"}), "later"), "abc").value == 3.0


def test_functions_that_are_not_async_run_one_at_a_time_and_rewards_keep_their_order(tmp_path: Path) -> None:
    task = task_of(rows(tmp_path, *({"prompt": f"{i}?"} for i in range(4))), "alone")
    groups = [
        Group(p, tuple(gold_rollout(p, [Message("assistant", str(10 * i + k))]) for k in range(5)))
        for i, p in enumerate(task.prompts("train"))
    ]
    running[:] = [0, 0]
    graded = grade_all(groups, {task.name: task})
    assert [[r.value for r in group.rewards] for group in graded] == [[10.0 * i + k for k in range(5)] for i in range(4)]
    assert running == [0, 1]


async def backwards(completions: list[str], **kwargs: Any) -> list[float | None]:
    """Verdicts come in the reverse of the order in which they were asked for; "?" crashes, "-" has none."""
    if completions[0] == "?":
        raise ValueError("cannot be parsed")
    if completions[0] == "-":
        return [None]
    await asyncio.sleep(0.03 - 0.005 * float(completions[0]))
    return [float(completions[0])]


def test_rewards_stay_with_their_rollouts_whatever_order_they_come_in(tmp_path: Path) -> None:
    """Neither a verdict that comes late nor one that fails shifts the others; what is unscored is outside the statistics."""
    task = task_of(rows(tmp_path, {"prompt": "a?"}, {"prompt": "b?"}), "backwards")
    said = (("0", "?", "2", "-"), ("5", "4", "-", "3"))
    groups = [
        Group(p, tuple(gold_rollout(p, [Message("assistant", text)]) for text in texts))
        for p, texts in zip(task.prompts("train"), said, strict=True)
    ]
    values = [[r.value for r in group.rewards] for group in grade_all(groups, {task.name: task})]
    assert values == [[0.0, None, 2.0, None], [5.0, 4.0, None, 3.0]]
    assert mean_centred(values[0]) == [-1.0, None, 1.0, None]  # a mean of 1 over the two that are scored
    assert tally(grade_all(groups, {task.name: task}))["unscored"] == pytest.approx(3 / 8)


def test_a_call_that_hangs_leaves_only_its_own_rollout_unscored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(custom, "CALL_TIMEOUT_S", 0.1)
    task = task_of(rows(tmp_path, {"prompt": "2+3?"}), "slow")
    prompt = task.prompts("train")[0]
    rollouts: tuple[Rollout, ...] = tuple(gold_rollout(prompt, [Message("assistant", text)]) for text in ("a", "slow", "b"))
    begin = time.perf_counter()
    (group,) = grade_all([Group(prompt, rollouts)], {task.name: task})
    assert time.perf_counter() - begin < 1.5
    assert [r.value for r in group.rewards] == [1.0, None, 1.0]
    assert group.rewards[1].why.endswith("gave no answer in 0.1 s")


def test_a_hanging_function_does_not_hold_up_the_end_of_the_program() -> None:
    hanging = next((t for t in threading.enumerate() if t.name == "reward-function"), None)
    assert hanging is None or hanging.daemon


# --- what is refused ----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "settings, message",
    [
        ({"reward": "no_colon"}, 'reward "no_colon" must read "package.module:function"'),
        ({"reward": "no.such.module:f"}, 'task "mine": reward: cannot import "no.such.module"'),
        ({"reward": f"{HERE}:nothing"}, 'has no "nothing"'),
        ({"reward": f"{HERE}:NUMBER"}, "is a int; expected a function"),
        ({"reward": []}, "reward is empty"),
        ({"reward": [f"{HERE}:other"] * 2}, "names a function twice"),
        ({"reward": [f"{HERE}:other", f"{HERE}:later"], "weights": [1.0]}, "1 weights for 2 reward functions"),
        ({"reward": f"{HERE}:other", "weights": [math.nan]}, "must be finite"),
        ({"reward": f"{HERE}:other", "wieghts": [1.0]}, 'did you mean "weights"?'),
        ({}, 'needs a value for "reward"'),
    ],
)
def test_settings_that_cannot_be_run(settings: dict[str, Any], message: str) -> None:
    table = {"name": "t", "model": {"source": "nano"}, "tasks": {"mine": {"kind": "rows", "path": "x.jsonl", **settings}}}
    with pytest.raises(RecipeError, match=re.escape(message)):
        parse_recipe(table)


def test_a_recipe_says_the_task_back(tmp_path: Path) -> None:
    settings = {"kind": "rows", "path": "x.jsonl", "reward": [f"{HERE}:other", f"{HERE}:later"], "weights": [1.0, 0.5]}
    task = parse_recipe({"name": "t", "model": {"source": "nano"}, "tasks": {"mine": settings}}).tasks["mine"]
    told = to_json(task)
    assert {key: told[key] for key in settings} == settings
    assert (told["name"], told["domain"]) == ("mine", "custom")


@pytest.mark.parametrize(
    "row, message",
    [
        ({"answer": "5"}, 'rows.jsonl:1: expected either "prompt" or "messages"; it has answer'),
        ({"prompt": "a", "messages": DIALOGUE}, 'expected either "prompt" or "messages"'),
        ({"prompt": " "}, "the prompt is ' '"),
        ({"prompt": [*DIALOGUE, {"role": "assistant", "content": "x"}]}, "ends with an assistant message"),
        ({"prompt": [{"role": "usr", "content": "x"}]}, 'did you mean "user"?'),
        ({"prompt": "a", "completions": 1}, 'a column is named "completions"'),
    ],
)
def test_rows_that_cannot_be_asked(tmp_path: Path, row: dict[str, Any], message: str) -> None:
    with pytest.raises(DataError, match=re.escape(message)):
        task_of(rows(tmp_path, row)).prompts("train")


def test_a_function_that_needs_a_missing_column_is_refused_when_the_rows_are_read(tmp_path: Path) -> None:
    with pytest.raises(GraderError, match=r'needs "answer", and .*rows\.jsonl has no such column; it is given .*level'):
        task_of(rows(tmp_path, {"prompt": "2+3?", "level": 1}), "named").prompts("train")


# --- the document -------------------------------------------------------------------------------------------------------------------

DOCUMENT = (ROOT / "docs" / "custom-task.md").read_text()


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cache")


@pytest.fixture
def folder(tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Every file of the document, as printed, in the folder that commands start from."""
    files = re.findall(r"^```\w+ file=(\S+)\n(.*?)^```$", DOCUMENT, re.DOTALL | re.MULTILINE)
    assert len(files) == 5
    for name, text in files:
        (tmp_path / name).write_text(text)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("CASCADE_CACHE", str(cache))
    monkeypatch.syspath_prepend(str(tmp_path))
    importlib.invalidate_caches()
    yield tmp_path
    for name in ("my_rewards", "my_tasks"):
        sys.modules.pop(name, None)


COMMANDS = [block.splitlines() for block in re.findall(r"^```console\n(.*?)^```$", DOCUMENT, re.DOTALL | re.MULTILINE)]


@pytest.mark.parametrize("commands", COMMANDS, ids=["rows", "task"])
def test_the_document_runs_as_printed(commands: list[str], folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    custom._load.cache_clear()
    for line in commands:
        dollar, path, cascade, *argv = shlex.split(line)
        assert (dollar, path, cascade) == ("$", "PYTHONPATH=.", "cascade")
        assert main(argv) == 0, capsys.readouterr().err
    (run,) = (folder / "runs").iterdir()
    told = [json.loads(line) for line in next(run.glob("stages/*-rl-*/metrics.jsonl")).read_text().splitlines()]
    assert [line["step"] for line in told] == [1, 2]
    assert all("reward" in line for line in told)


def test_the_documents_task_is_40_lines_and_its_python_is_clean(folder: Path) -> None:
    assert len((folder / "my_tasks.py").read_text().splitlines()) <= 40
    for name in ("my_tasks.py", "my_rewards.py"):
        subprocess.run([sys.executable, "-m", "compileall", "-q", name], check=True)
