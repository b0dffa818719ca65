"""IFEval's 25 instruction kinds, checked strictly: what the instruction's text says, read as a careful person would.

Each check is a plain function `(text, **kwargs) -> bool`; its signature is the schema of the instruction's arguments. The text is
never blank (the caller fails blank answers). Instruction texts: google-research, instruction_following_eval (arXiv:2311.07911).
"""

import json
import re
from collections.abc import Callable
from typing import Any

from cascade_rl.grade.instructions.schema import LanguageCode, Letter, Position, Relation, compare
from cascade_rl.grade.instructions.text import (
    count_phrase,
    folded_words,
    has_phrase,
    is_bullet,
    is_language,
    lines,
    paragraphs,
    sentences,
    strip_fence,
    undecorated,
    words,
)

CONSTRAINED_RESPONSES = ("My answer is yes.", "My answer is no.", "My answer is maybe.")


# --- keywords ------------------------------------------------------------------------------------------------------------------


def existence(text: str, keywords: tuple[str, ...]) -> bool:
    """Every keyword occurs as a word of its own ("art" is not in "start")."""
    return all(has_phrase(keyword, text) for keyword in keywords)


def frequency(text: str, keyword: str, frequency: int, relation: Relation) -> bool:
    return compare(count_phrase(keyword, text), relation, frequency)


def forbidden_words(text: str, forbidden_words: tuple[str, ...]) -> bool:
    return not any(has_phrase(word, text) for word in forbidden_words)


def letter_frequency(text: str, letter: Letter, let_frequency: int, let_relation: Relation) -> bool:
    """Any case; accented letters are other letters. Rows of IFEval also ask for '#' and '!': any one character will do."""
    return compare(text.lower().count(letter.lower()), let_relation, let_frequency)


# --- language and case ---------------------------------------------------------------------------------------------------------


def response_language(text: str, language: LanguageCode) -> bool:
    return is_language(text, language)


def english_capital(text: str) -> bool:
    return text.isupper() and is_language(text, "en")


def english_lowercase(text: str) -> bool:
    return text.islower() and is_language(text, "en")


def capital_word_frequency(text: str, capital_frequency: int, capital_relation: Relation) -> bool:
    """Words of two letters or more: "I" and "A" are capitals in any English text."""
    shouted = sum(word.isupper() and sum(map(str.isalpha, word)) > 1 for word in words(text))
    return compare(shouted, capital_relation, capital_frequency)


# --- lengths -------------------------------------------------------------------------------------------------------------------


def number_words(text: str, num_words: int, relation: Relation) -> bool:
    return compare(len(words(text)), relation, num_words)


def number_sentences(text: str, num_sentences: int, relation: Relation) -> bool:
    return compare(len(sentences(text)), relation, num_sentences)


def number_paragraphs(text: str, num_paragraphs: int) -> bool:
    """Paragraphs between lines that hold a Markdown divider of asterisks, `***` or `* * *`; none between two may be empty."""
    parts: list[list[str]] = [[]]
    for line in text.splitlines():
        if re.fullmatch(r"\*{3,}|\*(?:[ \t]+\*){2,}", line.strip()):
            parts.append([])
        else:
            parts[-1].append(line)
    filled = [bool("".join(part).strip()) for part in parts]
    return all(filled[1:-1]) and sum(filled) == num_paragraphs


def nth_paragraph_first_word(text: str, num_paragraphs: Position, nth_paragraph: Position, first_word: str) -> bool:
    """Paragraphs between blank lines; Markdown, quotes and punctuation around the first word do not count."""
    found = paragraphs(text)
    if len(found) != num_paragraphs or nth_paragraph > num_paragraphs:
        return False
    wanted = folded_words(first_word)
    return folded_words(found[nth_paragraph - 1])[: len(wanted)] == wanted != []


# --- content -------------------------------------------------------------------------------------------------------------------


def number_placeholders(text: str, num_placeholders: int) -> bool:
    """`[address]`: brackets around words. Links, citations (`[1]`) and check boxes are not placeholders."""
    found = 0
    for match in re.finditer(r"\[([^\[\]\n]+)\](?!\()", text):
        inside = match[1].strip()
        box = inside in {"x", "X"} and re.fullmatch(r"[ \t]*(?:[*+-]|\d+\.)?[ \t]*", _line_before(text, match.start()))
        found += any(map(str.isalpha, inside)) and not box
    return found >= num_placeholders


def _line_before(text: str, position: int, reach: int = 16) -> str:
    return text[max(0, position - reach) : position].rpartition("\n")[2]


def postscript(text: str, postscript_marker: str) -> bool:
    """A line starts with the marker, Markdown and quotes aside, and words follow it."""
    parts = [re.escape(part) for part in re.findall(r"[^.\s]+\.?|\.", postscript_marker)]
    marker = re.compile(r"\s?".join(parts) + r"(?!\w)", re.IGNORECASE)
    start = 0
    for line in text.splitlines(keepends=True):
        start += len(line)
        body = line.strip(" \t\n*_#>\"“”'")
        if match := marker.match(body):
            return bool(words(body[match.end() :]) or words(text[start:]))
    return False


# --- formats -------------------------------------------------------------------------------------------------------------------


