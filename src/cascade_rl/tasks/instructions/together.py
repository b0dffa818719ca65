"""Which kinds of instructions may stand in one prompt."""

import random
from collections.abc import Sequence

from cascade_rl.tasks.instructions.kinds import KINDS

# What a kind is never drawn together with: contradictions, and pairs whose wording would leave open what is meant.
_APART = """
    json_format: no_comma number_words number_sentences number_highlighted_sections repeat_prompt quotation english_capital title
      number_bullet_lists response_language number_placeholders number_paragraphs end_checker postscript capital_word_frequency
      two_responses multiple_sections nth_paragraph_first_word constrained_response
    constrained_response: number_words number_sentences forbidden_words number_highlighted_sections frequency repeat_prompt
      english_lowercase existence letter_frequency number_bullet_lists response_language number_placeholders number_paragraphs
      end_checker english_capital capital_word_frequency two_responses multiple_sections nth_paragraph_first_word
    response_language: number_words number_sentences forbidden_words frequency repeat_prompt english_lowercase existence
      letter_frequency number_placeholders end_checker postscript english_capital capital_word_frequency two_responses
      multiple_sections nth_paragraph_first_word
    repeat_prompt: no_comma number_words number_sentences forbidden_words quotation english_lowercase letter_frequency
      number_bullet_lists number_paragraphs english_capital capital_word_frequency two_responses multiple_sections
      nth_paragraph_first_word
    two_responses: number_words number_sentences quotation number_bullet_lists number_paragraphs end_checker postscript
      multiple_sections nth_paragraph_first_word
    nth_paragraph_first_word: number_words number_sentences title number_bullet_lists number_paragraphs end_checker postscript
      multiple_sections
    multiple_sections: number_words number_sentences number_paragraphs english_lowercase english_capital capital_word_frequency
      quotation
    number_paragraphs: number_words number_sentences number_bullet_lists
    number_sentences: number_words title number_bullet_lists postscript english_lowercase english_capital number_placeholders
      number_highlighted_sections
    number_bullet_lists: number_words
    end_checker: postscript quotation english_lowercase english_capital letter_frequency capital_word_frequency
      number_sentences
    postscript: quotation english_lowercase capital_word_frequency letter_frequency
    capital_word_frequency: english_lowercase english_capital
    english_lowercase: english_capital
    letter_frequency: existence frequency title number_sentences
    """


def _pairs(table: str) -> frozenset[frozenset[str]]:
    full = {id.partition(":")[2]: id for id in KINDS}
    pairs, left = set(), ""
    for word in table.split():
        if word.endswith(":"):
            left = full[word[:-1]]
        else:
            pairs.add(frozenset((left, full[word])))
    return frozenset(pairs)


APART = _pairs(_APART)


def draw_kinds(rng: random.Random, kinds: Sequence[str], number: int) -> list[str]:
    """`number` different kinds that may stand together, drawn by weight; fewer where none is left that fits."""
    chosen: list[str] = []
    while len(chosen) < number:
        open_kinds = [k for k in kinds if k not in chosen and not any(frozenset((k, c)) in APART for c in chosen)]
        if not open_kinds:
            break
        chosen += rng.choices(open_kinds, [KINDS[k][0] for k in open_kinds])
    return chosen
