"""Preference pairs of the chat world: two answers to one question, the hidden rule's scores for both, and which is better.

Answers are made with controlled faults. The rule says how helpful each is (1 to 5); a judge learns to say so from the answers alone.
"""

import random
import re
from dataclasses import dataclass
from typing import ClassVar, Literal

from cascade_rl.grade.judge.labelled import grade_verdict
from cascade_rl.grade.judge.template import BRIEF_PAIR, pair_question
from cascade_rl.grade.judge.verdict import NEUTRAL, Label, Verdict, ranking_of, write_pair
from cascade_rl.protocols import Tools, gold_rollout
from cascade_rl.records import Message, Prompt, Reward, Rollout
from cascade_rl.tasks.drawn import Draft, DrawnTask
from cascade_rl.tasks.nano.chat import CLOSES, GREETINGS, TOPICS, ChatTask
from cascade_rl.tasks.nano.words import NAMES


@dataclass(frozen=True, kw_only=True)
class JudgeTask(DrawnTask):
    """`"Q> Hi, I am Mia. ...\\n1> Hello Mia! ...\\n2> ..."` is answered by two scores and a ranking.

    fault_share: how often each part of an answer is at fault.
    tie_share: the share of pairs whose answers are equally good; a judge meets them when it is used. Their label is a ranking of 3.5.
    reward: "distance", the paper's; or "agreement", 1 where the preference is right.
    format_weight, ranking_weight: C1 and C2 of the paper's reward.
    """

    thinking: bool = True
    fault_share: float = 0.35
    tie_share: float = 0.0
    reward: Literal["distance", "agreement"] = "distance"
    format_weight: float = 10.0
    ranking_weight: float = 1.0

    name: str = "nano.judge"
    domain: str = "judge"
    metric: ClassVar[str] = "agreement"

    def draw(self, rng: random.Random) -> Draft:
        chat = ChatTask()
        asked = chat.draw(rng)
        wants_tie = rng.random() < self.tie_share
        while True:
            answers = [self._answer(rng, asked) for _ in range(2)]
            first, second = (helpfulness(chat, asked, answer.text) for answer in answers)
            if answers[0].text != answers[1].text and (first == second) == wants_tie:
                break
        ranking = NEUTRAL if first == second else ranking_of(first, second)
        said = Verdict(first, second, rng.choice((3, 4)) if first == second else int(ranking))
        thinking = None
        if self.thinking:
            _, person, greeted = asked.key
            wanted = " ".join([*asked.reference["words"], person if greeted else "none"])
            notes = [f"{number} {answer.notes(asked)}" for number, answer in enumerate(answers, 1)]
            thinking = "\n".join([wanted, *notes])
        gold = Message("assistant", write_pair(said), thinking=thinking)
        (question,) = pair_question(BRIEF_PAIR, (Message("user", asked.question),), *(answer.text for answer in answers))
        reference = {"first": first, "second": second, "ranking": ranking}
        return Draft(asked.key, question.content, (gold,), reference, self.thinking)

    def judge(self, rollout: Rollout, answer: str, tools: Tools | None) -> Reward:
        return grade_verdict(
            answer, Label(**rollout.prompt.reference), agreement=self.reward == "agreement",
            format_weight=self.format_weight, ranking_weight=self.ranking_weight,
        )  # fmt: skip

    def _answer(self, rng: random.Random, asked: Draft) -> "_Answer":
        """An answer each of whose parts may be at fault: the greeting, the topic, the close, the length."""
        topic, person, greeted = asked.key
        name = person
        if greeted and self._faulty(rng):
            name = "" if rng.random() < 0.6 else rng.choice([other for other in NAMES if other != person])
        elif not greeted and not self._faulty(rng):
            name = ""
        explanation, words = next((text, words) for known, text, words in TOPICS if known == topic)
        if self._faulty(rng):
            explanation, words = off_topic(rng, topic)
        hello = f"{rng.choice(GREETINGS)} {name}! " if name else ""
        close = "" if self._faulty(rng) else f" {rng.choice(CLOSES)}"
        more = ""
        if long := self._faulty(rng):
            others = [text for known, text, _ in TOPICS if known != topic]
            while len(f"{hello}{explanation}{more}{close}".split()) <= ChatTask.max_words:
                more += f" {rng.choice([explanation, *others])}"
        return _Answer(f"{hello}{explanation}{more}{close}", words, name, bool(close), long)

    def _faulty(self, rng: random.Random) -> bool:
        return rng.random() < self.fault_share


@dataclass(frozen=True)
class _Answer:
    """An answer and what it was made of: its topic's words, who is greeted, whether it closes, whether it is long."""

    text: str
    words: tuple[str, ...]
    name: str
    closes: bool
    long: bool

    def notes(self, asked: Draft) -> str:
        """What a careful reader notes, with the score so far behind each point: `"rain clouds 2 Mia 3 end 4 short 5"`."""
        score = 1 + (list(self.words) == asked.reference["words"])
        told = f"{' '.join(self.words)} {score}"
        if score == 1:
            return told  # off the topic: nothing else counts
        _, person, greeted = asked.key
        for note, kept in (
            (self.name or "none", self.name == (person if greeted else "")),
            ("end" if self.closes else "open", self.closes),
            ("long" if self.long else "short", not self.long),
        ):
            score += kept
            told += f" {note} {score}"
        return told


def off_topic(rng: random.Random, topic: str) -> tuple[str, tuple[str, ...]]:
    """The explanation of another topic, or this one's with one of its words exchanged: what a small model gets wrong. And its words."""
    own, words = next((text, words) for known, text, words in TOPICS if known == topic)
    text, others = rng.choice([(text, others) for known, text, others in TOPICS if known != topic])
    if rng.random() < 0.7:
        return text, others
    place, wrong = rng.randrange(len(words)), rng.choice([word for word in others if word not in words])
    exchanged = re.sub(rf"\b{words[place]}\b", wrong, own, flags=re.IGNORECASE)
    return exchanged, tuple(wrong if i == place else word for i, word in enumerate(words))


def helpfulness(chat: ChatTask, asked: Draft, answer: str) -> int:
    """1 off the topic, else 2 and one more for each further rule that is kept."""
    prompt = Prompt("", chat.name, chat.domain, "train", (Message("user", asked.question),), reference=asked.reference)
    parts = chat.judge(gold_rollout(prompt, (Message("assistant", answer),)), answer, None).parts
    return 1 + sum(kept > 0 for kept in parts.values()) if parts["on_topic"] else 1
