"""Pairs of a policy's own answers to the chat world's questions, with the reasoning that a careful judge would write."""

import re
from collections.abc import Sequence
from dataclasses import dataclass

from cascade_rl.errors import DataError
from cascade_rl.records import Message
from cascade_rl.tasks.drawn import Draft
from cascade_rl.tasks.nano.chat import GREETINGS, TOPICS
from cascade_rl.tasks.nano.judge import noted, told
from cascade_rl.tasks.nano.words import NAMES
from cascade_rl.tasks.preference import Preference

_HELLO = re.compile(rf"\s*({'|'.join(GREETINGS)})\b", re.IGNORECASE)


@dataclass(frozen=True, kw_only=True)
class NanoPreference(Preference):
    """`preference` on pairs of `nano.chat`, demonstrated as `nano.judge` does: notes on both answers, then the verdict."""

    template: str = "brief"
    name: str = "nano.preference"

    def reasons(self, messages: Sequence[Message], answers: Sequence[str]) -> str | None:
        return told([notes_on(messages[-1].content, answer) for answer in answers])


def notes_on(question: str, answer: str) -> str:
    """The notes of `nano.judge` on any answer: `notes_on("Hi, I am Mia. Say why rain falls.", "Hi Mia! Rain falls.")` is
    "rain rain clouds no 1". Raises DataError for a question that the chat world does not ask.
    """
    topics = [(topic, words) for topic, _, words in TOPICS if topic in question]
    people = [name for name in NAMES if re.search(rf"\b{name}\b", question)]
    if len(topics) != 1 or len(people) != 1:
        raise DataError(
            f"nano.preference: {question[:80]!r} is no question of nano.chat; for other pairs take the task preference"
        )
    ((topic, words),), (person,) = topics, people
    greeted = person if f"I am {person}" in question else None
    asked = Draft([topic, person, greeted is not None], question, (), {"greet": greeted, "words": list(words)}, True)
    named = [name for name in re.findall(r"\w+", answer) if name in NAMES] if _HELLO.match(answer) else []
    return noted(asked, answer, named[0] if named else "", _instead(words, answer)).notes


def _instead(words: Sequence[str], answer: str) -> Sequence[str]:
    """What stands where the topic's words should: themselves, or "no"; another topic's, where the answer is about that alone."""
    there = set(re.findall(r"\w+", answer.casefold()))
    if there.isdisjoint(words):
        for _, _, others in TOPICS:
            if there.issuperset(others):
                return others
    return [word if word in there else "no" for word in words]
