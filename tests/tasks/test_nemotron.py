"""Rows of Nemotron-Cascade-2-RL-data's layout: what each is judged by, what is left out and told, the published recipe.

With CASCADE_DATA set to a folder with nemo_gym_examples, real rows of the layout too.
"""

import asyncio
import os
from pathlib import Path
from typing import Any

import pytest
from tests.sandbox.host import needs_sandbox

from cascade_rl.errors import DataError, RecipeError
from cascade_rl.protocols import gold_rollout
from cascade_rl.records import Message, Reward, ToolCall
from cascade_rl.tasks.nemotron import DIFFERS, DOMAINS, NemotronRL, kind_of

ROWS = str(Path(__file__).parents[1] / "data" / "rows_nemotron.jsonl")


def task(take: Any, **settings: Any) -> NemotronRL:
    return NemotronRL(path=ROWS, take=take, split="train", name="t", **settings)


def grade(made: NemotronRL, number: int, answer: str | Message | None = None) -> Reward:
    """The verdict on an answer (None: the row's own gold) to the task's prompt `number`."""
    prompt = made.prompts("train")[number]
    told = Message("assistant", answer) if isinstance(answer, str) else answer
    return asyncio.run(made.grade(gold_rollout(prompt, None if told is None else [told])))


def call(**arguments: str) -> ToolCall:
    return ToolCall("email_reply", arguments)


def test_every_kind_is_told_apart_and_the_rest_is_reported() -> None:
    (note,) = task("choice").notes()
    assert note.startswith("20 rows: 4 calls, 3 choice, 2 code, 5 instructions, 1 math, 3 schema")
    assert "2 have nothing to judge an answer by" in note
    assert note.count("rows_nemotron.jsonl:19") == 1
    assert '1 x choice: gold "C" is not one of the options A, B' in note
    assert kind_of({"ground_truth": []}) == "calls"
    assert kind_of({"ground_truth": None, "options": [], "expected_answer": "B"}) == "prompts"
    assert len(task("prompts").prompts("train")) == 2


def test_instructions_are_judged_by_their_kinds_and_unknown_kinds_are_left_out() -> None:
    made = task("instructions")
    assert len(made.prompts("train")) == 3
    assert 'id "last_word:last_word_of_all" is not known' in made.notes()[0]
    assert "2 ids but 1 argument sets" in made.notes()[0]
    assert grade(made, 0, "Lamps swing and the water is black.").value == 1
    assert grade(made, 0, "Lamps swing, and the water is black.").value == 0
    assert grade(made, 1, "a hammer").value == 0.5  # the row's grading_mode is "fraction"; null arguments count as not given
    assert grade(made, 2, "hello there.").value == 1


def test_choices_are_letters_and_in_a_box_where_the_row_asks_for_one() -> None:
    made = task("choice", thinking=True)
    assert [grade(made, i).value for i in (0, 1)] == [1, 1]
    assert grade(made, 0, "Answer: A").value == 0
    assert grade(made, 1, "Answer: B").value == 1
    assert grade(made, 0, "\\boxed{B}").value == 0
    assert all(message.thinking is not None for prompt in made.prompts("train") for message in prompt.gold)


def test_schemas_are_json_answers_alone() -> None:
    made = task("schema")
    assert len(made.prompts("train")) == 1
    assert grade(made, 0, '{"name": "Mira", "age": 7}').value == 1
    assert grade(made, 0, '{"name": "Mira"}').value == 0
    assert 'schema_type "yaml"' in made.notes()[0]
    assert "in a tool call" in made.notes()[0]


def test_arguments_are_read_from_their_json_text_and_an_empty_ground_truth_asks_for_no_call() -> None:
    made = task("calls")
    first, nothing, two = made.prompts("train")
    assert first.reference == {"calls": [{"name": "email_reply", "arguments": {"email_id": "00000057", "body": "Thanks"}}]}
    assert nothing.reference == {"calls": []}
    assert first.tools[0]["function"].keys() == {"name", "description", "parameters"}
    assert [grade(made, i).value for i in range(3)] == [1, 1, 1]
    assert grade(made, 0, "Done.").value == 0
    assert grade(made, 1, Message("assistant", tool_calls=(call(email_id="1", body="x"),))).value == 0
    swapped = tuple(reversed(two.gold[0].tool_calls))
    assert grade(made, 2, Message("assistant", tool_calls=swapped)).value == 1
    assert grade(made, 2, Message("assistant", tool_calls=swapped[:1])).value == 0
    assert "arguments of ground_truth[0] is text but not JSON" in made.notes()[0]


def test_math_is_equality_and_prompts_have_no_verdict() -> None:
    assert grade(task("math"), 0).value == 1
    assert grade(task("math"), 0, "\\boxed{121}").value == 0
    verdict = grade(task("prompts"), 0, "Kindness.")
    assert verdict.value is None
    assert "nothing to judge" in verdict.why
    assert [m.content for m in task("prompts").prompts("train")[1].messages] == ["Say it twice.", "It, it.", "And once more?"]


@needs_sandbox
def test_code_answers_every_input() -> None:
    made = task("code")
    assert len(made.prompts("train")) == 1
    assert "as many outputs as inputs" in made.notes()[0]
    assert grade(made, 0, "```python\nprint(sum(map(int, input().split())))\n```").value == 1
    assert grade(made, 0, "```python\nprint(3)\n```").value == 0
    assert grade(made, 0, "no code").value == 0


