"""IFBench's instructions on counts, ratios, words and sentences, checked strictly (see `ifeval` for the shape of a check).

Where an instruction compares neighbours ("each sentence ... than the previous one"), a text without a neighbour fails: nothing
was shown. Instruction texts: AllenAI, IFBench (arXiv:2507.02833).
"""

import re
from collections import Counter
from collections.abc import Callable
from itertools import pairwise

from cascade_rl.grade.instructions.schema import Percent, Position
from cascade_rl.grade.instructions.text import (
    JAPANESE,
    count_phrase,
    folded_words,
    has_phrase,
    lines,
    paragraphs,
    sentence_end,
    sentences,
    strip_accents,
    words,
)
from cascade_rl.grade.instructions.wordlists import CONJUNCTIONS, PERSON_NAMES, PRONOUNS, STOP_WORDS, is_verb, syllables

_CONSONANTS = frozenset("bcdfghjklmnpqrstvwxyz")


# --- counts --------------------------------------------------------------------------------------------------------------------


def word_count_range(text: str, min_words: int, max_words: int) -> bool:
    return min_words <= len(words(text)) <= max_words


def unique_word_count(text: str, N: int) -> bool:
    return len(set(folded_words(text))) >= N


def conjunctions(text: str, small_n: int) -> bool:
    """Different ones of the seven coordinating conjunctions (for, and, nor, but, or, yet, so)."""
    return len(CONJUNCTIONS & set(folded_words(text))) >= small_n


def person_names(text: str, N: int) -> bool:
    """Different names of the instruction's list, capitalised as there."""
    found = {word.replace("’", "'").removesuffix("'s") for word in words(text)}
    return sum(name in found for name in PERSON_NAMES) >= N


def numbers(text: str, N: int) -> bool:
    """Exactly N numbers; "3.5" and "1,000" are one each."""
    return len(re.findall(r"\d+(?:[.,]\d+)*", text)) == N


def pronouns(text: str, N: int) -> bool:
    return sum(word.partition("'")[0] in PRONOUNS for word in folded_words(text)) >= N


def punctuation(text: str) -> bool:
    """. , ; : ! ? and the interrobang (‽, ?! or !?), whose marks do not count as ! and ? as well."""
    rest = text
    for interrobang in ("‽", "?!", "!?"):
        if interrobang in text:
            rest = text.replace(interrobang, " ", 1)
            break
    return rest != text and all(mark in rest for mark in ".,;:!?")


def words_japanese(text: str, N: Position) -> bool:
    """Words between blanks; each N-th has a Japanese character, and there is at least one."""
    tokens = [token for token in text.split() if words(token)]
    due = tokens[N - 1 :: N]
    return bool(due) and all(JAPANESE.search(token) for token in due)


def keywords_multiple(text: str, keyword1: str, keyword2: str, keyword3: str, keyword4: str, keyword5: str) -> bool:
    """Exactly once, twice, three, five and seven times, as whole words."""
    wanted = zip((keyword1, keyword2, keyword3, keyword4, keyword5), (1, 2, 3, 5, 7), strict=True)
    return all(count_phrase(keyword, text) == times for keyword, times in wanted)


# --- ratios --------------------------------------------------------------------------------------------------------------------


def stop_words(text: str, percentage: Percent) -> bool:
    found = folded_words(text)
    return bool(found) and 100 * sum(word in STOP_WORDS for word in found) <= percentage * len(found)


def _sentence_types(text: str) -> tuple[int, int, int]:
    """How many sentences state, ask, and exclaim."""
    ends = Counter(sentence_end(sentence) for sentence in sentences(text))
    return ends["."] + ends["。"], ends["?"] + ends["？"], ends["!"] + ends["！"]


def sentence_type(text: str) -> bool:
    """Two statements to each question, and at least one question."""
    states, asks, _ = _sentence_types(text)
    return states == 2 * asks > 0


def sentence_balance(text: str) -> bool:
    """As many statements as questions as exclamations, and at least one of each."""
    states, asks, exclaims = _sentence_types(text)
    return states == asks == exclaims > 0


def overlap(text: str, reference_text: str, percentage: Percent) -> bool:
    """The share of the answer's different word trigrams that the reference has, within two points."""
    mine, theirs = (_trigrams(folded_words(part)) for part in (text, reference_text))
    return bool(mine) and abs(100 * len(mine & theirs) / len(mine) - percentage) <= 2


def _trigrams(found: list[str]) -> set[tuple[str, str, str]]:
    return {(found[i], found[i + 1], found[i + 2]) for i in range(len(found) - 2)}


def sentence_words(text: str) -> bool:
    """Three sentences of the same number of characters; no word twice in all of them."""
    found = sentences(text)
    used = folded_words(text)
    return len(found) == 3 and len({len(sentence) for sentence in found}) == 1 and len(set(used)) == len(used)


# --- words ---------------------------------------------------------------------------------------------------------------------


def alphabet(text: str) -> bool:
    """Initials go up the alphabet one by one and from Z to A; the first may be any letter."""
    places = [ord(initial) - ord("a") for initial in _initials(folded_words(text))]
    return len(places) > 1 and all(0 <= a < 26 and b == (a + 1) % 26 for a, b in pairwise(places))


