"""Verdicts of single nano tasks on answers written by hand."""

import ast
import asyncio
import hashlib
import random
from collections.abc import Sequence
from typing import Any

import pytest
from tests.sandbox.host import needs_sandbox

from cascade_rl.errors import RecipeError, ToolError
from cascade_rl.protocols import gold_rollout
from cascade_rl.records import Message, Prompt, Reward, ToolCall
from cascade_rl.tasks.nano import (
    ChatTask,
    ChoiceTask,
    DrawnTask,
    InstructionsTask,
    MathTask,
    NeedleTask,
    ProgramTask,
    RepairTask,
    SchemaTask,
    ToolsTask,
)
from cascade_rl.tasks.nano.choice import FORMULAS
from cascade_rl.tasks.nano.instructions import KINDS
from cascade_rl.tasks.nano.math import say_difference, say_sum
from cascade_rl.tasks.nano.needle import judge_values
from cascade_rl.tasks.nano.program import SPECS, Spec, hidden_cases
from cascade_rl.tasks.nano.repair import FUNCTIONS, fault_cases
from cascade_rl.tasks.nano.tools import Database


def grade(task: DrawnTask, reference: Any, answer: str | Sequence[Message], tools: Database | None = None) -> Reward:
    prompt = Prompt("p/dev/0", task.name, task.domain, "dev", (Message("user", "?"),), reference=reference)
    messages = [Message("assistant", answer)] if isinstance(answer, str) else answer
    return asyncio.run(task.grade(gold_rollout(prompt, messages), tools))


@pytest.mark.parametrize(
    ("answer", "value"),
    [
        (r"\boxed{12}", 1.0),
        (r"first \boxed{3}, no: \boxed{12}", 1.0),
        (r"\boxed{ 12 }", 1.0),
        (r"\boxed{012}", 1.0),
        (r"\boxed{12} or \boxed{13}", 0.0),
        (r"\boxed{12.0}", 0.0),
        (r"\boxed{６}", 0.0),
        (r"\boxed{12", 0.0),
        ("12", 0.0),
        (r"\boxed{6*2}", 0.0),
    ],
)
def test_math(answer: str, value: float) -> None:
    assert grade(MathTask(), 12, answer).value == value


def test_sums_are_said_digit_by_digit() -> None:
    assert say_sum(47, 38) == "47+38: 7+8=15. 4+3+1=8. 85."
    assert say_sum(40, 7) == "40+7: 0+7=7. 47."
    assert say_sum(3, 9) == "3+9=12."
    assert say_difference(45, 38) == "45-38: 15-8=7. 4-1-3=0. 7."
    assert say_difference(48, 5) == "48-5: 8-5=3. 43."
    assert say_difference(9, 4) == "9-4=5."


def test_every_step_of_every_thought_is_right() -> None:
    """Each `left=right` in the reasoning holds; the left sides are sums, differences, products or quotients of integers."""
    for task in (MathTask(), ChoiceTask()):
        for prompt in task.prompts("train")[:1500]:
            thinking = prompt.gold[0].thinking
            assert thinking
            for step in thinking.replace(": ", ". ").split(". "):
                *lefts, right = step.rstrip(".").split("=")
                if lefts and right.isdigit():
                    assert _value(lefts[-1]) == int(right), thinking


def _value(text: str) -> float:
    def walk(node: ast.AST) -> float:
        match node:
            case ast.BinOp(left, ast.Add(), right):
                return walk(left) + walk(right)
            case ast.BinOp(left, ast.Sub(), right):
                return walk(left) - walk(right)
            case ast.BinOp(left, ast.Mult(), right):
                return walk(left) * walk(right)
            case ast.BinOp(left, ast.Div(), right):
                return walk(left) / walk(right)
            case ast.Constant(value=int(number)):
                return number
        raise AssertionError(ast.dump(node))

    return walk(ast.parse(text, mode="eval").body)


def test_formulas_give_what_a_book_gives() -> None:
    known = {"speed": (12, 3, 4), "mass": (2, 6, 12), "voltage": (2, 9, 18), "current": (12, 4, 3), "series": (4, 5, 9)}
    known |= {"orbitals": (3, 0, 9), "subshell": (2, 0, 5), "half-life": (16, 3, 2), "neutrons": (14, 6, 8), "force": (3, 7, 21)}
    for formula in FORMULAS:
        if formula.kind in known:
            a, b, result = known[formula.kind]
            assert formula.compute(a, b) == result


