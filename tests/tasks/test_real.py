"""Tasks on published data sets, on small rows of the same layout; with CASCADE_DATA set to a folder, on the real files too."""

import asyncio
import dataclasses
import json
import os
import shutil
from collections.abc import Iterable
from pathlib import Path
from typing import Any, get_args

import pytest
from tests.sandbox.host import WHY_NOT, needs_sandbox

from cascade_rl.errors import DataError, RecipeError
from cascade_rl.grade.schema import compile_schema
from cascade_rl.protocols import Task, gold_rollout
from cascade_rl.records import Message, Prompt, Reward, Split, ToolCall
from cascade_rl.tasks.bfcl import BFCL
from cascade_rl.tasks.files import FileTask, evenly, split_of
from cascade_rl.tasks.gsm8k import GSM8K
from cascade_rl.tasks.ifeval import IFEval
from cascade_rl.tasks.mbpp import MBPP
from cascade_rl.tasks.mmlu import MMLU

DATA = Path(__file__).parents[1] / "data"
SPLITS: tuple[Split, ...] = get_args(Split)
MADE: dict[str, FileTask] = {
    "ifeval": IFEval(path=str(DATA / "rows_ifeval.jsonl")),
    "ifeval reference": IFEval(path=str(DATA / "rows_ifeval.jsonl"), mode="reference", scoring="fraction"),
    "gsm8k": GSM8K(path=str(DATA / "rows_gsm8k.jsonl")),
    "gsm8k thinking": GSM8K(path=str(DATA / "rows_gsm8k.jsonl"), thinking=True),
    "mmlu": MMLU(path=str(DATA / "rows_mmlu.jsonl")),
    "mbpp": MBPP(path=str(DATA / "rows_mbpp.jsonl")),
    "bfcl": BFCL(path=str(DATA / "rows_bfcl"), categories=("simple", "parallel", "irrelevance")),
}
REAL = Path(os.environ["CASCADE_DATA"]) if "CASCADE_DATA" in os.environ else None
TASKS = MADE | (
    {
        "real ifeval": IFEval(path=str(REAL / "ifeval_input_data.jsonl")),
        "real gsm8k": GSM8K(path=str(REAL)),
        "real mmlu": MMLU(path=str(REAL / "mmlu_stem_test.jsonl")),
        "real mbpp": MBPP(path=str(REAL / "mbpp.jsonl")),
        "real bfcl": BFCL(path=str(REAL / "bfcl")),
    }
    if REAL
    else {}
)
FOLLOWED = {  # answers that follow the made IFEval rows
    "Describe a river without any commas.": "A river is wide and slow.",
    "Write about tea. Use the word steam, and at least 5 words.": "The steam rises from my cup.",
    "Put your whole reply in double quotes.": '"As you like."',
    "Reply about snow in lower case only.": "snow is white.",
    "Name two colours; the words red and blue must occur.": "Red and blue.",
}

all_tasks = pytest.mark.parametrize("task", TASKS.values(), ids=TASKS)


def every_prompt(task: FileTask) -> list[Prompt]:
    prompts: list[Prompt] = []
    for split in SPLITS:
        try:
            prompts += task.prompts(split)
        except DataError:  # a few made rows do not reach every split
            continue
    return prompts


def grade(task: FileTask, prompt: Prompt, messages: Iterable[Message] | None = None) -> Reward:
    return asyncio.run(task.grade(gold_rollout(prompt, messages), None))


@all_tasks
def test_gold_full_marks_and_empty_nothing(task: FileTask) -> None:
    prompts = every_prompt(task)
    assert prompts
    if isinstance(task, MBPP) and WHY_NOT:
        pytest.skip(f"no isolation on this machine: {WHY_NOT}")
    for prompt in prompts:
        empties = [grade(task, prompt, told) for told in ((), (Message("assistant", ""),), (Message("assistant", " \n"),))]
        if prompt.gold:
            assert grade(task, prompt).value == 1, prompt.id
        elif prompt.messages[0].content in FOLLOWED:
            assert grade(task, prompt, [Message("assistant", FOLLOWED[prompt.messages[0].content])]).value == 1, prompt.id
        assert [empty.value for empty in empties] == [0, 0, 0], prompt.id