def _initials(found: list[str]) -> list[str]:
    return [(strip_accents(word[0]) or word[0])[0] for word in found]


def vowel(text: str) -> bool:
    """One paragraph (a soft line break is none) with at most three of the vowels a, e, i, o, u."""
    used = set(strip_accents(text.casefold())) & set("aeiou")
    return len(paragraphs(text)) == 1 and 0 < len(used) <= 3


def consonants(text: str) -> bool:
    """Each word has two consonants in a row; y is a consonant."""
    found = [strip_accents(word) for word in folded_words(text)]
    return bool(found) and all(any(a in _CONSONANTS and b in _CONSONANTS for a, b in pairwise(word)) for word in found)


def palindrome(text: str) -> bool:
    """Ten different palindromes of five letters or more; one letter over and over is no word."""
    long = {word for word in folded_words(text) if len(word) >= 5 and word.isalpha()}
    return sum(word == word[::-1] and len(set(word)) > 1 for word in long) >= 10


def prime_lengths(text: str) -> bool:
    """Lengths in letters and digits: "don't" has four."""
    lengths = {sum(map(str.isalnum, word)) for word in words(text)}
    return bool(lengths) and all(n > 1 and all(n % d for d in range(2, int(n**0.5) + 1)) for n in lengths)


def start_verb(text: str) -> bool:
    found = words(text[:1000])
    return bool(found) and is_verb(found[0])


def repeats(text: str, small_n: int) -> bool:
    """No word occurs more than `small_n` times."""
    return max(Counter(folded_words(text)).values(), default=small_n + 1) <= small_n


def odd_even_syllables(text: str) -> bool:
    parities = [syllables(word) % 2 for word in words(text)]
    return len(parities) > 1 and all(a != b for a, b in pairwise(parities))


def last_first(text: str) -> bool:
    found = [folded_words(sentence) for sentence in sentences(text)]
    return len(found) > 1 and all(a[-1] == b[0] for a, b in pairwise(found))


def paragraph_last_first(text: str) -> bool:
    """Each line with words has two or more, and its last word is its first."""
    found = [folded for line in lines(text) if (folded := folded_words(line))]
    return bool(found) and all(len(folded) > 1 and folded[0] == folded[-1] for folded in found)


def no_consecutive(text: str) -> bool:
    initials = _initials(folded_words(text))
    return len(initials) > 1 and all(a != b for a, b in pairwise(initials))


def keywords_specific_position(text: str, keyword: str, n: Position, m: Position) -> bool:
    """The m-th word of the n-th sentence."""
    found = sentences(text)
    wanted = folded_words(keyword)
    return len(found) >= n and folded_words(found[n - 1])[m - 1 : m - 1 + len(wanted)] == wanted != []


def words_position(text: str, keyword: str) -> bool:
    """The second word and the last but one; three words at least."""
    found = folded_words(text)
    return len(found) > 2 and [found[1]] == [found[-2]] == folded_words(keyword)


# --- sentences -----------------------------------------------------------------------------------------------------------------


def alliteration_increment(text: str) -> bool:
    """The longest run of words with one initial grows from sentence to sentence."""
    runs = [_longest_run(_initials(folded_words(sentence))) for sentence in sentences(text)]
    return len(runs) > 1 and all(a < b for a, b in pairwise(runs))


def _longest_run(items: list[str]) -> int:
    best = length = 1
    for a, b in pairwise(items):
        length = length + 1 if a == b else 1
        best = max(best, length)
    return best


def sentence_keyword(text: str, word: str, N: Position) -> bool:
    found = sentences(text)
    return len(found) >= N and has_phrase(word, found[N - 1])


def increment(text: str, small_n: int) -> bool:
    counts = [len(words(sentence)) for sentence in sentences(text)]
    return len(counts) > 1 and all(b - a == small_n for a, b in pairwise(counts))


CHECKS: dict[str, Callable[..., bool]] = {
    "count:conjunctions": conjunctions,
    "count:keywords_multiple": keywords_multiple,
    "count:numbers": numbers,
    "count:person_names": person_names,
    "count:pronouns": pronouns,
    "count:punctuation": punctuation,
    "count:unique_word_count": unique_word_count,
    "count:word_count_range": word_count_range,
    "count:words_japanese": words_japanese,
    "ratio:overlap": overlap,
    "ratio:sentence_balance": sentence_balance,
    "ratio:sentence_type": sentence_type,
    "ratio:sentence_words": sentence_words,
    "ratio:stop_words": stop_words,
    "sentence:alliteration_increment": alliteration_increment,
    "sentence:increment": increment,
    "sentence:keyword": sentence_keyword,
    "words:alphabet": alphabet,
    "words:consonants": consonants,
    "words:keywords_specific_position": keywords_specific_position,
    "words:last_first": last_first,
    "words:no_consecutive": no_consecutive,
    "words:odd_even_syllables": odd_even_syllables,
    "words:palindrome": palindrome,
    "words:paragraph_last_first": paragraph_last_first,
    "words:prime_lengths": prime_lengths,
    "words:repeats": repeats,
    "words:start_verb": start_verb,
    "words:vowel": vowel,
    "words:words_position": words_position,
}
