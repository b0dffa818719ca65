r"""Multiple choice: which letter did the answer settle on?

In this order: the label in the last \boxed{...}; the last "Answer: X"; a letter that is the whole answer. Naming two letters at
once ("B or C", two boxes side by side) is no answer, and so is thinking that never ended.
"""

import re
from collections.abc import Sequence

from cascade_rl.errors import GraderError
from cascade_rl.grade.extract import after_thinking, last_box, without_marks
from cascade_rl.records import Reward

_WRAPPERS = re.compile(r"\\(?:text|textbf|mathrm|mathbf|mathsf|textrm|rm|bf)\b\s*|[{}$]|\\[()\[\],;!]")
_BARE = re.compile(r"(?:(?:option|choice)\s*)?\(?\s*([A-Za-z])\s*\)?\s*[.:]?", re.IGNORECASE)
_LABELLED = re.compile(r"(?:option|choice)?\s*\(?\s*([A-Za-z])\s*(?:\)|[.:](?=\s|$)|\)\s*:|-\s).*", re.IGNORECASE | re.DOTALL)
_ASKED = re.compile(
    r"\b(?:answer|(?:correct|right|best|final)\s+(?:option|choice|letter))"
    r"[ \t]*(?::|=|\b(?:is|was|would be|must be|should be|has to be|seems to be)\b)[ \t]*:?"
    r"\s{0,8}(?:(?:option|choice|letter)\b[ \t]*)?"
    r"\(?[ \t]*([A-Za-z])\b(?![’'])",
    re.IGNORECASE,
)
# What comes after the letter: another letter is a hedge; an ordinary word after "A" or "I" makes it an article or pronoun.
_SECOND = re.compile(
    r"\s*\)?\s*(?:,?\s*(?:or|and)\s+|[/,&|+]\s*(?:or\s+|and\s+)?)"
    r"(?:(?:maybe|possibly|perhaps|also|even|option|choice)\s+)*\(?([A-Z])\b(?![’'])"
)
_WORD = re.compile(r"[ \t]+(?!because\b|since\b|as\b|or\b|and\b|due\b|which\b|for\b|not\b|but\b)[A-Za-z]")


def grade_choice(text: str, gold: str, options: str | Sequence[str]) -> Reward:
    """1 if the text settles on the gold letter, else 0.

    options: the letters that there are ("ABCD"). Raises GraderError if the gold is not one of them.
    """
    letters = _letters(options)
    if gold not in letters:
        raise GraderError(f'choice: gold "{gold}" is not one of the options {", ".join(letters)}; expected one of these letters')
    chosen = extract_choice(text, options)
    parts = {"correct": float(chosen == gold), "answered": float(chosen is not None)}
    return Reward(parts["correct"], parts, f"chose {chosen or 'nothing'}, gold {gold}")


def extract_choice(text: str, options: str | Sequence[str]) -> str | None:
    """The letter, in upper case, that the text settles on; None where it settles on none of `options`."""
    letters = _letters(options)
    answer = after_thinking(text)
    box = last_box(answer)
    if box is not None:
        settled, letter = _in_box(box, letters)
        if settled:
            return letter if letter in letters else None
    plain = _WRAPPERS.sub("", without_marks(answer))
    bare = _BARE.fullmatch(plain.strip())
    letter = bare.group(1).upper() if bare else _last_answer(plain, letters)
    return letter if letter in letters else None


def _in_box(box: str, letters: Sequence[str]) -> tuple[bool, str | None]:
    """(whether the box speaks of options, the letter). A box that holds something else, say a formula, settles nothing."""
    if not box:
        return True, None  # an empty box, or several boxes side by side
    plain = _WRAPPERS.sub("", without_marks(box)).strip()
    if len(plain) > 2000:
        return False, None
    if bare := _BARE.fullmatch(plain):
        return True, bare.group(1).upper()
    first = re.match(r"\(?([A-Z])\b", plain)
    if first and _names_another(plain, first.end(), first.group(1), letters):
        return True, None
    labelled = _LABELLED.fullmatch(plain)
    return (True, labelled.group(1).upper()) if labelled else (False, None)


def _last_answer(plain: str, letters: Sequence[str]) -> str | None:
    """The letter of the last "Answer: X" in a text without Markdown."""
    letter: str | None = None
    for match in _ASKED.finditer(plain):
        found, end = match.group(1), match.end()
        if _names_another(plain, end, found.upper(), letters):
            letter = None
        elif (found not in "AI" and found.isupper()) or not _WORD.match(plain, end):
            letter = found.upper()
    return letter


def _names_another(plain: str, end: int, letter: str, letters: Sequence[str]) -> bool:
    """Whether right after the letter that ends at `end` another option is named: "B or C", "D/H"."""
    second = _SECOND.match(plain, end)
    return second is not None and second.group(1) != letter and second.group(1) in letters


def _letters(options: str | Sequence[str]) -> list[str]:
    letters = list(options)
    if not letters or len(set(letters)) != len(letters) or any(len(x) != 1 or not "A" <= x <= "Z" for x in letters):
        raise GraderError(f"choice: options {letters!r} must be different upper-case letters, such as ABCD")
    return letters
