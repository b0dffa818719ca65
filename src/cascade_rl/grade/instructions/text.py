"""How the instruction checks read text: words, sentences, lines, paragraphs, languages.

All functions are deterministic, work offline, and take time linear in the text, hostile text included. Patterns are written so
that no position is scanned twice: runs are anchored at their first character, or are possessive.
"""

import functools
import math
import re
import unicodedata
from collections.abc import Iterable, Iterator

import nupunkt
import py3langid
from nltk.tokenize import NLTKWordTokenizer

CJK = "\u3041-\u309f\u30a1-\u30fa\u30fc-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0002fa1f"
JAPANESE = re.compile(f"[{CJK}]")
# Vowel signs and accents are no "word characters" to `re`, but belong to their word (Hindi, Thai, Arabic, decomposed Latin).
_MARKS = (
    "\u0300-\u036f\u0591-\u05c7\u0610-\u061a\u064b-\u065f\u0670\u06d6-\u06ed\u0900-\u0963\u0966-\u0dff\u0e00-\u0eff\u1000-\u109f"
    "\u200c\u200d"
)
_LETTERS = rf"(?:(?![{CJK}])(?:[^\W_]|[{_MARKS}]))++"
# One word: don't, state-of-the-art, 1,000, 3.5, U.S, e.g; a Chinese or Japanese character is one. Underscores are none.
_WORD = re.compile(rf"[{CJK}]|{_LETTERS}(?:(?:['’‐‑-]|(?<=\d)[.,:](?=\d)|(?<=\b[A-Za-z])\.(?=[A-Za-z]\b)){_LETTERS})*+")
_STOPS = frozenset(".!?…‽。！？")
_BULLET = re.compile(r"[ \t]*(?:[*+•-]|\d{1,9}[.)])[ \t]+")
_LIST_NUMBER = re.compile(r"\(?\d{1,9}[.)]")
_DECORATION = " \t*_#>`~|"
_LONGEST_RUN = 500
_CJK_STOP = re.compile(r"(?<=[。！？])(?![。！？」』”’）])")
# A stop that nobody put a space after: "Nice!No space.Really?"
_GLUED = re.compile(r"(?<=[a-z\d)\"'”’][.!?])(?=[A-Z])|(?<=[!?])(?=[A-Z])")

EMOJI = (
    r"[\U0001F1E6-\U0001F1FF\U0001F300-\U0001FAFF\U00002600-\U000027BF\U00002B05-\U00002B55\U000023E9-\U000023FA"
    r"\U0000203C\U00002049\U00002122\U00002139\U00002194-\U000021AA\U0000231A\U0000231B\U000024C2\U00003030\U0000303D"
    r"\U00003297\U00003299][\U0001F3FB-\U0001F3FF\u200d\ufe0f\u20e3\U000E0020-\U000E007F]*"
)


def words(text: str) -> list[str]:
    """Words as people count them: contractions, hyphenated words and numbers are one each, and so is a CJK character."""
    return _WORD.findall(text)


def folded_words(text: str) -> list[str]:
    """`words` without case, with one kind of apostrophe: what comparisons use."""
    return [word.casefold().replace("’", "'") for word in words(text)]


def undecorated(line: str) -> str:
    """A line without the Markdown before and after its text: "## **P.S.** x" gives "P.S.** x"."""
    return line.strip(_DECORATION)


def lines(text: str) -> list[str]:
    """The lines that are not blank."""
    return [line for line in text.splitlines() if line.strip()]


def paragraphs(text: str) -> list[str]:
    """Stretches of text separated by blank lines."""
    found: list[list[str]] = [[]]
    for line in text.splitlines():
        if line.strip():
            found[-1].append(line)
        elif found[-1]:
            found.append([])
    return ["\n".join(group) for group in found if group]


def is_bullet(line: str, marks: str = "*+-") -> bool:
    """A Markdown bullet: a mark, a space, and a text with at least one letter or digit ("-5 degrees" and "* * *" are none)."""
    line = line.lstrip()
    return len(line) > 1 and line[0] in marks and line[1] in " \t" and bool(words(line))


