"""Tasks with long prompts: what they make, that splits are apart, that gold scores and guessing does not."""

import asyncio
import dataclasses
import json
import re
from collections import Counter
from itertools import pairwise
from pathlib import Path

import pytest
from tests.model.tiny import make_tiny

from cascade_rl.errors import DataError, RecipeError
from cascade_rl.model.sources import load_tokenizer
from cascade_rl.protocols import Task, gold_rollout
from cascade_rl.records import Message, Prompt, Split
from cascade_rl.tasks import TASKS, load_task_class
from cascade_rl.tasks.documents import KINDS, WHOLE, DocumentTask, insert
from cascade_rl.tasks.nano.long import LongTask
from cascade_rl.tasks.needle import Needle

SPLITS: tuple[Split, ...] = ("train", "dev", "test")
SMALL = {"num_train": 30, "num_dev": 30, "num_test": 30, "lengths": (120, 300), "kinds": KINDS}
BOTH = pytest.mark.parametrize("cls", [LongTask, Needle])


def make(cls: type[DocumentTask], **settings: object) -> DocumentTask:
    return cls(**{**SMALL, **settings})  # type: ignore[arg-type]


def grade(task: DocumentTask, prompt: Prompt, answer: str) -> float | None:
    return asyncio.run(task.grade(gold_rollout(prompt, (Message("assistant", answer),)))).value


def text_of(prompt: Prompt) -> str:
    return prompt.messages[0].content


