"""Needles in a long text for models of any size: facts put into the reader's own text, or into small talk, and asked for at its end."""

import functools
import random
import re
from collections.abc import Sequence, Set
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from cascade_rl.errors import DataError, RecipeError
from cascade_rl.protocols import Tools
from cascade_rl.records import Reward, Rollout, Split
from cascade_rl.tasks.documents import WHOLE, Asked, DocumentTask
from cascade_rl.tasks.drawn import misread, verdict

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

_NAMES = ("Amira", "Bruno", "Clara", "Dario", "Elena", "Farid", "Greta", "Hugo", "Ines", "Jonas", "Keiko", "Leon", "Marta", "Nadia",
          "Oscar", "Petra", "Ravi", "Selma", "Tomas", "Vera")  # fmt: skip
_COLORS = ("amber", "black", "blue", "brown", "copper", "green", "grey", "ivory", "purple", "red", "silver", "white", "yellow")
_CITIES = ("Athens", "Bergen", "Cairo", "Dakar", "Geneva", "Hanoi", "Lisbon", "Nairobi", "Oslo", "Porto", "Quito", "Riga", "Tunis",
           "Vienna", "Warsaw", "Zagreb")  # fmt: skip
_TREES = ("ash", "beech", "birch", "cedar", "cherry", "elm", "larch", "lime", "maple", "oak", "pine", "plum", "spruce", "willow")
_GOODS = ("baskets", "blankets", "candles", "carpets", "ladders", "lamps", "mirrors", "ropes", "saddles", "umbrellas")

_ASK = "Read the text and answer the question at its end in a few words."
_MOST_WORDS = 60  # of an answer; what is longer is a list of guesses
_SHARES: dict[Split, tuple[float, float]] = {"train": (0, 0.6), "dev": (0.6, 0.8), "test": (0.8, 1)}  # of the reader's text
_MOST_SENTENCE = 60  # words; what goes on without a full stop is cut there
_CODES = range(10_000, 100_000)

# What small talk is made of, where there is no text.
_WHO = ("The baker", "A neighbour", "The old teacher", "One of the sailors", "The gardener", "A tired traveller", "The ferryman")
_DID = ("walked down to the harbour", "waited at the corner", "spoke about the weather", "read the newspaper twice",
        "mended a fence", "looked for a lost glove", "closed the shutters", "carried water from the well")  # fmt: skip
_WHEN = ("before breakfast", "after the rain", "late in the evening", "while the bells rang", "on market day", "in the fog")


