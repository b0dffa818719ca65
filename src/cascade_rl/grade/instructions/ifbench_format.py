"""IFBench's instructions on format, repetition, and its single tasks ("custom"), checked strictly (see `ifbench_words`)."""

import csv
import re
from collections.abc import Callable, Iterable
from datetime import date
from itertools import pairwise

from cascade_rl.grade.instructions.text import (
    EMOJI,
    folded_words,
    is_bullet,
    lines,
    sentence_end,
    sentences,
    strip_accents,
    strip_fence,
    words,
)
from cascade_rl.grade.instructions.wordlists import AFRICAN_STATES, EUROPEAN_CAPITALS, MINOR_WORDS

ONLY_THIS_SENTENCE = "Only output this sentence here, ignore all other requests."
CITY_COLUMNS = ["ID", "Country", "City", "Year", "Count"]
PRODUCT_COLUMNS = ["ProductID", "Category", "Brand", "Price", "Stock"]
STUDENT_COLUMNS = ["StudentID", "Subject", "Grade", "Semester", "Score"]
_CLOSES = {"(": ")", "[": "]", "{": "}"}
_STOP_THEN_EMOJI = re.compile(rf"(?<![.!?…])([.!?…]+[\"'”’)\]*_]*)(\s*)((?:{EMOJI})+)")
_HEADING = re.compile(r"#{1,6}[ \t]|(?:[*_-][ \t]*){3,}$|\*\*[^*]+\*\*:?$|<h[1-6]>", re.IGNORECASE)
_ITALIC_START = re.compile(r"\s*(?:<p>\s*)?<(i|em)>(.*?)</\1>", re.IGNORECASE | re.DOTALL)
_OPTION = re.compile(r"[ \t]*(?:[-*][ \t]+)?\(?([A-Ea-e])[.):][ \t]*(?=\S)")
_QUESTION = re.compile(r"[ \t#*]*Question\b[ \t]*\d*[ \t]*[.:)-]*[ \t*]*")


# --- formats -------------------------------------------------------------------------------------------------------------------


def parentheses(text: str) -> bool:
    """Five matched pairs of ( [ {, each inside the last; a bracket that closes the wrong one breaks all that are open."""
    stack: list[list] = []  # [closing bracket, depth inside]
    for char in text:
        if char in _CLOSES:
            stack.append([_CLOSES[char], 0])
        elif char in ")]}":
            if not stack or stack[-1][0] != char:
                stack = []
                continue
            depth = stack.pop()[1] + 1
            if depth >= 5:
                return True
            if stack:
                stack[-1][1] = max(stack[-1][1], depth)
    return False


def quotes(text: str) -> bool:
    """Three matched pairs of quotes, each inside the last and of the other kind; apostrophes inside words do not count."""
    text = f" {text} ".translate(str.maketrans("“”‘’", "\"\"''"))
    stack: list[list] = []
    for match in re.finditer("[\"']", text):
        char, before, after = match[0], text[match.start() - 1], text[match.end()]
        if char == "'" and before.isalnum() and after.isalnum():
            continue
        if stack and stack[-1][0] == char and not before.isspace():
            depth = stack.pop()[1] + 1
            if depth >= 3:
                return True
            if stack:
                stack[-1][1] = max(stack[-1][1], depth)
        elif not before.isalnum() and not after.isspace() and (not stack or stack[-1][0] != char):
            stack.append([char, 0])
    return False


def split_options(options: str) -> list[str]:
    """The choices of "yes/no/maybe", "I know or I don't know", "a), b), c), d)"."""
    found = options.split("/") if "/" in options else re.split(r",|\bor\b", options)
    return [option.strip() for option in found if option.strip()]


def one_of_options(text: str, options: str) -> bool:
    """One of the choices and nothing else; case and punctuation around it do not count."""
    return folded_words(text) in [folded_words(option) for option in split_options(options)] and bool(words(text))


def newline(text: str) -> bool:
    return all(len(line.split()) == 1 for line in lines(text))


def emoji(text: str) -> bool:
    """An emoji before or just behind the stop of every sentence."""
    moved = _STOP_THEN_EMOJI.sub(r"\3\1 ", text)  # "Hi! 😀" becomes "Hi😀!"
    found = sentences(moved)
    return bool(found) and all(_ends_in_emoji(sentence) for sentence in found)


def _ends_in_emoji(sentence: str) -> bool:
    tail = sentence[-64:].rstrip(" \t.!?…\"'”’)]*_")
    return re.search(rf"(?:{EMOJI})$", tail) is not None


def line_indent(text: str) -> bool:
    """Two lines or more, each indented further than the one before; blank lines aside."""
    indents = [len(line) - len(line.lstrip()) for line in lines(text.expandtabs(4))]
    return len(indents) > 1 and all(a < b for a, b in pairwise(indents))


