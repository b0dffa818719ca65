"""The audit: a good grader passes, and every kind of broken grader is found out, by name, prompt and reason."""

import io
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from tests.model.tiny import make_tiny
from tests.sandbox.host import needs_sandbox

from cascade_rl.cli import main
from cascade_rl.errors import GraderError, ToolError
from cascade_rl.eval.attacks import ATTACKS, TRAILING, attacks, hollow
from cascade_rl.eval.audit import AuditReport, Finding, audit_task, print_audit, short_audit
from cascade_rl.pipeline import run_recipe
from cascade_rl.recipe import parse_recipe
from cascade_rl.records import Message, Prompt, Reward, Rollout, ToolCall
from cascade_rl.tasks import TASKS, load_task_class
from cascade_rl.tasks.bfcl import BFCL
from cascade_rl.tasks.drawn import DrawnTask
from cascade_rl.tasks.nano.choice import ChoiceTask
from cascade_rl.tasks.nano.math import MathTask

DATA = Path(__file__).resolve().parents[1] / "data"
Judge = Callable[[str, Any], Reward]
ADD = {
    "type": "function",
    "function": {"name": "add", "parameters": {"type": "object", "properties": {"n": {"type": "integer"}}}},
}


def exact(answer: str, reference: Any) -> Reward:
    right = answer == str(reference)
    return Reward(float(right), why=f"said {answer[:20]!r}, right is {reference}")


@dataclass(frozen=True)
class Sums:
    """Four sums with gold answers; the judge is the test's."""

    judge: Judge = exact
    name: str = "sums"
    domain: str = "toy"
    max_turns: int = 1
    gold: bool = True

    def prompts(self, split: str) -> list[Prompt]:
        return [
            Prompt(
                f"{self.name}/{split}/{i}", self.name, "toy", "train", (Message("user", f"{i}+3?"),), reference=i + 3,
                gold=(Message("assistant", str(i + 3)),) if self.gold else (),
            )
            for i in range(4)
        ]  # fmt: skip

    def open_tools(self, prompt: Prompt) -> Any:
        return None

    async def grade(self, rollout: Rollout, tools: Any) -> Reward:
        return self.judge(rollout.answer, rollout.prompt.reference)


def audit(judge: Judge = exact, **changes: Any) -> AuditReport:
    task = Sums(judge, **changes)
    return audit_task(task, task.prompts("train"))


def test_a_good_grader_by_hand() -> None:
    report = audit()
    assert (report.num_prompts, report.num_graded, report.gold.num_prompts) == (4, 4, 4)
    assert report.false_fail_rate == 0
    assert report.gold.mean == 1.0
    assert report.false_pass_rates == dict.fromkeys([name for name in ATTACKS if name != "needless calls"], 0.0)
    assert (report.unscored_rate, report.fault) == (0, "")
    found = (report.failures, report.no_signal, report.duplicates, report.empty_reference, report.without_gold)
    assert found == ((),) * 5
    assert 0 < report.slowest_ms < 5_000


def test_a_gold_answer_that_fails_is_named_with_its_reason() -> None:
    report = audit(lambda answer, reference: exact(answer, reference if reference != 5 else 6))
    assert report.failures == (Finding("sums/train/2", "reward 0, said '5', right is 6"),)
    assert report.false_fail_rate == 0.25
    assert "1 of 4 gold answers fail; the first, sums/train/2: reward 0, said '5', right is 6" in report.fault


def test_less_than_full_marks_is_a_failure_too() -> None:
    assert audit(lambda answer, reference: Reward(0.99 * (exact(answer, reference).value or 0))).false_fail_rate == 1.0


def passes(judge: Callable[[str, Any], bool]) -> set[str]:
    report = audit(lambda answer, reference: Reward(float(judge(answer, reference))))
    return {name for name, rate in report.false_pass_rates.items() if rate == 1.0}