@pytest.mark.parametrize(
    ("answer", "value"), [("Answer: B", 1.0), ("Answer: C", 0.0), ("B", 1.0), ("Answer: B or C", 0.0), ("Answer: E", 0.0)]
)
def test_choice(answer: str, value: float) -> None:
    assert grade(ChoiceTask(), "B", answer).value == value


def test_choices_are_different_ones_with_one_right() -> None:
    for prompt in ChoiceTask().prompts("train")[:1000]:
        options = prompt.messages[0].content.rpartition("\n")[2].split(", ")
        assert [option[-1] for option in options] == list("ABC")
        assert len({option[:-2] for option in options}) == 3
        digits = [option[-3] for option in options]
        assert digits.count(digits["ABC".index(prompt.reference)]) == 1, "the last digit alone finds the right option"
        thinking = prompt.gold[0].thinking
        assert thinking is not None
        assert thinking.endswith(f"={options['ABC'.index(prompt.reference)]}.")


def test_instructions_have_thirteen_kinds_and_up_to_three_at_once() -> None:
    prompts = InstructionsTask().prompts("train")
    assert len(KINDS) == 13
    assert {id for prompt in prompts for id in prompt.reference["ids"]} == set(KINDS)  # "keywords:existence" is one of them
    assert {len(prompt.reference["ids"]) for prompt in prompts} == {2, 3, 4}  # and the topic
    assert {prompt.thinking for prompt in prompts} == {True, False}


def test_instructions() -> None:
    reference = {
        "ids": ["punctuation:no_comma", "keywords:existence"],
        "kwargs": [{}, {"keywords": ["moon"]}],
    }
    task = InstructionsTask()
    assert grade(task, reference, "The moon is white.").value == 1.0
    assert grade(task, reference, "At night, the moon is white.").value == 0.0
    assert "comma" in grade(task, reference, "At night, the moon is white.").why
    assert grade(task, reference, "The sun is white.").value == 0.0


def test_a_part_of_the_instructions_is_worth_a_part_where_the_recipe_says_so() -> None:
    reference = {"ids": ["punctuation:no_comma", "keywords:existence"], "kwargs": [{}, {"keywords": ["moon"]}]}
    assert grade(InstructionsTask(), reference, "The moon, white.").value == 0
    assert grade(InstructionsTask(scoring="fraction"), reference, "The moon, white.").value == 0.5


def test_schema() -> None:
    schema = {"type": "object", "properties": {"age": {"type": "integer"}}, "required": ["age"]}
    reference = {"schema": schema, "values": {"age": 7}}
    task = SchemaTask()
    assert grade(task, reference, ' {"age": 7}\n').value == 1.0
    for wrong in (
        '{"age": 8}',
        '{"age": "7"}',
        '{"age": true}',
        "{}",
        '{"age": 7, "city": null}',
        '{"age": 7, "age": 7}',
        "7",
        "age: 7",
    ):
        assert grade(task, reference, wrong).value == 0.0, wrong


CHAT = {"greet": "Mia", "words": ["rain", "clouds"]}


def test_chat_counts_the_rules_kept() -> None:
    task = ChatTask(max_words=12)
    assert grade(task, CHAT, "Hi Mia! Rain falls from clouds. Take care!").value == 1.0
    assert grade(task, CHAT, "Rain falls from clouds. Take care!").value == 0.75
    assert grade(task, CHAT, "Hi Tom! Rain falls from clouds.").value == 0.5
    assert grade(task, CHAT, "Hi Mia! Rain falls from clouds. " + "Yes. " * 12 + "Take care!").value == 0.75
    assert grade(task, CHAT, "Hi Mia! Have a nice day!").value == 0.0
    assert grade(task, {**CHAT, "greet": None}, "Rain falls from clouds. Bye!").value == 1.0
    assert grade(task, {**CHAT, "greet": None}, "Hi! Rain falls from clouds. Bye!").value == 0.75
    assert "closes" in grade(task, CHAT, "Hi Mia! Rain falls from clouds.").why


def test_needle() -> None:
    task = NeedleTask()
    reference = {"answers": ["123", "456"]}
    assert grade(task, reference, "123 and 456.").value == 1.0
    assert grade(task, reference, "456, 123").value == 0.0  # whose is which?
    assert grade(task, reference, "123.").value == 0.0
    assert grade(task, reference, "The codes are 123 and 456.").value == 1.0
    assert grade(task, reference, "123, 456 and 789.").value == 0.0  # a guess beside the answer, whether the text has it or not
    assert grade(task, {"answers": ["plum"]}, "The code of Rome is plum.").value == 1.0
    assert grade(task, {"answers": ["plum"]}, "plum or pear.").value == 0.0
    assert grade(task, reference, "1234 456").value == 0.0
    assert grade(task, reference, "123 456 " + "0 " * 20).value == 0.0


