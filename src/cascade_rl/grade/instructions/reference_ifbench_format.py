"""IFBench's instructions on format, repetition and its single tasks with the verdicts of its published checkers.

Only kinds whose verdict can differ from the strict ones are here; see `reference_ifbench_words` for what still differs.
"""

import csv
import io
import re
import string
from collections.abc import Callable
from itertools import pairwise

from cascade_rl.grade.instructions.ifbench_format import CITY_COLUMNS, PRODUCT_COLUMNS, STUDENT_COLUMNS
from cascade_rl.grade.instructions.reference_ifbench_words import EDGES, bare
from cascade_rl.grade.instructions.text import EMOJI, reference_sentences, reference_tokens, strip_accents
from cascade_rl.grade.instructions.wordlists import EUROPEAN_CAPITALS

# --- formats -------------------------------------------------------------------------------------------------------------------


def parentheses(text: str) -> bool:
    """The first bracket that closes rightly after five were open at once."""
    stack: list[str] = []
    deepest = 0
    for char in text:
        if char in "([{":
            stack.append({"(": ")", "[": "]", "{": "}"}[char])
            deepest = max(deepest, len(stack))
        elif char in ")]}":
            if stack and stack[-1] == char:
                stack.pop()
                if deepest >= 5:
                    return True
            else:
                stack, deepest = [], 0
    return False


def quotes(text: str) -> bool:
    """Straight quotes, apostrophes included: a like one closes, another one opens; three levels closed since the deepest."""
    stack: list[str] = []
    deepest = 0
    for char in re.findall("[\"']", text):
        if stack and stack[-1] == char:
            stack.pop()
            if deepest - len(stack) >= 3:
                return True
        else:
            stack.append(char)
            deepest = max(deepest, len(stack))
    return False


def one_of_options(text: str, options: str) -> bool:
    """Letters must stand as in the options; "or" parts the options also inside a word."""
    parting = "/" if "/" in options else "or" if "or" in options else ","
    choices = [option.strip() for option in options.split(parting)]
    if re.match(r"\W*[aA]\W*[bB]\W*[cC]", options):
        return text in choices
    return text.strip(EDGES).lower() in [choice.strip(EDGES).lower() for choice in choices]


def newline(text: str) -> bool:
    inner = bare(text).strip()
    return sum(line != "" for line in inner.split("\n")) == len(inner.split())


def emoji(text: str) -> bool:
    """Last or last but one character of the sentence, or the first of the next sentence."""
    found = [bare(sentence).strip() for sentence in reference_sentences(text)]
    one = re.compile(EMOJI)
    after = [*(bool(sentence) and bool(one.match(sentence[0])) for sentence in found[1:]), False]
    return all(
        bool(sentence) and (any(one.match(char) for char in sentence[-2:]) or follows)
        for sentence, follows in zip(found, after, strict=True)
    )


def line_indent(text: str) -> bool:
    """Of two blank lines in a row one stays, as a line without text."""
    rows: list[str] = []
    skipped = False
    for row in text.split("\n"):
        skipped = not row.strip() and not skipped
        if not skipped:
            rows.append(row)
    indents = [len(row) - len(row.lstrip(" ")) for row in rows]
    return all(a < b for a, b in pairwise(indents))


def quote_unquote(text: str) -> bool:
    """No two quotes side by side, and none at the end; a text without quotes passes."""
    joined = "".join(text.replace("'\"'", "").split())
    return '""' not in joined and not joined.rstrip(string.digits + string.punctuation.replace('"', "")).endswith('"')


def list_with_separator(text: str, sep: str) -> bool:
    return text.count(sep) >= 2


def thesis(text: str) -> bool:
    """One stretch of italics with text after it, anywhere."""
    opening = next((place for tag in ("<i>", "<em>") if (place := text.find(tag)) >= 0), -1)
    rest = text[opening:] if opening >= 0 else ""
    closing = next((place for tag in ("</i>", "</em>") if (place := rest.find(tag)) >= 0), -1)
    return closing >= 0 and bool(rest[3:closing].strip()) and bool(rest[closing + 4 :].strip())


def sub_bullets(text: str) -> bool:
    """A dash after each asterisk; a text without asterisks passes."""
    return all("-" in part for part in text.split("*")[1:])


def no_bullets_bullets(text: str) -> bool:
    """Sentences, then bullets to the end; one blank line ends the sentences."""
    stated = bullets = 0
    stating = True
    for line in (row.strip() for row in text.split("\n")):
        if line.startswith("*"):
            stating = False
            if stated < 2:
                return False
            bullets += 1
        elif stating:
            here = len(reference_sentences(line))
            stated, stating = stated + here, here > 0
        else:
            return False
    return bullets >= 2


def title_case(text: str) -> bool:
    """No word all in small letters; small words are no exception."""
    tokens = [token for token in reference_tokens(text) if token[0].isalpha()]
    return not any(token[0].islower() and (len(token) == 1 or token[1:].islower() or token[1:].isupper()) for token in tokens)


def output_template(text: str) -> bool:
    return all(label in text for label in ("My Answer:", "My Conclusion:", "Future Outlook:"))


# --- repetition and single tasks -----------------------------------------------------------------------------------------------


def repeat_change(text: str, prompt_to_repeat: str) -> bool:
    return text != prompt_to_repeat and text.split()[1:] == prompt_to_repeat.split()[1:]


def repeat_span(text: str, prompt_to_repeat: str, n_start: int, n_end: int) -> bool:
    """Words, from 0, the last not included; case aside."""
    return text.lower().split() == prompt_to_repeat.lower().split()[n_start:n_end]


