import json
from pathlib import Path

import pytest
from tests.grade.instructions_table import TABLE

from cascade_rl.errors import GraderError
from cascade_rl.grade.instructions import (
    check,
    check_loose,
    compile_instructions,
    describe,
    grade_instructions,
    ifeval_scores,
)
from cascade_rl.grade.instructions.checks import MODES, REFERENCE, STRICT
from cascade_rl.grade.instructions.describe import TEXTS

DATA = Path(__file__).parents[1] / "data"
IFEVAL = [json.loads(line) for line in (DATA / "instructions_ifeval.jsonl").read_text("utf-8").splitlines()]
IFBENCH = [json.loads(line) for line in (DATA / "instructions_ifbench.jsonl").read_text("utf-8").splitlines()]
WORDS = {"num_words": 3, "relation": "at least"}


def verdict(name, kwargs, text, mode="strict"):
    (only,) = check(compile_instructions([name], [kwargs], mode), text)
    return only.passed


# --- the verdicts ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("case", IFEVAL + IFBENCH, ids=lambda case: f"{case['instruction_id']}-{case['why'][:30]}")
def test_known_verdicts(case):
    assert verdict(case["instruction_id"], case["kwargs"], case["response"]) is case["expected"], case["why"]


@pytest.mark.parametrize("case", IFEVAL, ids=lambda case: f"{case['instruction_id']}-{case['why'][:30]}")
def test_reference_mode_gives_the_published_verdict(case):
    published = case["expected"] is not case["reference_wrong"]
    assert verdict(case["instruction_id"], case["kwargs"], case["response"], "reference") is published, case["why"]


# What IFBench's published checkers say of the same rows, by row.
PUBLISHED_IFBENCH = [False, False, False, False, False, False, True, False, True, False, True, True, True, True, False]


@pytest.mark.parametrize("case, published", list(zip(IFBENCH, PUBLISHED_IFBENCH, strict=True)))
def test_reference_mode_of_ifbench(case, published):
    assert verdict(case["instruction_id"], case["kwargs"], case["response"], "reference") is published, case["why"]


@pytest.mark.parametrize("name, kwargs, follows, fails", TABLE, ids=[row[0] for row in TABLE])
def test_each_kind(name, kwargs, follows, fails):
    assert verdict(name, kwargs, follows), follows
    assert not verdict(name, kwargs, fails), fails
    assert verdict(name, kwargs, f"\n{follows}\n") or name in {"format:no_whitespace"}


def test_the_table_has_every_kind():
    assert [row[0] for row in TABLE] == list(dict.fromkeys(row[0] for row in TABLE))
    assert {row[0] for row in TABLE} == set(STRICT) == set(REFERENCE) == set(TEXTS)
    assert len(STRICT) == 25 + 58 + 29


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("text", ["", "  \n\t "])
def test_an_empty_answer_follows_nothing(mode, text):
    for name, kwargs, _, _ in TABLE:
        assert not verdict(name, kwargs, text, mode), name


@pytest.mark.parametrize(
    "name, kwargs, text, strict, reference",
    [
        ("detectable_format:number_bullet_lists", {"num_bullets": 1}, "*\n* one", True, True),
        ("detectable_format:number_bullet_lists", {"num_bullets": 2}, "-\n- - -\n* one", False, False),
        ("count:conjunctions", {"small_n": 2}, "And and.", False, True),
        ("words:repeats", {"small_n": 1}, "well-known wellknown", True, False),
        ("format:options", {"options": "for, against"}, "For", True, False),
        ("format:list", {"sep": "-"}, "well-known, long-lived", False, True),
        ("repeat:repeat_span", {"prompt_to_repeat": "Write a poem now", "n_start": 1, "n_end": 3}, "a poem", False, True),
        ("repeat:repeat_span", {"prompt_to_repeat": "Write a poem now", "n_start": 0, "n_end": 4}, "Write", True, False),
        ("ratio:sentence_type", {}, "No stops at all", False, True),
        ("custom:date_format_list", {}, "1815-06-18", False, True),
        ("custom:word_reverse", {}, "eagle bald", False, True),
        ("sentence:increment", {"small_n": 3}, "Just one sentence here.", False, True),
        ("startend:quotation", {}, '"One."\n\n"Two."', False, True),
        ("detectable_format:json_format", {}, "42", False, True),
        ("language:response_language", {"language": "hi"}, "12345", False, True),
    ],
)
def test_where_the_modes_differ(name, kwargs, text, strict, reference):
    assert (verdict(name, kwargs, text), verdict(name, kwargs, text, "reference")) == (strict, reference)


@pytest.mark.parametrize("mode", MODES)
def test_keywords_are_literal(mode):
    for keyword, text in (("a.c", "abc"), ("(x", "x"), ("a|b", "b"), ("[ab]", "a")):
        assert not verdict("keywords:existence", {"keywords": [keyword]}, text, mode)
        assert verdict("keywords:existence", {"keywords": [keyword]}, f"so {keyword} then", mode)
        assert verdict("keywords:forbidden_words", {"forbidden_words": [keyword]}, text, mode)


