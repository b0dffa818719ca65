"""The 29 kinds of instructions that IFBench's authors train on and do not test with, checked strictly (see `ifeval` for the shape).

They make up most of Nemotron-Cascade-2's IF-RL rows. Where an instruction's words leave something open, the docstring says how it is read;
both modes of checking read it so. Instruction texts: AllenAI, IFBench (arXiv:2507.02833), IF-RLVR's training constraints.
"""

import re
from collections import Counter
from collections.abc import Callable
from itertools import pairwise

from cascade_rl.grade.instructions.ifbench_format import repeat_span
from cascade_rl.grade.instructions.ifbench_words import keywords_specific_position
from cascade_rl.grade.instructions.ifeval import frequency, letter_frequency, number_paragraphs
from cascade_rl.grade.instructions.schema import Relation, compare
from cascade_rl.grade.instructions.text import count_phrase, folded_words, has_phrase, paragraphs, sentences, strip_accents, words

_DIVIDER = re.compile(r"^[ \t]*\*[ \t]?\*[ \t]?\*[ \t]*$", re.MULTILINE)


# --- keywords and letters -----------------------------------------------------------------------------------------------------------


def word_once(text: str, keyword: str) -> bool:
    return count_phrase(keyword, text) == 1


def exclude_word(text: str, keyword: str) -> bool:
    return not has_phrase(keyword, text)


def increment_word(text: str, keyword1: str, keyword2: str) -> bool:
    """The first once, the second twice."""
    return count_phrase(keyword1, text) == 1 and count_phrase(keyword2, text) == 2


def one_palindrome(text: str) -> bool:
    """A word of three letters or more that reads the same from behind, with two different letters at least."""
    return any(len(w) >= 3 and w.isalpha() and w == w[::-1] and len(set(w)) > 1 for w in folded_words(text))


def start_end(text: str) -> bool:
    """The same word first and last, and nothing after it, not even a full stop. Two words at least."""
    found = words(text)
    return len(found) > 1 and found[0].casefold() == found[-1].casefold() and text.rstrip().endswith(found[-1])


def no_adjacent_consecutive(text: str) -> bool:
    """No word begins with the letter of the alphabet after that of the word before."""
    initials = [strip_accents(word)[:1] for word in folded_words(text)]
    return len(initials) > 1 and not any(a.isalpha() and b.isalpha() and ord(b) - ord(a) == 1 for a, b in pairwise(initials))


def letter_counting(text: str, N: int, relation: Relation) -> bool:
    """Letters of any alphabet, all together."""
    return compare(sum(map(str.isalpha, text)), relation, N)


# --- counts -------------------------------------------------------------------------------------------------------------------------


def lowercase_counting(text: str, N: int) -> bool:
    """Words without a capital letter, all together: at most N of them."""
    return sum(any(map(str.isalpha, word)) and word == word.lower() for word in words(text)) <= N


def count_unique(text: str) -> bool:
    found = folded_words(text)
    return len(found) > 1 and max(Counter(found).values()) == 1


def counting_composition(text: str, n_sent: int, n_words: int) -> bool:
    """Three paragraphs with a line of three asterisks between, each of n_sent sentences of n_words words."""
    parts = [sentences(part) for part in _DIVIDER.split(text)]
    return len(parts) == 3 and all(len(part) == n_sent and all(len(words(s)) == n_words for s in part) for part in parts)


# --- first and last words, paragraphs -----------------------------------------------------------------------------------------------


def first_word_answer(text: str, first_word: str) -> bool:
    return folded_words(text)[:1] == folded_words(first_word)


def first_word_sentences(text: str, first_word: str) -> bool:
    found = sentences(text)
    return bool(found) and all(folded_words(sentence)[:1] == folded_words(first_word) for sentence in found)


def last_word_answer(text: str, last_word: str) -> bool:
    return folded_words(text)[-1:] == folded_words(last_word)


def last_word_sentences(text: str, last_word: str) -> bool:
    found = sentences(text)
    return bool(found) and all(folded_words(sentence)[-1:] == folded_words(last_word) for sentence in found)


def two_paragraphs(text: str) -> bool:
    return number_paragraphs(text, 2)


