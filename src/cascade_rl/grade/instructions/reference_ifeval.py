"""IFEval's instruction kinds with the verdicts of its published checkers, so that published scores can be compared.

Only kinds whose verdict can differ from `ifeval` are here. Known differences that remain: language comes from py3langid (the
published checker asks an unseeded langdetect), sentences from nupunkt (published: Punkt's English model), keywords are literal
(published: regular expressions; the same for every row of IFEval). Written from the published behaviour, in linear time.
"""

import json
import re
from collections.abc import Callable

from cascade_rl.grade.instructions.ifeval import CONSTRAINED_RESPONSES
from cascade_rl.grade.instructions.schema import LanguageCode, Letter, Position, Relation, compare
from cascade_rl.grade.instructions.text import guess_language, reference_sentences, reference_tokens


def word_count(text: str) -> int:
    return len(re.findall(r"\w+", text))


def existence(text: str, keywords: tuple[str, ...]) -> bool:
    """Anywhere, inside words too."""
    return all(re.search(re.escape(keyword), text, re.IGNORECASE) for keyword in keywords)


def frequency(text: str, keyword: str, frequency: int, relation: Relation) -> bool:
    return compare(len(re.findall(re.escape(keyword.strip()), text, re.IGNORECASE)), relation, frequency)


def forbidden_words(text: str, forbidden_words: tuple[str, ...]) -> bool:
    return not any(re.search(_with_boundaries(word), text, re.IGNORECASE) for word in forbidden_words)


def _with_boundaries(word: str) -> str:
    """Boundaries at letters only, so that "C++" is found."""
    return (r"\b" if word[0].isalnum() else "") + re.escape(word) + (r"\b" if word[-1].isalnum() else "")


def letter_frequency(text: str, letter: Letter, let_frequency: int, let_relation: Relation) -> bool:
    return compare(text.lower().count(letter.lower()), let_relation, let_frequency)


def _language_is(text: str, language: str) -> bool:
    """A text without letters has no language, and passes."""
    return not any(map(str.isalpha, text)) or guess_language(text)[0] == language


def response_language(text: str, language: LanguageCode) -> bool:
    return _language_is(text, language)


def english_capital(text: str) -> bool:
    return text.isupper() and _language_is(text, "en")


def english_lowercase(text: str) -> bool:
    return text.islower() and _language_is(text, "en")


def capital_word_frequency(text: str, capital_frequency: int, capital_relation: Relation) -> bool:
    """ "I" and "A" count."""
    return compare(sum(map(str.isupper, reference_tokens(text))), capital_relation, capital_frequency)


def number_words(text: str, num_words: int, relation: Relation) -> bool:
    return compare(word_count(text), relation, num_words)


def number_sentences(text: str, num_sentences: int, relation: Relation) -> bool:
    return compare(len(reference_sentences(text)), relation, num_sentences)


def number_paragraphs(text: str, num_paragraphs: int) -> bool:
    """Three asterisks anywhere divide."""
    filled = [bool(part.strip()) for part in text.split("***")]
    return all(filled[1:-1]) and sum(filled) == num_paragraphs


def nth_paragraph_first_word(text: str, num_paragraphs: Position, nth_paragraph: Position, first_word: str) -> bool:
    """The n-th is counted with the empty stretches, the number without them; the word ends at one of . , ? ! ' " only."""
    found = text.split("\n\n")
    filled = sum(bool(part.strip()) for part in found)
    if nth_paragraph > filled or not found[nth_paragraph - 1].strip():
        return False
    first = found[nth_paragraph - 1].split(maxsplit=1)[0].lstrip("'").lstrip('"')
    return filled == num_paragraphs and re.split("[.,?!'\"]", first, maxsplit=1)[0].lower() == first_word.lower()


def number_placeholders(text: str, num_placeholders: int) -> bool:
    """Any brackets on one line, empty ones too; the first closing bracket ends one."""
    found = sum(_count_brackets(line) for line in text.split("\n"))
    return found >= num_placeholders


def _count_brackets(line: str) -> int:
    found, position = 0, 0
    while (opening := line.find("[", position)) >= 0 and (closing := line.find("]", opening)) >= 0:
        found, position = found + 1, closing + 1
    return found


def postscript(text: str, postscript_marker: str) -> bool:
    """The marker anywhere, in any case."""
    marker = postscript_marker.strip()
    known = {"P.P.S": r"p\.\s?p\.\s?s", "P.S.": r"p\.\s?s\."}
    return re.search(known.get(marker, re.escape(marker.lower())), text.lower()) is not None


def number_bullet_lists(text: str, num_bullets: int) -> bool:
    """Lines that start with - or with one asterisk, whatever follows it; a lone asterisk takes the next line along."""
    rows = text.split("\n")
    stars = dashes = skip = 0
    for i, row in enumerate(rows):
        start = row.lstrip()
        dashes += start.startswith("-")
        if skip:
            skip = 0
        elif start.startswith("*") and not start.startswith("**") and (len(start) > 1 or i + 1 < len(rows)):
            stars += 1
            skip = len(start) == 1
    return stars + dashes == num_bullets


def constrained_response(text: str) -> bool:
    return any(answer in text for answer in CONSTRAINED_RESPONSES)


def number_highlighted_sections(text: str, num_highlights: int) -> bool:
    """Anything between two asterisks of a line, and anything between two pairs of them."""
    single = sum(bool(span.strip("*").strip()) for span in re.findall(r"\*[^\n*]*\*", text))
    double = sum(bool(span[2:-2].strip()) for span in re.findall(r"\*\*[^\n*]*\*\*", text))
    return single + double >= num_highlights


def multiple_sections(text: str, section_spliter: str, num_sections: int) -> bool:
    """At least so many, anywhere."""
    return len(re.findall(re.escape(section_spliter.strip()) + r"\s?\d+", text)) >= num_sections


def json_format(text: str) -> bool:
    """What Python's json reads: NaN and repeated keys too."""
    body = text.strip()
    for fence in ("```json", "```Json", "```JSON", "```"):
        body = body.removeprefix(fence)
    try:
        json.loads(body.removesuffix("```").strip())
    except (ValueError, RecursionError):
        return False
    return True


def title(text: str) -> bool:
    """On each line, the first << up to the last >>."""
    for line in text.split("\n"):
        opening, closing = line.find("<<"), line.rfind(">>")
        if opening >= 0 and closing > opening + 2 and line[opening : closing + 2].lstrip("<").rstrip(">").strip():
            return True
    return False


def two_responses(text: str) -> bool:
    parts = [part.strip() for part in text.split("******")]
    answers = [part for part in parts if part]
    return all(parts[1:-1]) and len(answers) == 2 and answers[0] != answers[1]


def repeat_prompt(text: str, prompt_to_repeat: str) -> bool:
    """No answer needed after it."""
    return text.strip().lower().startswith(prompt_to_repeat.strip().lower())


def end_checker(text: str, end_phrase: str) -> bool:
    return text.strip().strip('"').lower().endswith(end_phrase.strip().lower())


def quotation(text: str) -> bool:
    """Straight quotes at both ends, whatever is between."""
    text = text.strip()
    return len(text) > 1 and text[0] == text[-1] == '"'


def no_comma(text: str) -> bool:
    return "," not in text


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
