"""Preference pairs: of a file in three layouts, and of the nano world with the hidden rule's labels."""

import asyncio
import json
import random
import re
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from cascade_rl.errors import DataError, RecipeError
from cascade_rl.eval.audit import audit_task
from cascade_rl.grade.judge.verdict import Label, Verdict, parse_pair
from cascade_rl.protocols import gold_rollout
from cascade_rl.records import Message, Prompt, Reward
from cascade_rl.tasks.drawn import Draft
from cascade_rl.tasks.files import Row
from cascade_rl.tasks.nano.judge import JudgeTask, noted, off_topic
from cascade_rl.tasks.nano.preference import NanoPreference, notes_on
from cascade_rl.tasks.preference import Preference, linked, read_pair, swapped, waits

LLMBAR = {"input": "Name a color.", "output_1": "Red.", "output_2": "Seven.", "label": 1}
TRL = {"prompt": "Name a color.", "chosen": [{"role": "assistant", "content": "Red."}], "rejected": "Seven."}
HELPSTEER = {"context": [{"role": "user", "content": "Name a color."}], "response1": "Seven.", "response2": "Red."}


def verdict(task: Any, prompt: Prompt, text: str) -> Reward:
    return asyncio.run(task.grade(gold_rollout(prompt, (Message("assistant", text),))))


@pytest.mark.parametrize(
    "row, label",
    [
        (LLMBAR, Label(None, None, 2.0)),
        (LLMBAR | {"label": 2}, Label(None, None, 5.0)),
        (TRL, Label(None, None, 2.0)),
        (TRL | {"helpfulness": [5, 3]}, Label(5, 3, 2.0)),
        (TRL | {"helpfulness": [4, 4]}, Label(4, 4, 3.5)),
        *((HELPSTEER | {"overall_preference": told}, Label(None, None, ranking))
          for told, ranking in zip(range(-3, 4), (1, 2, 3, 3.5, 4, 5, 6), strict=True)),
    ],
)  # fmt: skip
def test_three_layouts(row: dict[str, Any], label: Label) -> None:
    messages, first, second, told = read_pair(Row("f:1", row))
    assert messages == (Message("user", "Name a color."),)
    assert {first, second} == {"Red.", "Seven."}
    assert told == label


@pytest.mark.parametrize(
    "row, says",
    [
        ({"a": 1}, "has a; expected prompt, chosen and rejected"),
        (LLMBAR | {"label": 3}, '"label" is 3; expected 1 or 2'),
        (LLMBAR | {"output_2": " "}, '"output_2" is empty'),
        (TRL | {"rejected": []}, '"rejected" is'),
        (TRL | {"prompt": ""}, '"prompt" is'),
        (TRL | {"helpfulness": [5]}, "expected the scores of chosen and rejected"),
        (TRL | {"helpfulness": [5, 0]}, "expected the scores"),
        (TRL | {"helpfulness": [True, 1]}, "expected the scores"),
        (TRL | {"helpfulness": [2, 3]}, "the rejected answer is the better one"),
        (HELPSTEER | {"overall_preference": 4}, "expected -3"),
        (HELPSTEER | {"overall_preference": True}, "is 'True'; expected int"),
    ],
)
def test_faulty_rows_are_errors_with_their_place(row: dict[str, Any], says: str) -> None:
    with pytest.raises(DataError, match=f"f:1: .*{says}"):
        read_pair(Row("f:1", row))


def task(tmp_path: Path, rows: list[dict[str, Any]], name: str = "pairs.json", **settings: Any) -> Preference:
    path = tmp_path / name
    lines = json.dumps(rows) if name.endswith(".json") else "".join(json.dumps(row) + "\n" for row in rows)
    path.write_text(lines)
    return Preference(path=str(path), split="test", **settings)


