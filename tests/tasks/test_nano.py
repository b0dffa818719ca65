"""What holds for every task of the nano world: apart splits, gold and empty answers, hostile answers, stable prompts."""

import asyncio
import dataclasses
import json

import pytest
from tests.sandbox.host import needs_sandbox

from cascade_rl.errors import DataError, RecipeError
from cascade_rl.protocols import Task, gold_rollout
from cascade_rl.records import Message, Prompt
from cascade_rl.tasks.drawn import split_of
from cascade_rl.tasks.nano import NANO_TASKS, DrawnTask, ProgramTask, RepairTask, corpus

SPLITS = ("train", "dev", "test")
ALL = pytest.mark.parametrize("cls", NANO_TASKS.values(), ids=list(NANO_TASKS))
RUN_CODE = (ProgramTask, RepairTask)  # a verdict costs a run
GRADED = pytest.mark.parametrize(
    "cls",
    [pytest.param(cls, marks=needs_sandbox) if cls in RUN_CODE else cls for cls in NANO_TASKS.values()],
    ids=list(NANO_TASKS),
)


def grades(task: DrawnTask, pairs: list[tuple[Prompt, tuple[Message, ...]]]) -> list[float | None]:
    async def all_of_them() -> list[float | None]:
        rewards = await asyncio.gather(*(task.grade(gold_rollout(prompt, messages)) for prompt, messages in pairs))
        return [reward.value for reward in rewards]

    return asyncio.run(all_of_them())


def text_of(prompt: Prompt) -> str:
    return "\n".join(message.content for message in prompt.messages)


@ALL
def test_a_task_is_a_task(cls: type[DrawnTask]) -> None:
    task = cls()
    assert isinstance(task, Task)
    assert dataclasses.is_dataclass(task)
    assert task.name == "nano." + next(name for name, known in NANO_TASKS.items() if known is cls)
    assert len({c().domain for c in NANO_TASKS.values()}) == 9


@ALL
def test_prompts_are_many_different_and_numbered(cls: type[DrawnTask]) -> None:
    task = cls()
    for split, num in zip(SPLITS, (task.num_train, task.num_dev, task.num_test), strict=True):
        prompts = task.prompts(split)
        assert len(prompts) == num
        assert [prompt.id for prompt in prompts] == [f"{task.name}/{split}/{number}" for number in range(num)]
        assert len({(text_of(p), json.dumps(p.reference, sort_keys=True)) for p in prompts}) == num
        assert {(p.task, p.domain, p.split) for p in prompts} == {(task.name, task.domain, split)}
        json.dumps([p.reference for p in prompts])  # JSON values only


@ALL
def test_splits_never_share_a_text_whatever_the_seed(cls: type[DrawnTask]) -> None:
    texts = {split: {text_of(p) for seed in (0, 1) for p in cls(seed=seed).prompts(split)} for split in SPLITS}
    assert not texts["train"] & texts["dev"]
    assert not texts["train"] & texts["test"]
    assert not texts["dev"] & texts["test"]


@ALL
def test_prompts_are_the_same_ones_each_time_and_other_ones_for_another_seed(cls: type[DrawnTask]) -> None:
    one, again, other = cls(num_dev=20), cls(num_dev=21), cls(num_dev=20, seed=1)
    assert one.prompts("dev") is one.prompts("dev")
    assert list(one.prompts("dev")) == list(again.prompts("dev"))[:20]
    assert [text_of(p) for p in one.prompts("dev")] != [text_of(p) for p in other.prompts("dev")]


@GRADED
def test_gold_scores_full_marks_and_nothing_scores_nothing(cls: type[DrawnTask]) -> None:
    task = cls()
    for split in SPLITS:
        prompts = task.prompts(split)
        assert all(prompt.gold for prompt in prompts)
        prompts = prompts[::10] if cls in RUN_CODE else prompts
        assert set(grades(task, [(prompt, prompt.gold) for prompt in prompts])) == {1.0}
        for empty in ((), (Message("assistant", ""),), (Message("assistant", " \n", thinking="well"),)):
            assert set(grades(task, [(prompt, empty) for prompt in prompts])) == {0.0}


