"""Tiny writing requests with up to three verifiable instructions at once.

The instruction ids are IFEval's and the checks are the product's own, so the smallest model trains on the very grader that judges
the real benchmark.
"""

import functools
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal

from cascade_rl.errors import RecipeError, unknown
from cascade_rl.grade.instructions import compile_instructions, grade_instructions
from cascade_rl.protocols import Tools
from cascade_rl.records import Message, Reward, Rollout
from cascade_rl.tasks.drawn import Draft, DrawnTask
from cascade_rl.tasks.nano.words import CITIES, COLORS, COPIED, DAYS, FOODS, NAMES, THINGS, plural

# A topic, and what can be said about it. Each list has sentences with and without a comma.
TOPICS = (
    ("moon", ("The moon is white.", "At night, the moon is bright.", "The moon moves slowly.")),
    ("sea", ("The sea is blue.", "At night, the sea is loud.", "The sea is full of fish.")),
    ("cat", ("The cat sleeps all day.", "At noon, the cat eats fish.", "The cat likes the sun.")),
    ("dog", ("The dog walks home.", "At night, the dog sleeps.", "The dog is a good friend.")),
    ("tree", ("The tree is old.", "In the sun, the tree is green.", "The tree gives shade.")),
    ("rain", ("The rain falls all day.", "At night, the rain is loud.", "The rain is good for the tree.")),
    ("snow", ("The snow is white.", "In the sun, the snow melts.", "The snow falls slowly.")),
    ("bird", ("The bird sings all day.", "At noon, the bird sleeps.", "The bird is small.")),
)
_ASKS = ("Write about the {topic}.", "Tell me about the {topic}.", "Say something about the {topic}.", "Describe the {topic}.")
_EXTRA_WORDS = ("star", "gold", "time", "song", "luck")
_ENDINGS = ("That is all.", "The end.", "So it is.")
_MARKS = ("name", "place", "date")


@dataclass
class _Answer:
    """A demonstration while the instructions shape it: its sentences, and what is done to the finished text, in order."""

    topic: str
    sentences: list[str]
    finish: list[Callable[[str], str]] = field(default_factory=list)
    as_bullets: bool = False
    banned: str = ""
    opening: str = ""

    def text(self) -> str:
        text = "\n".join(f"* {s}" for s in self.sentences) if self.as_bullets else " ".join(self.sentences)
        text = functools.reduce(lambda made, step: step(made), self.finish, text)
        return f"{self.opening}\n{text}" if self.opening else text

    def plain(self) -> list[str]:
        """Sentences about the topic that break no instruction."""
        said = [*dict(TOPICS)[self.topic], f"I like the {self.topic}.", f"The {self.topic} is nice."]
        return [s for s in said if "," not in s and not (self.banned and self.banned in s)]

    def keep_only(self, keep: Callable[[str], bool]) -> None:
        self.sentences = [s for s in self.sentences if keep(s)] or self.plain()[:1]

    def fill(self, num: int) -> None:
        """At least `num` sentences; the new ones come first, since what other instructions asked for was put last."""
        new = [s for s in self.plain() if s not in self.sentences]
        self.sentences = new[: max(0, num - len(self.sentences))] + self.sentences


# Each maker shapes the answer and gives the instruction's kwargs and its wordings.
def _keyword(rng: random.Random, answer: _Answer) -> tuple[dict[str, Any], tuple[str, ...]]:
    word = rng.choice(_EXTRA_WORDS)
    answer.sentences.append(f"I think of a {word}.")
    return {"keywords": [word]}, (f"Use the word {word}.", f"Include the word {word}.", f"The word {word} must occur.")


def _frequency(rng: random.Random, answer: _Answer) -> tuple[dict[str, Any], tuple[str, ...]]:
    word = rng.choice(_EXTRA_WORDS)
    answer.sentences.append(f"This {word} is my {word}.")
    told = (f"Use the word {word} at least twice.", f"The word {word} must occur at least twice.")
    return {"keyword": word, "frequency": 2, "relation": "at least"}, told


def _forbidden(rng: random.Random, answer: _Answer) -> tuple[dict[str, Any], tuple[str, ...]]:
    tempting = rng.choice(dict(TOPICS)[answer.topic])
    word = tempting.rstrip(".").rpartition(" ")[2]
    answer.banned = word
    answer.keep_only(lambda s: word not in s)
    return {"forbidden_words": [word]}, (f"Do not use the word {word}.", f"Avoid the word {word}.")


