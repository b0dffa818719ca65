"""What tasks that make their own prompts share: drawing questions, keeping the splits apart, and the first lines of every verdict.

A task *draws* questions from a seeded stream. The hash of what makes a question the same question (its `key`: the two numbers of
a sum, not the name of the child that adds them) decides its split, so no split can ever hold a question of another one, whatever
the seed or the sizes asked for.
"""

import functools
import hashlib
import json
import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, ClassVar

from cascade_rl.errors import DataError, RecipeError, unknown
from cascade_rl.protocols import Tools
from cascade_rl.records import Message, Prompt, Reward, Rollout, Split

MAX_ANSWER_CHARS = 4_000  # no gold answer is a tenth as long; what is longer is judged unread, so that no parser meets a megabyte
OPERANDS = ("max_number", "max_factor", "max_constant")  # settings that bound the numbers of a question, drawn from 2 on
_TRIES_PER_PROMPT = 200
_SHARES: dict[Split, tuple[int, int]] = {"train": (0, 80), "dev": (80, 90), "test": (90, 100)}  # percent of all keys


@dataclass(frozen=True, slots=True)
class Draft:
    """A question that has no number yet: `Draft(key=["add", 2, 3], question="2 + 3?", gold=(Message(...),), reference=5)`.

    key: JSON values that are equal for two drafts when they ask the same question; the text of the question decides it, so that
    no two splits share a text. question: a function where the text takes long to write; only a draft of the right split is written.
    """

    key: Any
    question: str | Callable[[], str]
    gold: tuple[Message, ...]
    reference: Any
    thinking: bool
    tools: tuple[Mapping[str, Any], ...] = ()
    facets: Mapping[str, str | float] = field(default_factory=dict)


def split_of(key: Any) -> Split:
    """The split that a question belongs to: 80% train, 10% dev, 10% test, by a hash of its key."""
    digest = hashlib.blake2b(json.dumps(key, sort_keys=True).encode(), digest_size=8).digest()
    percent = int.from_bytes(digest) % 100
    return next(split for split, (low, high) in _SHARES.items() if low <= percent < high)


@dataclass(frozen=True, kw_only=True)
class DrawnTask:
    """Settings and behaviour of a task that makes its own prompts; a subclass draws questions and judges answers.

    num_train, num_dev, num_test: prompts in each split. seed: another seed draws other questions of the same splits.
    thinking: whether demonstrations (and so prompts) carry reasoning, where the task has any.
    name, domain: labels, as the matrix shows them.
    """

    num_train: int = 2_000
    num_dev: int = 200
    num_test: int = 200
    seed: int = 0
    thinking: bool = True

    name: str = ""
    domain: str = ""
    metric: ClassVar[str] = "accuracy"

    def __post_init__(self) -> None:
        for setting in fields(self):
            value = getattr(self, setting.name)
            if setting.name.startswith("num_") and (not isinstance(value, int) or value < 0):
                raise RecipeError(f'task "{self.name}": {setting.name} {value!r} must be a whole number, 0 or more')
            low, high = (2, 1_000) if setting.name in OPERANDS else (1, 100_000)
            if setting.name.startswith("max_") and not low <= value <= high:
                raise RecipeError(f'task "{self.name}": {setting.name} {value!r} must be {low} to {high:,}')
            if setting.name.endswith("_share") and not 0 <= value <= 1:
                raise RecipeError(f'task "{self.name}": {setting.name} {value!r} must be between 0 and 1')

    @property
    def max_turns(self) -> int:
        return 1

    def prompts(self, split: Split) -> Sequence[Prompt]:
        """The prompts of a split; made at first use, then kept."""
        return _prompts(self, split)

    def open_tools(self, prompt: Prompt) -> Tools | None:
        return None

    async def grade(self, rollout: Rollout, tools: Tools | None = None) -> Reward:
        """1 or 0 (or what `judge` says) with the reason; an empty or oversized answer is 0 before anything reads it."""
        return self.refuse(rollout.answer) or self.judge(rollout, rollout.answer, tools)

    def refuse(self, answer: str) -> Reward | None:
        """The verdict on an answer that nothing needs to read: empty, or too long. None for others."""
        if not answer.strip():
            return Reward(0.0, why="no answer")
        if len(answer) > MAX_ANSWER_CHARS:
            return Reward(0.0, why=f"an answer of {len(answer):,} characters; at most {MAX_ANSWER_CHARS:,} are read")
        return None

    def draw(self, rng: random.Random) -> Draft:
        """One question, from any split."""
        raise NotImplementedError

    def drafts(self, rng: random.Random, split: Split) -> Sequence[Draft]:
        """The next questions, which become neighbours where they are of the split."""
        return (self.draw(rng),)

    def judge(self, rollout: Rollout, answer: str, tools: Tools | None) -> Reward:
        """The verdict on a non-empty answer of bounded length."""
        raise NotImplementedError


@functools.lru_cache(maxsize=128)
def _prompts(task: DrawnTask, split: Split) -> tuple[Prompt, ...]:
    sizes = {"train": task.num_train, "dev": task.num_dev, "test": task.num_test}
    if split not in sizes:
        raise DataError(unknown(f'task "{task.name}": split', split, sizes))
    rng = random.Random(f"{type(task).__name__}/{task.seed}/{split}")
    seen: set[bytes] = set()  # of question and reference: two databases may be asked the same thing
    prompts: list[Prompt] = []
    tries = 0
    while len(prompts) < sizes[split]:
        tries += 1
        if tries > _TRIES_PER_PROMPT * sizes[split]:
            raise DataError(
                f'task "{task.name}": only {len(prompts)} different prompts found for split "{split}" of {sizes[split]}'
                f"; ask for fewer (num_{split}) or make the task larger with its other settings"
            )
        for draft in task.drafts(rng, split):
            if split_of(draft.key) != split or len(prompts) == sizes[split]:
                continue
            question = draft.question if isinstance(draft.question, str) else draft.question()
            told = hashlib.blake2b(json.dumps([question, draft.reference], sort_keys=True).encode(), digest_size=16).digest()
            if told in seen:
                continue
            seen.add(told)
            prompts.append(
                Prompt(
                    id=f"{task.name}/{split}/{len(prompts)}",
                    task=task.name,
                    domain=task.domain,
                    split=split,
                    messages=(Message("user", question),),
                    tools=draft.tools,
                    thinking=draft.thinking,
                    reference=draft.reference,
                    gold=draft.gold,
                    facets=draft.facets,
                )
            )
    return tuple(prompts)


def verdict(passed: bool, why: str) -> Reward:
    """Reward 1 or 0 with its reason."""
    return Reward(float(passed), why=why)


_DENIALS = frozenset(("not", "isn", "never", "neither", "nor"))


def misread(said: Sequence[str], right: Sequence[str], names: Iterable[str]) -> str:
    """Why an answer of these (lower-case) words, which says all right values, does not mean them; "" if it does.

    Several values come in the order they were asked for, unless the answer names whose each is.
    """
    if denied := [word for word in said if word in _DENIALS]:
        return f'says "{denied[0]}"'
    places = [said.index(value.casefold()) for value in right]
    if places != sorted(places) and not {name.casefold() for name in names} & set(said):
        return f"says {' and '.join(right)} in another order than asked"
    return ""


def quote(text: str, limit: int = 60) -> str:
    """Model text made short and printable for a verdict's reason."""
    return repr(text if len(text) <= limit else text[: limit - 3] + "...")