@ALL
def test_gold_thinks_where_the_prompt_asks_for_it(cls: type[DrawnTask]) -> None:
    for prompt in cls().prompts("dev"):
        told = [message.thinking is not None for message in prompt.gold if message.role == "assistant"]
        assert set(told) == {prompt.thinking}
    assert not any(prompt.thinking for prompt in cls(thinking=False).prompts("dev"))


HOSTILE = {
    "a megabyte": "a" * 1_000_000,
    "a megabyte of brackets": "[" * 1_000_000,
    "nested": "[" * 1_900 + "]" * 1_900,
    "nested calls": "f(" * 900,
    "minus signs": "-" * 900,
    "boxes": "\\boxed{" * 500,
    "marks": "<<<<<<< SEARCH\n" * 200,
    "null bytes": "\x00" * 50,
    "surrogate": "\ud800",
    "long number": "\\boxed{" + "9" * 3_000 + "}",
    "bad escapes": '"\\d\\q"',
    "json of another kind": "[1, null, true]",
    "not a number": '{"age": NaN}',
}


@GRADED
@pytest.mark.parametrize("answer", HOSTILE.values(), ids=list(HOSTILE))
def test_hostile_answers_get_a_zero(cls: type[DrawnTask], answer: str) -> None:
    task = cls(num_dev=10 if cls in RUN_CODE else 100)
    assert set(grades(task, [(p, (Message("assistant", answer),)) for p in task.prompts("dev")])) == {0.0}


@GRADED
def test_a_verdict_says_why(cls: type[DrawnTask]) -> None:
    task = cls(num_dev=10)
    for prompt in task.prompts("dev"):
        for messages in (prompt.gold, (), (Message("assistant", "no idea"),)):
            reward = asyncio.run(task.grade(gold_rollout(prompt, messages)))
            assert 0 < len(reward.why) < 400


@GRADED
def test_the_answer_of_another_prompt_rarely_passes(cls: type[DrawnTask]) -> None:
    task = cls()
    prompts = task.prompts("dev")
    others = [*prompts[1:], prompts[0]]
    values = grades(task, [(prompt, other.gold) for prompt, other in zip(prompts, others, strict=True)])
    assert sum(value == 1.0 for value in values) < 0.45 * len(values)  # three options to choose from


@ALL
def test_messages_are_small(cls: type[DrawnTask]) -> None:
    for prompt in cls().prompts("train")[:300]:
        assert len(text_of(prompt)) < 1_500
        assert sum(len(message.content) + len(message.thinking or "") for message in prompt.gold) < 300


def test_unknown_splits_and_bad_settings_are_refused_by_name() -> None:
    with pytest.raises(DataError, match=r'split "tset" is not known; did you mean "test"'):
        ProgramTask().prompts("tset")  # type: ignore[arg-type]
    with pytest.raises(RecipeError, match=r'task "nano.program": num_dev -1'):
        ProgramTask(num_dev=-1)
    with pytest.raises(DataError, match=r"only .* different prompts found"):
        ProgramTask(max_constant=2, num_dev=1_000).prompts("dev")


def test_the_corpus_is_plain_text_of_all_tasks() -> None:
    texts = list(corpus())
    assert texts == list(corpus())
    whole = "".join(texts)
    assert "<|im_start|>" not in whole
    assert "<think>" not in whole
    for word in ("\\boxed{", "Answer: ", "SEARCH", "def ", "get_count", '"properties"'):
        assert word in whole


def test_split_shares() -> None:
    found = [split_of(number) for number in range(10_000)]
    assert found.count("train") == pytest.approx(8_000, abs=200)
    assert found.count("dev") == pytest.approx(1_000, abs=150)