@pytest.mark.parametrize(
    "judge, holes",
    [
        (lambda a, r: a in ("", str(r)), {"empty", "thinking only", "format only"}),
        (lambda a, r: "+3?" in a or a == str(r), {"echo"}),
        (lambda a, r: a.isdecimal() and len(a) < 10, {"another's gold"}),
        (lambda a, r: a.startswith(str(r)), {TRAILING, "gold, then another"}),
        (lambda a, r: a.startswith("\\boxed{}") or a == str(r), {"format only"}),
        (lambda a, r: len(a) > 50_000 or a == str(r), {"noise"}),
        (lambda a, r: "Reward: 1" in a or a == str(r), {"claims"}),
        (lambda a, r: "NaN" in a or a == str(r), {"not a number"}),
        (lambda a, r: a == "<think>" or a == str(r), {"unclosed"}),
        (lambda a, r: (len(a) > 4_000 and a.isdecimal()) or a == str(r), {"giant number"}),
        (lambda a, r: f"\\boxed{{{r}}}" in a or a == str(r), {"many boxes"}),
        (lambda a, r: (all(x in a for x in "ABCD") and "boxed" not in a and len(a) < 99) or a == str(r), {"all options"}),
    ],
    ids=lambda x: min(x) if isinstance(x, set) else "",
)  # fmt: skip
def test_each_hole_shows_in_the_row_of_its_attack(judge: Callable[[str, Any], bool], holes: set[str]) -> None:
    assert passes(judge) == holes


def test_an_answer_that_stays_in_the_thinking_is_fed() -> None:
    @dataclass(frozen=True)
    class Careless(Sums):
        async def grade(self, rollout: Rollout, tools: Any) -> Reward:
            last = rollout.messages[-1]
            return exact(last.content or last.thinking or "", rollout.prompt.reference)

    task = Careless()
    report = audit_task(task, task.prompts("train"))
    assert {name for name, rate in report.false_pass_rates.items() if rate} == {"thinking only"}


def test_a_crash_on_hostile_text_is_unscored_and_counted_never_zero() -> None:
    def judge(answer: str, reference: Any) -> Reward:
        if "NaN" in answer:
            raise RecursionError("too deep")
        return exact(answer, reference)

    report = audit(judge)
    (tally,) = [t for t in report.attacks if t.name == "not a number"]
    assert len(tally.unscored) == 4 * 4  # four of the five texts say NaN
    assert tally.unscored[0].why == "grader crashed: RecursionError: too deep"
    assert report.unscored_rate == pytest.approx(16 / report.num_verdicts)
    assert report.fault == ""


def test_a_grader_that_is_silent_on_gold_is_at_fault() -> None:
    report = audit(lambda answer, reference: Reward(None, why="no sandbox"))
    assert (report.false_fail_rate, report.unscored_rate, report.failures) == (None, 1.0, ())
    assert "none of 4 gold answers gets a verdict; the first, sums/train/0: no sandbox" in report.fault
    assert [f.why for f in report.no_signal] == ["no verdict on any answer: no sandbox"] * 4


def test_prompts_without_signal() -> None:
    assert [f.why for f in audit(lambda a, r: Reward(1.0)).no_signal] == ["the gold answer and every attack get 1"] * 4
    nearly = audit(lambda a, r: Reward(1.0 - 1e-9 * (a == "")))
    assert len(nearly.no_signal) == 4  # a difference by rounding is none
    assert len(audit(lambda a, r: Reward(1.0), gold=False).no_signal) == 4
    assert not audit(lambda a, r: Reward(0.0), gold=False).no_signal  # only the right answer may be missing


def test_prompts_without_gold_are_counted_and_attacked() -> None:
    report = audit(gold=False)
    assert len(report.without_gold) == 4
    assert (report.false_fail_rate, report.fault) == (None, "")
    assert report.false_pass_rates["empty"] == 0


