"""The audit of a grader before any training is spent on it: gold answers must score 1, and nothing else should.

A gold answer below 1 is an error. An attack with full marks is something to look at, not an error by itself: an echo may follow an
instruction, a tool prompt may need no call. No model is asked, and no torch is needed.
"""

import asyncio
import dataclasses
import json
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import TYPE_CHECKING

from cascade_rl.errors import GraderError, ToolError
from cascade_rl.eval.attacks import ATTACKS, TRAILING, attacks
from cascade_rl.protocols import Task, Tools, gold_rollout
from cascade_rl.records import Group, Message, Prompt, Reward, Rollout, ToolCall
from cascade_rl.sample.background import run_async
from cascade_rl.sample.rollout import tool_timeout_s
from cascade_rl.sample.verdicts import grade_all
from cascade_rl.tasks.files import evenly

if TYPE_CHECKING:
    from rich.console import Console

GOLD = "gold"
_SAME = 1e-6  # rewards nearer than this carry no signal
_MAX_SEARCH = 50  # prompts looked through for one with another reference


@dataclass(frozen=True, slots=True)
class Finding:
    """Something about one prompt: `Finding("arith/train/3", "4 in the box; right is 5")`."""

    prompt_id: str
    why: str


@dataclass(frozen=True, slots=True)
class Tally:
    """How one kind of answer fared. Where an attack has several texts, the best one of a prompt counts for that prompt.

    num_prompts: prompts with a verdict. full: those with full marks (reward 1 or more), with the grader's reason. mean: of the
    rewards; None without a verdict. unscored: answers without a verdict. slowest_ms: the slowest verdict.
    """

    name: str
    num_prompts: int
    full: tuple[Finding, ...]
    mean: float | None
    unscored: tuple[Finding, ...]
    slowest_ms: float

    @property
    def pass_rate(self) -> float | None:
        """The share of the prompts with full marks; None without a verdict."""
        return len(self.full) / self.num_prompts if self.num_prompts else None


@dataclass(frozen=True, slots=True)
class AuditReport:
    """What an audit found.

    num_prompts, num_graded: prompts looked at, and those whose answers were graded. num_verdicts: answers graded.
    failures: gold answers that scored below 1. attacks: in the order of ATTACKS, only those that the prompts allow.
    without_gold: prompt ids. no_signal: prompts on which the gold and every attack get the same score (or, without gold, every
    attack full marks), and those on which nothing gets a verdict. empty_reference: prompt ids. duplicates: prompts that ask what an
    earlier one asks, with another reference. other_results: gold tool turns that the live tools answer otherwise.
    """

    task: str
    num_prompts: int
    num_graded: int
    num_verdicts: int
    gold: Tally
    failures: tuple[Finding, ...]
    attacks: tuple[Tally, ...]
    without_gold: tuple[Finding, ...]
    no_signal: tuple[Finding, ...]
    empty_reference: tuple[Finding, ...]
    duplicates: tuple[Finding, ...]
    other_results: tuple[Finding, ...]

    @property
    def false_fail_rate(self) -> float | None:
        """The share of gold answers with a verdict that score below 1; None without any."""
        return len(self.failures) / self.gold.num_prompts if self.gold.num_prompts else None

    @property
    def false_pass_rates(self) -> dict[str, float]:
        """Attack -> share of the prompts on which it gets full marks."""
        return {tally.name: tally.pass_rate for tally in self.attacks if tally.pass_rate is not None}

    @property
    def unscored_rate(self) -> float:
        """The share of all answers, gold and attacks, that got no verdict."""
        unscored = sum(len(tally.unscored) for tally in (self.gold, *self.attacks))
        return unscored / self.num_verdicts if self.num_verdicts else 0.0

    @property
    def slowest_ms(self) -> float:
        return max(tally.slowest_ms for tally in (self.gold, *self.attacks))

    @property
    def fault(self) -> str:
        """Why no stage should train on this task; "" when its gold answers score full marks (or it has none)."""
        return _fault(self.task, self.failures, self.gold)