@all_tasks
def test_records_hold_what_they_must(task: FileTask) -> None:
    assert isinstance(task, Task)
    prompts = every_prompt(task)
    ids = [prompt.id for prompt in prompts]
    assert len(set(ids)) == len(ids)
    for prompt in prompts:
        assert json.loads(json.dumps(prompt.reference)) == prompt.reference
        assert prompt.id.startswith(f"{task.name}/{prompt.split}/")
        assert (prompt.task, prompt.domain, prompt.thinking) == (task.name, task.domain, task.thinking)
        assert all(message.thinking is not None for message in prompt.gold) or not task.thinking
        for tool in prompt.tools:
            compile_schema(tool["function"]["parameters"])
    assert prompts == every_prompt(dataclasses.replace(task))


@all_tasks
def test_no_question_is_in_two_splits(task: FileTask) -> None:
    seen: dict[str, str] = {}
    for prompt in every_prompt(task):
        key = json.dumps([prompt.messages[-1].content, prompt.tools], sort_keys=True)
        assert seen.setdefault(key, prompt.split) == prompt.split


@pytest.mark.parametrize("task", MADE.values(), ids=MADE)
def test_missing_data_says_where_to_get_it(task: FileTask) -> None:
    lost = dataclasses.replace(task, path="no/such/place")  # a recipe can be read without the data
    with pytest.raises(DataError, match=r"get the data set from .*(GitHub|package)"):
        lost.prompts("test")


@pytest.mark.parametrize("task", MADE.values(), ids=MADE)
def test_bad_settings_and_splits_are_refused(task: FileTask) -> None:
    with pytest.raises(DataError, match="num_prompts 0 must be at least 1"):
        dataclasses.replace(task, num_prompts=0)
    with pytest.raises(DataError, match='did you mean "test"'):
        task.prompts("tets")  # type: ignore[arg-type]
    with pytest.raises(DataError, match='did you mean "train"'):
        dataclasses.replace(task, split="trian")


def broken(row: dict[str, Any], **changes: Any) -> dict[str, Any]:
    return {key: value for key, value in (row | changes).items() if value is not ...}


FAULTS = [
    (IFEval, "rows_ifeval.jsonl", {"kwargs": []}, "1 ids but 0 argument sets"),
    (IFEval, "rows_ifeval.jsonl", {"instruction_id_list": ["punctuation:no_coma"]}, "no_coma"),
    (IFEval, "rows_ifeval.jsonl", {"kwargs": ["x"]}, "one object for each"),
    (IFEval, "rows_ifeval.jsonl", {"prompt": ...}, 'key "prompt" is missing'),
    (GSM8K, "rows_gsm8k.jsonl", {"answer": "36"}, 'must end in "#### number"'),
    (GSM8K, "rows_gsm8k.jsonl", {"answer": "#### many"}, 'must end in "#### number"'),
    (GSM8K, "rows_gsm8k.jsonl", {"question": " "}, "is empty"),
    (GSM8K, "rows_gsm8k.jsonl", {"question": 3}, "expected str"),
    (MMLU, "rows_mmlu.jsonl", {"answer": 4}, "an index from 0 to 3"),
    (MMLU, "rows_mmlu.jsonl", {"answer": True}, "an index from 0 to 3"),
    (MMLU, "rows_mmlu.jsonl", {"answer": "E"}, "a letter of ABCD"),
    (MMLU, "rows_mmlu.jsonl", {"choices": ["one"]}, "2 to 26 texts"),
    (MBPP, "rows_mbpp.jsonl", {"test_list": []}, "one or more tests"),
    (MBPP, "rows_mbpp.jsonl", {"code": "def double(x:"}, '"code" is not Python'),
    (MBPP, "rows_mbpp.jsonl", {"code": "def triple(x): return 3 * x"}, 'calls double, which "code" does not define'),
]


@pytest.mark.parametrize(("cls", "file", "changes", "message"), FAULTS)
def test_a_faulty_row_is_named_with_file_and_line(
    tmp_path: Path, cls: type[FileTask], file: str, changes: dict[str, Any], message: str
) -> None:
    rows = [json.loads(line) for line in (DATA / file).read_text().splitlines()]
    path = tmp_path / "rows.jsonl"
    path.write_text("\n".join(json.dumps(row) for row in [rows[1], broken(rows[0], **changes)]))
    with pytest.raises(DataError, match=r"rows\.jsonl:2: .*" + message):
        cls(path=str(path)).prompts("train")