def test_repeated_prompts_and_empty_references() -> None:
    task = Sums()
    one, two, three, four = task.prompts("train")
    two = replace(two, messages=one.messages)
    told = [one, two, replace(three, reference=""), replace(four, reference=None)]
    report = audit_task(task, told, num=1)  # these are looked for in all prompts
    assert report.duplicates == (Finding("sums/train/1", "asks the same as sums/train/0, with another reference"),)
    assert [f.prompt_id for f in report.empty_reference] == ["sums/train/2", "sums/train/3"]
    assert not audit_task(task, [one, replace(two, reference=one.reference)]).duplicates
    assert not audit_task(task, [replace(p, reference=None) for p in told]).empty_reference  # a task may have none at all


def test_anothers_gold_is_fed_only_where_its_reference_differs() -> None:
    task = Sums(lambda answer, reference: Reward(float(answer.isdecimal() and len(answer) < 5)))
    same = [replace(prompt, reference=3) for prompt in task.prompts("train")]
    assert "another's gold" not in audit_task(task, same).false_pass_rates
    (tally,) = [
        t for t in audit_task(task, [*same, replace(same[0], id="odd", reference=4)]).attacks if t.name == "another's gold"
    ]
    assert tally.num_prompts == 5  # the odd one's for the four, and one of the four's for the odd one


def test_rewards_below_zero_count_as_they_are() -> None:
    report = audit(lambda answer, reference: Reward(2 * (exact(answer, reference).value or 0.0) - 1))
    assert (report.gold.mean, report.false_fail_rate) == (1.0, 0.0)
    assert {tally.mean for tally in report.attacks} == {-1.0}


def test_a_spread_of_the_prompts_is_graded_and_it_is_repeatable() -> None:
    task = MathTask(num_train=50)
    first, second = (audit_task(task, task.prompts("train"), 5) for _ in range(2))
    assert first.num_graded == first.gold.num_prompts == 5
    assert [f.prompt_id for f in first.gold.full] == [f"nano.math/train/{i}" for i in (0, 10, 20, 30, 40)]
    assert (first.false_pass_rates, first.failures) == (second.false_pass_rates, second.failures)


# --- tools --------------------------------------------------------------------------------------------------------------------------


@dataclass
class Counter:
    total: int = 0
    closed: bool = False

    async def call(self, call: ToolCall) -> str:
        if call.name == "add" and call.arguments.get("n") == 13:
            raise ToolError("13 is not liked")
        if call.name == "add" and call.arguments.get("n") == 666:
            raise RuntimeError("the database is gone")
        self.total += int(call.arguments.get("n", 0))
        return f"total {self.total}"

    async def close(self) -> None:
        self.closed = True


opened: list[Counter] = []


@dataclass(frozen=True)
class Adding(Sums):
    """Graded by the state that the calls leave in live tools; `numbers` are the gold's calls, one a turn."""

    name: str = "adding"
    max_turns: int = 3
    numbers: tuple[int, ...] = (2, 3)
    results: tuple[str, ...] = ("total 2", "total 5")

    def prompts(self, split: str) -> list[Prompt]:
        calls = [Message("assistant", tool_calls=(ToolCall("add", {"n": n}),)) for n in self.numbers]
        turns = [m for call, told in zip(calls, self.results, strict=True) for m in (call, Message("tool", told))]
        gold = (*turns, Message("assistant", "Done."))
        return [
            Prompt("adding/train/0", "adding", "toy", "train", (Message("user", "add"),), tools=(ADD,), reference=5, gold=gold)
        ]

    def open_tools(self, prompt: Prompt) -> Any:
        opened.append(Counter())
        return opened[-1]

    async def grade(self, rollout: Rollout, tools: Any) -> Reward:
        return Reward(float(tools.total == rollout.prompt.reference and bool(rollout.answer)), why=f"total {tools.total}")