def multiples(text: str) -> bool:
    return re.findall(r"\d+", text) == ["14", "21", "28", "35", "42", "49"]


def mcq_count_length(text: str) -> bool:
    """Parts after "Question N"; lines that are no options are let off once options have begun."""
    if not text.startswith("Question"):
        return False
    parts = [part.strip() for part in re.split(r"Question \d+[.|):;]?", text)]
    lengths = []
    for part in filter(None, parts):
        rows = [row.strip() for row in part.split("\n")]
        options = [bool(re.match(r"[A-Ea-e][.|)]\s*\w", row)) for row in rows]
        if sum(options) != 5:
            return False
        lengths.append(len(" ".join(rows[: options.index(True)]).strip()))
    return len(lengths) == 4 and all(a < b for a, b in pairwise(lengths))


def reverse_newline(text: str) -> bool:
    """From the line with Zimbabwe on, 52 lines or more in reverse order; nobody looks whether they are countries."""
    rows = [inner for row in text.split("\n") if (inner := row.strip(EDGES))]
    start = next((i for i, row in enumerate(rows) if "Zimbabwe" in row), len(rows))
    listed = [strip_accents(row).encode("ascii", "ignore").decode() for row in rows[start:]]
    return len(listed) >= 52 and listed == sorted(listed, reverse=True)


def word_reverse(text: str) -> bool:
    backwards = " ".join(bare(text.lower()).split()[::-1])
    return "bald eagle" in backwards and backwards in reference_sentences(backwards)


def character_reverse(text: str) -> bool:
    return "elgae dlab" in text.lower()


def sentence_alphabet(text: str) -> bool:
    """The first character, quotes not left out."""
    return [sentence[0].lower() for sentence in reference_sentences(text)] == list(string.ascii_lowercase)


def european_capitals_sort(text: str) -> bool:
    """The published list is without Kyiv."""
    ascii_only = strip_accents(text).encode("ascii", "ignore").decode()
    named = [name.strip() for name in ascii_only.split(",") if name.strip()]
    return named == [name for name in EUROPEAN_CAPITALS if name != "Kyiv"]


def _rows(text: str, delimiter: str = ",") -> list[list[str]]:
    try:
        return list(csv.reader(io.StringIO(text), delimiter=delimiter))
    except csv.Error:
        return []


def csv_city(text: str) -> bool:
    rows = _rows(text)
    return len(rows) == 8 and rows[0] == CITY_COLUMNS and all(len(row) == 5 for row in rows)


def _header(columns: list[str], parting: str) -> re.Pattern[str]:
    return re.compile(parting.join(f'(?:{name}|"{name}")' for name in columns))


def csv_special_character(text: str) -> bool:
    """Rows behind the first with a special character in quotes are not looked at."""
    if not _header(PRODUCT_COLUMNS, r",[ \t]*").fullmatch(text.split("\n")[0].strip()):
        return False
    rows = _rows(text.replace('"', '"""'))
    for row in rows[1:] if len(rows) == 15 else []:
        if len(row) != 5:
            return False
        if any(_quotes_something_special(field) for field in row):
            return True
    return False


def _quotes_something_special(field: str) -> bool:
    inside = field.split("\n", 1)[0]  # between the first character and the last quote of the line, whatever it is
    return inside[:1] == '"' and re.search(r"[^\w\s]", inside[1 : inside.rfind('"')]) is not None


def csv_quotes(text: str) -> bool:
    if not _header(STUDENT_COLUMNS, r"\t *").fullmatch(text.split("\n")[0].strip()):
        return False
    rows = _rows(text.replace('"', '"""'), "\t")
    fields = [field.strip() for row in rows for field in row]
    return len(rows) == 4 and all(len(row) == 5 for row in rows) and all(f[:1] == f[-1:] == '"' for f in fields)


def date_format_list(text: str) -> bool:
    """From Napoleon's birth to his death; one date is enough."""
    days = {month: 30 if month in (4, 6, 9, 11) else 29 if month == 2 else 31 for month in range(1, 13)} | {0: 99}
    for day in text.strip().split(","):
        if not (found := re.fullmatch(r"(\d{4})-(\d{2})-(\d{2})", day.strip())):
            return False
        year, month, number = map(int, found.groups())
        if not 1769 <= year <= 1821 or number > days.get(month, -1):
            return False
    return True


CHECKS: dict[str, Callable[..., bool]] = {
    "custom:character_reverse": character_reverse,
    "custom:csv_city": csv_city,
    "custom:csv_quotes": csv_quotes,
    "custom:csv_special_character": csv_special_character,
    "custom:date_format_list": date_format_list,
    "custom:european_capitals_sort": european_capitals_sort,
    "custom:mcq_count_length": mcq_count_length,
    "custom:multiples": multiples,
    "custom:reverse_newline": reverse_newline,
    "custom:sentence_alphabet": sentence_alphabet,
    "custom:word_reverse": word_reverse,
    "format:emoji": emoji,
    "format:line_indent": line_indent,
    "format:list": list_with_separator,
    "format:newline": newline,
    "format:no_bullets_bullets": no_bullets_bullets,
    "format:options": one_of_options,
    "format:output_template": output_template,
    "format:parentheses": parentheses,
    "format:quote_unquote": quote_unquote,
    "format:quotes": quotes,
    "format:sub-bullets": sub_bullets,
    "format:thesis": thesis,
    "format:title_case": title_case,
    "repeat:repeat_change": repeat_change,
    "repeat:repeat_span": repeat_span,
}