@dataclass(frozen=True, slots=True)
class _Verdict:
    """One answer's reward; `name` is GOLD or an attack."""

    prompt: Prompt
    name: str
    reward: Reward
    ms: float
    rollout: Rollout

    def finding(self) -> Finding:
        return Finding(self.prompt.id, self.reward.why)


# --- asking the grader --------------------------------------------------------------------------------------------------------------


def audit_task(task: Task, prompts: Sequence[Prompt], num: int | None = None) -> AuditReport:
    """Feeds `task`'s grader the gold answer and every attack for `num` of `prompts`, evenly spread (None: all).

    Repeated prompts and empty references are looked for in all of `prompts`. Deterministic, apart from the times.
    """
    chosen = evenly(prompts, num)
    if chosen:
        _ask(task, chosen[0], GOLD, chosen[0].gold)  # not counted: what a grader starts on first use is not a verdict's time
    verdicts: list[_Verdict] = []
    for number, prompt in enumerate(chosen):
        if prompt.gold:
            verdicts.append(_ask(task, prompt, GOLD, prompt.gold))
        fed = attacks(prompt, _another(chosen, number), multi_turn=task.max_turns > 1)
        verdicts += [_ask(task, prompt, attack.name, attack.messages) for attack in fed]
    tallies = {name: _tally(name, [v for v in verdicts if v.name == name]) for name in (GOLD, *ATTACKS)}
    return AuditReport(
        task=task.name,
        num_prompts=len(prompts),
        num_graded=len(chosen),
        num_verdicts=len(verdicts),
        gold=tallies[GOLD],
        failures=_failures(verdicts),
        attacks=tuple(tallies[name] for name in ATTACKS if any(v.name == name for v in verdicts)),
        without_gold=tuple(Finding(p.id, "no gold answer") for p in chosen if not p.gold),
        no_signal=tuple(_no_signal(chosen, verdicts)),
        empty_reference=tuple(_empty_references(prompts)),
        duplicates=tuple(_duplicates(prompts)) if task.max_turns == 1 else (),  # behind tools, one text may ask two things
        other_results=tuple(_other_results(verdicts)),
    )


def short_audit(task: Task, num: int = 20, say: Callable[[str], None] = print) -> None:
    """Grades `num` gold answers of the training split. Raises GraderError, with task, prompt and reason, when one fails.

    A task without gold answers is skipped with a line said.
    """
    with_gold = [prompt for prompt in task.prompts("train") if prompt.gold]
    if not with_gold:
        say(f'task "{task.name}": has no gold answers, so its grader was not audited')
        return
    verdicts = [_ask(task, prompt, GOLD, prompt.gold) for prompt in evenly(with_gold, num)]
    if fault := _fault(task.name, _failures(verdicts), _tally(GOLD, verdicts)):
        raise GraderError(fault)


def _fault(task: str, failures: Sequence[Finding], gold: Tally) -> str:
    way_out = f"correct the row or the grader; `cascade audit {task}` shows all"
    if failures:
        first = failures[0]
        return (
            f'task "{task}": {len(failures)} of {gold.num_prompts} gold answers fail; the first, {first.prompt_id}: {first.why};'
            f" a gold answer must score 1; {way_out}"
        )
    if gold.unscored and not gold.num_prompts:
        first = gold.unscored[0]
        return (
            f'task "{task}": none of {len(gold.unscored)} gold answers gets a verdict; the first, {first.prompt_id}: {first.why};'
            f" nothing can be learnt from a grader that is silent; {way_out}"
        )
    return ""


def _ask(task: Task, prompt: Prompt, name: str, messages: Sequence[Message]) -> _Verdict:
    rollout = run_async(_played(task, prompt, messages))
    begin = time.perf_counter()
    (group,) = grade_all([Group(prompt, (rollout,))], {prompt.task: task})
    return _Verdict(prompt, name, group.rewards[0], 1000 * (time.perf_counter() - begin), rollout)