def test_gold_calls_are_played_on_live_tools() -> None:
    opened.clear()
    task = Adding()
    report = audit_task(task, task.prompts("train"))
    assert (report.false_fail_rate, report.other_results) == (0, ())
    assert {name for name, rate in report.false_pass_rates.items() if rate} == {TRAILING}
    assert len(opened) == report.num_verdicts + 1
    assert all(tools.closed for tools in opened)  # the first, uncounted verdict's too


def test_gold_tool_results_that_the_tools_do_not_give_are_told() -> None:
    task = Adding(numbers=(13, 5), results=("13 is not liked", "total 5"))
    report = audit_task(task, task.prompts("train"))
    assert report.false_fail_rate == 0
    assert report.other_results == (
        Finding("adding/train/0", "the gold has '13 is not liked' where the tools say 'Error: 13 is not liked'"),
    )


def test_the_same_text_may_ask_two_things_of_two_states_of_tools() -> None:
    task = Adding()
    (prompt,) = task.prompts("train")
    assert not audit_task(task, [prompt, replace(prompt, id="adding/train/1", reference=6)], num=1).duplicates


def test_a_tool_that_crashes_leaves_the_gold_unscored() -> None:
    task = Adding(numbers=(666, 5), results=("x", "y"))
    report = audit_task(task, task.prompts("train"))
    assert report.gold.unscored == (Finding("adding/train/0", 'tool "add" crashed: RuntimeError: the database is gone'),)


def test_a_prompt_that_needs_no_call_lets_words_pass_and_no_call() -> None:
    task = BFCL(path=str(DATA / "rows_bfcl"), categories=("irrelevance",), split="test")
    rates = audit_task(task, task.prompts("test")).false_pass_rates
    assert (rates["echo"], rates["needless calls"], rates["empty"]) == (1.0, 0.0, 0.0)


# --- what is fed --------------------------------------------------------------------------------------------------------------------


def test_every_attack_is_fed_and_has_its_row() -> None:
    gold = (
        Message("assistant", tool_calls=(ToolCall("add", {"n": 1}),)),
        Message("tool", "1"),
        Message("assistant", "Answer: B."),
    )
    prompt = Prompt("t/train/0", "t", "toy", "train", (Message("user", "?"),), tools=(ADD,), gold=gold)
    fed = list(attacks(prompt, replace(prompt, reference=1), multi_turn=True))
    assert {attack.name for attack in fed} == set(ATTACKS)
    assert len([a for a in fed if a.name == "noise" and len(a.messages[0].content) > 90_000]) == 4
    only = [a.messages for a in fed if a.name == "format only"]
    assert (Message("assistant", tool_calls=(ToolCall("add", {}),)), Message("assistant")) in only
    assert (Message("assistant", thinking=""),) in only


@pytest.mark.parametrize(
    "text, left",
    [("Answer: B.", {"Answer:", ": ."}), ("\\boxed{12}", {"\\{}"}), ('{"a": 1}', {'{"": }', '{"a":'}), ("Rome", set())],
)
def test_hollow(text: str, left: set[str]) -> None:
    assert hollow(text) == left


# --- the tasks of the house ---------------------------------------------------------------------------------------------------------


DRAWN = [kind for kind in TASKS if kind.startswith("nano.") and issubclass(load_task_class(kind, "test"), DrawnTask)]


@pytest.mark.parametrize(
    "kind",
    [pytest.param(kind, marks=needs_sandbox) if kind == "nano.program" else kind for kind in DRAWN],
)
def test_the_nano_tasks_pass_their_audit(kind: str) -> None:
    task = load_task_class(kind, "test")(num_train=60)
    assert isinstance(task, DrawnTask)
    report = audit_task(task, task.prompts("train"), 12)
    assert not report.fault
    assert report.false_fail_rate == 0
    assert report.unscored_rate == 0
    assert not report.without_gold
    assert not report.no_signal
    assert report.false_pass_rates["empty"] == 0
    assert report.false_pass_rates.get("thinking only", 0.0) == 0


# --- the short audit and the verb ---------------------------------------------------------------------------------------------------