def test_a_pair_of_equal_answers_is_left_out_and_told_of(tmp_path: Path) -> None:
    equal = TRL | {"rejected": "Red."}
    told = task(tmp_path, [TRL, equal, LLMBAR, equal], "pairs.jsonl", both_orders=False)
    assert len(told.prompts("test")) == 2
    assert told.notes() == (
        f"2 of 4 pairs have two equal answers, of which none is better, and are left out: {told.path}:2, {told.path}:4",
    )
    assert task(tmp_path, [TRL, LLMBAR]).notes() == ()
    with pytest.raises(DataError, match='has no rows of split "test"'):
        task(tmp_path, [equal], "equal.json").prompts("test")


@pytest.mark.parametrize("name", ["pairs.json", "pairs.jsonl"])
def test_each_pair_comes_in_both_orders(tmp_path: Path, name: str) -> None:
    one, two = task(tmp_path, [LLMBAR], name, template="brief").prompts("test")
    assert one.messages[0].content == "Q> Name a color.\n1> Red.\n2> Seven."
    assert two.messages[0].content == "Q> Name a color.\n1> Seven.\n2> Red."
    assert (one.reference["ranking"], two.reference["ranking"]) == (2.0, 5.0)
    assert len(task(tmp_path, [LLMBAR], name, both_orders=False).prompts("test")) == 1
    assert swapped(swapped(Label(4, 1, 1.0))) == Label(4, 1, 1.0)


def test_both_orders_stay_in_one_split(tmp_path: Path) -> None:
    rows = [LLMBAR | {"input": f"Name {i} colors."} for i in range(30)]
    pairs = task(tmp_path, rows)
    every = Preference(path=pairs.path, template="brief")
    seen = {split: {p.messages[0].content.splitlines()[0] for p in every.prompts(split)} for split in ("train", "dev", "test")}
    assert not seen["train"] & seen["test"]
    assert sum(len(every.prompts(split)) for split in ("train", "dev", "test")) == 60


def test_a_verdict_is_graded_against_its_label(tmp_path: Path) -> None:
    pairs = task(tmp_path, [LLMBAR], reward="agreement")
    one, two = pairs.prompts("test")
    text = "Score 1: 4\nScore 2: 2\nRanking: 2"
    assert verdict(pairs, one, text).value == 1.0
    assert verdict(pairs, two, text).value == 0.0
    assert verdict(pairs, one, "both are fine").parts == {"parsed": 0.0}


@pytest.mark.parametrize(
    "content, says", [("{", "pairs.json"), ("[]", "JSON list"), ('{"a": 1}', "JSON list"), ("[1]", "JSON list")]
)
def test_a_file_that_is_no_list_of_pairs(tmp_path: Path, content: str, says: str) -> None:
    (tmp_path / "pairs.json").write_text(content)
    with pytest.raises(DataError, match=says):
        Preference(path=str(tmp_path / "pairs.json")).prompts("test")
    with pytest.raises(RecipeError, match="cannot be read"):
        Preference(path="x", template=str(tmp_path / "none.txt"))


def test_a_demonstration_is_a_bare_verdict_or_none(tmp_path: Path) -> None:
    rows = [TRL | {"helpfulness": [5, 3]}]
    one, two = task(tmp_path, rows, thinking=False).prompts("test")
    assert [parse_pair(prompt.gold[0].content) for prompt in (one, two)] == [Verdict(5, 3, 2), Verdict(3, 5, 5)]
    assert [prompt.gold[0].thinking for prompt in (one, two)] == [None, None]
    assert not task(tmp_path, rows, thinking=True).prompts("test")[0].gold, "nobody knows the reasons"


def test_each_answer_by_itself(tmp_path: Path) -> None:
    pairs = task(tmp_path, [TRL | {"helpfulness": [5, 3]}], mode="point", template="brief", thinking=False, reward="agreement")
    good, bad = pairs.prompts("test")
    assert [prompt.messages[0].content for prompt in (good, bad)] == ["Q> Name a color.\n1> Red.", "Q> Name a color.\n1> Seven."]
    assert [prompt.gold[0].content for prompt in (good, bad)] == ["Score: 5", "Score: 3"]
    assert [verdict(pairs, prompt, "Score: 3").value for prompt in (good, bad)] == [0.0, 1.0]
    with pytest.raises(DataError, match="has no scores"):
        task(tmp_path, [TRL], mode="point").prompts("test")


