r"""Where in a text the answer is: thinking removed, the last \boxed{...}, the last "Answer: ..." line.

Linear in the length of the text, whatever is in it.
"""

import re

_BRACES = re.compile(r"\\(?:boxed|fbox)\s*\{|\\[\\{}]|[{}]")
_HEDGE_GAP = re.compile(r"(?:[\s,;/$&]|\\\\|\\[,;()\[\]]|\b(?:or|and)\b)*", re.IGNORECASE)
_MARKS = re.compile(r"[*_`#]")


def after_thinking(text: str) -> str:
    """The text after the last think block; "" when the thinking never ended (then there is no answer)."""
    rest = text.rpartition("</think>")[2]
    return "" if "<think>" in rest else rest


def boxes(text: str) -> list[tuple[int, int, int]]:
    r"""(start, content start, content end) of each outermost \boxed{...}, braces counted (escaped ones not), in order.

    A box that is never closed is none.
    """
    found: list[tuple[int, int, int]] = []
    open_braces: list[tuple[int, int] | None] = []  # None for a plain brace
    for match in _BRACES.finditer(text):
        token = match.group()
        if token == "{":
            open_braces.append(None)
        elif token == "}":
            opened = open_braces.pop() if open_braces else None
            if opened is not None:
                while found and found[-1][0] > opened[0]:
                    found.pop()  # it stood inside this one
                found.append((*opened, match.start()))
        elif len(token) > 2:
            open_braces.append((match.start(), match.end()))
    return found


def last_box(text: str) -> str | None:
    r"""The content of the last \boxed{...}; None where there is none.

    Several boxes in one breath ("\boxed{A} or \boxed{B}") with different contents are no answer but a list of guesses: "" then.
    """
    found = boxes(text)
    if not found:
        return None
    content = text[found[-1][1] : found[-1][2]].strip()
    if len(found) > 1:
        before = found[-2]
        gap = text[before[2] + 1 : found[-1][0]]
        adjoins = len(gap) <= 40 and _HEDGE_GAP.fullmatch(gap) is not None
        if adjoins and text[before[1] : before[2]].strip() != content:
            return ""
    return content


def without_marks(text: str) -> str:
    """Without Markdown's emphasis, code and heading marks."""
    return _MARKS.sub("", text)