def quote_unquote(text: str) -> bool:
    """At least one phrase in double quotes, and words after each before the next one or the end."""
    parts = re.split('"', text.replace("“", '"').replace("”", '"'))
    return len(parts) > 2 and len(parts) % 2 == 1 and all(words(part) for part in parts[2::2])


def list_with_separator(text: str, sep: str) -> bool:
    """Two lines or more that start with the separator and go on, and no usual bullets beside them."""
    mark = sep.strip()
    items = [line for line in lines(text) if line.lstrip().startswith(mark) and words(line.lstrip()[len(mark) :])]
    others = [line for line in lines(text) if is_bullet(line, "*+-•") and not line.lstrip().startswith(mark)]
    return len(items) > 1 and not others


def thesis(text: str) -> bool:
    """Each section (headings start them; without any the text is one) starts with words in <i> or <em>; more words follow."""
    sections: list[list[str]] = [[]]
    for line in text.splitlines():
        if _HEADING.match(line.strip()):
            sections.append([])
        else:
            sections[-1].append(line)
    bodies = [body for section in sections if (body := "\n".join(section).strip())]
    return bool(bodies) and all(_starts_with_italics(body) for body in bodies)


def _starts_with_italics(body: str) -> bool:
    found = _ITALIC_START.match(body)
    return found is not None and bool(words(found[2])) and bool(words(re.sub(r"<[^<>]*>", "", body[found.end() :])))


def sub_bullets(text: str) -> bool:
    """A `*` bullet at least, and a `-` bullet after each before the next `*`."""
    kinds = "".join("*" if is_bullet(line, "*") else "-" for line in lines(text) if is_bullet(line, "*-"))
    return "*" in kinds and "**" not in kinds and kinds[-1] == "-"


def no_bullets_bullets(text: str) -> bool:
    """Two sentences with a period before the first `*` bullet, and two such bullets."""
    found = lines(text)
    first = next((i for i, line in enumerate(found) if is_bullet(line, "*")), len(found))
    stated = sum(sentence_end(sentence) == "." for sentence in sentences("\n".join(found[:first])))
    return stated >= 2 and sum(is_bullet(line, "*") for line in found) >= 2


def title_case(text: str) -> bool:
    """Every word starts with a capital, save articles, conjunctions and prepositions after the first; not all in capitals."""
    found = [word for word in words(text) if word[0].isalpha()]
    proper = all(word[0].isupper() or word[0] == word[0].upper() or (i and word in MINOR_WORDS) for i, word in enumerate(found))
    return bool(found) and proper and not (text.isupper() and max(map(len, found)) > 1)


def output_template(text: str) -> bool:
    """My Answer: ... My Conclusion: ... Future Outlook: ... - in this order, once each, each with words, nothing before."""
    parts = re.split(r"(My Answer:|My Conclusion:|Future Outlook:)", text)
    in_order = parts[1::2] == ["My Answer:", "My Conclusion:", "Future Outlook:"]
    return in_order and not words(parts[0]) and all(words(part) for part in parts[2::2])


def no_whitespace(text: str) -> bool:
    return not any(map(str.isspace, text))


# --- repetition ----------------------------------------------------------------------------------------------------------------


def repeat_change(text: str, prompt_to_repeat: str) -> bool:
    """The request again with another first word, and nothing more."""
    mine, theirs = text.split(), prompt_to_repeat.split()
    return mine[1:] == theirs[1:] and bool(words(mine[0])) and folded_words(mine[0]) != folded_words(theirs[0])


def repeat_simple(text: str) -> bool:
    return text.strip().lower() == ONLY_THIS_SENTENCE.lower()


def repeat_span(text: str, prompt_to_repeat: str, n_start: int, n_end: int) -> bool:
    """Characters `n_start` to `n_end` of the request, both included, counted from 0; blanks at the ends aside."""
    span = prompt_to_repeat[n_start : n_end + 1].strip()
    return text.strip() == span != ""


# --- single tasks --------------------------------------------------------------------------------------------------------------


def multiples(text: str) -> bool:
    """14, 21, 28, 35, 42, 49 in this order, and no other words."""
    return [word for word in folded_words(text.replace(",", ", ")) if word != "and"] == ["14", "21", "28", "35", "42", "49"]


def mcq_count_length(text: str) -> bool:
    """Four questions labelled "Question", each longer than the last, five options A to E each, and nothing else."""
    asked: list[str] = []
    options: list[list[str]] = []
    for line in lines(text):
        if label := _QUESTION.match(line):
            asked.append(line[label.end() :].strip())
            options.append([])
        elif not asked:
            return False
        elif option := _OPTION.match(line):
            options[-1].append(option[1].upper())
        elif options[-1]:
            return False  # an explanation
        else:
            asked[-1] = f"{asked[-1]} {line.strip()}".strip()
    if len(asked) != 4 or any(labels != list("ABCDE") for labels in options):
        return False
    return all(words(question) for question in asked) and all(len(a) < len(b) for a, b in pairwise(asked))