async def _played(task: Task, prompt: Prompt, messages: Sequence[Message]) -> Rollout:
    """The messages as a rollout. Calls are made on fresh tools, whose results take the place of the given ones."""
    tools = task.open_tools(prompt)
    if tools is None:
        return gold_rollout(prompt, messages)
    played: list[Message] = []
    failure = ""
    for message in messages:
        if message.role == "tool":
            continue
        played.append(message)
        for call in message.tool_calls:
            result, failure = await _result(tools, call) if not failure else ("", failure)
            played.append(Message("tool", result))
    return dataclasses.replace(gold_rollout(prompt, played), tools=tools, failure=failure)


async def _result(tools: Tools, call: ToolCall) -> tuple[str, str]:
    """(text, failure) of a call, classified as in a rollout."""
    timeout_s = tool_timeout_s(tools)
    try:
        return await asyncio.wait_for(tools.call(call), timeout_s), ""
    except ToolError as error:
        return f"Error: {error}", ""
    except TimeoutError:
        return "", f'tool "{call.name}" gave no answer in {timeout_s:g} s'
    except Exception as error:  # the boundary that classifies failures: a tool may be anyone's code
        return "", f'tool "{call.name}" crashed: {type(error).__name__}: {error}'


def _another(prompts: Sequence[Prompt], number: int) -> Prompt | None:
    """The next prompt that has a gold answer and another reference."""
    own = _text(prompts[number].reference)
    following = (prompts[(number + i) % len(prompts)] for i in range(1, min(len(prompts), _MAX_SEARCH + 1)))
    return next((prompt for prompt in following if prompt.gold and _text(prompt.reference) != own), None)


def _text(reference: object) -> str:
    return json.dumps(reference, sort_keys=True, default=repr)


# --- counting -----------------------------------------------------------------------------------------------------------------------


def _tally(name: str, verdicts: Iterable[_Verdict]) -> Tally:
    best: dict[str, tuple[float, Finding]] = {}
    unscored, slowest_ms = [], 0.0
    for verdict in verdicts:
        slowest_ms = max(slowest_ms, verdict.ms)
        value, place = verdict.reward.value, verdict.prompt.id
        if value is None:
            unscored.append(verdict.finding())
        elif place not in best or value > best[place][0]:
            best[place] = value, verdict.finding()
    return Tally(
        name=name,
        num_prompts=len(best),
        full=tuple(finding for value, finding in best.values() if _full(value)),
        mean=fmean(value for value, _ in best.values()) if best else None,
        unscored=tuple(unscored),
        slowest_ms=slowest_ms,
    )


def _full(value: float) -> bool:
    return value >= 1 - _SAME


def _failures(verdicts: Iterable[_Verdict]) -> tuple[Finding, ...]:
    return tuple(
        Finding(verdict.prompt.id, f"reward {value:g}, {verdict.reward.why or 'no reason given'}")
        for verdict in verdicts
        if verdict.name == GOLD and (value := verdict.reward.value) is not None and not _full(value)
    )


def _no_signal(prompts: Sequence[Prompt], verdicts: Sequence[_Verdict]) -> Iterable[Finding]:
    asked: dict[str, list[_Verdict]] = {}
    for verdict in verdicts:
        asked.setdefault(verdict.prompt.id, []).append(verdict)
    for prompt in prompts:
        values = [v.reward.value for v in asked[prompt.id] if v.reward.value is not None]
        if not values:
            yield Finding(prompt.id, f"no verdict on any answer: {asked[prompt.id][0].reward.why}")
        elif max(values) - min(values) < _SAME and (prompt.gold or _full(min(values))):
            who = "the gold answer and every attack" if prompt.gold else "every attack"
            yield Finding(prompt.id, f"{who} get {values[0]:g}")


def _empty_references(prompts: Sequence[Prompt]) -> Iterable[Finding]:
    """Empty texts and containers; also None, where other prompts have a reference."""
    some = any(prompt.reference is not None for prompt in prompts)
    for prompt in prompts:
        if prompt.reference in ("", [], {}) or (some and prompt.reference is None):
            yield Finding(prompt.id, f"its reference is {prompt.reference!r}")