def test_the_short_audit_refuses_by_name_prompt_and_reason() -> None:
    short_audit(Sums())
    wrong = Sums(lambda answer, reference: exact(answer, reference if reference != 5 else 6))
    with pytest.raises(GraderError, match=r'task "sums": 1 of 4 gold answers fail; the first, sums/train/2: .* right is 6'):
        short_audit(wrong)
    with pytest.raises(GraderError, match=r'task "sums": none of 2 gold answers gets a verdict'):
        short_audit(Sums(lambda a, r: Reward(None, why="down")), num=2)


def test_the_short_audit_skips_a_task_without_gold_with_a_line() -> None:
    said: list[str] = []
    short_audit(Sums(gold=False), say=said.append)
    assert said == ['task "sums": has no gold answers, so its grader was not audited']


@dataclass(frozen=True)
class Wrong(ChoiceTask):
    """Its grader expects another letter than its own gold answer."""

    def judge(self, rollout: Rollout, answer: str, tools: Any) -> Reward:
        return Reward(0.0, why="never right")


def test_an_rl_stage_refuses_a_task_whose_gold_answers_fail_before_it_starts(tmp_path: Path) -> None:
    make_tiny("qwen3", tmp_path / "model", max_position_embeddings=256)
    stage = {"kind": "rl", "steps": 1, "prompts_per_step": 2, "group_size": 2, "max_new_tokens": 4, "tasks": [{"task": "wrong"}]}
    table = {
        "name": "t", "model": {"source": str(tmp_path / "model"), "dtype": "float32"}, "stage": [stage],
        "tasks": {"wrong": {"kind": f"{__name__}:Wrong", "num_train": 30}},
    }  # fmt: skip
    with pytest.raises(GraderError, match=r'task "wrong": 20 of 20 gold answers fail; the first, wrong/train/0: .*never right'):
        run_recipe(parse_recipe(table), tmp_path / "run", say=lambda text: None)
    assert not list((tmp_path / "run").glob("stages/*"))


def test_the_verb(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    path = f"tasks.gsm8k.path={DATA / 'rows_gsm8k.jsonl'}"
    assert main(["audit", "gsm8k", "--set", path, "--set", "tasks.gsm8k.split=test", "--split", "test", "--num", "3"]) == 0
    assert "false-fail rate 0.0%" in capsys.readouterr().out
    recipe = tmp_path / "r.toml"
    recipe.write_text(
        f'name = "r"\n[model]\nsource = "nano"\n[tasks.bad]\nkind = "{__name__}:Wrong"\n[tasks.good]\nkind = "nano.math"\n'
    )
    argv = ["audit", "good", "bad", "--recipe", str(recipe), "--set", "tasks.bad.num_train=20", "--num", "4"]
    assert main(argv) == 1
    told = capsys.readouterr()
    assert "good: 4 of" in told.out
    assert 'error: task "bad": 4 of 4 gold answers fail; the first, bad/train/0:' in told.err
    assert main(["audit", "goood", "--recipe", str(recipe)]) == 1
    assert 'did you mean "good"?' in capsys.readouterr().err
    assert main(["audit", "good", "--recipe", str(recipe), "--num", "0"]) == 1


def test_what_is_printed_names_the_passes_and_the_failures() -> None:
    report = audit(lambda a, r: Reward(float(a == "" or a == str(r) != "5"), why=f"[bold]{a}"))
    out = io.StringIO()
    print_audit(report, Console(file=out, width=120))
    told = out.getvalue()
    assert "sums: 4 of 4 prompts" in told
    assert "gold answers that fail: 1\n  sums/train/2: reward 0, [bold]5" in told  # model text is never read as markup
    assert "empty (nothing, or white space): 4; the first, sums/train/0" in told
    assert "false-fail rate 25.0%" in told


def test_the_audit_needs_no_torch() -> None:
    code = "import sys; from cascade_rl.cli import main; main(['audit', 'nano.math', '--num', '2']); sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False, capture_output=True).returncode == 0
