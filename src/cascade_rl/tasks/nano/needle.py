"""Facts hidden in a long text of small talk: one needle, several, or two that must be joined."""

import random
import re
from collections.abc import Sequence, Set
from dataclasses import dataclass

from cascade_rl.errors import RecipeError
from cascade_rl.protocols import Tools
from cascade_rl.records import Message, Reward, Rollout
from cascade_rl.tasks.drawn import Draft, DrawnTask, misread, verdict
from cascade_rl.tasks.nano.words import CITIES, COLORS, DAYS, EVENTS, FOODS, NAMES, THINGS

_WEATHER = ("The sun is out", "It rains a bit", "The wind is cold", "The sky is dark", "Snow falls")
_WHEN = ("in the morning", "at noon", "at night", "all day", "this week")
_WHO = ("An old man", "A small dog", "The cook", "A girl", "The cat", "A boy")
_DOES = ("walks home", "looks at the sea", "sits by the door", "sings a song", "waits for a bus", "eats some bread")
TOKENS_PER_FILLER = 9  # what a filler sentence takes in the nano vocabulary, about; lengths are aims, not promises

_MAX_WORDS = 16
# Codes are words: one token, two places behind the name. With numbers (a blank and two digits) the model found a code in the text, but
# half the time another's: 46% right where words are 90%, after the same 200 updates.
_CODES = (*THINGS, *FOODS, *COLORS, *EVENTS)
_MIDDLES = (("town", CITIES), ("day", DAYS))  # what the two facts of a hop have in common


@dataclass(frozen=True, kw_only=True)
class NeedleTask(DrawnTask):
    """A text of `min_tokens` to `max_tokens` (about), with facts of which one or two answer the question at its end.

    num_distractors: facts of the same form that do not answer it.
    several_share, hop_share: the shares of questions for two facts, and of questions that join two; the rest ask for one. The
    reasoning says the facts again: to go on with a sentence that stands in the text is what a small model learns first.
    """

    min_tokens: int = 60
    max_tokens: int = 140
    num_distractors: int = 1
    several_share: float = 0.2
    hop_share: float = 0.25

    name: str = "nano.needle"
    domain: str = "long"

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 < self.min_tokens <= self.max_tokens:
            raise RecipeError(
                f'task "{self.name}": min_tokens {self.min_tokens} and max_tokens {self.max_tokens} must be positive and in order'
            )
        if self.several_share + self.hop_share > 1:
            raise RecipeError(f'task "{self.name}": several_share + hop_share must be at most 1')
        if self.num_distractors > 3:
            raise RecipeError(f'task "{self.name}": num_distractors {self.num_distractors} must be at most 3')

    def draw(self, rng: random.Random) -> Draft:
        place = rng.random()
        if place < self.hop_share:
            facts, question, answers, thinking = hop(rng, 1 + self.num_distractors)
        else:
            num = 2 if place < self.hop_share + self.several_share else 1
            facts, question, answers = codes(rng, num, self.num_distractors)
            thinking = " ".join(facts[:num])
        text = _hide(rng, facts, rng.randint(self.min_tokens, self.max_tokens) // TOKENS_PER_FILLER)
        gold = Message("assistant", " and ".join(answers) + ".", thinking=thinking if self.thinking else None)
        reference = {"answers": answers}
        return Draft([sorted(facts), question], f"{text}\n{question}", (gold,), reference, self.thinking)

    def judge(self, rollout: Rollout, answer: str, tools: Tools | None) -> Reward:
        return judge_values(answer, rollout.prompt.reference["answers"])


def codes(rng: random.Random, num: int, num_others: int, names: Sequence[str] = NAMES) -> tuple[list[str], str, list[str]]:
    """Facts, of which the first `num` answer; the question; the answers."""
    people = rng.sample(names, num + num_others)
    told = rng.sample(_CODES, len(people))
    facts = [f"The code of {person} is {code}." for person, code in zip(people, told, strict=True)]
    asked = " and ".join(people[:num])
    return facts, f"What is the code of {asked}?", told[:num]


def hop(
    rng: random.Random, num: int, names: Sequence[str] = NAMES, taken: Set[str] = frozenset()
) -> tuple[list[str], str, list[str], str]:
    """`num` chains of two facts (all first halves, then all second ones), of which the first answers; question, answer, reasoning.

    Both facts have the form of a single needle, so that what the second asks for is what the model finds anyway: the hop is to ask
    for it. As "Mia has the red box. The red box is in Rome." it was not learnt at this size, in a hundred tokens either.
    """
    word, middles = rng.choice([told for told in _MIDDLES if len(set(told[1]) - taken) >= num])
    people, middle = rng.sample(names, num), rng.sample([value for value in middles if value not in taken], num)
    told = rng.sample(_CODES, num)
    first = [f"The {word} of {person} is {value}." for person, value in zip(people, middle, strict=True)]
    second = [f"The code of {value} is {code}." for value, code in zip(middle, told, strict=True)]
    return first + second, f"What is the code of the {word} of {people[0]}?", told[:1], f"{first[0]} {second[0]}"


def judge_values(answer: str, right: list[str]) -> Reward:
    """Full marks for a short answer that says these codes, and no other code or number."""
    said = re.findall(r"\w+", answer.casefold())
    if len(said) > _MAX_WORDS:
        return verdict(False, f"{len(said)} words; at most {_MAX_WORDS} are an answer and not a list of guesses")
    if missing := [value for value in right if value.casefold() not in said]:
        return verdict(False, f"does not say {' and '.join(missing)}")
    if why := misread(said, right, NAMES):
        return verdict(False, why)
    wrong = [word for word in said if word not in right and (word.isdecimal() or word in _CODES)]
    return verdict(not wrong, f"also says {' and '.join(wrong)}, which was not asked for" if wrong else "says what was asked")


def _hide(rng: random.Random, facts: list[str], num_fillers: int) -> str:
    """The facts in random order and places among filler sentences."""
    sentences = [filler(rng) for _ in range(num_fillers)]
    for fact in rng.sample(facts, len(facts)):
        sentences.insert(rng.randint(0, len(sentences)), fact)
    return " ".join(sentences)


def filler(rng: random.Random) -> str:
    """A sentence of small talk."""
    if rng.random() < 0.5:
        return f"{rng.choice(_WEATHER)} {rng.choice(_WHEN)}."
    return f"{rng.choice(_WHO)} {rng.choice(_DOES)}."
