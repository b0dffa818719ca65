"""From instruction ids and arguments to verdicts and rewards."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any, Literal, get_args

from cascade_rl.errors import GraderError, unknown
from cascade_rl.grade.instructions import (
    ifbench_format,
    ifbench_words,
    ifeval,
    reference_ifbench_format,
    reference_ifbench_words,
    reference_ifeval,
    training,
)
from cascade_rl.grade.instructions.describe import describe
from cascade_rl.grade.instructions.schema import convert_arguments
from cascade_rl.records import Reward

Mode = Literal["strict", "reference"]
Scoring = Literal["all", "fraction"]

STRICT: dict[str, Callable[..., bool]] = ifeval.CHECKS | ifbench_words.CHECKS | ifbench_format.CHECKS | training.CHECKS
REFERENCE: dict[str, Callable[..., bool]] = {
    **STRICT,
    **reference_ifeval.CHECKS,
    **reference_ifbench_words.CHECKS,
    **reference_ifbench_format.CHECKS,
}
MODES: dict[Mode, dict[str, Callable[..., bool]]] = {"strict": STRICT, "reference": REFERENCE}
# Arguments of which the first may not be the greater.
_ORDERED = (("min_words", "max_words"), ("nth_paragraph", "num_paragraphs"), ("n_start", "n_end"))


@dataclass(frozen=True, slots=True)
class Check:
    """One instruction with its arguments: `Check("keywords:existence", {"keywords": ("river", "bank")})`."""

    id: str
    kwargs: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Checks:
    """The instructions of one prompt, in order, valid as far as can be known before an answer; made by `compile_instructions`."""

    items: tuple[Check, ...]
    mode: Mode = "strict"


@dataclass(frozen=True, slots=True)
class Verdict:
    """Whether one instruction was followed: `Verdict("startend:quotation", False, "not followed: Wrap your whole ...")`."""

    id: str
    passed: bool
    why: str


def compile_instructions(ids: Sequence[str], kwargs_list: Sequence[Mapping[str, Any] | None], mode: Mode = "strict") -> Checks:
    """The checks of one row: `compile_instructions(["startend:quotation"], [{}])`.

    ids: kinds of instructions, one may occur twice. kwargs_list: the arguments of each, by position; None values (and None for
    all of them) mean "not given". mode: "strict" reads the instructions' own words; "reference" gives the verdicts of the
    published checkers, made deterministic.
    Raises GraderError for an unknown id, argument or mode, a value that does not fit, and lists of different lengths.
    """
    if mode not in MODES:
        raise GraderError(unknown("instructions: mode", str(mode), get_args(Mode)))
    if isinstance(ids, str) or not ids:
        raise GraderError(f"instructions: ids are {ids!r}; they must be a list with at least one id")
    if len(ids) != len(kwargs_list):
        raise GraderError(
            f"instructions: {len(ids)} ids but {len(kwargs_list)} argument sets ({', '.join(map(str, ids))});"
            " each id needs its own, {} where it takes none"
        )
    items = [_compile(name, kwargs or {}, position) for position, (name, kwargs) in enumerate(zip(ids, kwargs_list, strict=True))]
    return Checks(tuple(items), mode)


def _compile(name: str, kwargs: Mapping[str, Any], position: int) -> Check:
    if name not in STRICT:
        raise GraderError(unknown(f"instruction {position}: id", str(name), STRICT))
    where = f'instruction {position} "{name}"'
    arguments = convert_arguments(STRICT[name], kwargs, where)
    for low, high in _ORDERED:
        if arguments.get(low, 0) > arguments.get(high, arguments.get(low, 0)):
            raise GraderError(f"{where}: {low} {arguments[low]} is above {high} {arguments[high]}; no answer could follow it")
    return Check(name, arguments)


def check(checks: Checks, text: str) -> list[Verdict]:
    """One verdict for each instruction, by position. A blank answer follows no instruction."""
    if not text.strip():
        return [Verdict(item.id, False, "empty answer") for item in checks.items]
    functions = MODES[checks.mode]
    verdicts = []
    for item in checks.items:
        passed = bool(functions[item.id](text, **item.kwargs))
        verdicts.append(Verdict(item.id, passed, f"{'followed' if passed else 'not followed'}: {describe(item.id, item.kwargs)}"))
    return verdicts


def grade_instructions(checks: Checks, text: str, mode: Scoring = "all") -> Reward:
    """1.0 when every instruction is followed and else 0.0 ("all"), or the share that is ("fraction").

    `parts` holds each instruction's verdict under its position and id ("0 startend:quotation"): an id may occur twice.
    """
    if mode not in get_args(Scoring):
        raise GraderError(unknown("instructions: scoring", str(mode), get_args(Scoring)))
    verdicts = check(checks, text)
    share = sum(verdict.passed for verdict in verdicts) / len(verdicts)
    parts = {f"{position} {verdict.id}": float(verdict.passed) for position, verdict in enumerate(verdicts)}
    failures = "; ".join(verdict.why for verdict in verdicts if not verdict.passed)
    why = f"{sum(parts.values()):.0f} of {len(parts)} followed" + (f"; {failures}" if failures else "")
    return Reward(share if mode == "fraction" else float(share == 1), parts, why)


def check_loose(checks: Checks, text: str) -> list[bool]:
    """IFEval's loose verdicts: an instruction passes if one of eight readings of the answer follows it.

    The readings leave out the first line, the last line, both or none (chatty openings and closings), each with and without its
    asterisks (Markdown emphasis).
    """
    rows = text.split("\n")
    readings = [text, *("\n".join(part).strip() for part in (rows[1:], rows[:-1], rows[1:-1]))]
    readings += [reading.replace("*", "") for reading in readings]
    found = [check(checks, reading) for reading in readings]
    return [any(verdict.passed for verdict in column) for column in zip(*found, strict=True)]


@dataclass(frozen=True, slots=True)
class IFEvalScores:
    """The four scores of IFEval, shares from 0 to 1: of prompts with all instructions followed, and of single instructions.

    "Strict" and "loose" are IFEval's words for how the answer is read (`check_loose`), not our modes of checking.
    """

    prompt_strict: float
    instruction_strict: float
    prompt_loose: float
    instruction_loose: float


def ifeval_scores(answers: Sequence[tuple[Checks, str]]) -> IFEvalScores:
    """The scores of one answer for each prompt: pairs (the prompt's checks, the answer)."""
    if not answers:
        raise GraderError("IFEval scores: no answers; give at least one pair of checks and text")
    strict = [[verdict.passed for verdict in check(checks, text)] for checks, text in answers]
    loose = [check_loose(checks, text) for checks, text in answers]
    return IFEvalScores(
        prompt_strict=_share(map(all, strict)),
        instruction_strict=_share(chain.from_iterable(strict)),
        prompt_loose=_share(map(all, loose)),
        instruction_loose=_share(chain.from_iterable(loose)),
    )


def _share(passed: Iterable[bool]) -> float:
    values = list(passed)
    return sum(values) / len(values)