def test_needle_lengths_are_a_setting() -> None:
    for tokens in (400, 16_000):
        for prompt in NeedleTask(min_tokens=tokens, max_tokens=tokens, num_dev=3).prompts("dev"):
            words = len(prompt.messages[0].content.split())
            assert 0.5 * tokens < words < tokens
    with pytest.raises(RecipeError, match="in order"):
        NeedleTask(min_tokens=9, max_tokens=8)


def test_needle_answers_stand_in_the_text() -> None:
    for prompt in NeedleTask().prompts("train")[:500]:
        assert all(value in prompt.messages[0].content for value in prompt.reference["answers"])


ADD = {"tests": [["f(1)", 4], ["f(0)", 3], ["f(20)", 23]]}


@needs_sandbox
@pytest.mark.parametrize(
    ("code", "value"),
    [
        ("def f(x):\n    return x + 3", 1.0),
        ("def f(x): return (3+x)  # sum", 1.0),
        ('Here:\n```python\ndef f(x: int) -> int:\n    """Adds."""\n    return x + 3\n```', 1.0),
        ("f = lambda x: x + 3", 1.0),
        ("def f(x):\n    for i in range(3):\n        x += 1\n    return x", 1.0),
        ("def f(x):\n    import os\n    return x + 3", 1.0),
        ("def g(x):\n    return x + 3", 0.0),
        ("def f(x):\n    return x + 4", 0.0),
        ("def f(x):\n    return x + True", 0.0),
        ("def f(x):\n    print(x + 3)", 0.0),
        ("def f(x):\n    return str(x + 3)", 0.0),
        ("def f(x):\nreturn x + 3", 0.0),
        ("def f(x):\n    while True: pass", 0.0),
    ],
)
def test_program(code: str, value: float) -> None:
    assert grade(ProgramTask(), ADD, code).value == value


def test_program_tests_tell_functions_apart() -> None:
    """A function of another kind, with constants that are off by one, or that gives always the same, fails a hidden test."""
    rng = random.Random(0)
    for number, spec in enumerate(SPECS):
        takes_d = any("{d}" in text for text in spec.solutions)
        for _ in range(10):
            c, d = rng.randint(2, 29), rng.randint(2, 29)
            cases = hidden_cases(number, c, d if takes_d else 0)
            assert any(expected != cases[0][1] for _, expected in cases), spec.says
            for other in (other for other in SPECS if other.argument == spec.argument):
                for near_c in (c - 1, c, c + 1):
                    for near_d in (d - 1, d, d + 1):
                        if other is spec and near_c == c and (near_d == d or not takes_d):
                            continue
                        passes = all(other.compute(value, near_c, near_d) == expected for value, expected in cases)
                        assert not passes or equal_functions(spec, other, c, d, near_c, near_d), (spec.says, other.says, c, d)


def equal_functions(one: Spec, other: Spec, c: int, d: int, near_c: int, near_d: int) -> bool:
    """Whether two functions agree on a wide set of arguments, so that no test could tell them apart."""
    rng = random.Random(1)
    wide = {"x": list(range(-200, 400)), "s": ["", *("aB" * n for n in range(60))]}
    wide["xs"] = [[rng.randint(0, 40) for _ in range(n)] for n in range(60)]
    return all(one.compute(v, c, d) == other.compute(v, near_c, near_d) for v in wide[one.argument] if v != [])


def test_program_tests_hold_what_the_gold_gives() -> None:
    for prompt in ProgramTask().prompts("dev"):
        for call, expected in prompt.reference["tests"]:
            name, _, argument = call.partition("(")
            assert prompt.gold[0].content.startswith(f"def {name}(")
            value = ast.literal_eval(argument.removesuffix(")"))
            if prompt.gold[0].content.endswith("return x + 7"):
                assert expected == value + 7


FILES = {"main.py": "def add(a, b):\n    return a - b", "util.py": "def sub(a, b):\n    return a - b"}
HIDDEN = {"files": FILES, "fail_to_pass": [["main.add(1, 2)", 3]], "pass_to_pass": [["util.sub(5, 2)", 3], ["main.add(4, 0)", 4]]}
EDIT = "main.py\n<<<<<<< SEARCH\n    return a - b\n=======\n    return a + b\n>>>>>>> REPLACE"