def _lowercase(rng: random.Random, answer: _Answer) -> tuple[dict[str, Any], tuple[str, ...]]:
    answer.finish.append(str.lower)
    return {}, ("Use small letters only.", "Write all in lower case.", "No capital letters.")


def _no_comma(rng: random.Random, answer: _Answer) -> tuple[dict[str, Any], tuple[str, ...]]:
    answer.keep_only(lambda s: "," not in s)
    return {}, ("Use no commas.", "Do not use commas.", "Avoid commas.")


def _bullets(rng: random.Random, answer: _Answer) -> tuple[dict[str, Any], tuple[str, ...]]:
    num = min(3, max(rng.choice((2, 3)), len(answer.sentences)))  # two instructions may each have put a sentence at the end
    answer.as_bullets = True
    answer.fill(num)
    answer.sentences = answer.sentences[-num:]
    return {"num_bullets": num}, (f"Give {num} bullet points.", f"Use exactly {num} bullets.", f"Make a list of {num} bullets.")


def _sentences(rng: random.Random, answer: _Answer) -> tuple[dict[str, Any], tuple[str, ...]]:
    num = rng.choice((2, 3))
    answer.fill(num)
    told = (f"Write at least {num} sentences.", f"Use {num} or more sentences.")
    return {"num_sentences": num, "relation": "at least"}, told


def _title(rng: random.Random, answer: _Answer) -> tuple[dict[str, Any], tuple[str, ...]]:
    topic = answer.topic
    answer.finish.append(lambda text: f"<<{topic}>>\n{text}")
    return {}, ("Put a title in << >>.", "Add a title in << >>.", "Start with a title in << >>.")


def _quotation(rng: random.Random, answer: _Answer) -> tuple[dict[str, Any], tuple[str, ...]]:
    answer.finish.append(lambda text: f'"{text}"')
    return {}, ("Put it all in double quotes.", "Wrap the answer in double quotes.")


def _ending(rng: random.Random, answer: _Answer) -> tuple[dict[str, Any], tuple[str, ...]]:
    phrase = rng.choice(_ENDINGS)
    answer.finish.append(lambda text: f"{text} {phrase}")
    return {"end_phrase": phrase}, (f'End with "{phrase}"', f'The last words must be "{phrase}"', f'Finish with "{phrase}"')


def _placeholder(rng: random.Random, answer: _Answer) -> tuple[dict[str, Any], tuple[str, ...]]:
    mark = rng.choice(_MARKS)
    answer.sentences.append(f"I saw it with [{mark}].")
    told = (f"Leave a placeholder like [{mark}].", f"Use a placeholder such as [{mark}].")
    return {"num_placeholders": 1}, told


def _highlight(rng: random.Random, answer: _Answer) -> tuple[dict[str, Any], tuple[str, ...]]:
    answer.sentences.append("It is *very* good.")
    return {"num_highlights": 1}, ("Mark a word like *this*.", "Highlight a word like *this*.")


def _repeat(rng: random.Random, answer: _Answer) -> tuple[dict[str, Any], tuple[str, ...]]:
    form = rng.random()
    if form < 0.3:  # a list has nothing to guess: only copying reproduces it; this one is like the options of a question
        answer.opening = " ".join(f"{rng.randint(0, 25)} {rng.choice('ABCD')}" for _ in range(rng.randint(3, 6))) + "."
    elif form < 0.65:
        words = rng.choices((*COPIED, *map(str, range(10, 100, 7))), k=rng.randint(3, 8))
        answer.opening = f"{' '.join(words)}."
    else:
        name, color, thing, city = (rng.choice(words) for words in (NAMES, COLORS, THINGS, CITIES))
        answer.opening = rng.choice(
            (
                f"{name} has {rng.randint(10, 99)} {color} {plural(thing)} in {city}.",
                f"The {color} {thing} of {name} is in {city}.",
                f"{name} and {rng.choice(NAMES)} go to {city} on {rng.choice(DAYS)}.",
                f"On {rng.choice(DAYS)} {name} eats {rng.randint(10, 99)} {plural(rng.choice(FOODS))}.",
            )
        )
    told = (f"First repeat this: {answer.opening}", f"Repeat this first: {answer.opening}")
    return {"prompt_to_repeat": answer.opening}, told