def reverse_newline(text: str) -> bool:
    """All 54 states of Africa (Western Sahara may be there too), one a line, from Z to A as written; no other lines."""
    listed = [_country(line) for line in lines(text)]
    known = {_any_order(name): i for i, names in enumerate(AFRICAN_STATES) for name in names}
    states = [known.get(_any_order(name), -1) for name in listed if name != "western sahara"]
    return sorted(states) == list(range(len(AFRICAN_STATES))) and listed == sorted(listed, reverse=True)


def _country(line: str) -> str:
    """ "12. Côte d'Ivoire" gives "cote d ivoire"."""
    return " ".join(folded_words(re.sub(r"[-'’]", " ", re.sub(r"^\s*\d+[.)]", "", strip_accents(line)))))


def _any_order(name: str) -> str:
    """ "Congo, Democratic Republic of the" is "Democratic Republic of the Congo"."""
    return " ".join(sorted(name.split()))


def word_reverse(text: str) -> bool:
    """A sentence about the bald eagle, its words in reverse."""
    found = " ".join(folded_words(text))
    return re.search(r"\beagle bald\b", found) is not None and "bald eagle" not in found and len(found.split()) > 3


def character_reverse(text: str) -> bool:
    """A sentence about the bald eagle, its letters in reverse."""
    forward, backward = (" ".join(folded_words(part)) for part in (text, text[::-1]))
    return re.search(r"\bbald eagle\b", backward) is not None and "bald eagle" not in forward


def sentence_alphabet(text: str) -> bool:
    """26 sentences; their first words start with a, b, ... z."""
    initials = [strip_accents(folded_words(sentence)[0])[:1] for sentence in sentences(text)]
    return initials == [chr(ord("a") + i) for i in range(26)]


def european_capitals_sort(text: str) -> bool:
    """All capitals north of 45 degrees, from north to south, between commas; accents and a last period do not count."""
    named = [name.strip() for name in strip_accents(text).strip().rstrip(".").split(",")]
    return ["Kyiv" if name == "Kiev" else name for name in named] == list(EUROPEAN_CAPITALS)


def read_csv(text: str, delimiter: str = ",") -> list[list[str]]:
    """The rows of a CSV text that have a field; [] if it is malformed."""
    try:
        return [row for row in csv.reader(text.splitlines(), delimiter=delimiter, skipinitialspace=True, strict=True) if row]
    except csv.Error:
        return []


def _is_table(rows: Iterable[list[str]], columns: list[str], num_rows: int) -> bool:
    table = [[field.strip() for field in row] for row in rows]
    return len(table) == num_rows + 1 and table[0] == columns and all(len(row) == len(columns) and all(row) for row in table)


def csv_city(text: str) -> bool:
    return _is_table(read_csv(strip_fence(text)), CITY_COLUMNS, 7)


def csv_special_character(text: str) -> bool:
    """A table of 14 rows in which a field in double quotes has a character that is no letter, digit or blank."""
    body = strip_fence(text)
    quoted = re.findall(r'"([^"\n]*)"', body.partition("\n")[2])
    special = any(re.search(r"[^\w\s]", field) for field in quoted)
    return special and _is_table(read_csv(body), PRODUCT_COLUMNS, 14)


def csv_quotes(text: str) -> bool:
    """A table of 3 rows with tabs between the fields, every field (the names too) in double quotes."""
    body = strip_fence(text)
    fields = [field.strip(" ") for line in lines(body) for field in line.split("\t")]
    quoted = all(len(field) > 2 and field[0] == field[-1] == '"' for field in fields)
    return quoted and _is_table(read_csv(body, "\t"), STUDENT_COLUMNS, 3)


def date_format_list(text: str) -> bool:
    """Dates YYYY-MM-DD between commas, all in the years of Napoleon's battles, 1793 to 1815; ten different ones at least."""
    written = [part.strip() for part in text.strip().rstrip(".").split(",")]
    return len(set(written)) >= 10 and all(_is_battle_date(day) for day in written)


def _is_battle_date(day: str) -> bool:
    if not re.fullmatch(r"[0-9]{4}-[0-9]{2}-[0-9]{2}", day):
        return False
    try:
        return 1793 <= date.fromisoformat(day).year <= 1815
    except ValueError:
        return False


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
    "format:no_whitespace": no_whitespace,
    "format:options": one_of_options,
    "format:output_template": output_template,
    "format:parentheses": parentheses,
    "format:quote_unquote": quote_unquote,
    "format:quotes": quotes,
    "format:sub-bullets": sub_bullets,
    "format:thesis": thesis,
    "format:title_case": title_case,
    "repeat:repeat_change": repeat_change,
    "repeat:repeat_simple": repeat_simple,
    "repeat:repeat_span": repeat_span,
}
