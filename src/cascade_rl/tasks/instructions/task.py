"""The task: composing a prompt, and its verdict."""

import random
from dataclasses import dataclass
from typing import Literal

from cascade_rl.errors import RecipeError, unknown
from cascade_rl.grade.instructions import compile_instructions, grade_instructions
from cascade_rl.protocols import Tools
from cascade_rl.records import Message, Reward, Rollout
from cascade_rl.tasks.drawn import Draft, DrawnTask
from cascade_rl.tasks.instructions.gold import MAX_MIN_CHARS, gold_answer
from cascade_rl.tasks.instructions.kinds import KINDS, WORDS, draw_instruction
from cascade_rl.tasks.instructions.requests import draw_request
from cascade_rl.tasks.instructions.together import draw_kinds

REPEAT = "combination:repeat_prompt"
CONSTRAINED = "detectable_format:constrained_response"
# Share of prompts with one, two and three instructions, as in IFEval.
_SHARES = (0.56, 0.33, 0.11)


@dataclass(frozen=True, kw_only=True)
class Instructions(DrawnTask):
    """`"Write a funny riddle about a lost umbrella. Avoid commas."`: any answer that keeps every instruction is right.

    max_instructions: how many a prompt may have (1 to 3).
    kinds: the instruction ids that may occur. scoring: "all" pays 1 when every instruction is followed, "fraction" the share.
    min_chars: a shorter answer gets 0: every request asks for a text, and to say next to nothing would keep most instructions.
    Answers yes, no and maybe are exempt. No request is in two splits, whatever its instructions.
    """

    num_train: int = 20_000
    max_instructions: int = 3
    kinds: tuple[str, ...] = tuple(KINDS)
    scoring: Literal["all", "fraction"] = "all"
    min_chars: int = MAX_MIN_CHARS
    thinking: bool = False

    name: str = "instructions"
    domain: str = "if"

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 1 <= self.max_instructions <= 3:
            raise RecipeError(f'task "{self.name}": max_instructions {self.max_instructions} must be 1 to 3')
        if not 0 <= self.min_chars <= MAX_MIN_CHARS:
            raise RecipeError(f'task "{self.name}": min_chars {self.min_chars} must be 0 to {MAX_MIN_CHARS}')
        if not self.kinds:
            raise RecipeError(f'task "{self.name}": kinds is empty; leave it out for all {len(KINDS)}')
        for kind in self.kinds:
            if kind not in KINDS:
                raise RecipeError(unknown(f'task "{self.name}": kinds: id', kind, KINDS))

    def draw(self, rng: random.Random) -> Draft:
        number = rng.choices(range(1, self.max_instructions + 1), _SHARES[: self.max_instructions])[0]
        ids = draw_kinds(rng, self.kinds, number)
        request = draw_request(rng, question=CONSTRAINED in ids)
        words: list[str] = [word for word in rng.sample(WORDS, 12) if word not in request.text]
        drawn = [draw_instruction(rng, id, words) for id in ids]
        told = [text for id, (_, text) in zip(ids, drawn, strict=True) if id != REPEAT]
        question = _in_case(rng, _compose(rng, request.text, told), ids)
        kwargs = [kwargs for kwargs, _ in drawn]
        if REPEAT in ids:
            place = ids.index(REPEAT)
            kwargs[place] = {"prompt_to_repeat": question}
            question = f"{question}{rng.choice((chr(10), chr(10) * 2))}{drawn[place][1]}"
        gold = Message("assistant", gold_answer(dict(zip(ids, kwargs, strict=True))))
        return Draft(request.text, question, (gold,), {"ids": ids, "kwargs": kwargs}, thinking=self.thinking)

    def judge(self, rollout: Rollout, answer: str, tools: Tools | None) -> Reward:
        reference = rollout.prompt.reference
        if len(answer.strip()) < self.min_chars and CONSTRAINED not in reference["ids"]:
            return Reward(0.0, why=f"an answer of {len(answer.strip())} characters; a text was asked for")
        return grade_instructions(compile_instructions(reference["ids"], reference["kwargs"]), answer, self.scoring)


def _in_case(rng: random.Random, question: str, ids: list[str]) -> str:
    """Who wants an answer in capitals may ask in capitals; it also lets a model find the answer that it would never try."""
    for id, change in (("change_case:english_lowercase", str.lower), ("change_case:english_capital", str.upper)):
        if id in ids and rng.random() < 0.4:
            return change(question)
    return question


def _compose(rng: random.Random, request: str, told: list[str]) -> str:
    """The request and its instructions: in a row, on lines of their own, as a list, or the request last."""
    if not told:
        return request
    form = rng.random()
    if form < 0.6 or any("\n" in text for text in told):
        return " ".join([request, *told])
    if form < 0.75:
        return "\n".join([request, *told])
    if form < 0.85 and len(told) > 1:
        return "\n".join([request, *(f"{i}. {text}" for i, text in enumerate(told, 1))])
    return f"{' '.join(told)}\n\n{request}" if form < 0.93 else f"{request}\n\n{' '.join(told)}"