@pytest.mark.parametrize("line", ["{", "[1]", '{"question": "a", "question": "b"}', '{"question": NaN}'])
def test_a_line_that_is_no_row_is_named(tmp_path: Path, line: str) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text((DATA / "rows_gsm8k.jsonl").read_text() + "\n" + line)
    with pytest.raises(DataError, match=r"rows\.jsonl:8: .*one JSON object a line|rows\.jsonl:8: a JSON"):
        GSM8K(path=str(path)).prompts("train")
    path.write_text("\n")
    with pytest.raises(DataError, match="has no rows"):
        GSM8K(path=str(path)).prompts("train")


BFCL_FAULTS = [
    ("BFCL_v4_parallel.json", {"id": "other"}, 'no possible answer with id "other"'),
    ("BFCL_v4_parallel.json", {"question": [[], []]}, "multi-turn"),
    ("BFCL_v4_parallel.json", {"question": [[{"role": "user"}]]}, "must have a role"),
    ("BFCL_v4_parallel.json", {"function": [{"name": "weather"}]}, "name and parameters"),
    ("BFCL_v4_parallel.json", {"function": [{"name": "weather", "parameters": {"type": "dic"}}]}, "not a valid JSON Schema"),
    ("possible_answer/BFCL_v4_parallel.json", {"ground_truth": [{"wether": {}}]}, "none of the tools"),
    ("possible_answer/BFCL_v4_parallel.json", {"ground_truth": []}, "at least one call"),
    ("possible_answer/BFCL_v4_parallel.json", {"ground_truth": [{"weather": {}}]}, "contradicts the function's schema"),
]


@pytest.mark.parametrize(("file", "changes", "message"), BFCL_FAULTS)
def test_faulty_bfcl_rows(tmp_path: Path, file: str, changes: dict[str, Any], message: str) -> None:
    shutil.copytree(DATA / "rows_bfcl", tmp_path / "bfcl")
    path = tmp_path / "bfcl" / file
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))
    with pytest.raises(DataError, match=r"BFCL_v4_parallel\.json:1: .*" + message):
        BFCL(path=str(tmp_path / "bfcl"), categories=("parallel",)).prompts("test")


def test_a_missing_bfcl_category_is_named() -> None:
    with pytest.raises(DataError, match=r"expected one file BFCL_v\*_multiple\.json .* found none"):
        BFCL(path=str(DATA / "rows_bfcl")).prompts("test")


def test_bfcl_types_become_json_schema() -> None:
    prompts = {prompt.reference["category"] + prompt.messages[-1].content[:4]: prompt for prompt in every_prompt(MADE["bfcl"])}
    distance = prompts["simpleHow "].tools[0]["function"]["parameters"]
    assert distance["type"] == "object"
    assert distance["properties"]["hours"] == {"type": "number", "description": "Time."}
    assert distance["properties"]["unit"] == {"type": "string", "enum": ["km", "mile"]}
    assert prompts["simpleSort"].tools[0]["function"]["parameters"]["properties"]["by"] == {}
    flats = prompts["simpleFind"].tools[0]["function"]["parameters"]["properties"]
    assert flats["near"] == {"type": "array", "items": {"type": "number"}}
    assert prompts["simpleFind"].gold[0].tool_calls == (
        ToolCall("find_flats", {"city": "Lyon", "rent": {"min": 500, "max": 900}}),
    )
    assert [message.role for message in prompts["simpleSort"].messages] == ["system", "user"]


def test_bfcl_verdicts() -> None:
    task = MADE["bfcl"]
    for prompt in every_prompt(task):
        call = ToolCall("weather", {"city": "Oslo"})
        assert grade(task, prompt, [Message("assistant", "It is 7.")]).value == (prompt.reference["category"] == "irrelevance")
        assert grade(task, prompt, [Message("assistant", "So:", tool_calls=(call,))]).value == 0


