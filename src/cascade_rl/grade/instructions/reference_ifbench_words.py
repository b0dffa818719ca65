"""IFBench's instructions on counts, ratios, words and sentences with the verdicts of its published checkers.

Only kinds whose verdict can differ from the strict ones are here (see `reference_ifeval`). Known differences that remain:
sentences from nupunkt (published: Punkt's English model), stop words and syllables from our own short lists and rules, verbs from
a list (published: a tagger).
"""

import re
import string
from collections import Counter
from collections.abc import Callable
from itertools import pairwise

from cascade_rl.grade.instructions.reference_ifeval import word_count
from cascade_rl.grade.instructions.schema import Percent, Position
from cascade_rl.grade.instructions.text import JAPANESE, reference_sentences, reference_tokens
from cascade_rl.grade.instructions.wordlists import (
    CONJUNCTIONS,
    PERSON_NAMES,
    PERSONAL_PRONOUNS,
    STOP_WORDS,
    is_verb,
    syllables,
)

_NO_PUNCTUATION = str.maketrans("", "", string.punctuation)
EDGES = string.punctuation + " "


def bare(text: str) -> str:
    """A text without ASCII punctuation."""
    return text.translate(_NO_PUNCTUATION)


# --- counts and ratios ---------------------------------------------------------------------------------------------------------


def word_count_range(text: str, min_words: int, max_words: int) -> bool:
    return min_words <= word_count(text) <= max_words


def unique_word_count(text: str, N: int) -> bool:
    """Between blanks; a token of punctuation alone is a word as well."""
    return len({token.strip(EDGES) for token in text.lower().split()}) >= N


def stop_words(text: str, percentage: Percent) -> bool:
    found = re.findall(r"\w+", text.lower())
    return bool(found) and 100 * sum(word in STOP_WORDS for word in found) / len(found) <= percentage


def _types(text: str) -> Counter[str]:
    return Counter(sentence[-1] for sentence in reference_sentences(text))


def sentence_type(text: str) -> bool:
    ends = _types(text)
    return ends["."] == 2 * ends["?"]


def sentence_balance(text: str) -> bool:
    ends = _types(text)
    return ends["."] == ends["?"] == ends["!"]


def conjunctions(text: str, small_n: int) -> bool:
    """Different tokens, so that "and" and "And" are two."""
    return len({token for token in text.split() if token.strip(EDGES).lower() in CONJUNCTIONS}) >= small_n


def person_names(text: str, N: int) -> bool:
    found = set(re.findall(r"\w+", text))
    return sum(name in found for name in PERSON_NAMES) >= N


def overlap(text: str, reference_text: str, percentage: Percent) -> bool:
    """Trigrams of characters."""
    mine, theirs = ({part[i : i + 3] for i in range(len(part) - 2)} for part in (text, reference_text))
    return bool(mine) and percentage - 2 <= len(mine & theirs) / len(mine) * 100 <= percentage + 2


def numbers(text: str, N: int) -> bool:
    """Runs of digits once punctuation is gone."""
    return len(re.findall(r"\d+", bare(text))) == N


def pronouns(text: str, N: int) -> bool:
    return sum(token in PERSONAL_PRONOUNS for token in reference_tokens(text.replace("/", " ").lower())) >= N


def punctuation(text: str) -> bool:
    """Of the interrobangs, ?! or else !? is taken out once; ‽ itself holds no other mark."""
    rest = text.replace("?!", "", 1) if "?!" in text else text.replace("!?", "", 1)
    return (rest != text or "‽" in text) and all(mark in rest for mark in ".,!?;:")


def words_japanese(text: str, N: Position) -> bool:
    """Numbers are let off, and so are texts with fewer words."""
    due = [token.strip(EDGES) for token in text.split()[N - 1 :: N]]
    return all(JAPANESE.search(token) for token in due if token and not token.isdigit())


