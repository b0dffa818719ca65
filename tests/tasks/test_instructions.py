"""Composed instruction prompts: what is drawn, that it can be followed, that splits stay apart, and how it is graded."""

import asyncio
import dataclasses
import json
import os
import re
import string
from collections import Counter
from pathlib import Path
from typing import get_args

import pytest

from cascade_rl.errors import RecipeError
from cascade_rl.eval.audit import short_audit
from cascade_rl.grade.instructions import ifeval
from cascade_rl.protocols import Task, gold_rollout
from cascade_rl.records import Message, Prompt, Reward, Split
from cascade_rl.tasks import load_task_class
from cascade_rl.tasks.instructions import Instructions
from cascade_rl.tasks.instructions.gold import _FOREIGN
from cascade_rl.tasks.instructions.kinds import KINDS, LANGUAGES
from cascade_rl.tasks.instructions.task import CONSTRAINED, REPEAT
from cascade_rl.tasks.instructions.together import APART

TASK = Instructions(num_train=2_000, num_dev=300, num_test=300)
SPLITS: tuple[Split, ...] = get_args(Split)


def grade(prompt: Prompt, text: str, task: Instructions = TASK) -> Reward:
    return asyncio.run(task.grade(gold_rollout(prompt, [Message("assistant", text)])))


def asked(prompt: Prompt) -> str:
    return prompt.messages[0].content


def kwargs_of(prompt: Prompt, id: str) -> dict[str, object]:
    return dict(zip(prompt.reference["ids"], prompt.reference["kwargs"], strict=True))[id]


def test_it_is_a_task_by_name() -> None:
    assert load_task_class("instructions", "here") is Instructions
    assert isinstance(TASK, Task)
    assert all(p.messages == (Message("user", asked(p)),) and not p.thinking for p in TASK.prompts("train"))


def test_all_kinds_of_ifeval_occur_and_about_as_often_as_their_weights() -> None:
    assert set(KINDS) == set(ifeval.CHECKS)
    counts = Counter(id for p in TASK.prompts("train") for id in p.reference["ids"])
    assert set(counts) == set(KINDS)
    share = {id: count / counts.total() for id, count in counts.items()}
    weights = sum(weight for weight, _ in KINDS.values())
    for id, (weight, _) in KINDS.items():  # what clashes with much is drawn less often beside others
        assert 0.4 < share[id] / (weight / weights) < 1.8, id


def test_gold_answers_follow_every_prompt_and_empty_ones_none() -> None:
    for split in SPLITS:
        for prompt in TASK.prompts(split):
            reward = grade(prompt, prompt.gold[0].content)
            assert reward.value == 1, (asked(prompt), prompt.gold[0].content, reward.why)
            assert grade(prompt, " \n").value == 0
    said: list[str] = []
    short_audit(TASK, say=said.append)  # a stage of RL starts with it
    assert said == []


def test_no_request_is_in_two_splits() -> None:
    without = Instructions(num_train=3_000, num_dev=300, num_test=300, kinds=(REPEAT,))  # it quotes the request alone
    requests = {s: {kwargs_of(p, REPEAT)["prompt_to_repeat"] for p in without.prompts(s)} for s in SPLITS}
    assert all(len(found) > 250 for found in requests.values())
    assert all(not requests[a] & requests[b] for a in SPLITS for b in SPLITS if a != b)


def test_what_cannot_stand_together_is_never_drawn_together() -> None:
    for prompt in TASK.prompts("train"):
        ids = prompt.reference["ids"]
        assert len(set(ids)) == len(ids) <= 3
        assert not any(frozenset((a, b)) in APART for a in ids for b in ids)
    lower, upper = "change_case:english_lowercase", "change_case:english_capital"
    assert frozenset((lower, upper)) in APART
    assert frozenset(("language:response_language", "keywords:existence")) in APART
    assert frozenset(("detectable_format:json_format", "detectable_format:title")) in APART


def test_arguments_are_told_in_the_prompt() -> None:
    for prompt in TASK.prompts("train"):
        text = asked(prompt).lower()
        for kwargs in prompt.reference["kwargs"]:
            for name, value in kwargs.items():
                if name in ("keyword", "first_word", "end_phrase", "section_spliter", "postscript_marker", "letter"):
                    assert value.lower() in text, (asked(prompt), value)
                if name in ("keywords", "forbidden_words"):
                    assert all(word in text for word in value), asked(prompt)