def strip_fence(text: str) -> str:
    """The inside of one Markdown code fence, if the whole text is one; else the text without outer blanks."""
    text = text.strip()
    if text.startswith("```") and text.endswith("```") and len(text) >= 6:
        head, newline, body = text[3:-3].partition("\n")
        return (body if newline and re.fullmatch(r"[\w+-]*", head.strip()) else text[3:-3]).strip()
    return text


def strip_accents(text: str) -> str:
    """ "Reykjavík" gives "Reykjavik"."""
    return "".join(char for char in unicodedata.normalize("NFKD", text) if not unicodedata.combining(char))


def sentences(text: str) -> list[str]:
    """Sentences with at least one word each.

    A line is at least one sentence (list items need no stop), unless it goes on the line before: lower-case start, no bullet, and
    no stop before it. A stop without a space after it ends a sentence too ("Nice!No space.").
    """
    found: list[str] = []
    for line in _logical_lines(text):
        body = _BULLET.sub("", line.strip(), count=1).strip(" \t#>|")
        if not words(body):
            continue
        pieces = [part.strip() for run in _CJK_STOP.split(body) for piece in _punkt(run) for part in _GLUED.split(piece)]
        found += [piece for piece in pieces if words(piece) and not _LIST_NUMBER.fullmatch(piece)]
    return found


def _punkt(text: str) -> list[str]:
    """nupunkt's sentences; it takes quadratic time within a run without blanks, so that overlong ones are cut."""
    if max(map(len, text.split()), default=0) > _LONGEST_RUN:
        text = re.sub(r"\S+", lambda run: run[0][:_LONGEST_RUN], text)
    return [str(sentence) for sentence in nupunkt.sent_tokenize(text)]


def _logical_lines(text: str) -> Iterator[str]:
    held: list[str] = []
    for line in lines(text):
        start = line.lstrip()
        goes_on = held and start[0].islower() and held[-1].rstrip("*_ \t\"'”’)")[-1:] not in {"", *".!?:;…"}
        if not goes_on and held:
            yield " ".join(held)
            held = []
        held.append(start.rstrip())
    if held:
        yield " ".join(held)


def sentence_end(sentence: str) -> str:
    """The stop of a sentence; quotes, brackets, Markdown and emoji aside: 'He said "no."' gives "."; "" if it has none."""
    bare = re.sub(EMOJI, "", sentence[-64:]).rstrip(" \t\"'”’»)]}*_`")
    return bare[-1:] if bare[-1:] in _STOPS else ""


@functools.lru_cache(maxsize=4096)
def phrase_pattern(phrase: str) -> re.Pattern[str]:
    """A pattern that finds `phrase` as whole words, any case, any white space between its words.

    Boundaries hold only where the phrase has a letter or digit at its edge, so "C++" is found in "C++ code". A possessive 's may
    follow; another contraction may not: "can" is not in "can't". The phrase is literal, never a regular expression.
    """
    parts = [re.escape(part).replace("'", "['’]").replace("’", "['’]") for part in phrase.split()]
    left = r"(?<!\w)(?<!\w['’])" if re.match(rf"(?![{CJK}])\w", phrase.strip()) else ""
    right = r"(?!\w)(?!['’](?!s\b)\w)" if re.search(rf"(?![{CJK}])\w$", phrase.strip()) else ""
    return re.compile(left + r"\s+".join(parts) + right, re.IGNORECASE)


def count_phrase(phrase: str, text: str) -> int:
    """How often `phrase` occurs as whole words (see `phrase_pattern`)."""
    return sum(1 for _ in phrase_pattern(phrase).finditer(text))


def has_phrase(phrase: str, text: str) -> bool:
    return phrase_pattern(phrase).search(text) is not None


# --- languages -----------------------------------------------------------------------------------------------------------------