def test_a_row_may_say_its_split(tmp_path: Path) -> None:
    rows = [TRL | {"prompt": f"Name {i} colors.", "split": split} for i, split in enumerate(("test", "dev", "train", "train"))]
    path = task(tmp_path, rows, "pairs.jsonl").path
    pairs = Preference(path=path)
    assert [len(pairs.prompts(split)) for split in ("train", "dev", "test")] == [4, 2, 2]
    assert "Name 0 colors." in pairs.prompts("test")[0].messages[0].content


def test_pairs_of_a_stage_are_there_once_it_is_done(tmp_path: Path) -> None:
    path = Path(task(tmp_path, [TRL | {"split": "dev"}]).path)
    told = {"of-stage": Preference(stage="pairs", thinking=False), "of-file": Preference(path=str(path))}
    assert [waits(one) for one in told.values()] == [True, False]
    with pytest.raises(DataError, match='made by stage "pairs"'):
        told["of-stage"].prompts("train")
    found = linked(told, {"pairs": path})
    assert found["of-file"] is told["of-file"]
    assert not waits(found["of-stage"])
    assert sum(bool(prompt.gold) for prompt in found["of-stage"].prompts("dev")) == 2
    assert waits(linked(found, {})["of-stage"])
    both: dict[str, Any] = {"path": str(path), "stage": "pairs"}
    for settings in ({}, both):
        with pytest.raises(RecipeError, match="either path"):
            Preference(**settings)


# --- nano -----------------------------------------------------------------------------------------------------------------------


def test_nano_pairs_have_gold_verdicts_with_full_marks_and_no_attack_has() -> None:
    nano = JudgeTask(num_train=60, tie_share=0.3)
    report = audit_task(nano, nano.prompts("train"), 40)
    assert not report.failures
    assert not report.without_gold
    assert report.gold.mean == 1.0


def test_nano_labels_are_balanced_and_splits_keep_their_questions_apart() -> None:
    nano = JudgeTask(num_train=400, num_dev=100, num_test=100)
    firsts = Counter(p.reference["first"] > p.reference["second"] for p in nano.prompts("train"))
    assert 0.4 < firsts[True] / 400 < 0.6
    assert not any(p.reference["first"] == p.reference["second"] for p in nano.prompts("test"))
    asked = {split: {p.messages[0].content.splitlines()[0] for p in nano.prompts(split)} for split in ("train", "dev", "test")}
    assert not asked["train"] & asked["dev"]
    assert not asked["train"] & asked["test"]


@pytest.mark.parametrize(
    "answer, notes",
    [
        ("Hello Mia! Rain falls when clouds are full of water. Take care!", "rain rain clouds clouds 2 Mia Mia 3 end 4 short 5"),
        ("Hi Tom! Rain falls when clouds are full. Bye!", "rain rain clouds clouds 2 Mia Tom 2 end 3 short 4"),
        ("Rain falls, clouds, Mia! Take", "rain rain clouds clouds 2 Mia none 2 open 2 short 3"),
        ("Hey! Rain falls when clouds rest.", "rain rain clouds clouds 2 Mia none 2 open 2 short 3"),
        ("Hi Mia! Birds fly with their light wings.", "rain birds clouds wings 1"),
        ("Hi Mia! Rain falls when cloudsen. Take care!", "rain rain clouds no 1"),
        ("w - of", "rain no clouds no 1"),
    ],
)
def test_nano_notes_on_what_a_policy_says(answer: str, notes: str) -> None:
    assert notes_on("Hey, I am Mia. Can you tell me why rain falls? Thanks.", answer) == notes