@pytest.mark.parametrize("relation", ["at least", "less than"])
def test_bounds_are_told_as_they_are_checked(relation: str) -> None:
    """ "at most 39 words" is less than 40; "fewer than 40" is less than 40; "40 or more" is at least 40."""
    seen = Counter[str]()
    for prompt in Instructions(kinds=("length_constraints:number_words",), num_train=400, max_instructions=1).prompts("train"):
        kwargs, text = prompt.reference["kwargs"][0], asked(prompt)
        if kwargs["relation"] != relation:
            continue
        found = re.search(r"(at most|no more than|less than|fewer than|under|at least|no fewer than|a minimum of)? ?(\d+)", text)
        assert found is not None, text
        inclusive = found[1] in ("at most", "no more than")
        assert int(found[2]) + inclusive == kwargs["num_words"], text
        assert (found[1] in ("at most", "no more than", "less than", "fewer than", "under")) == (relation == "less than"), text
        seen[found[1]] += 1
    assert len(seen) >= 4


def test_a_repeated_request_is_all_that_stands_before_the_instruction_to_repeat_it() -> None:
    prompts = [p for p in TASK.prompts("train") if REPEAT in p.reference["ids"]]
    assert len(prompts) > 50
    for prompt in prompts:
        request = str(kwargs_of(prompt, REPEAT)["prompt_to_repeat"])
        assert asked(prompt).startswith(f"{request}\n")
        assert "epeat" not in request
        assert "copy" not in asked(prompt).replace(request, "", 1) or "\n" in asked(prompt)


def test_yes_and_no_are_asked_only_of_questions() -> None:
    for prompt in TASK.prompts("train"):
        if CONSTRAINED in prompt.reference["ids"]:
            assert "?" in asked(prompt)
            assert grade(prompt, "My answer is yes. My answer is no.").value == 0


def test_fraction_pays_the_share_that_is_followed() -> None:
    by_share = dataclasses.replace(TASK, scoring="fraction")
    two = {"punctuation:no_comma", "detectable_format:title"}
    prompt = next(p for p in by_share.prompts("train") if set(p.reference["ids"]) == two)
    text = "<<Title>> Well{} that is how it was when the river still ran behind the house of my old friend."
    assert grade(prompt, text.format(","), by_share).value == 0.5
    assert grade(prompt, text.format(",")).value == 0
    assert grade(prompt, text.format("")).value == 1


def test_next_to_nothing_is_no_answer_to_a_request_for_a_text() -> None:
    prompt = next(p for p in TASK.prompts("train") if p.reference["ids"] == ["punctuation:no_comma"])
    assert grade(prompt, "x" * 59).value == 0
    assert grade(prompt, "x" * 60).value == 1
    assert grade(prompt, "Yes.", dataclasses.replace(TASK, min_chars=0)).value == 1
    question = next(p for p in TASK.prompts("train") if p.reference["ids"] == [CONSTRAINED])
    assert grade(question, "My answer is no.").value == 1


def test_every_language_has_a_gold_answer_without_a_comma() -> None:
    assert set(_FOREIGN) == set(LANGUAGES)
    assert all(ifeval.response_language(text, code) and ifeval.no_comma(text) for code, text in _FOREIGN.items())


def test_settings_are_checked() -> None:
    with pytest.raises(RecipeError, match="max_instructions 4 must be 1 to 3"):
        Instructions(max_instructions=4)
    with pytest.raises(RecipeError, match='did you mean "punctuation:no_comma"'):
        Instructions(kinds=("punctuation:no_comas",))
    with pytest.raises(RecipeError, match="min_chars 200 must be 0 to 60"):
        Instructions(min_chars=200)
    with pytest.raises(RecipeError, match="kinds is empty"):
        Instructions(kinds=())


def test_prompts_read_well() -> None:
    for prompt in TASK.prompts("train"):
        text = asked(prompt)
        assert "{" not in text
        assert "}" not in text
        assert "  " not in text
        assert not re.search(r"\b[aA] [aeio]\w+ (poem|story|essay|song|note)", text), text
        assert text[0] in string.ascii_letters


@pytest.mark.skipif("CASCADE_DATA" not in os.environ, reason="CASCADE_DATA names no folder with the published data")
def test_no_prompt_is_one_of_ifeval_or_nearly() -> None:
    rows = (Path(os.environ["CASCADE_DATA"]) / "ifeval_input_data.jsonl").read_text().splitlines()
    published = [_runs(json.loads(row)["prompt"]) for row in rows]
    for prompt in Instructions(num_train=2_000).prompts("train"):
        made = _runs(asked(prompt))
        assert max(len(made & other) / len(made | other) for other in published) < 0.4, asked(prompt)


def _runs(text: str, length: int = 3) -> set[tuple[str, ...]]:
    words = re.findall(r"\w+", text.lower())
    return {tuple(words[i : i + length]) for i in range(len(words) - length + 1)} or {tuple(words)}