Maker = Callable[[random.Random, _Answer], tuple[dict[str, Any], tuple[str, ...]]]
# In the order in which they may shape an answer: what adds sentences first, then what counts them, then what changes letters,
# then what frames the finished text.
KINDS: dict[str, Maker] = {
    "combination:repeat_prompt": _repeat,
    "keywords:forbidden_words": _forbidden,
    "punctuation:no_comma": _no_comma,
    "keywords:existence": _keyword,
    "keywords:frequency": _frequency,
    "detectable_content:number_placeholders": _placeholder,
    "detectable_format:number_highlighted_sections": _highlight,
    "length_constraints:number_sentences": _sentences,
    "detectable_format:number_bullet_lists": _bullets,
    "startend:end_checker": _ending,
    "detectable_format:title": _title,
    "change_case:english_lowercase": _lowercase,
    "startend:quotation": _quotation,
}
_CLASHES = (
    {"length_constraints:number_sentences", "change_case:english_lowercase"},  # sentences are told apart by their capitals
    {"length_constraints:number_sentences", "detectable_format:number_bullet_lists"},
    {"detectable_format:number_bullet_lists", "startend:end_checker"},
    {"detectable_format:number_bullet_lists", "startend:quotation"},
    {"startend:end_checker", "startend:quotation"},
    {"startend:end_checker", "change_case:english_lowercase"},
    {"keywords:existence", "keywords:frequency"},
    {"combination:repeat_prompt", "keywords:forbidden_words"},
    {"combination:repeat_prompt", "startend:quotation"},
    {"combination:repeat_prompt", "change_case:english_lowercase"},
)
_OFTEN = {"combination:repeat_prompt": 5}  # how often a kind is drawn, others being drawn once: copying is the root of most tasks


@dataclass(frozen=True, kw_only=True)
class InstructionsTask(DrawnTask):
    """`"Write about the moon. Use no commas. End with "The end.""` asks for a text on the topic that keeps every instruction.

    max_instructions: how many a request may have (1 to 3).
    kinds: the instruction ids that may occur. With "combination:repeat_prompt" alone it is a task of copying, which a fresh model
    learns in a hundred steps and without which it learns little else.
    scoring: "all" pays 1 when every instruction is followed, "fraction" the share.
    thinking_share: the share of prompts in thinking mode, where `thinking` is on.
    """

    max_instructions: int = 3
    kinds: tuple[str, ...] = tuple(KINDS)
    scoring: Literal["all", "fraction"] = "all"
    thinking_share: float = 0.25

    name: str = "nano.instructions"
    domain: str = "if"

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 1 <= self.max_instructions <= 3:
            raise RecipeError(f'task "{self.name}": max_instructions {self.max_instructions} must be 1 to 3')
        for kind in self.kinds:
            if kind not in KINDS:
                raise RecipeError(unknown(f'task "{self.name}": kinds: id', kind, KINDS))
        if len(self.kinds) < self.max_instructions:
            raise RecipeError(
                f'task "{self.name}": kinds has {len(self.kinds)} ids, fewer than max_instructions {self.max_instructions}'
            )

    def draw(self, rng: random.Random) -> Draft:
        topic, said = rng.choice(TOPICS)
        answer = _Answer(topic, rng.sample(said, rng.choice((1, 1, 2))))
        chosen = _without_clashes(rng, self.kinds, rng.randint(1, self.max_instructions))
        made = [(id, *KINDS[id](rng, answer)) for id in chosen]
        ids, kwargs = [id for id, _, _ in made], [kw for _, kw, _ in made]
        told = [rng.choice(wordings) for _, _, wordings in made]
        rng.shuffle(told)
        question = " ".join([rng.choice(_ASKS).format(topic=topic), *told])
        thinks = self.thinking and rng.random() < self.thinking_share
        gold = Message("assistant", answer.text(), thinking=" ".join([f"About the {topic}.", *told]) if thinks else None)
        # That the text is about the topic was asked for too.
        reference = {"ids": [*ids, "keywords:existence"], "kwargs": [*kwargs, {"keywords": [topic]}]}
        return Draft([topic, *sorted(zip(ids, map(str, kwargs), strict=True))], question, (gold,), reference, thinks)

    def judge(self, rollout: Rollout, answer: str, tools: Tools | None) -> Reward:
        reference = rollout.prompt.reference
        return grade_instructions(compile_instructions(reference["ids"], reference["kwargs"]), answer, self.scoring)


def _without_clashes(rng: random.Random, kinds: tuple[str, ...], num: int) -> list[str]:
    """`num` of these kinds that can be kept together, in the order of KINDS."""
    while True:
        chosen = rng.sample(kinds, num, counts=[_OFTEN.get(kind, 1) for kind in kinds])
        if len(set(chosen)) < num:
            continue
        if not any(clash <= set(chosen) for clash in _CLASHES):
            return sorted(chosen, key=list(KINDS).index)