def test_nano_pairs_of_own_answers_are_demonstrated_with_their_reasons(tmp_path: Path) -> None:
    row = {
        "prompt": "Mia asks. Say why rain falls.", "chosen": "Rain falls when clouds are full of water. Take care!",
        "rejected": "The sea is salty.", "helpfulness": [5, 1], "split": "train",
    }  # fmt: skip
    (tmp_path / "pairs.jsonl").write_text(json.dumps(row) + "\n")
    pairs = NanoPreference(path=str(tmp_path / "pairs.jsonl"))
    one, two = pairs.prompts("train")
    assert one.messages[0].content == f"Q> {row['prompt']}\n1> {row['chosen']}\n2> {row['rejected']}"
    assert one.gold[0].thinking == "1 rain rain clouds clouds 2 none none 3 end 4 short 5\n2 rain no clouds no 1"
    assert (one.gold[0].content, two.gold[0].content[:10]) == ("Score 1: 5\nScore 2: 1\nRanking: 1", "Score 1: 1")
    assert not audit_task(pairs, pairs.prompts("train")).failures
    by_itself = NanoPreference(path=str(tmp_path / "pairs.jsonl"), mode="point")
    assert [p.gold[0].thinking for p in by_itself.prompts("train")] == (one.gold[0].thinking or "").replace("1 r", "r").replace(
        "2 r", "r"
    ).split("\n")
    with pytest.raises(DataError, match=r"no question of nano\.chat"):
        notes_on("Name a color.", "Red.")


def test_nano_answers_by_themselves() -> None:
    nano = JudgeTask(num_train=60, mode="point")
    assert not audit_task(nano, nano.prompts("train")).failures
    assert {prompt.reference["score"] for prompt in nano.prompts("train")} >= {1, 4, 5}
    for prompt in nano.prompts("train"):
        question, answer = prompt.messages[0].content.removeprefix("Q> ").split("\n1> ")
        if prompt.reference["score"] > 1:  # what stands in a missing word's place is told in two ways
            assert notes_on(question, answer) == prompt.gold[0].thinking


def test_nano_ties_only_where_asked_for() -> None:
    ties = [p for p in JudgeTask(num_train=200, tie_share=0.5).prompts("train") if p.reference["ranking"] == 3.5]
    assert 60 < len(ties) < 140
    assert {parse_pair(p.gold[0].content).ranking for p in ties} == {3}  # type: ignore[union-attr]


def test_the_demonstrated_reasoning_ends_with_the_scores() -> None:
    for prompt in JudgeTask(num_train=400).prompts("train"):
        notes = (prompt.gold[0].thinking or "").splitlines()
        assert [int(line.split()[-1]) for line in notes] == [prompt.reference["first"], prompt.reference["second"]]


def test_notes_name_what_is_wanted_beside_what_is_said() -> None:
    reference = {"greet": "Mia", "words": ["rain", "clouds"]}
    asked = Draft(["why rain falls", "Mia", True], "Hi, I am Mia. Say why rain falls.", (), reference, True)
    good, words = "Hi Mia! Rain falls when clouds are full of water.", ("rain", "clouds")
    assert noted(asked, f"{good} Take care!", "Mia", words).notes == "rain rain clouds clouds 2 Mia Mia 3 end 4 short 5"
    assert noted(asked, good.replace("Mia", "Tom"), "Tom", words).notes == "rain rain clouds clouds 2 Mia Tom 2 open 2 short 3"
    assert noted(asked, good.removeprefix("Hi Mia! "), "", words).notes == "rain rain clouds clouds 2 Mia none 2 open 2 short 3"
    assert noted(asked, "Hi Mia! Rain falls whe. Take care!", "Mia", ("rain", "no")).notes == "rain rain clouds no 1"


def test_faults_of_a_topic_are_seldom_none() -> None:
    rng = random.Random(0)
    made = [off_topic(rng, "why rain falls") for _ in range(300)]
    on_topic = 0
    for text, words in made:
        there = set(re.findall(r"\w+", text.casefold()))
        assert all(word in there for word in words if word != "no")
        on_topic += {"rain", "clouds"} <= there
    assert on_topic < 60
    assert len({text for text, _ in made}) > 60
