"""Preference pairs of the chat world: two answers to one question, the hidden rule's scores for both, and which is better.

Answers are made with controlled faults. The rule says how helpful each is (1 to 5); a judge learns to say so from the answers alone.
"""

import random
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

from cascade_rl.grade.judge.labelled import grade_point, grade_verdict
from cascade_rl.grade.judge.template import BRIEF_PAIR, BRIEF_POINT, pair_question, point_question
from cascade_rl.grade.judge.verdict import NEUTRAL, Label, demonstration, ranking_of, write_pair, write_point
from cascade_rl.protocols import Tools, gold_rollout
from cascade_rl.records import Message, Prompt, Reward, Rollout
from cascade_rl.tasks.drawn import Draft, DrawnTask
from cascade_rl.tasks.nano.chat import CLOSES, GREETINGS, TOPICS, ChatTask
from cascade_rl.tasks.nano.words import NAMES


@dataclass(frozen=True, kw_only=True)
class JudgeTask(DrawnTask):
    """`"Q> Hi, I am Mia. ...\\n1> Hello Mia! ...\\n2> ..."` is answered by two scores and a ranking.

    mode: "pair"; or "point": one answer and its score, so that there is nothing to confuse it with.
    fault_share: how often each part of an answer is at fault.
    tie_share: the share of pairs whose answers are equally good; a judge meets them when it is used. Their label is a ranking of 3.5.
    reward: "distance", the paper's; or "agreement", 1 where the preference is right.
    format_weight, ranking_weight: C1 and C2 of the paper's reward.
    """

    thinking: bool = True
    mode: Literal["pair", "point"] = "pair"
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
        assert isinstance(asked.question, str)
        if self.mode == "point":
            return self._draw_point(rng, asked)
        wants_tie = rng.random() < self.tie_share
        while True:
            answers = [self._answer(rng, asked) for _ in range(2)]
            first, second = (answer.score for answer in answers)
            if answers[0].text != answers[1].text and (first == second) == wants_tie:
                break
        label = Label(first, second, NEUTRAL if first == second else ranking_of(first, second))
        thinking = told([answer.notes for answer in answers]) if self.thinking else None
        gold = Message("assistant", write_pair(demonstration(label)), thinking=thinking)
        (question,) = pair_question(BRIEF_PAIR, (Message("user", asked.question),), *(answer.text for answer in answers))
        reference = {"first": first, "second": second, "ranking": label.ranking}
        return Draft(asked.key, question.content, (gold,), reference, self.thinking)

    def _draw_point(self, rng: random.Random, asked: Draft) -> Draft:
        assert isinstance(asked.question, str)
        answer = self._answer(rng, asked)
        gold = Message("assistant", write_point(answer.score), thinking=told([answer.notes]) if self.thinking else None)
        (question,) = point_question(BRIEF_POINT, (Message("user", asked.question),), answer.text)
        return Draft(asked.key, question.content, (gold,), {"score": answer.score}, self.thinking)

    def judge(self, rollout: Rollout, answer: str, tools: Tools | None) -> Reward:
        if self.mode == "point":
            score = rollout.prompt.reference["score"]
            return grade_point(answer, score, agreement=self.reward == "agreement", format_weight=self.format_weight)
        return grade_verdict(
            answer, Label(**rollout.prompt.reference), agreement=self.reward == "agreement",
            format_weight=self.format_weight, ranking_weight=self.ranking_weight,
        )  # fmt: skip

    def _answer(self, rng: random.Random, asked: Draft) -> "_Answer":
        """An answer each of whose parts may be at fault: the greeting, the topic, the close, the length."""
        topic, person, greeted = asked.key
        name = person if greeted else ""
        if self._faulty(rng):
            name = "" if greeted and rng.random() < 0.6 else rng.choice([other for other in NAMES if other != name])
        explanation, words = next((text, words) for known, text, words in TOPICS if known == topic)
        others = [text for known, text, _ in TOPICS if known != topic]
        if self._faulty(rng):
            explanation, words = off_topic(rng, topic)
        hello = f"{rng.choice(GREETINGS)} {name}! " if name else ""
        close = rng.choice(CLOSES)
        if self._faulty(rng):
            close = "" if rng.random() < 0.7 else close[: rng.randrange(1, 6)]
        text = " ".join(filter(None, [f"{hello}{explanation}".strip(), close]))
        if self._faulty(rng):
            while len(text.split()) <= ChatTask.max_words:
                explanation += f" {rng.choice([explanation, *others])}"
                text = " ".join(filter(None, [f"{hello}{explanation}".strip(), close]))
        return noted(asked, text, name, words)

    def _faulty(self, rng: random.Random) -> bool:
        return rng.random() < self.fault_share