def test_settings_and_empty_files_are_refused_in_words(tmp_path: Path) -> None:
    with pytest.raises(DataError, match='take "choices" is not known; did you mean "choice"'):
        task("choices")
    only = tmp_path / "only.jsonl"
    only.write_text('{"responses_create_params": {"input": "Hello?"}}\n')
    with pytest.raises(DataError, match='has no row of kind "math" that can be graded; 1 rows: none with anything to judge'):
        NemotronRL(path=str(only), take="math", name="t").prompts("train")
    made = NemotronRL(path=str(only), take="prompts", name="t", domain="chat", split="train")
    assert made.prompts("train")[0].messages == (Message("user", "Hello?"),)
    assert DOMAINS.keys() >= DIFFERS.keys()


@pytest.mark.skipif("CASCADE_DATA" not in os.environ, reason="CASCADE_DATA names no folder with the published data")
@pytest.mark.parametrize(
    "take, file, graded",
    [
        ("choice", "mcqa", 5),
        ("math", "math_with_judge", 5),
        ("math", "compmath_test", 256),
        ("calls", "workplace_assistant", 5),
        ("instructions", "ifbench", 5),
        ("instructions", "instruction_following", 5),
        ("code", "code_gen", 5),
        ("prompts", "genrm_compare", 5),
    ],
)
def test_real_rows_of_the_layout(take: Any, file: str, graded: int) -> None:
    path = Path(os.environ["CASCADE_DATA"]) / "nemo_gym_examples" / f"{file}.jsonl"
    made = NemotronRL(path=str(path), take=take, split="train", name="real")
    prompts = made.prompts("train")
    assert len(prompts) == graded
    assert {asyncio.run(made.grade(gold_rollout(prompt))).value for prompt in prompts if prompt.gold} <= {1.0}


# --- the recipe ---------------------------------------------------------------------------------------------------------------------


RECIPE = Path(__file__).parents[2] / "recipes" / "nemotron-cascade-2.toml"


def test_the_papers_recipe_parses_and_plans_without_network_gpu_or_data(tmp_path: Path) -> None:
    from cascade_rl.plan import Budget, budget, make_plan, verdicts
    from cascade_rl.recipe import load_recipe
    from cascade_rl.shortfall import shortfalls

    recipe = load_recipe(RECIPE)
    plan = {item.stage.name: item for item in make_plan(recipe, tmp_path / "run")}
    assert not (tmp_path / "run").exists()
    assert list(plan) == [
        "sft", "if-rl", "multi-rl", "rlhf-teacher", "select", "mopd", "rlhf", "long-rl", "code-rl", "swe-agentless", "swe-agentic",
    ]  # fmt: skip
    # 180 x 128 prompts x 16 rollouts, each of at most 49,152 tokens; 33,000 updates of 64 x 262,144.
    assert budget(plan["if-rl"].stage) == Budget(180, 23_040, 368_640, 368_640 * 49_152)
    assert budget(plan["sft"].stage) == Budget(33_000, tokens=33_000 * 64 * 262_144)
    assert budget(plan["select"].stage) == Budget()
    # 30 x 128 groups of 16 answers, 120 pairs each, of at most 16,384 tokens.
    assert verdicts(recipe, plan["rlhf"].stage) == (460_800, 460_800 * 16_384)
    assert verdicts(recipe, plan["if-rl"].stage) == (0, 0)
    assert (plan["rlhf-teacher"].start, plan["mopd"].start) == ("sft", "select")
    # The learning rate where training stops is that of a 40,000-step cosine: about 8.3e-6.
    assert plan["sft"].stage._lr(32_999) == pytest.approx(8.3e-6, rel=0.01)
    assert plan["mopd"].stage.lr(0) == pytest.approx(2e-7 + (2e-6 - 2e-7) / 30)
    assert [plan["mopd"].stage.lr(step) for step in (30, 51)] == [2e-6, 2e-6]
    told = "\n".join(shortfalls(recipe))
    for words in (
        "30B parameters",
        "one process on a CPU",
        "was never measured",
        "no verdict of their own",
        "five databases",
        "data/nemotron/rlhf",
        "Qwen/Qwen3-235B-A22B-Thinking-2507, must be answering at http",
    ):
        assert words in told, words


def test_a_recipe_that_can_be_run_has_no_shortfalls() -> None:
    from cascade_rl.recipe import load_recipe
    from cascade_rl.shortfall import shortfalls

    assert shortfalls(load_recipe(RECIPE.with_name("nano.toml"))) == []
    told = shortfalls(load_recipe(RECIPE.with_name("smollm2.toml"), ["tasks.bfcl.path=no/bfcl"]))
    assert len(told) == 1
    assert told[0].startswith("data that is not there yet: ")
    assert "no/bfcl" in told[0], "a task that reads no hub id has a folder in mind"


def test_an_unknown_take_in_a_recipe_is_an_error_with_its_place() -> None:
    from cascade_rl.recipe import load_recipe

    with pytest.raises((RecipeError, DataError), match="take"):
        load_recipe(RECIPE, ["tasks.mopd-if.take=all"])