def keywords_multiple(text: str, keyword1: str, keyword2: str, keyword3: str, keyword4: str, keyword5: str) -> bool:
    """Inside words too."""
    wanted = zip((keyword1, keyword2, keyword3, keyword4, keyword5), (1, 2, 3, 5, 7), strict=True)
    return all(text.lower().count(keyword.strip().lower()) == times for keyword, times in wanted)


def sentence_words(text: str) -> bool:
    """Words may repeat."""
    found = reference_sentences(text)
    return len(found) == 3 and len({len(sentence) for sentence in found}) == 1


# --- words and sentences -------------------------------------------------------------------------------------------------------


def alphabet(text: str) -> bool:
    found = bare(text).lower().split()
    if not found or found[0][0] not in string.ascii_lowercase:
        return False
    start = ord(found[0][0]) - ord("a")
    return all(word[0] == string.ascii_lowercase[(start + i) % 26] for i, word in enumerate(found))


def vowel(text: str) -> bool:
    """One line."""
    return "\n" not in text.strip() and len(set(text.lower()) & set("aeiou")) <= 3


def consonants(text: str) -> bool:
    return all(re.search("[bcdfghjklmnpqrstvwxyz]{2}", token) for token in text.lower().split())


def palindrome(text: str) -> bool:
    """The same one may count ten times."""
    return sum(len(word) >= 5 and word == word[::-1] for word in bare(text).lower().split()) >= 10


def prime_lengths(text: str) -> bool:
    """Primes under 100."""
    lengths = {len(word) for word in bare(text).split()}
    return all(1 < n < 100 and all(n % divisor for divisor in range(2, int(n**0.5) + 1)) for n in lengths)


def start_verb(text: str) -> bool:
    tokens = reference_tokens(text[:1000])
    return bool(tokens) and is_verb(tokens[0])


def repeats(text: str, small_n: int) -> bool:
    return max(Counter(bare(text.lower()).split()).values(), default=0) <= small_n


def odd_even_syllables(text: str) -> bool:
    return all(a != b for a, b in pairwise(syllables(word) % 2 for word in bare(text).split()))


def last_first(text: str) -> bool:
    for a, b in pairwise(reference_sentences(text)):
        last, first = a.rstrip(EDGES).split()[-1:], b.lstrip(EDGES).split()[:1]
        if not last or [word.lower() for word in last] != [word.lower() for word in first]:
            return False
    return True


def paragraph_last_first(text: str) -> bool:
    rows = [found for line in text.lower().split("\n") if (found := line.strip().strip(EDGES).split())]
    return all(row[0] == row[-1] for row in rows)


def no_consecutive(text: str) -> bool:
    return all(a[0] != b[0] for a, b in pairwise(bare(text.lower()).split()))


def keywords_specific_position(text: str, keyword: str, n: Position, m: Position) -> bool:
    """Punctuation marks are words too."""
    found = reference_sentences(text)
    return len(found) >= n and [token.lower() for token in reference_tokens(found[n - 1])[m - 1 : m]] == [keyword.strip().lower()]


def words_position(text: str, keyword: str) -> bool:
    """Punctuation marks are words too."""
    tokens = reference_tokens(text.lower())
    return len(tokens) > 1 and tokens[1] == tokens[-2] == keyword.strip().lower()


def alliteration_increment(text: str) -> bool:
    """All words in alliterations count, not the longest run."""
    counts = []
    for sentence in reference_sentences(text):
        initials = [inner[0] for token in sentence.lower().split() if (inner := token.lstrip(EDGES))]
        same = [a == b for a, b in pairwise(initials)]
        counts.append(sum(same) + sum(now and not before for before, now in pairwise([False, *same])))
    return all(a < b for a, b in pairwise(counts))


def sentence_keyword(text: str, word: str, N: Position) -> bool:
    found = reference_sentences(text)
    return len(found) >= N and re.search(rf"\b{re.escape(word)}\b", found[N - 1], re.IGNORECASE) is not None


def increment(text: str, small_n: int) -> bool:
    counts = [len(bare(sentence).split()) for sentence in reference_sentences(text)]
    return all(b - a == small_n for a, b in pairwise(counts))


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