@dataclass(frozen=True)
class _Answer:
    """An answer, its score by the chat task's rule, and what a careful reader notes of it."""

    text: str
    score: int
    notes: str


def told(notes: Sequence[str]) -> str:
    """Notes as a judge's reasoning: of one answer as they are, of several line by line, each with its number."""
    return notes[0] if len(notes) == 1 else "\n".join(f"{number} {note}" for number, note in enumerate(notes, 1))


def noted(asked: Draft, text: str, name: str, words: Sequence[str]) -> _Answer:
    """An answer with the rule's score and its notes: what is wanted beside what is said, and behind each point the score so far.

    `"rain rain clouds clouds 2 Mia Mia 3 end 4 short 5"`; `"rain sea clouds salt 1"` for one off its topic, where nothing else counts.
    What is compared stands side by side: a small model compares neighbours. name: who is greeted; words: what stands in the words' places.
    """
    assert isinstance(asked.question, str)
    chat, message = ChatTask(), Message("assistant", text)
    prompt = Prompt("", chat.name, chat.domain, "train", (Message("user", asked.question),), reference=asked.reference)
    kept = chat.judge(gold_rollout(prompt, (message,)), text, None).parts
    score = 1 + (kept["on_topic"] > 0)
    wanted_words = asked.reference["words"]
    said = wanted_words if kept["on_topic"] else words
    notes = [f"{wanted} {word}" for wanted, word in zip(wanted_words, said, strict=True)] + [str(score)]
    if kept["on_topic"]:
        wanted = asked.reference["greet"] or "none"
        greeting = (name or "none") if kept["greets"] == ((name or "none") == wanted) else "no"
        for rule, note in (
            ("greets", f"{wanted} {greeting}"),
            ("closes", "end" if kept["closes"] else "open"),
            ("short", "short" if kept["short"] else "long"),
        ):
            score += kept[rule] > 0
            notes += [note, str(score)]
    return _Answer(text, score, " ".join(notes))


def off_topic(rng: random.Random, topic: str) -> tuple[str, tuple[str, ...]]:
    """An explanation at fault, and what stands where the topic's words should ("no" where nothing does).

    It is another topic's, or has a word exchanged, or is broken as models write when they lose the thread.
    """
    own, words = next((text, words) for known, text, words in TOPICS if known == topic)
    other, others = rng.choice([(text, spare) for known, text, spare in TOPICS if known != topic])
    kind = rng.random()
    if kind < 0.4:
        return other, others
    if kind < 0.6:
        place, wrong = rng.randrange(len(words)), rng.choice([word for word in others if word not in words])
        exchanged = re.sub(rf"\b{words[place]}\b", wrong, own, flags=re.IGNORECASE)
        return exchanged, tuple(wrong if i == place else word for i, word in enumerate(words))
    start, end = sorted(rng.choices(range(len(own)), k=2))
    if kind < 0.8:
        text = f"{own[:start].rstrip()}." if start else ""  # it breaks off
    else:
        text = own[:start] + (other[start:] if kind < 0.9 else own[end:])  # it slips into another, or leaves a part out
    there = set(re.findall(r"\w+", text.casefold()))
    return text, tuple(word if word in there else "no" for word in words)