def number_bullet_lists(text: str, num_bullets: int) -> bool:
    """Exactly so many Markdown bullets, nested ones included; emphasis, dividers and negative numbers are no bullets."""
    return sum(is_bullet(line) for line in lines(text)) == num_bullets


def constrained_response(text: str) -> bool:
    """One of the three answers, word for word, and not two of them."""
    return sum(answer in text for answer in CONSTRAINED_RESPONSES) == 1


def number_highlighted_sections(text: str, num_highlights: int) -> bool:
    """Markdown emphasis with asterisks, as Markdown reads it: no blank inside the opening or the closing asterisks."""
    spans = re.finditer(r"(?<![*\w\\])(\*{1,3})(?![\s*])([^*\n]*[^*\s])\1(?!\*)", text)
    return sum(bool(words(span[2])) for span in spans) >= num_highlights


def multiple_sections(text: str, section_spliter: str, num_sections: int) -> bool:
    """Exactly so many lines that start with the splitter and a number ("Section 1: Beginnings"), Markdown aside."""
    head = re.compile(re.escape(section_spliter.strip()) + r"[ \t]*\d+(?!\w)")
    return sum(bool(head.match(undecorated(line))) for line in lines(text)) == num_sections


def json_format(text: str) -> bool:
    """The whole answer is one JSON object or array (RFC 8259: no NaN, no key twice), in a code fence or not."""
    try:
        value = json.loads(strip_fence(text), object_pairs_hook=_unique_keys, parse_constant=_refuse, parse_int=str)
    except (ValueError, RecursionError):
        return False
    return isinstance(value, dict | list)


def _unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    made = dict(pairs)
    if len(made) < len(pairs):
        raise ValueError("a key twice")
    return made


def _refuse(name: str) -> None:
    raise ValueError(f"{name} is not JSON")


def title(text: str) -> bool:
    """A title in double angular brackets, on one line, with a word in it."""
    return any(words(match[1]) for match in re.finditer(r"<<([^<>\n]+)>>", text))


# --- combinations, start and end -----------------------------------------------------------------------------------------------


def two_responses(text: str) -> bool:
    """Two answers that differ, with exactly six asterisks between them."""
    parts = [part.strip() for part in re.split(r"(?<!\*)\*{6}(?!\*)", text)]
    if not all(parts[1:-1]):
        return False
    answers = [part for part in parts if part]
    return len(answers) == 2 and answers[0] != answers[1]


def repeat_prompt(text: str, prompt_to_repeat: str) -> bool:
    """The request first, word for word (case aside: other instructions may rule it), then an answer of at least one word."""
    text, prompt = text.strip(), prompt_to_repeat.strip()
    return text.lower().startswith(prompt.lower()) and bool(words(text[len(prompt) :]))


def end_checker(text: str, end_phrase: str) -> bool:
    """The last words are the phrase; closing quotes and Markdown after it do not count."""
    closing = " \t\r\n\"'”’*_`"
    phrase = _plain(end_phrase.strip().rstrip(closing) or end_phrase.strip())
    tail = _plain(text.rstrip(closing)[-4 * len(end_phrase) - 256 :] if phrase[-1] not in closing else text.rstrip())
    before = tail[: -len(phrase)][-1:]
    return tail.endswith(phrase) and not (before.isalnum() and phrase[0].isalnum())


def _plain(text: str) -> str:
    return " ".join(text.replace("’", "'").lower().split())


def quotation(text: str) -> bool:
    """One pair of double quotes around everything: `"Hello" he said "bye"` is two quotations, not one."""
    text = text.strip().replace("“", '"').replace("”", '"')
    if len(text) < 3 or text[0] != '"' or text[-1] != '"':
        return False
    depth = 1
    for match in re.finditer('"', text[1:-1]):
        before, after = text[match.start()], text[match.start() + 2]  # the quote itself is at start + 1
        depth += 1 if before in " \t\n([{'‘*_—" and not after.isspace() else -1
        if depth == 0:
            return False
    return True


def no_comma(text: str) -> bool:
    """No comma of any script."""
    return not any(comma in text for comma in ",，、،﹐﹑")


CHECKS: dict[str, Callable[..., bool]] = {
    "change_case:capital_word_frequency": capital_word_frequency,
    "change_case:english_capital": english_capital,
    "change_case:english_lowercase": english_lowercase,
    "combination:repeat_prompt": repeat_prompt,
    "combination:two_responses": two_responses,
    "detectable_content:number_placeholders": number_placeholders,
    "detectable_content:postscript": postscript,
    "detectable_format:constrained_response": constrained_response,
    "detectable_format:json_format": json_format,
    "detectable_format:multiple_sections": multiple_sections,
    "detectable_format:number_bullet_lists": number_bullet_lists,
    "detectable_format:number_highlighted_sections": number_highlighted_sections,
    "detectable_format:title": title,
    "keywords:existence": existence,
    "keywords:forbidden_words": forbidden_words,
    "keywords:frequency": frequency,
    "keywords:letter_frequency": letter_frequency,
    "language:response_language": response_language,
    "length_constraints:nth_paragraph_first_word": nth_paragraph_first_word,
    "length_constraints:number_paragraphs": number_paragraphs,
    "length_constraints:number_sentences": number_sentences,
    "length_constraints:number_words": number_words,
    "punctuation:no_comma": no_comma,
    "startend:end_checker": end_checker,
    "startend:quotation": quotation,
}
