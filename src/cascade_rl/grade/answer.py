r"""Math answers: is what the text settled on equal to the gold answer?

The answer is the content of the last \boxed{...}; without a box, the rest of the last "answer is ..." or "#### ..." line; without
that, the whole text if it is short. Most verdicts fall on the fast path (equal strings, exact fractions). Only the rest goes to
math-verify, in child processes that can be killed, since no time-out inside a process stops every formula. Model text is never
evaluated.
"""

import asyncio
import os
import re
import unicodedata
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path

from cascade_rl.errors import GraderError
from cascade_rl.grade.extract import after_thinking, last_box, without_marks
from cascade_rl.grade.pool import ChildFailed, Pool, shared_pool
from cascade_rl.records import Reward

MAX_ANSWER_CHARS = 1000
MAX_SYMBOLIC_CHARS = 500
MAX_DIGITS = 400
WALL_LIMIT_S = 15.0  # the child's own limit (2 s of CPU time) comes first, unless it sleeps or the machine is overloaded

_SCRIPT = Path(__file__).with_name("symbolic.py")
_LINE = re.compile(r"(?:\banswer[ \t]*(?:is|:|=)[ \t]*:?|^[ \t]*####)[ \t]*(\S[^\n]*)", re.IGNORECASE | re.MULTILINE)


def grade_answer(text: str, gold: str) -> Reward:
    r"""1 if the text's final answer equals the gold as mathematics, else 0; None (with the reason) if that could not be decided.

    gold: LaTeX or plain text, bare or in $...$ or \boxed{...}. Raises GraderError for an empty gold. Callable from any thread.
    """
    wanted = gold_answer(gold)
    found = final_answer(text)
    verdict = _fast(found, wanted)
    return verdict if verdict is not None else _symbolic(found or "", wanted)


async def grade_answer_async(text: str, gold: str) -> Reward:
    """`grade_answer` without blocking the event loop; a verdict of the fast path costs no thread."""
    wanted = gold_answer(gold)
    found = final_answer(text)
    verdict = _fast(found, wanted)
    return verdict if verdict is not None else await asyncio.to_thread(_symbolic, found or "", wanted)


def grade_answers(texts: Sequence[str], golds: Sequence[str]) -> list[Reward]:
    """`grade_answer` of each pair, in input order, as many at a time as there are child processes."""
    pairs = list(zip(texts, golds, strict=True))
    with ThreadPoolExecutor(_pool_size()) as threads:
        return list(threads.map(lambda pair: grade_answer(*pair), pairs))


def grade_number(text: str, gold: str) -> Reward:
    r"""Strict numeric mode, as for GSM8K: the final answer must be one number, exactly equal to the gold. No child process.

    Raises GraderError for a gold that is not a number.
    """
    wanted = read_number(normal(gold))
    if wanted is None:
        raise GraderError(f'numeric answer: gold "{gold[:80]}" is not a number; expected one such as 1,234.5 or 3/4')
    found = final_answer(text)
    number = read_number(normal(found)) if found and len(found) <= MAX_ANSWER_CHARS else None
    right = number is not None and number.value == wanted.value
    return _reward(right, found, gold, "exact number" if number else "not a number")


def final_answer(text: str) -> str | None:
    """What the text settles on, as written; None where it settles on nothing."""
    answer = after_thinking(text)
    box = last_box(answer)
    if box is not None:
        return box or None
    if "\\boxed" in answer:  # begun and never closed
        return None
    lines = list(_LINE.finditer(answer))
    if lines:
        return without_marks(lines[-1].group(1)).strip().rstrip(".") or None
    whole = answer.strip()
    return whole if whole and len(whole) <= 200 and "\n" not in whole else None


def gold_answer(gold: str) -> str:
    """The gold answer itself, out of its box if it is in one. Raises GraderError if there is none."""
    box = last_box(gold)
    wanted = gold if box is None else box
    if not normal(wanted):
        raise GraderError(f'math answer: gold "{gold[:80]}" is empty; expected a number, a formula or a word')
    return wanted