def _duplicates(prompts: Sequence[Prompt]) -> Iterable[Finding]:
    first: dict[str, Prompt] = {}
    for prompt in prompts:
        before = first.setdefault(repr((prompt.messages, prompt.tools)), prompt)
        if _text(before.reference) != _text(prompt.reference):
            yield Finding(prompt.id, f"asks the same as {before.id}, with another reference")


def _other_results(verdicts: Iterable[_Verdict]) -> Iterable[Finding]:
    for verdict in verdicts:
        if verdict.name == GOLD and not verdict.rollout.failure:
            told = zip(verdict.prompt.gold, verdict.rollout.messages, strict=False)
            for written, live in told:
                if written != live:
                    yield Finding(verdict.prompt.id, f"the gold has {written.content!r} where the tools say {live.content!r}")
                    break


# --- showing ------------------------------------------------------------------------------------------------------------------------


def print_audit(report: AuditReport, console: "Console | None" = None, shown: int = 3) -> None:
    """The report as a table, and below it the first `shown` prompts of everything that needs a look, with the reason."""
    from rich.console import Console
    from rich.table import Table

    console = console or Console()
    title = f"{report.task}: {report.num_graded:,} of {report.num_prompts:,} prompts, {report.num_verdicts:,} answers graded"
    table = Table(title=title, title_justify="left")
    table.add_column("answer")
    for name in ("full marks", "mean reward", "unscored", "slowest"):
        table.add_column(name, justify="right")
    for tally in (report.gold, *report.attacks):
        rate, style = tally.pass_rate, ""
        if tally.name == GOLD:
            style = "bold red" if report.fault else "bold green"
        elif tally.full and tally.name != TRAILING:
            style = "yellow"
        table.add_row(
            tally.name,
            "–" if rate is None else f"{rate:.1%}",
            "–" if tally.mean is None else f"{tally.mean:.3f}",
            str(len(tally.unscored) or "–"),
            f"{tally.slowest_ms:.1f} ms",
            style=style,
        )
    console.print(table)
    for text, style, findings in _sections(report):
        if findings:
            _say(console, f"{text}: {len(findings):,}", style)
            for finding in findings[:shown]:
                _say(console, f"  {finding.prompt_id}: {finding.why[:200]}")
    passing = [tally for tally in report.attacks if tally.full and tally.name != TRAILING]
    if passing:
        _say(console, "attacks with full marks; right by chance for these prompts, or holes in the grader?", "yellow")
    for tally in passing:
        first = tally.full[0]
        _say(
            console,
            f"  {tally.name} ({ATTACKS[tally.name]}): {len(tally.full):,}; the first, {first.prompt_id}: {first.why[:100]}",
        )
    fails, unscored = report.false_fail_rate, report.unscored_rate
    silent = "no gold answer got a verdict" if report.gold.unscored else "no gold answers"
    told = silent if fails is None else f"false-fail rate {fails:.1%}"
    console.print(f"{told}; unscored {unscored:.1%}; slowest verdict {report.slowest_ms:.1f} ms", style="bold", highlight=False)


def _say(console: "Console", text: str, style: str = "") -> None:
    console.print(text, style=style, markup=False, highlight=False)


def _sections(report: AuditReport) -> Iterable[tuple[str, str, Sequence[Finding]]]:
    """(heading, style, findings), what is wrong first."""
    yield "gold answers that fail", "bold red", report.failures
    yield "gold answers without a verdict", "bold red", report.gold.unscored
    yield "attacks without a verdict", "yellow", [finding for tally in report.attacks for finding in tally.unscored]
    yield "prompts that carry no signal", "yellow", report.no_signal
    yield "prompts that repeat another with a different reference", "yellow", report.duplicates
    yield "empty references", "yellow", report.empty_reference
    yield "gold tool results that the live tools give otherwise", "yellow", report.other_results
    yield "prompts without a gold answer", "", report.without_gold