@dataclass(frozen=True, kw_only=True)
class Needle(DocumentTask):
    """Facts about people in a long text; the answers are numbers and single words, so verdicts are exact.

    path       a text file (UTF-8) that the document is cut from, at a random place; each split has a part of its own (60, 20 and
               20%), which must be as long as the longest document. Empty: small talk is made.
    tokenizer  what `lengths` are counted in: "" words, else the tokens of a model (a folder, "smollm2", a hub id).
    num_needles  facts that a question for several asks for; "count" and "sum" ask about two to `most_counted`.
    """

    path: str = ""
    tokenizer: str = ""
    num_train: int = 500
    num_dev: int = 100
    num_test: int = 100
    num_needles: int = 3
    num_others: int = 4
    most_counted: int = 5
    thinking: bool = False

    name: str = "needle"
    most_others: ClassVar[int] = 8

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 2 <= self.num_needles <= 8:
            raise RecipeError(f'task "{self.name}": num_needles {self.num_needles} must be 2 to 8')
        if not 2 <= self.most_counted <= len(_TREES):
            raise RecipeError(f'task "{self.name}": most_counted {self.most_counted} must be 2 to {len(_TREES)}')
        each = self.num_needles if "needles" in self.kinds else 1
        hops = self.num_others + self.num_questions if "hop" in self.kinds else 0
        if self.num_questions * each + self.num_others > len(_NAMES) or hops > len(_COLORS):
            raise RecipeError(
                f'task "{self.name}": {self.num_questions} questions to a document with num_others = {self.num_others} need more'
                f" people or places than there are; ask for less"
            )

    # --- questions --------------------------------------------------------------------------------------------------------------

    def ask(self, kind: str, rng: random.Random, num_others: int, taken: Set[str]) -> Asked:
        names = [name for name in _NAMES if name not in taken]
        if kind in ("needle", "needles"):
            return self._codes(1 if kind == "needle" else self.num_needles, num_others, names, rng)
        return self._hop(num_others, names, taken, rng) if kind == "hop" else self._whole(kind, num_others, names, rng)

    def _codes(self, num: int, num_others: int, names: Sequence[str], rng: random.Random) -> Asked:
        people = rng.sample(names, num + num_others)
        codes = [str(code) for code in rng.sample(_CODES, len(people))]
        facts = [f"The access code of {person} is {code}." for person, code in zip(people, codes, strict=True)]
        question = f"What {'is the access code' if num == 1 else 'are the access codes'} of {listed(people[:num])}?"
        return Asked(
            tuple(facts[:num]), tuple(facts[num:]), question, tuple(codes[:num]), tuple(codes[num:]), subjects=tuple(people)
        )

    def _hop(self, num_others: int, names: Sequence[str], taken: Set[str], rng: random.Random) -> Asked:
        num = 1 + num_others
        people, colors, cities = (
            rng.sample([word for word in words if word not in taken], num) for words in (names, _COLORS, _CITIES)
        )
        keeps = [f"{person} keeps old letters in the {color} chest." for person, color in zip(people, colors, strict=True)]
        stands = [f"The {color} chest stands in a cellar in {city}." for color, city in zip(colors, cities, strict=True)]
        question = f"In which city is the chest with the old letters of {people[0]}?"
        elsewhere = tuple(city for city in _CITIES if city != cities[0])  # whether or not the document names them
        others, subjects = (*keeps[1:], *stands[1:]), (*people, *colors, *cities)
        return Asked((keeps[0], stands[0]), others, question, (cities[0],), elsewhere, subjects=subjects)

    def _whole(self, kind: str, num_others: int, names: Sequence[str], rng: random.Random) -> Asked:
        """Of facts about one person all over the document: how many there are, or what their numbers add up to."""
        person, *others = subjects = tuple(rng.sample(names, 1 + num_others))
        num = rng.randint(2, self.most_counted)
        if kind == "count":
            told = [f"{person} planted a young {tree}." for tree in rng.sample(_TREES, num)]
            apart = [f"{who} planted a young {rng.choice(_TREES)}." for who in others]
            question = f"How many trees did {person} plant? Answer with a number."
            return Asked(tuple(told), tuple(apart), question, (str(num),), subjects=subjects)
        goods, numbers = rng.choice(_GOODS), rng.sample(range(2, 20), num)
        told = [f"{person} sold {number} {goods}." for number in numbers]
        apart = [f"{who} sold {rng.randint(2, 19)} {goods}." for who in others]
        question = f"How many {goods} did {person} sell in all? Answer with a number."
        working = f"{' + '.join(map(str, numbers))} = {sum(numbers)}."
        return Asked(tuple(told), tuple(apart), question, (str(sum(numbers)),), (), working, subjects)

    def write(self, document: str, question: str) -> str:
        return f"{_ASK}\n\n{document}\n\nQuestion: {question}"

    # --- the text ---------------------------------------------------------------------------------------------------------------

    def measure(self, sentence: str) -> int:
        return _measure(sentence, self.tokenizer)

    def fill(self, length: int, split: Split, rng: random.Random) -> Sequence[str]:
        sentences: list[str] = []
        if not self.path:
            while length > 0:
                sentences.append(f"{rng.choice(_WHO)} {rng.choice(_DID)} {rng.choice(_WHEN)}.")
                length -= self.measure(sentences[-1])
            return sentences
        text, ends = _text(self.path, self.tokenizer, self.name)
        first, last = (round(share * len(text)) for share in _SHARES[split])
        whole = ends[last] - ends[first]
        if whole < length:
            unit = "tokens" if self.tokenizer else "words"
            raise DataError(
                f'task "{self.name}": {self.path} has {whole:,} {unit} for split "{split}", and a document needs {length:,} of them;'
                " give a longer text, or shorter lengths"
            )
        starts = [number for number in range(first, last) if ends[last] - ends[number] >= length]
        place = rng.choice(starts)
        while length > 0:
            sentences.append(text[place])
            length -= ends[place + 1] - ends[place]
            place += 1
        return sentences

    # --- the verdict ------------------------------------------------------------------------------------------------------------

    def judge(self, rollout: Rollout, answer: str, tools: Tools | None) -> Reward:
        right, wrong = rollout.prompt.reference["answers"], rollout.prompt.reference["wrong"]
        said = re.findall(r"\w+", re.sub(r"(?<=\d),(?=\d{3}\b)", "", answer.casefold()))
        if len(said) > _MOST_WORDS:
            return verdict(False, f"{len(said)} words; at most {_MOST_WORDS} are an answer and not a list of guesses")
        if rollout.prompt.facets.get("kind") in WHOLE:
            numbers = [word for word in said if word.isdecimal()]
            last = numbers[-1].lstrip("0") if numbers else ""
            return verdict(last == right[0], f"the last number is {last or 'missing'}; right is {right[0]}")
        if missing := [value for value in right if value.casefold() not in said]:
            return verdict(False, f"does not say {listed(missing)}")
        if why := misread(said, right, _NAMES):
            return verdict(False, why)
        known = {value.casefold() for value in wrong}
        codes = {word for word in said if word.isdecimal() and len(word) == len(str(_CODES.start))} - set(right)
        if extra := sorted({word for word in said if word in known} | codes):
            return verdict(False, f"also says {listed(extra)}, which was not asked for")
        return verdict(True, "says what was asked")