def a_text(folder: Path, num_words: int = 4_000) -> Path:
    """A file whose every sentence has a number of its own."""
    place = folder / "text.txt"
    place.write_text("\n".join(f"Line {number} says little about rain." for number in range(num_words // 6)))
    return place


def test_insert_puts_facts_before_the_sentence_of_their_place() -> None:
    assert insert(["A.", "B."], ["x.", "y."], [2, 0]) == "y. A. B. x."
    assert insert(["A.", "B."], ["x.", "y.", "z."], [1, 1, 0]) == "z. A. x. y. B."
    assert insert([], ["x."], [0]) == "x."


@BOTH
def test_a_document_task_is_a_task_of_the_house(cls: type[DocumentTask]) -> None:
    task = cls()
    assert isinstance(task, Task)
    assert task.domain == "long"
    assert load_task_class(task.name, "test") is cls
    assert task.name in TASKS


@BOTH
def test_kinds_lengths_and_depths_are_the_settings(cls: type[DocumentTask]) -> None:
    task = make(cls, num_train=200)
    prompts = task.prompts("train")
    assert {p.facets["kind"] for p in prompts} == set(KINDS)
    assert {p.facets["length"] for p in prompts} == {120, 300}
    for prompt in prompts:
        assert ("depth" in prompt.facets) == (prompt.facets["kind"] not in WHOLE)
        json.dumps([prompt.reference, dict(prompt.facets)])
    depths = Counter(p.facets["depth"] for p in prompts if "depth" in p.facets)
    assert set(depths) == set(task.depths)


@BOTH
def test_the_fact_of_a_needle_stands_at_its_depth(cls: type[DocumentTask]) -> None:
    for prompt in make(cls, kinds=("needle",), num_others=0, lengths=(300,)).prompts("train"):
        text, (answer,) = text_of(prompt), prompt.reference["answers"]
        assert len(re.findall(rf"\b{answer}\b", text)) == 1
        start = text.index("\n\n") if cls is Needle else 0  # of the document, behind the request
        end = text.rindex("\n")
        at = (text.index(answer) - start) / (end - start)
        assert abs(at - float(prompt.facets["depth"])) < 0.12, prompt.facets


@BOTH
def test_documents_have_the_length_asked_for(cls: type[DocumentTask]) -> None:
    task = make(cls, lengths=(200, 1000), num_train=20)
    for prompt in task.prompts("train"):
        units = task.measure(text_of(prompt).rpartition("\n")[0].rpartition("\n\nQuestion")[0] or text_of(prompt))
        assert 0.9 < units / float(prompt.facets["length"]) < 1.25, (units, prompt.facets)


@pytest.mark.parametrize("kind", KINDS)
@BOTH
def test_gold_scores_and_what_the_facts_say_is_the_answer(cls: type[DocumentTask], kind: str) -> None:
    task = make(cls, kinds=(kind,))
    for split in SPLITS:
        for prompt in task.prompts(split):
            (gold,) = prompt.gold
            assert grade(task, prompt, gold.content) == 1.0
            assert grade(task, prompt, "") == 0.0
            assert grade(task, prompt, "I do not know.") == 0.0
            thought = gold.thinking or ""
            answers = prompt.reference["answers"]
            if cls is LongTask and kind == "sum":
                assert int(answers[0]) == sum(map(int, re.findall(r"gets (\d+)", thought)))
            if cls is LongTask and kind == "count":
                assert int(answers[0]) == thought.count("gets")
            if cls is LongTask and kind in ("needle", "needles"):
                assert re.findall(r"is (\w+)\.", thought) == answers
            for sentence in re.findall(r"[A-Z][^.]*\.", thought)[: 2 if kind == "hop" else 1]:
                assert sentence in text_of(prompt)


def test_totals_of_the_real_task_are_those_of_its_facts() -> None:
    task = Needle(kinds=("sum", "count"), lengths=(200,), num_train=60, num_others=3)
    for prompt in task.prompts("train"):
        person = re.search(r"did (\w+) ", text_of(prompt))
        assert person
        sold = [int(n) for n in re.findall(rf"{person[1]} sold (\d+)", text_of(prompt))]
        planted = len(re.findall(rf"{person[1]} planted", text_of(prompt)))
        assert prompt.reference["answers"] == [str(sum(sold) if sold else planted)]


def test_saying_more_than_was_asked_is_wrong() -> None:
    task = Needle(kinds=("needle",), lengths=(200,), num_train=5)
    for prompt in task.prompts("train"):
        (right,), wrong = prompt.reference["answers"], prompt.reference["wrong"]
        comma = f"{right[:2]},{right[2:]}"
        assert grade(task, prompt, f"It is {comma}, as line 3 says.") == 1.0
        assert grade(task, prompt, f"{right} or {wrong[0]}") == 0.0
        assert grade(task, prompt, f"{right} or 12345") == 0.0
        assert grade(task, prompt, " ".join([right, *["word"] * 60])) == 0.0
        assert grade(task, prompt, right[:-1]) == 0.0
    hop = Needle(kinds=("hop",), lengths=(200,), num_train=5)
    for prompt in hop.prompts("train"):
        (right,), wrong = prompt.reference["answers"], prompt.reference["wrong"]
        assert grade(hop, prompt, f"In {right.upper()}!") == 1.0
        assert grade(hop, prompt, f"In {right} or {wrong[0]}.") == 0.0
    total = Needle(kinds=("sum",), lengths=(200,), num_train=5)
    for prompt in total.prompts("train"):
        (right,) = prompt.reference["answers"]
        assert grade(total, prompt, f"3 + 4 = {right}") == 1.0
        assert grade(total, prompt, f"{right} is not 1") == 0.0


@BOTH
def test_splits_share_no_question_whatever_the_seed(cls: type[DocumentTask]) -> None:
    asked = {
        split: {
            (p.gold[0].thinking, text_of(p).rpartition("\n")[2])
            for seed in (0, 1)
            for p in make(cls, seed=seed, num_others=1, thinking=True, num_train=100).prompts(split)
        }
        for split in SPLITS
    }
    assert not asked["train"] & (asked["dev"] | asked["test"])
    assert not asked["dev"] & asked["test"]


def test_splits_share_no_sentence_of_the_readers_text(tmp_path: Path) -> None:
    path = str(a_text(tmp_path))
    task = Needle(path=path, lengths=(300, 500), num_train=40, num_dev=40, num_test=40)
    lines = {s: {int(n) for p in task.prompts(s) for n in re.findall(r"Line (\d+)", text_of(p))} for s in SPLITS}
    assert max(lines["train"]) < min(lines["dev"])
    assert max(lines["dev"]) < min(lines["test"])
    one = sorted(int(n) for n in re.findall(r"Line (\d+)", text_of(task.prompts("train")[0])))
    assert one == list(range(one[0], one[-1] + 1)), "sentences follow each other as in the text"


def test_lengths_can_be_counted_in_a_models_tokens(tmp_path: Path) -> None:
    """A tokenizer of bytes and a few merges makes several tokens of a word."""
    folder = make_tiny("llama", tmp_path / "model")
    tokenizer = load_tokenizer(folder)
    for path in ("", str(a_text(tmp_path))):
        for prompt in Needle(path=path, tokenizer=str(folder), lengths=(900,), num_train=5, kinds=("needle",)).prompts("train"):
            document = text_of(prompt).split("\n\n")[1]
            assert 850 < len(tokenizer.encode(document)) < 1_000
            assert len(document.split()) < 600


@pytest.mark.parametrize("kind", KINDS)
@BOTH
def test_hostile_answers_get_a_zero(cls: type[DocumentTask], kind: str) -> None:
    task = make(cls, kinds=(kind,), num_train=5)
    hostile = ("a" * 1_000_000, "9" * 3_900, "\x00" * 50, "\ud800", "1," * 1_900, "[" * 1_900, " ".join(map(str, range(900))))
    for prompt in task.prompts("train"):
        for answer in hostile:
            assert grade(task, prompt, answer) == 0.0


def test_faults_of_a_text_are_told(tmp_path: Path) -> None:
    short = str(a_text(tmp_path, 1_000))
    with pytest.raises(
        DataError, match=r"has 19[0-9] words for split .dev., and a document needs .* longer text, or shorter lengths"
    ):
        Needle(path=short, lengths=(400,), num_dev=3).prompts("dev")
    with pytest.raises(DataError, match=r"cannot read .*nowhere.txt"):
        Needle(path=str(tmp_path / "nowhere.txt")).prompts("dev")
    (tmp_path / "bytes.txt").write_bytes(b"abc \xff\xfe")
    with pytest.raises(DataError, match="not UTF-8 at byte 4"):
        Needle(path=str(tmp_path / "bytes.txt")).prompts("dev")


@BOTH
@pytest.mark.parametrize(
    "setting, said",
    [
        ({"kinds": ("needel",)}, 'did you mean "needle"'),
        ({"kinds": ()}, "kinds is empty"),
        ({"lengths": (0,)}, r"lengths \[0\] must be 1"),
        ({"depths": (1.5,)}, "between 0"),
        ({"num_others": 99}, "at most"),
    ],
)
def test_settings_that_cannot_be(cls: type[DocumentTask], setting: dict[str, object], said: str) -> None:
    with pytest.raises(RecipeError, match=said):
        make(cls, **setting)


def test_lists_of_a_recipe_are_kept_as_tuples() -> None:
    task = dataclasses.replace(LongTask(), lengths=[100, 200])  # type: ignore[arg-type]
    assert task.lengths == (100, 200)
    assert hash(task)


@BOTH
def test_several_questions_are_asked_of_one_document(cls: type[DocumentTask]) -> None:
    task = make(cls, kinds=("needle", "hop", "sum"), num_questions=3, num_others=1, num_train=60)
    prompts = task.prompts("train")
    assert len(prompts) == 60
    documents: dict[object, list[Prompt]] = {}
    for prompt in prompts:
        documents.setdefault(prompt.facets["document"], []).append(prompt)
    assert len(documents) >= 20
    for asked in documents.values():
        texts = [text_of(prompt).rpartition("\n") for prompt in asked]
        assert len({document for document, _, _ in texts}) == 1, "all read the same document"
        assert len({question for _, _, question in texts}) == len(asked) <= 3
        assert len({prompt.facets["length"] for prompt in asked}) == 1
    for before, after in pairwise(prompts):  # neighbours
        if before.facets["document"] != after.facets["document"]:
            documents.pop(before.facets["document"])
        assert after.facets["document"] in documents


def test_facts_of_one_document_do_not_contradict_each_other() -> None:
    for prompt in make(LongTask, kinds=("needle", "hop"), num_questions=4, num_others=2, num_train=80).prompts("train"):
        told = re.findall(r"The (\w+) of (\w+) is (\w+)\.", text_of(prompt))
        assert len({(word, whom) for word, whom, _ in told}) == len(told)
        word, whom = re.findall(r"What is the code of (?:the (\w+) of )?(\w+)\?", text_of(prompt))[0]
        values = {(word, whom): value for word, whom, value in told}
        assert [values["code", values[word, whom] if word else whom]] == prompt.reference["answers"]


def test_single_questions_have_no_document_to_share() -> None:
    assert not any("document" in prompt.facets for prompt in make(LongTask).prompts("train"))


@BOTH
def test_a_question_for_several_needs_two(cls: type[DocumentTask]) -> None:
    with pytest.raises(RecipeError, match="num_needles 0 must be 2 to 8"):
        make(cls, kinds=("needles",), num_needles=0)


@BOTH
def test_more_questions_than_there_are_people_are_refused(cls: type[DocumentTask]) -> None:
    with pytest.raises(RecipeError, match="num_questions 9 must be 1 to 4"):
        make(cls, num_questions=9)
    with pytest.raises(RecipeError, match="people"):
        make(cls, kinds=("needles",), num_needles=6, num_questions=4, num_others=1)