def two_paragraphs_by_blank_lines(text: str) -> bool:
    return len(paragraphs(text)) == 2


# --- copies -------------------------------------------------------------------------------------------------------------------------


def copy(text: str, prompt_to_repeat: str) -> bool:
    """The request word for word; blanks at the ends aside."""
    return text.strip() == prompt_to_repeat.strip()


def copies(text: str, prompt_to_repeat: str, N: int) -> bool:
    """The request N times, with six asterisks between."""
    parts = text.split("******")
    return len(parts) == N and all(copy(part, prompt_to_repeat) for part in parts)


def repeat_phrase(text: str, phrase: str, small_n: int) -> bool:
    """small_n variants of the phrase, in each of which only the word in its middle is another; the phrase as it stands is none."""
    said = phrase.split()
    middle = len(said) // 2
    before, after = (r"\s+".join(map(re.escape, part)) for part in (said[:middle], said[middle + 1 :]))
    pattern = r"(?<!\w)" + r"\s+".join(part for part in (before, r"(\w[\w'’-]*)", after) if part) + r"(?!\w)"
    found = [match.casefold() for match in re.findall(pattern, text, re.IGNORECASE)]
    return len(found) == small_n and said[middle].casefold() not in found


# --- forms --------------------------------------------------------------------------------------------------------------------------


def no_dots(text: str) -> bool:
    return "." not in text


def no_exclamation_marks(text: str) -> bool:
    return "!" not in text


def bigrams_in_brackets(text: str) -> bool:
    """<<two words>> <<at a>> <<time>>: no word outside, two in each but the last."""
    inside = re.findall(r"<<([^<>]*)>>", text)
    counts = [len(words(part)) for part in inside]
    outside = words(re.sub(r"<<[^<>]*>>", " ", text))
    return bool(counts) and not outside and all(count == 2 for count in counts[:-1]) and counts[-1] in (1, 2)


def words_in_brackets(text: str) -> bool:
    """[Every] [word] in square brackets of its own."""
    inside = re.findall(r"\[([^\[\]]*)\]", text)
    return bool(inside) and all(len(words(part)) == 1 for part in inside) and not words(re.sub(r"\[[^\[\]]*\]", " ", text))


def sentences_by_hyphens(text: str) -> bool:
    """One sentence.-Another one: a hyphen and no blank between sentences; two at least."""
    parts = re.split(r"(?<=[.!?])-(?=\w)", text.strip())
    return len(parts) > 1 and all(len(sentences(part)) == 1 for part in parts)


CHECKS: dict[str, Callable[..., bool]] = {
    "copy:copy": copy,
    "copy:copy_span_idx": repeat_span,
    "copy:copying_multiple": copies,
    "copy:copying_simple": copy,
    "copy:repeat_phrase": repeat_phrase,
    "count:count_increment_word": increment_word,
    "count:count_unique": count_unique,
    "count:counting_composition": counting_composition,
    "count:lowercase_counting": lowercase_counting,
    "detectable_format:bigram_wrapping": bigrams_in_brackets,
    "detectable_format:sentence_hyphens": sentences_by_hyphens,
    "detectable_format:square_brackets": words_in_brackets,
    "first_word:first_word_answer": first_word_answer,
    "first_word:first_word_sent": first_word_sentences,
    "keywords:exclude_word_harder": exclude_word,
    "keywords:keyword_specific_position": keywords_specific_position,
    "keywords:no_adjacent_consecutive": no_adjacent_consecutive,
    "keywords:palindrome": one_palindrome,
    "keywords:start_end": start_end,
    "keywords:word_count_different_numbers": frequency,
    "keywords:word_once": word_once,
    "last_word:last_word_answer": last_word_answer,
    "last_word:last_word_sent": last_word_sentences,
    "letters:letter_counting": letter_counting,
    "letters:letter_counting2": letter_frequency,
    "paragraphs:paragraphs": two_paragraphs,
    "paragraphs:paragraphs2": two_paragraphs_by_blank_lines,
    "punctuation:punctuation_dot": no_dots,
    "punctuation:punctuation_exclamation": no_exclamation_marks,
}