# --- compiling -------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "ids, kwargs, message",
    [
        (["punctuation:no_coma"], [{}], 'did you mean "punctuation:no_comma"'),
        (["length_constraints:number_words"], [{"num_word": 3, "relation": "at least"}], 'did you mean "num_words"'),
        (["length_constraints:number_words"], [{"num_words": 3}], "needs relation"),
        (["length_constraints:number_words"], [None], "needs num_words, relation"),
        (["length_constraints:number_words"], [{"num_words": 3, "relation": "at most"}], '"less than" or "at least"'),
        (["length_constraints:number_words"], [{"num_words": "3", "relation": "at least"}], "whole number"),
        (["length_constraints:number_words"], [{"num_words": 2.5, "relation": "at least"}], "whole number"),
        (["length_constraints:number_words"], [{"num_words": True, "relation": "at least"}], "whole number"),
        (["length_constraints:number_words"], [{"num_words": -1, "relation": "at least"}], "whole number"),
        (["sentence:keyword"], [{"word": "tea", "N": 0}], "from 1"),
        (["ratio:stop_words"], [{"percentage": 101}], "0 to 100"),
        (["keywords:existence"], [{"keywords": []}], "at least one"),
        (["keywords:existence"], [{"keywords": "tea"}], "list of texts"),
        (["keywords:existence"], [{"keywords": ["tea", " "]}], "none blank"),
        (["keywords:letter_frequency"], [{"letter": "ab", "let_frequency": 1, "let_relation": "at least"}], "one visible"),
        (["language:response_language"], [{"language": "english"}], "is not known"),
        (["punctuation:no_comma"], [{"num_words": 3}], "leave it out"),
        (["count:word_count_range"], [{"min_words": 3, "max_words": 2}], "min_words 3 is above max_words 2"),
        (["punctuation:no_comma", "startend:quotation"], [{}], "2 ids but 1"),
        (["punctuation:no_comma"], [{}, {}], "1 ids but 2"),
        ([], [], "at least one id"),
        ("punctuation:no_comma", [{}], "must be a list"),
    ],
)
def test_faulty_rows_fail_at_load(ids, kwargs, message):
    with pytest.raises(GraderError, match=message):
        compile_instructions(ids, kwargs)


def test_unknown_mode_and_scoring():
    with pytest.raises(GraderError, match='did you mean "strict"'):
        compile_instructions(["punctuation:no_comma"], [{}], "stric")  # type: ignore[arg-type]
    with pytest.raises(GraderError, match='did you mean "fraction"'):
        grade_instructions(compile_instructions(["punctuation:no_comma"], [{}]), "x", "fractions")  # type: ignore[arg-type]


def test_nulls_and_whole_floats_are_as_in_hub_rows():
    row = {"num_words": 3.0, "relation": "at least", "keyword": None, "N": None}
    checks = compile_instructions(["length_constraints:number_words", "punctuation:no_comma"], [row, None])
    assert checks.items[0].kwargs == WORDS
    assert checks.items[1].kwargs == {}


# --- rewards and scores ------------------------------------------------------------------------------------------------------------


def test_results_go_by_position_not_by_id():
    ids = ["keywords:existence", "keywords:existence", "punctuation:no_comma"]
    checks = compile_instructions(ids, [{"keywords": ["tea"]}, {"keywords": ["milk"]}, {}])
    assert [verdict.passed for verdict in check(checks, "Tea only.")] == [True, False, True]
    reward = grade_instructions(checks, "Tea only.", "fraction")
    assert reward.value == pytest.approx(2 / 3)
    assert reward.parts == {"0 keywords:existence": 1.0, "1 keywords:existence": 0.0, "2 punctuation:no_comma": 1.0}
    assert reward.why == "2 of 3 followed; not followed: Use each of these words: milk."
    assert grade_instructions(checks, "Tea only.").value == 0.0
    assert grade_instructions(checks, "Tea and milk.").value == 1.0
    assert grade_instructions(checks, "").value == 0.0


def test_loose_reads_past_openings_closings_and_asterisks():
    checks = compile_instructions(["startend:quotation", "change_case:english_lowercase"], [{}, {}], "reference")
    chatty = 'Sure, here it is:\n*"all of it is here"*\nHope this helps!'
    assert [verdict.passed for verdict in check(checks, chatty)] == [False, False]
    assert check_loose(checks, chatty) == [True, True]
    assert check_loose(checks, "Just One Line") == [False, False]


def test_ifeval_scores():
    one = compile_instructions(["punctuation:no_comma"], [{}])
    two = compile_instructions(["punctuation:no_comma", "length_constraints:number_words"], [{}, WORDS])
    scores = ifeval_scores([(one, "Well, well.\nFine."), (two, "Two words"), (two, "Now three words")])
    assert scores.prompt_strict == pytest.approx(1 / 3)
    assert scores.instruction_strict == pytest.approx(3 / 5)
    assert scores.prompt_loose == pytest.approx(2 / 3)
    assert scores.instruction_loose == pytest.approx(4 / 5)
    with pytest.raises(GraderError, match="no answers"):
        ifeval_scores([])


@pytest.mark.parametrize("name, kwargs", [row[:2] for row in TABLE], ids=[row[0] for row in TABLE])
def test_descriptions_name_every_argument(name, kwargs):
    text = describe(name, kwargs)
    for value in kwargs.values():
        shown = [str(part) for part in value] if isinstance(value, list) else [str(value)]
        assert all(part in text for part in shown) or name == "language:response_language"
    assert "{" not in text.replace("{round", "")


def test_descriptions_fail_clearly():
    assert describe("language:response_language", {"language": "sw"}).count("Swahili") == 1
    with pytest.raises(GraderError, match="did you mean"):
        describe("punctuation:no_coma", {})
    with pytest.raises(GraderError, match="needs the argument 'num_words'"):
        describe("length_constraints:number_words", {"relation": "at least"})
