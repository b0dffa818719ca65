"""RLHF: the prompts of another task, graded by a judge that compares the answers of a group (or scores them one by one).

Questions of a whole step go to the judge together; to a judge behind a URL, those of the groups that are whole while others are still
being sampled. A verdict that is missing or cannot be read counts for nothing in its pair; an answer
without any verdict is unscored.
"""

import asyncio
import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

from cascade_rl.errors import RecipeError, unknown
from cascade_rl.grade.judge.concise import length_adjustment, shortest_bonus
from cascade_rl.grade.judge.config import JudgeConfig
from cascade_rl.grade.judge.pairs import Comparison, agreement, base_scores, pair_up, silent_share
from cascade_rl.grade.judge.template import load_template, pair_question, point_question
from cascade_rl.grade.judge.verdict import parse_pair, parse_point
from cascade_rl.protocols import Chat, Task, Tools
from cascade_rl.records import Group, Message, Prompt, Reply, Reward, Rollout, Split
from cascade_rl.seeds import derive_seed
from cascade_rl.tasks.threads import in_thread

LEAST = 1.0  # the score of an empty answer, which no judge is shown
_RULE_TIMEOUT_S = 60.0


@dataclass(frozen=True, kw_only=True)
class Judged:
    """Settings of a judged task.

    task            whose prompts are answered, by its name in the recipe.
    judge           who judges.
    second          another judge, only watched: how far it agrees is logged.
    mode            "pair": answers of a group are compared; "point": each is scored by itself.
    pairs           "all" (the paper) or "circular", each answer with the next; both_orders: each pair also the other way round.
    template        "full", "brief" (for a judge trained on that form), "examples" (for small models), or a text file.
    thinking_only   every prompt is answered in thinking mode (the paper: both modes cost instruction following).
    length_weight   of the adjustment for being shorter than the group, for thinking and answer apart (0: off).
    short_bonus     for the shortest thinking and the shortest answer, if their base score reaches the quantile short_gate (0: off).
    watch           whether the other task's own verdict is logged beside the judge's: a rule that no reward ever sees.
    timeout_s       for all verdicts that are asked for together.
    """

    task: str
    judge: JudgeConfig
    second: JudgeConfig | None = None
    mode: Literal["pair", "point"] = "pair"
    pairs: Literal["all", "circular"] = "all"
    both_orders: bool = False
    template: str = "full"
    thinking_only: bool = True
    length_weight: float = 0.5
    short_bonus: float = 0.5
    short_gate: float = 0.8
    watch: bool = True
    timeout_s: float = 1800.0
    name: str = "judged"

    metric: ClassVar[str] = "judge"
    NOT_IN_FINGERPRINT: ClassVar = ("timeout_s",)

    source: Any = field(default=None, repr=False, compare=False)  # the task named above, once linked
    chats: Mapping[str, Chat] = field(default_factory=dict, repr=False, compare=False)  # "judge" and "second", once opened

    def __post_init__(self) -> None:
        where = f'task "{self.name}"'
        if not 0 <= self.short_gate <= 1:
            raise RecipeError(f"{where}: short_gate {self.short_gate} is a quantile and must be in [0, 1]")
        for key in ("length_weight", "short_bonus"):
            if not 0 <= getattr(self, key) < 100:
                raise RecipeError(f"{where}: {key} {getattr(self, key)} must be 0 (off) or more, and less than 100")
        if not 0 < self.timeout_s < 1e6:
            raise RecipeError(f"{where}: timeout_s {self.timeout_s} must be more than 0 and less than a million")
        load_template(self.template, self.mode, where)

    # --- the other task -------------------------------------------------------------------------------------------------------

    def link(self, tasks: Mapping[str, Task]) -> "Judged":
        """This task with the one whose prompts it asks. Raises RecipeError for a name that no task has."""
        where = f'task "{self.name}": task'
        if self.task not in tasks:
            raise RecipeError(unknown(where, self.task, tasks))
        source = tasks[self.task]
        if isinstance(source, Judged):
            raise RecipeError(f'{where} "{self.task}" is itself judged; name the task that makes the prompts')
        return dataclasses.replace(self, source=source)

    def judges(self) -> dict[str, JudgeConfig]:
        return {"judge": self.judge, **({"second": self.second} if self.second else {})}

    def num_questions(self, group_size: int) -> int:
        """What a judge is asked of a group where all answers differ."""
        return group_size if self.mode == "point" else len(pair_up(group_size, self.pairs, self.both_orders))

    @property
    def domain(self) -> str:
        return self.source.domain if self.source is not None else ""

    @property
    def max_turns(self) -> int:
        return self.source.max_turns

    def open_tools(self, prompt: Prompt) -> Tools | None:
        return self.source.open_tools(prompt)

    def prompts(self, split: Split) -> Sequence[Prompt]:
        """The other task's prompts under this one's name; without gold answers, since an answer is judged among others."""
        return tuple(_renamed(self, prompt, number) for number, prompt in enumerate(self.source.prompts(split)))

    # --- verdicts -------------------------------------------------------------------------------------------------------------

    @property
    def group_timeout_s(self) -> float:
        return self.timeout_s

    @property
    def grades_elsewhere(self) -> bool:
        """Where every judge is a server; one in this process needs the cores that sample."""
        return all(config.url for config in self.judges().values())

    async def grade(self, rollout: Rollout, tools: Tools | None = None) -> Reward:
        ((reward,),) = await self.grade_groups([Group(rollout.prompt, (rollout,))])
        return reward

    async def grade_groups(self, groups: Sequence[Group]) -> list[list[Reward]]:
        """Base scores from the judge, what is added for being short, and the parts that are watched."""
        scored = await in_thread("judge", lambda: self._ask("judge", groups))
        seconds: Sequence[_Scores | None] = [None] * len(groups)
        if "second" in self.chats:
            seconds = await in_thread("judge", lambda: self._ask("second", groups))
        rules = await self._rules(groups) if self.watch else [None] * len(groups)
        told = zip(groups, scored, rules, seconds, strict=True)
        return [self._rewards(group, scores, rule, second) for group, scores, rule, second in told]

    def _ask(self, who: str, groups: Sequence[Group]) -> "list[_Scores]":
        """Each group's base scores from one judge, all its questions in one call."""
        template = load_template(self.template, self.mode, f'task "{self.name}"')
        asked = [_Cohort(group, self, template) for group in groups]
        questions = [question for cohort in asked for question in cohort.questions]
        seeds = [derive_seed(cohort.seed, who, number) for cohort in asked for number in range(len(cohort.questions))]
        if who not in self.chats:
            replies = [Reply("", failure=f"{who} was not opened: a judged task is graded in a run")] * len(questions)
        else:
            replies = self.chats[who].reply(questions, seeds) if questions else []
        found, at = [], 0
        for cohort in asked:
            found.append(cohort.scores(replies[at : at + len(cohort.questions)]))
            at += len(cohort.questions)
        return found

    async def _rules(self, groups: Sequence[Group]) -> list[list[float | None]]:
        """The other task's verdicts; whatever keeps it from one is None: it is only watched."""

        async def verdict(rollout: Rollout) -> float | None:
            try:
                return (await asyncio.wait_for(self.source.grade(rollout, rollout.tools), _RULE_TIMEOUT_S)).value
            except Exception:  # a grader may be anyone's code, and nothing is trained by this
                return None

        return [[await verdict(rollout) for rollout in group.rollouts] for group in groups]

    def _rewards(
        self, group: Group, scores: "_Scores", rule: Sequence[float | None] | None, second: "_Scores | None"
    ) -> list[Reward]:
        base = scores.base
        shorter = self._shorter(group, base)
        of_rule = agreement(base, rule) if rule is not None else [None] * len(base)
        of_second = agreement(base, second.base) if second is not None else [None] * len(base)
        rewards = []
        for i, rollout in enumerate(group.rollouts):
            parts: dict[str, float | None] = {
                "judge": base[i],
                "shorter": shorter[i],
                "silent": scores.silent[i],
                "thinking_chars": float(_thinking_chars(rollout)),
                "answer_chars": float(len(rollout.answer.strip())),
                "rule": rule[i] if rule is not None else None,
                "rule_agreement": of_rule[i],
                "second": second.base[i] if second is not None else None,
                "second_agreement": of_second[i],
            }
            known = {name: value for name, value in parts.items() if value is not None}
            score = base[i]
            rewards.append(Reward(None if score is None else score + (shorter[i] or 0.0), known, scores.why[i]))
        return rewards

    def _shorter(self, group: Group, base: Sequence[float | None]) -> list[float | None]:
        """What each judged, non-empty answer gets for being short."""
        places = [i for i, score in enumerate(base) if score is not None and group.rollouts[i].answer.strip()]
        kept = [score for score in (base[i] for i in places) if score is not None]
        added: list[float | None] = [None] * len(base)
        totals = [0.0] * len(places)
        for measure in (_thinking_chars, lambda rollout: len(rollout.answer.strip())):
            lengths = [measure(group.rollouts[i]) for i in places]
            more = (
                length_adjustment(lengths, self.length_weight),
                shortest_bonus(lengths, kept, self.short_bonus, self.short_gate),
            )
            totals = [total + a + b for total, a, b in zip(totals, *more, strict=True)]
        for i, total in zip(places, totals, strict=True):
            added[i] = total
        return added