_SCRIPTS = {
    "ARABIC": ("ar", "fa", "ur", "ps", "ug"),
    "CYRILLIC": ("ru", "uk", "bg", "be", "mk", "sr", "kk", "ky", "mn"),
    "DEVANAGARI": ("hi", "mr", "ne"),
    "BENGALI": ("bn", "as"),
    "GURMUKHI": ("pa",),
    "GUJARATI": ("gu",),
    "TAMIL": ("ta",),
    "TELUGU": ("te",),
    "KANNADA": ("kn",),
    "MALAYALAM": ("ml",),
    "SINHALA": ("si",),
    "THAI": ("th",),
    "HANGUL": ("ko",),
    "HEBREW": ("he",),
    "GREEK": ("el",),
    "ARMENIAN": ("hy",),
    "GEORGIAN": ("ka",),
    "CJK HIRAGANA KATAKANA KATAKANA-HIRAGANA": ("ja",),
    "CJK": ("zh",),
}
_SCRIPT_OF = {code: names for names, codes in _SCRIPTS.items() for code in codes}
# Rivals: widely written languages. The rare ones that py3langid knows win short texts by chance.
_LATIN = "af ca cs cy da de en es et eu fi fr ga gl hr hu id is it lt lv ms nl no pl pt ro sk sl sq sv sw tl tr vi"
_RIVALS = frozenset(_LATIN.split()) | frozenset(_SCRIPT_OF)
_RELIABLE_LETTERS = 20
_SURE = 0.9
_READ_CHARS = 20_000  # more text tells no more about its language


@functools.cache
def language_codes() -> frozenset[str]:
    """The ISO 639 codes that `is_language` takes."""
    return frozenset(code for code, _ in py3langid.rank("a"))


@functools.lru_cache(maxsize=4096)
def _script(char: str) -> str:
    return unicodedata.name(char, "").split(" ", 1)[0]


def is_language(text: str, code: str) -> bool:
    """Whether the text as a whole is written in language `code`.

    At least three letters in four must be of its script, and the language the likeliest among widely written ones. Under 20
    letters no detector is reliable: then it is enough that no other language is clearly the likeliest (probability above 0.9).
    """
    sample = text[:_READ_CHARS]
    letters = [char for char in sample if char.isalpha()]
    if not letters:
        return False
    scripts = _SCRIPT_OF.get(code, "LATIN").split()
    if sum(_script(char) in scripts for char in letters) < 0.75 * len(letters):
        return False
    likeliest, probability = guess_language(sample, {*_RIVALS, code})
    if likeliest == code:
        return True
    return len(letters) < _RELIABLE_LETTERS and probability < _SURE


def guess_language(text: str, among: Iterable[str] | None = None) -> tuple[str, float]:
    """The likeliest language of a text and its probability among the candidates; case makes no difference."""
    wanted = frozenset(among) if among is not None else language_codes()
    scores = {code: float(score) for code, score in py3langid.rank(text[:_READ_CHARS].casefold()) if code in wanted}
    best = max(scores, key=lambda code: (scores[code], code))
    return best, 1 / sum(math.exp(score - scores[best]) for score in scores.values())


# --- the tools of the published checkers ---------------------------------------------------------------------------------------


def reference_sentences(text: str) -> list[str]:
    """Punkt sentences of the whole text, lines not split first (what NLTK's `sent_tokenize` is to the published checkers)."""
    return [sentence.strip() for sentence in _punkt(text) if sentence.strip()]


_LAST_PERIOD = re.compile(r"(?<!\.)\.([\])}>\"'»”’ ]*)\Z")


@functools.cache
def _treebank() -> NLTKWordTokenizer:
    return NLTKWordTokenizer()


def reference_tokens(text: str) -> list[str]:
    """Treebank tokens, punctuation included, as if sentence by sentence (what NLTK's `word_tokenize` gives).

    The tokenizer parts the period from the last word of its text only; so that one call does, it is parted here for each sentence.
    """
    parted = [_LAST_PERIOD.sub(r" . \1", sentence) for sentence in reference_sentences(text)]
    return _treebank().tokenize("\n".join(parted))