@pytest.mark.parametrize(
    ("answer", "value"),
    [
        (EDIT, 1.0),
        (f"The sign is wrong.\n{EDIT}\nDone.", 1.0),
        (EDIT.replace("main", "util"), 0.0),
        (EDIT.replace("main", "none"), 0.0),
        (EDIT.replace("a - b", "b - a"), 0.0),
        (EDIT.replace("a + b", "b + a"), 1.0),  # any right fix
        (EDIT.replace("a + b", "a - -b"), 1.0),
        (EDIT.replace("a + b", "a + b + 1"), 0.0),
        (EDIT.replace("    return a + b", "    return 3 if b else 4"), 1.0),  # the tests say no more than this
        (EDIT.replace("    return a + b", "    return a +"), 0.0),
        (EDIT.replace("    return a + b", "import os\nos._exit(0)"), 0.0),
        (f"{EDIT}\n{EDIT.replace('main', 'util')}", 0.0),  # breaks what worked
        ("--- a/main.py\n+++ b/main.py\n@@ -1,2 +1,2 @@\n def add(a, b):\n-    return a - b\n+    return a + b\n", 1.0),
        (EDIT.replace("=======\n", ""), 0.0),
        (f"{EDIT}\n{EDIT}", 0.0),
        (EDIT.replace("    return a - b\n", ""), 0.0),
    ],
)
@needs_sandbox
def test_repair(answer: str, value: float) -> None:
    assert grade(RepairTask(time_limit_s=10), HIDDEN, answer).value == value


def test_the_prompts_of_repair_are_fixed() -> None:
    """A model trained on its demonstrations meets the same ones whatever becomes of the verdict."""
    told = [(p.id, p.messages, p.gold) for split in ("train", "dev", "test") for p in RepairTask().prompts(split)]  # type: ignore[arg-type]
    assert hashlib.sha256(repr(told).encode()).hexdigest()[:16] == "3a2bea60557f456e"


def test_each_fault_fails_a_hidden_test_and_no_other_function_has_one_to_fail() -> None:
    assert len({function.name for function in FUNCTIONS}) == len(FUNCTIONS)
    for function in FUNCTIONS:
        for constant in range(2, 10) if "{c}" in function.right else (0,):
            cases = fault_cases(function.name, constant)
            assert any(told_apart for *_, told_apart in cases), function.name
            assert any(value != cases[0][1] for _, value, _ in cases), function.name
    for prompt in RepairTask().prompts("dev"):
        assert prompt.reference["fail_to_pass"]


@needs_sandbox
def test_the_fault_itself_fails_its_tests() -> None:
    """The files as they are, by an edit that changes nothing that runs."""
    prompts = RepairTask().prompts("dev")[:40]
    for prompt in prompts:
        path, text = next(iter(prompt.reference["files"].items()))
        first = text.splitlines()[0]
        answer = f"{path}\n<<<<<<< SEARCH\n{first}\n=======\n# a comment\n{first}\n>>>>>>> REPLACE"
        assert grade(RepairTask(), prompt.reference, answer).value == 0.0


SOLD = {"kind": "stock", "state": {"pen": 5}, "final": {"pen": 3}, "says": "", "needs_calls": True}
GET, SET = ToolCall("get_count", {"item": "pen"}), ToolCall("set_count", {"item": "pen", "count": 3})


def talk(*calls: ToolCall, reply: str = "Done.") -> list[Message]:
    messages = [m for call in calls for m in (Message("assistant", tool_calls=(call,)), Message("tool", "?"))]
    return [*messages, Message("assistant", reply)]


def test_tools_are_judged_by_the_state_they_leave() -> None:
    task = ToolsTask()
    assert grade(task, SOLD, talk(GET, SET)).value == 1.0
    assert grade(task, SOLD, talk(SET)).value == 1.0  # how it got there is its own business
    assert grade(task, SOLD, talk(GET)).value == 0.0
    assert grade(task, SOLD, talk(GET, SET, reply="")).value == 0.0
    assert grade(task, SOLD, talk(GET, ToolCall("set_count", {"item": "pen", "count": 3.0}))).value == 0.0
    assert grade(task, SOLD, talk(SET, ToolCall("set_count", {"item": "cup", "count": 1}))).value == 0.0
    look_up = {**SOLD, "final": {"pen": 5}, "says": "5"}
    assert grade(task, look_up, talk(GET, reply="There are 5.")).value == 1.0
    assert grade(task, look_up, talk(GET, reply="There are 15.")).value == 0.0
    assert grade(task, look_up, talk(GET, reply="There are 5 or 6.")).value == 0.0
    assert grade(task, look_up, talk(SET, reply="There are 5.")).value == 0.0
    thanks = {**look_up, "says": "welcome", "needs_calls": False}
    assert grade(task, thanks, talk(reply="You are welcome.")).value == 1.0
    assert grade(task, thanks, talk(reply="Done.")).value == 0.0
    assert grade(task, thanks, talk(GET, reply="You are welcome.")).value == 0.0