@dataclass(frozen=True)
class _Scores:
    """A judge's word on a group: base scores, the share of each answer's verdicts that failed, and the reasons."""

    base: list[float | None]
    silent: list[float]
    why: list[str]


class _Cohort:
    """A group's answers as questions to a judge, and its replies as scores."""

    def __init__(self, group: Group, task: Judged, template: str) -> None:
        messages = group.prompt.messages
        self.texts = [rollout.answer.strip() for rollout in group.rollouts]
        self.mode = task.mode
        self.shown = [i for i, text in enumerate(self.texts) if text]  # an empty answer needs no judge
        self.seed = group.rollouts[0].seed if group.rollouts else 0
        if task.mode == "point":
            self.places = [(i, i) for i in self.shown]
            asked = [point_question(template, messages, self.texts[i]) for i in self.shown]
        else:
            chosen = pair_up(len(self.shown), task.pairs, task.both_orders)
            self.places = [(self.shown[a], self.shown[b]) for a, b in chosen]
            asked = [pair_question(template, messages, self.texts[i], self.texts[j]) for i, j in self.places]
        # The same two answers need the judge once, however often the model gave them.
        distinct = {question: number for number, question in enumerate(dict.fromkeys(asked))}
        self.questions: list[tuple[Message, ...]] = list(distinct)
        self.which = [distinct[question] for question in asked]

    def scores(self, replies: Sequence[Reply]) -> _Scores:
        base, silent, failures = self._points(replies) if self.mode == "point" else self._pairs(replies)
        why = [self._reason(score, failed) for score, failed in zip(base, failures, strict=True)]
        for i, text in enumerate(self.texts):
            if not text:
                base[i], why[i] = LEAST, "no answer"
        return _Scores(base, silent, why)

    def _points(self, replies: Sequence[Reply]) -> tuple[list[float | None], list[float], list[list[str]]]:
        base: list[float | None] = [None] * len(self.texts)
        silent, failures = [0.0] * len(self.texts), [[] for _ in self.texts]
        for (i, _), number in zip(self.places, self.which, strict=True):
            told = replies[number].failure or parse_point(replies[number].text)
            if isinstance(told, str):
                silent[i], failures[i] = 1.0, [told]
            else:
                base[i] = float(told)
        return base, silent, failures

    def _pairs(self, replies: Sequence[Reply]) -> tuple[list[float | None], list[float], list[list[str]]]:
        num = len(self.texts)
        comparisons, failures = [], [[] for _ in range(num)]
        for (i, j), number in zip(self.places, self.which, strict=True):
            verdict = replies[number].failure or parse_pair(replies[number].text)
            comparisons.append(Comparison(i, j, verdict, same=self.texts[i] == self.texts[j]))
            if isinstance(verdict, str):
                failures[i].append(verdict)
                failures[j].append(verdict)
        return base_scores(num, comparisons), silent_share(num, comparisons), failures

    def _reason(self, score: float | None, failures: Sequence[str]) -> str:
        if score is not None:
            return f"the judge says {score:.2f}" + (f"; {len(failures)} without a verdict: {failures[0]}" if failures else "")
        return f"no verdict in {len(failures)}: {failures[0]}" if failures else "no other answer to compare it with"


def _thinking_chars(rollout: Rollout) -> int:
    last = rollout.messages[-1] if rollout.messages else None
    return len((last.thinking or "").strip()) if last is not None else 0


def _renamed(task: Judged, prompt: Prompt, number: int) -> Prompt:
    thinking = task.thinking_only or prompt.thinking
    place = f"{task.name}/{prompt.split}/{number}"
    return dataclasses.replace(prompt, id=place, task=task.name, gold=(), thinking=thinking)