def _fast(found: str | None, wanted: str) -> Reward | None:
    """The verdict where no algebra is needed, else None."""
    if found is None:
        return _reward(False, None, wanted, "no answer")
    if found.strip() == wanted.strip():
        return _reward(True, found, wanted, "same text")
    if len(found) > MAX_ANSWER_CHARS:
        return _reward(False, found, wanted, f"too long to be an answer: {len(found)} characters")
    ours, theirs = normal(wanted), normal(found)
    if not theirs:
        return _reward(False, None, wanted, "no answer")
    if _plain(ours) == _plain(theirs):
        return _reward(True, found, wanted, "same text")
    gold_number, number = read_number(ours), read_number(theirs)
    if gold_number and number:
        return _reward(gold_number.matches(number), found, wanted, "compared as numbers")
    ours, theirs = _FORMULA_UNIT.sub("", ours), _FORMULA_UNIT.sub("", theirs)
    if _is_words(ours) or _is_words(theirs):
        return _reward(False, found, wanted, "compared as words")
    if _too_large(theirs):
        return _reward(False, found, wanted, "too large to be an answer")
    if _UNFINISHED.search(theirs) and not _UNFINISHED.search(ours):
        return _reward(False, found, wanted, "not worked out: an integral, sum, product or limit is left")
    based = _BASE.fullmatch(ours), _BASE.fullmatch(theirs)
    if based[0] or based[1]:  # math-verify drops the base, but 17_8 is not 17_9
        digits = [match.group(1) if match else text for match, text in zip(based, (ours, theirs), strict=True)]
        bases = {match.group(2) for match in based if match}
        return _reward(digits[0] == digits[1] and len(bases) == 1, found, wanted, "compared as digits in a base")
    return None


def _symbolic(found: str, wanted: str) -> Reward:
    """The verdict of the child processes. A wall-clock time-out or a dead child gets one more try, then the answer is unscored.

    A child that ran out of its own CPU time is not asked again: the same work would end the same way.
    """
    request = {"gold": _FORMULA_UNIT.sub("", normal(wanted)), "pred": _FORMULA_UNIT.sub("", normal(found))}
    cause = ""
    for _ in range(2):
        try:
            reply = _pool().ask(request)
        except ChildFailed as failure:
            cause = failure.cause
            if cause == "out of CPU time":
                break
            continue
        if reply["equal"] is None:
            return Reward(None, {"answered": 1.0}, f"math answer {found[:80]!r}: {reply['why']}")
        return _reward(reply["equal"], found, wanted, reply["why"])
    return Reward(None, {"answered": 1.0}, f"math answer {found[:80]!r}: comparison {cause}")


def _reward(right: bool, found: str | None, wanted: str, how: str) -> Reward:
    shown = "nothing" if found is None else repr(found[:80])
    return Reward(
        float(right), {"correct": float(right), "answered": float(found is not None)}, f"{shown}, gold {wanted[:80]!r}: {how}"
    )


def _pool_size() -> int:
    return max(1, min(os.cpu_count() or 1, 8))


def _pool() -> Pool:
    return shared_pool(_SCRIPT, _pool_size(), WALL_LIMIT_S)


# --- writing answers in one way -----------------------------------------------------------------------------------------

_SIGNS = {
    "−": "-", "‐": "-", "‑": "-", "–": "-", "—": "-", "﹣": "-",
    "×": r"\times ", "·": r"\cdot ", "⋅": r"\cdot ", "∙": r"\cdot ", "÷": "/", "∕": "/", "⁄": "/",
    "π": r"\pi ", "∞": r"\infty ", "≤": r"\leq ", "⩽": r"\leq ", "≥": r"\geq ", "⩾": r"\geq ", "≠": r"\neq ",
    "±": r"\pm ", "∈": r"\in ", "∪": r"\cup ", "∩": r"\cap ", "∅": r"\emptyset ", "°": "", "º": "",
    "θ": r"\theta ", "α": r"\alpha ", "β": r"\beta ", "λ": r"\lambda ", "φ": r"\phi ", "∛": r"\sqrt[3]",
}  # fmt: skip
_SUPERSCRIPTS = str.maketrans("⁰¹²³⁴⁵⁶⁷⁸⁹⁺⁻ⁿ", "0123456789+-n")
_SUPERSCRIPT_RUN = re.compile(r"[⁰¹²³⁴⁵⁶⁷⁸⁹⁺⁻ⁿ]+")
_ROOT = re.compile(r"√\s*(?:\(([^()]*)\)|([0-9]+|[A-Za-z]))")
_REWRITES = [
    (re.compile(r"\\(?:displaystyle|textstyle|limits|left|right|bigl?|bigr?|Bigl?|Bigr?|quad|qquad)(?![A-Za-z])"), ""),
    (re.compile(r"\\[(\[\])]|(?<!\\)\$|\\\$"), ""),
    (re.compile(r"\\(?:[,;:!]| )|~"), " "),
    (re.compile(r"\{,\}"), ","),
    (re.compile(r"\\[dtc]frac(?![A-Za-z])"), r"\\frac"),
    (re.compile(r"\\(?:mathrm|textrm|rm|operatorname|mathit)\s*\{\s*([a-zA-Z])\s*\}"), r"\1"),
    (re.compile(r"\\(?:textbf|textit|textrm|mathrm|mathbf|mathsf|mathit|mbox|operatorname|boldsymbol)(?=\s*\{)"), r"\\text"),
    (re.compile(r"\\frac\s*(\d)\s*(\d)"), r"\\frac{\1}{\2}"),
    (re.compile(r"\\frac\s*(\d)\s*\{"), r"\\frac{\1}{"),
    (re.compile(r"\\sqrt\s*\(([^()]*)\)"), r"\\sqrt{\1}"),
    (re.compile(r"\\sqrt\s*(\d+|[A-Za-z])"), r"\\sqrt{\1}"),
    (re.compile(r"\^\s*(?:\{\s*\\circ\s*\}|\\circ(?![A-Za-z]))|\\degree(?![A-Za-z])"), ""),
    (re.compile(r"\\le(?![A-Za-z])"), r"\\leq"),
    (re.compile(r"\\ge(?![A-Za-z])"), r"\\geq"),
    (re.compile(r"\s+"), " "),
]
_WHOLE_TEXT = re.compile(r"\\text\s*\{([^{}]*)\}")


