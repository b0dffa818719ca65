"""Arithmetic and word problems; the answer goes into a box."""

import random
import re
from dataclasses import dataclass

from cascade_rl.protocols import Tools
from cascade_rl.records import Message, Reward, Rollout
from cascade_rl.tasks.drawn import Draft, DrawnTask, quote, verdict
from cascade_rl.tasks.nano.words import FOODS, NAMES, THINGS, plural

_BOX = re.compile(r"\\boxed\{([^{}]*)\}")
_INTEGER = re.compile(r"-?[0-9]{1,9}")

_ASK_SUM = ("What is {a}+{b}?", "Find {a}+{b}.", "{a}+{b}=?", "Add {a} and {b}.")
_ASK_DIFFERENCE = ("What is {a}-{b}?", "Find {a}-{b}.", "{a}-{b}=?", "Take {b} from {a}.")
_ASK_PRODUCT = ("What is {a}*{b}?", "Find {a}*{b}.", "{a}*{b}=?", "Multiply {a} by {b}.")

_GET_MORE = (
    "{name} has {a} {things} and gets {b} more. How many {things} now?",
    "There are {a} {things} on a table. {name} brings {b} more. How many in all?",
)
_LOSE = (
    "{name} has {a} {things} and gives away {b}. How many are left?",
    "{name} had {a} {things} and lost {b}. How many {things} now?",
)
_GROUPS = (
    "{name} has {a} bags of {b} {things}. How many {things} in all?",
    "There are {a} boxes with {b} {things} in each. How many {things}?",
)
_GROUPS_AND_MORE = (
    "{name} has {a} bags of {b} {things} and {c} more. How many {things}?",
    "{name} buys {a} boxes of {b} {things} and then gets {c}. How many now?",
)
_GROUPS_AND_LOSE = (
    "{name} has {a} bags of {b} {things} and gives away {c}. How many are left?",
    "{name} buys {a} boxes of {b} {things} and loses {c}. How many now?",
)


@dataclass(frozen=True, kw_only=True)
class MathTask(DrawnTask):
    r"""`"What is 47+38?"` asks for `\boxed{85}`; the demonstration adds digit by digit, with the carry said aloud.

    max_number: largest operand of a plain sum or difference. max_factor: largest factor of a product. word_share: the share of
    word problems. two_step_share: the share of those that take two steps.
    """

    max_number: int = 19
    max_factor: int = 5
    word_share: float = 0.6
    two_step_share: float = 0.4

    name: str = "nano.math"
    domain: str = "math"

    def draw(self, rng: random.Random) -> Draft:
        if rng.random() < self.word_share:
            key, question, thinking, result = self._word_problem(rng)
        else:
            key, question, thinking, result = self._plain(rng)
        gold = Message("assistant", f"\\boxed{{{result}}}", thinking=thinking if self.thinking else None)
        return Draft(key, question, (gold,), result, self.thinking)

    def _plain(self, rng: random.Random) -> tuple[list[object], str, str, int]:
        kind = rng.choice(("add", "subtract", "multiply"))
        if kind == "multiply":
            a, b = rng.randint(2, self.max_factor), rng.randint(2, self.max_factor)
            return ["multiply", *sorted((a, b))], rng.choice(_ASK_PRODUCT).format(a=a, b=b), say_product(a, b), a * b
        a, b = sorted((rng.randint(2, self.max_number), rng.randint(2, self.max_number)))
        if kind == "add":
            a, b = rng.sample((a, b), 2)
            return ["add", *sorted((a, b))], rng.choice(_ASK_SUM).format(a=a, b=b), say_sum(a, b), a + b
        return ["subtract", b, a], rng.choice(_ASK_DIFFERENCE).format(a=b, b=a), say_difference(b, a), b - a

    def _word_problem(self, rng: random.Random) -> tuple[list[object], str, str, int]:
        things = plural(rng.choice(THINGS + FOODS))
        name = rng.choice(NAMES)
        two_steps = rng.random() < self.two_step_share
        form = rng.choice((_GROUPS_AND_MORE, _GROUPS_AND_LOSE) if two_steps else (_GET_MORE, _LOSE, _GROUPS))
        a, b, c = rng.randint(2, self.max_factor), rng.randint(2, self.max_factor), rng.randint(2, 9)
        if form is _GET_MORE or form is _LOSE:
            a, b = sorted((rng.randint(2, self.max_number), rng.randint(2, self.max_number)), reverse=True)
        if form is _GROUPS_AND_LOSE:
            c = rng.randint(1, min(9, a * b - 1))
        question = rng.choice(form).format(name=name, things=things, a=a, b=b, c=c)
        if form is _GET_MORE:
            return ["add", b, a], question, say_sum(a, b), a + b
        if form is _LOSE:
            return ["subtract", a, b], question, say_difference(a, b), a - b
        if form is _GROUPS:
            return ["multiply", *sorted((a, b))], question, say_product(a, b), a * b
        if form is _GROUPS_AND_MORE:
            thinking = f"{say_product(a, b)} {say_sum(a * b, c)}"
            return ["groups and more", a, b, c], question, thinking, a * b + c
        return ["groups and lose", a, b, c], question, f"{say_product(a, b)} {say_difference(a * b, c)}", a * b - c

    def judge(self, rollout: Rollout, answer: str, tools: Tools | None) -> Reward:
        boxes = _BOX.findall(answer)
        if not boxes:
            return verdict(False, f"no \\boxed{{}} in {quote(answer)}")
        value = boxes[-1].strip()
        if not _INTEGER.fullmatch(value):
            return verdict(False, f"{quote(value)} in the box is not a whole number")
        return verdict(int(value) == rollout.prompt.reference, f"{int(value)} in the box; right is {rollout.prompt.reference}")


def say_product(a: int, b: int) -> str:
    return f"{a}*{b}={a * b}."


def say_sum(a: int, b: int) -> str:
    """The ones, then the tens with the carry: `47+38: 7+8=15. 4+3+1=8. 85.`"""
    if a < 10 and b < 10:
        return f"{a}+{b}={a + b}."
    ones = a % 10 + b % 10
    tens = "+".join(str(part) for part in (a // 10, b // 10, ones // 10) if part)
    steps = f"{a}+{b}: {a % 10}+{b % 10}={ones}. "
    if "+" in tens:
        steps += f"{tens}={a // 10 + b // 10 + ones // 10}. "
    return f"{steps}{a + b}."


def say_difference(a: int, b: int) -> str:
    """The ones, borrowing where needed, then the tens: `45-38: 15-8=7. 4-1-3=0. 7.`"""
    if a < 10:
        return f"{a}-{b}={a - b}."
    borrow = a % 10 < b % 10
    steps = f"{a}-{b}: {a % 10 + 10 * borrow}-{b % 10}={a % 10 + 10 * borrow - b % 10}. "
    if borrow or b >= 10:
        tens = "-".join(str(part) for part in (a // 10, int(borrow), b // 10) if part)
        steps += f"{tens}={a // 10 - borrow - b // 10}. "
    return f"{steps}{a - b}."