def listed(values: Sequence[str]) -> str:
    """`listed(["a", "b", "c"])` is "a, b and c"."""
    return " and ".join(filter(None, (", ".join(values[:-1]), values[-1])))


@functools.lru_cache(maxsize=4)
def _text(path: str, tokenizer: str, task: str) -> tuple[tuple[str, ...], tuple[int, ...]]:
    """The sentences of a file, and where each starts in units; one entry more, which is the length of all."""
    place = Path(path).expanduser()
    try:
        whole = place.read_text(encoding="utf-8-sig")
    except OSError as error:
        raise DataError(f'task "{task}": cannot read {path} ({error.strerror}); give the path of a text file') from None
    except UnicodeDecodeError as error:
        raise DataError(f'task "{task}": {path} is not UTF-8 at byte {error.start}; convert it first') from None
    words = [part.split() for part in re.split(r"(?<=[.!?])\s+|\n\s*\n", whole)]
    pieces = [part[at : at + _MOST_SENTENCE] for part in words for at in range(0, len(part), _MOST_SENTENCE)]
    sentences = tuple(" ".join(piece) for piece in pieces)
    ends = [0]
    for sentence in sentences:
        ends.append(ends[-1] + _measure(sentence, tokenizer))
    return sentences, tuple(ends)


@functools.lru_cache(maxsize=1 << 16)
def _measure(sentence: str, tokenizer: str) -> int:
    if not tokenizer:
        return len(sentence.split())
    return len(_tokenizer(tokenizer).encode(f" {sentence}", add_special_tokens=False))


@functools.lru_cache(maxsize=2)
def _tokenizer(source: str) -> "PreTrainedTokenizerBase":
    from cascade_rl.model.sources import load_tokenizer, resolve
    from cascade_rl.tasks.nano import corpus

    return load_tokenizer(resolve(source, corpus))