def normal(answer: str) -> str:
    """An answer written in one way: compatible Unicode forms, LaTeX for signs, no delimiters, sizes or layout."""
    parts: list[str] = []
    for sign in _SUPERSCRIPT_RUN.sub(lambda run: f"^{{{run.group().translate(_SUPERSCRIPTS)}}}", answer):
        broken = unicodedata.decomposition(sign) if ord(sign) > 127 else ""
        if broken.startswith("<fraction>") and "2044" in broken:  # NFKC would make 3½ read 31/2
            above, _, below = unicodedata.normalize("NFKC", sign).partition("⁄")
            parts.append(rf"\frac{{{above}}}{{{below}}}" if above and below else sign)
        else:
            parts.append(sign)
    text = _ROOT.sub(lambda root: rf"\sqrt{{{root.group(1) or root.group(2)}}}", unicodedata.normalize("NFKC", "".join(parts)))
    text = "".join(_SIGNS.get(sign, sign) for sign in text)
    for pattern, replacement in _REWRITES:
        text = pattern.sub(replacement, text)
    text = text.strip().rstrip(".,;").strip() if not text.endswith("...") else text.strip()
    whole = _WHOLE_TEXT.fullmatch(text)
    return whole.group(1).strip() if whole else text


def _plain(normalised: str) -> str:
    """For comparing as text: without white space, text wrappers and case."""
    return re.sub(r"\\text\s*\{([^{}]*)\}|\s", lambda match: match.group(1) or "", normalised).replace(" ", "").casefold()


# --- numbers --------------------------------------------------------------------------------------------------------------