def test_gsm8k_folder_keeps_test_questions_out_of_train(tmp_path: Path) -> None:
    lines = (DATA / "rows_gsm8k.jsonl").read_text().splitlines()
    (tmp_path / "train.jsonl").write_text("\n".join(lines[:5]))
    (tmp_path / "gsm8k_test.jsonl").write_text("\n".join(lines[4:]))
    prompts = every_prompt(GSM8K(path=str(tmp_path)))
    assert [prompt.split for prompt in prompts].count("test") == 2
    assert len(prompts) == 6
    assert next(p for p in prompts if "ribbon" in p.messages[0].content).split == "test"


def test_gsm8k_gold_is_worked_without_calculator_marks() -> None:
    (prompt,) = [p for p in every_prompt(MADE["gsm8k"]) if "pears" in p.messages[0].content]
    assert prompt.gold[0].content == "3 crates hold 3 * 12 = 36 pears.\n\\boxed{36}"
    (prompt,) = [p for p in every_prompt(MADE["gsm8k thinking"]) if "pears" in p.messages[0].content]
    assert (prompt.gold[0].content, prompt.gold[0].thinking) == ("\\boxed{36}", "3 crates hold 3 * 12 = 36 pears.")


def test_mbpp_keeps_the_published_splits_and_names_the_function() -> None:
    found = {prompt.reference["name"]: prompt.split for prompt in every_prompt(MADE["mbpp"])}
    assert found == {"double": "train", "largest": "test", "letters": "dev"}  # halve is tested with isclose: left out


@needs_sandbox
@pytest.mark.parametrize(
    ("code", "why"),
    [
        ("def double(x): return 2 * x", "all 2 tests pass"),
        ("def double(x): return x * x", "all 2 tests pass"),  # right for 2 and 0: the row's tests are weak, not the grader
        ("def double(x): return x + 1", "wrong answer: double(2) gave 3"),
        ("def double(x): return str(2 * x)", "wrong answer: double(2) gave '4'"),
        ("class double:\n    def __init__(self, x): pass\n    def __eq__(self, other): return True", "a value of type double"),
        ("print('4')", "error: double(2): NameError"),
        ("def double(x", "error: double(2): SyntaxError"),
        ("(" * 90_000, "error: double(2): "),
        ("a" * 1_000_000, "no code: 1,000,001 characters"),
    ],
)
def test_mbpp_runs_the_tests(code: str, why: str) -> None:
    task = MADE["mbpp"]
    (prompt,) = [prompt for prompt in every_prompt(task) if prompt.reference["name"] == "double"]
    reward = grade(task, prompt, [Message("assistant", f"Here:\n```python\n{code}\n```")])
    assert why in reward.why
    assert reward.value == float("pass" in why)


@needs_sandbox
def test_mbpp_partial_credit_is_a_choice() -> None:
    task = MADE["mbpp"]
    (prompt,) = [prompt for prompt in every_prompt(task) if prompt.reference["name"] == "double"]
    half = [Message("assistant", "def double(x): return x and 5")]
    assert grade(task, prompt, half).value == 0
    assert grade(dataclasses.replace(task, partial=True), prompt, half).value == 0.5
    with pytest.raises(RecipeError, match=r'task "mbpp": time_limit_s 0 must be 1 to 3,600'):
        dataclasses.replace(task, time_limit_s=0)


def test_one_split_can_take_all_rows() -> None:
    whole = dataclasses.replace(MADE["mmlu"], split="test")
    assert len(whole.prompts("test")) == 5
    with pytest.raises(DataError, match='no rows of split "train"'):
        whole.prompts("train")


def test_num_prompts_spreads_evenly() -> None:
    assert "".join(evenly("abcdefgh", 3)) == "acf"
    assert evenly([1, 2], 5) == (1, 2)
    few = dataclasses.replace(MADE["mmlu"], split="test", num_prompts=2)
    assert [prompt.id for prompt in few.prompts("test")] == ["mmlu/test/0", "mmlu/test/2"]


def test_splits_depend_on_the_question_alone() -> None:
    counts = [[split_of(f"question {n}") for n in range(2000)].count(split) for split in SPLITS]
    assert counts == pytest.approx([1200, 400, 400], abs=60)
    assert split_of("question 1") == split_of("question 1")