def test_the_live_database_is_believed() -> None:
    live = Database("stock", {"pen": 5})
    asyncio.run(live.call(SET))
    assert grade(ToolsTask(), SOLD, talk(), tools=live).value == 1.0
    assert grade(ToolsTask(), SOLD, talk(SET), tools=Database("stock", {"pen": 5})).value == 0.0


def test_each_rollout_has_its_own_database() -> None:
    task = ToolsTask()
    prompt = next(p for p in task.prompts("dev") if p.reference["kind"] == "stock")
    one, other = task.open_tools(prompt), task.open_tools(prompt)
    one.run(ToolCall("set_count", {"item": "pen", "count": 77}))
    assert other.state == prompt.reference["state"]
    assert "pen" not in prompt.reference["state"] or prompt.reference["state"]["pen"] != 77


def test_tool_prompts_are_of_all_sorts_and_none_is_done_by_doing_nothing() -> None:
    prompts = ToolsTask().prompts("dev")
    assert all(p.reference["says"] or p.reference["state"] != p.reference["final"] for p in prompts)
    num_calls = {sum(len(message.tool_calls) for message in prompt.gold) for prompt in prompts}
    assert num_calls == {0, 1, 2}
    results = [message.content for prompt in prompts for message in prompt.gold if message.role == "tool"]
    assert any(result.startswith("Error: no ") for result in results)


@pytest.mark.parametrize(
    "call",
    [
        ToolCall("nothing", {}),
        ToolCall("get_count", {}),
        ToolCall("get_count", {"item": {"deep": [1]}}),
        ToolCall("get_count", {"item": "kite"}),
        ToolCall("set_count", {"item": "pen", "count": "5"}),
        ToolCall("set_count", {"item": "pen", "count": True}),
        ToolCall("set_count", {"item": ["pen"], "count": 5}),
        ToolCall("get_count", {"item": "x" * 1_000_000}),
    ],
)
def test_bad_calls_are_told_to_the_model(call: ToolCall) -> None:
    stock = Database("stock", {"pen": 3})
    with pytest.raises(ToolError) as caught:
        stock.run(call)
    assert len(str(caught.value)) < 100
    assert stock.state == {"pen": 3}


@pytest.mark.parametrize(
    ("cls", "settings"),
    [
        (InstructionsTask, {"max_instructions": 4}),
        (InstructionsTask, {"kinds": ("punctuation:no_coma",)}),
        (InstructionsTask, {"kinds": ("punctuation:no_comma",)}),
        (SchemaTask, {"max_fields": 0}),
        (RepairTask, {"max_files": 4}),
        (ToolsTask, {"num_keys": 1}),
        (NeedleTask, {"several_share": 0.7, "hop_share": 0.7}),
        (ChatTask, {"greeting_share": 1.5}),
        (ChoiceTask, {"num_options": 5}),
    ],
)
def test_settings_out_of_range_are_refused(cls: type[DrawnTask], settings: dict[str, Any]) -> None:
    with pytest.raises(RecipeError, match=next(iter(settings))):
        cls(**settings)


def test_difficulty_settings_change_the_questions() -> None:
    rng = random.Random(0)
    copying = InstructionsTask(kinds=("combination:repeat_prompt",), max_instructions=1)
    assert all(copying.draw(rng).reference["ids"][0] == "combination:repeat_prompt" for _ in range(50))
    assert all(len(InstructionsTask(max_instructions=1).draw(rng).reference["ids"]) == 2 for _ in range(50))
    assert all(len(RepairTask(max_files=1, max_functions=1).draw(rng).reference["files"]) == 1 for _ in range(50))
    assert all(MathTask(max_number=9, max_factor=3, word_share=0).draw(rng).reference <= 18 for _ in range(200))
    assert all(len(SchemaTask(max_fields=1).draw(rng).reference["values"]) == 1 for _ in range(50))


@pytest.mark.parametrize(
    "answer, passed",
    [
        ("plum and pear.", True),
        ("Mia: plum, Tom: pear", True),
        ("Tom has pear, Mia has plum", True),  # whose each is, it says
        ("pear and plum.", False),
        ("not plum and pear", False),
        ("It isn't plum and pear", False),
    ],
)
def test_several_codes_come_in_the_order_they_were_asked_for_and_are_not_denied(answer: str, passed: bool) -> None:
    assert judge_values(answer, ["plum", "pear"]).value == float(passed)