_UNIT = re.compile(
    r"(?<=[\d.}%])\s*\\text\s*\{\s*(?!(?:or|and)\b)[^{}]*\}(?:\^\{?[23]\}?)?$|(?<=[\d%])\s+(?!(?:or|and)\b)[A-Za-z]+\.?$"
)
_FORMULA_UNIT = re.compile(
    r"(?<=[\w}) ])\s*\\text\s*\{\s*(?:(?:square|cubic)\s+)?(?!(?:or|and)\b)[A-Za-z.]+\s*\}(?:\^\{?[23]\}?)?$"
)
_PLAIN = re.compile(r"([+-]?)\s?(\d{1,3}(?:,\d{3})+|\d+)?(\.\d+)?")
_RATIO = re.compile(r"([+-]?)\s?(\d+)\s?/\s?(\d+)")
_FRAC = re.compile(r"([+-]?)\s?(\d+)?\s?\\frac\s?\{\s?([+-]?\d+)\s?\}\s?\{\s?([+-]?\d+)\s?\}")
_POWER = re.compile(r"([+-]?\d+(?:\.\d+)?)\s?(?:\\times|\\cdot|\*)\s?10\s?\^\s?(?:\{\s?([+-]?\d{1,3})\s?\}|(\d))")
_ASSIGNED = re.compile(r"([A-Za-z](?:_\{?[A-Za-z0-9]\}?)?) ?= ?(.+)", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Number:
    """A number as it was written: `Number(Fraction(1, 3))`, or 0.333333 with `places=6`, `digits=6`."""

    value: Fraction
    places: int = 0
    digits: int = 0
    percent: bool = False
    variable: str = ""

    def matches(self, other: "Number") -> bool:
        """Equal values (a percentage as its value or its number), or one of them a decimal of six or more digits that rounds the
        other, which is no decimal; never numbers assigned to different variables."""
        if self.variable and other.variable and self.variable != other.variable:
            return False
        if self.value == other.value and self.percent == other.percent:
            return True
        if self.percent != other.percent:
            percent, bare = (self, other) if self.percent else (other, self)
            return bare.value in (percent.value, percent.value / 100)
        if bool(self.places) == bool(other.places):
            return False
        literal = self if self.places else other
        return literal.digits >= 6 and abs(self.value - other.value) < Fraction(1, 10**literal.places)


def read_number(normalised: str) -> Number | None:
    """The number that an answer in `normal` form is, with or without a unit after it; None where it is not one plain number."""
    assigned = _ASSIGNED.fullmatch(normalised)
    variable, body = (assigned.group(1), assigned.group(2)) if assigned else ("", normalised)
    body = body.strip()
    if len(body) > MAX_DIGITS:
        return None
    body = _UNIT.sub("", body).strip()
    percent = body.endswith("%")
    body = body.removesuffix("%").removesuffix("\\").strip() if percent else body
    body = body[1:-1].strip() if body.startswith("{") and body.endswith("}") and "{" not in body[1:] else body
    number = _value(body)
    return number and Number(number.value, number.places, number.digits, percent, variable)


def _value(body: str) -> Number | None:
    if match := _PLAIN.fullmatch(body):
        sign, whole, decimals = match.group(1), (match.group(2) or "").replace(",", ""), (match.group(3) or "").lstrip(".")
        if not whole and not decimals:
            return None
        value = Fraction(int(whole + decimals), 10 ** len(decimals))
        return Number(-value if sign == "-" else value, len(decimals), len((whole + decimals).lstrip("0")))
    if match := _RATIO.fullmatch(body):
        sign, above, below = match.group(1), int(match.group(2)), int(match.group(3))
        return Number(Fraction(-above if sign == "-" else above, below)) if below else None
    if match := _FRAC.fullmatch(body):
        sign, whole, above, below = match.group(1), match.group(2), int(match.group(3)), int(match.group(4))
        if below == 0 or (whole and (above < 0 or below < 0)):
            return None
        value = int(whole or 0) + Fraction(above, below)
        return Number(-value if sign == "-" else value)
    if match := _POWER.fullmatch(body):
        return Number(Fraction(match.group(1)) * Fraction(10) ** int(match.group(2) or match.group(3)))
    return None


# --- what algebra must not see ----------------------------------------------------------------------------------------------

_DIGIT_RUN = re.compile(rf"\d{{{MAX_DIGITS},}}")
_TOWER = re.compile(r"\^\s?\{?\s?\d{7,}|(?:\^[\s{(]*[\w.]+[\s})]*){4,}|(?:![\s})]*){2,}|\d{6,}\s?!")
_NUMBER_TOWER = re.compile(r"\d\s?\^[\s{(]*(\d+)\s?\^[\s{(]*(\d+)[\s})]*(\^)?")
_UNFINISHED = re.compile(r"\\(?:i*int|oint|sum|prod|lim)(?![A-Za-z])")
_BASE = re.compile(r"([0-9][0-9A-Fa-f]*)\s?_\s?\{?\s?(\d+)\s?\}?")
_WORD_RUN = re.compile(r"(?<![\\A-Za-z])[A-Za-z]{4,}")
_FUNCTIONS = re.compile(
    r"\\?(?:arc)?(?:sin|cos|tan|cot|sec|csc)h?|\\?(?:log|ln|exp|sqrt|lim|max|min|gcd|lcm|mod|frac|infty|text|begin|end)"
)
_ENVIRONMENT = re.compile(r"\\(?:begin|end)\s*\{[^{}]*\}|\\text\s*\{\s*(?:or|and)\s*\}")


def _is_words(normalised: str) -> bool:
    """Whether it is prose: as mathematics its letters would be factors, and every anagram of a word equal to it."""
    left = _ENVIRONMENT.sub(" ", normalised)
    return any(not _FUNCTIONS.fullmatch(run.group()) for run in _WORD_RUN.finditer(left))


def _too_large(normalised: str) -> bool:
    """Whether reading or evaluating it could take for ever: too long, too many digits, powers of powers."""
    if len(normalised) > MAX_SYMBOLIC_CHARS or _DIGIT_RUN.search(normalised) or _TOWER.search(normalised):
        return True
    for tower in _NUMBER_TOWER.finditer(normalised):
        base, exponent = tower.group(1), tower.group(2)
        if tower.group(3) or len(exponent) > 2 or int(base) ** int(exponent) > 100_000:
            return True
    return False
