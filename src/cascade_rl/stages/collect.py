"""A step's rollouts: sampled, graded, filtered for signal and topped up, with everything counted on the way."""

import dataclasses
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import TYPE_CHECKING, Any

from cascade_rl.algo.advantages import has_signal
from cascade_rl.errors import RunError
from cascade_rl.model.memory import give_back_freed_memory
from cascade_rl.records import Group, Prompt, Reward
from cascade_rl.sample.rollout import rollouts
from cascade_rl.sample.verdicts import Verdicts
from cascade_rl.seeds import derive_seed

if TYPE_CHECKING:
    from cascade_rl.protocols import Sampler
    from cascade_rl.stages.context import StageContext
    from cascade_rl.stages.feed import Feed
    from cascade_rl.stages.on_policy import OnPolicy
    from cascade_rl.stages.rl import RL


@dataclass(frozen=True)
class Collected:
    """groups: what trains, shaped rewards included. metrics: figures over everything sampled, filtered groups included."""

    groups: list[Group]
    metrics: Mapping[str, Any]
    num_sampled: int


@dataclass(frozen=True)
class Collector:
    """Where a stage's rollouts come from."""

    stage: "OnPolicy"
    ctx: "StageContext"
    sampler: "Sampler"
    feed: "Feed[Prompt]"

    def draw(self, step: int, num: int, refill: int = 0) -> list[Group]:
        """Graded rollouts of the next `num` prompts, for step `step` (counted from 0)."""
        stage, ctx, prompts = self.stage, self.ctx, self.feed.take(num)
        seed = derive_seed(ctx.seed, "rollout", step, refill)
        ended = rollouts(self.sampler, ctx.renderer, ctx.tasks, prompts, stage.group_size, stage.sampling(), seed)
        with Verdicts(ctx.tasks, stage.group_size) as verdicts:
            with ctx.timed("sampling"):
                groups = verdicts.gather(prompts, ended)
                give_back_freed_memory()
            ctx.count_time("overlapped", verdicts.seconds)
            with ctx.timed("grading"):
                return verdicts.finish(groups)

    def collect(self, step: int) -> Collected:
        """All rollouts of a step."""
        groups = self.draw(step, self.stage.prompts_per_step)
        self.check_unscored(groups, step)
        return Collected(groups, tally(groups), num_sampled(groups))

    def check_unscored(self, groups: Sequence[Group], step: int) -> None:
        """Of what graders said: a rollout that is masked for its length was not without a verdict."""
        rewards = [reward for group in groups for reward in group.rewards]
        unscored = [reward for reward in rewards if reward.value is None]
        if len(unscored) > self.stage.max_unscored * len(rewards):
            raise RunError(
                f'stage "{self.stage.name}": step {step + 1}: {len(unscored)} of {len(rewards)} rollouts are unscored, above'
                f" max_unscored = {self.stage.max_unscored:g}; the first: {unscored[0].why}"
            )


@dataclass(frozen=True)
class SignalCollector(Collector):
    """Rollouts that an advantage can be told from."""

    stage: "RL"

    def collect(self, step: int) -> Collected:
        """Groups without signal are dropped and others drawn, as the stage says. Raises RunError when none has any."""
        stage, graded, seen, kept = self.stage, [], [], []
        for refill in range(1 + (stage.max_refills if stage.dynamic_filtering else 0)):
            wanted = stage.prompts_per_step - len(kept)
            if not wanted:
                break
            groups = self.draw(step, wanted, refill)
            graded += groups
            self.check_unscored(graded, step)
            groups = [overlong(group, stage.overlong) for group in groups]
            seen += groups
            kept += [group for group in groups if self._trains(group)]
        self._check_signal(seen, kept, step)
        shaped = [soft_overlong(group, stage.max_new_tokens, stage.soft_overlong_tokens) for group in kept]
        metrics = {**tally(seen), "groups_sampled": len(seen), "groups_kept": len(kept)}
        return Collected(shaped, metrics, num_sampled(seen))

    def _trains(self, group: Group) -> bool:
        values = [reward.value for reward in group.rewards]
        if (
            self.stage.solved_above is not None
            and max((v for v in values if v is not None), default=-math.inf) <= self.stage.solved_above
        ):
            return False
        return has_signal(values) or not self.stage.dynamic_filtering

    def _check_signal(self, seen: Sequence[Group], kept: Sequence[Group], step: int) -> None:
        if kept:
            return
        shares = ", ".join(
            f"{task} (all right {told['solve_all']:.0%}, all wrong {told['solve_none']:.0%}, cut {told['truncated']:.0%},"
            f" without a verdict {told['unscored']:.0%})"
            for task, told in by_task(seen).items()
        )
        reasons = [r.why for group in seen for r in group.rewards if r.value is None and r.why != MASKED]
        first = f"; the first without a verdict: {reasons[0]}" if reasons else ""
        raise RunError(
            f'stage "{self.stage.name}": step {step + 1}: none of {len(seen)} groups has any signal: {shares}{first};'
            f" choose harder or easier prompts, more rollouts a prompt, or end the stage before this step"
        )


def num_sampled(groups: Sequence[Group]) -> int:
    """Sampled tokens of all rollouts."""
    return sum(rollout.num_sampled for group in groups for rollout in group.rollouts)


MASKED = "cut at its budget of tokens or turns: masked"


def overlong(group: Group, choice: str) -> Group:
    """Rollouts cut at their budget of tokens or turns: reward 0 ("zero", the paper's penalty), or left out like unscored ones ("mask").

    A reward below 0 stays: being cut must never be better than being wrong.
    """

    def cut(reward: Reward) -> Reward:
        if choice == "mask":
            return Reward(None, reward.parts, why=MASKED)
        return Reward(min(0.0, reward.value or 0.0), reward.parts, why="cut at its budget of tokens or turns")

    rewards = tuple(
        cut(reward) if rollout.finish != "stop" and reward.value is not None else reward
        for rollout, reward in zip(group.rollouts, group.rewards, strict=True)
    )
    return dataclasses.replace(group, rewards=rewards)


def soft_overlong(group: Group, max_new_tokens: int, soft_tokens: int) -> Group:
    """DAPO's soft overlong punishment (arXiv 2503.14476, Eq. 13): minus (length - (budget - soft)) / soft in the last `soft` tokens.

    Applied after filtering: shaping must not make a group without signal look as if it had some.
    """
    if not soft_tokens:
        return group
    free = max_new_tokens - soft_tokens
    rewards = tuple(
        reward
        if reward.value is None or rollout.num_sampled <= free
        else dataclasses.replace(reward, value=reward.value - min(1.0, (rollout.num_sampled - free) / soft_tokens))
        for rollout, reward in zip(group.rollouts, group.rewards, strict=True)
    )
    return dataclasses.replace(group, rewards=rewards)


def by_task(groups: Sequence[Group]) -> dict[str, dict[str, float]]:
    """Figures of each task: reward, share of groups that are all right or all wrong, unscored, cut, format errors, tokens."""
    tasks: dict[str, list[Group]] = {}
    for group in groups:
        tasks.setdefault(group.prompt.task, []).append(group)
    return {task: _figures(members) for task, members in sorted(tasks.items())}


def _figures(groups: Sequence[Group]) -> dict[str, float]:
    rollouts = [rollout for group in groups for rollout in group.rollouts]
    rewards = [reward.value for group in groups for reward in group.rewards]
    scored = [value for value in rewards if value is not None]
    unscored = [reward for group in groups for reward in group.rewards if reward.value is None and reward.why != MASKED]
    values = [[reward.value for reward in group.rewards if reward.value is not None] for group in groups]
    told = {
        # A judge's scores go beyond 1, and none of them means all right.
        "solve_all": fmean(bool(v) and min(v) >= 1 >= max(v) for v in values),
        "solve_none": fmean(bool(v) and max(v) <= 0 for v in values),
        "unscored": len(unscored) / len(rewards),
        "truncated": fmean(rollout.finish != "stop" for rollout in rollouts),
        "format_errors": fmean(rollout.format_errors > 0 for rollout in rollouts),
        "mean_tokens": fmean(rollout.num_sampled for rollout in rollouts),
        "forks": float(sum(turn.fork for rollout in rollouts for turn in rollout.turns)),
    }
    parts: dict[str, list[float]] = {}
    for reward in (reward for group in groups for reward in group.rewards):
        for name, value in reward.parts.items():
            parts.setdefault(f"part.{name}", []).append(value)
    told |= {name: fmean(values) for name, values in sorted(parts.items())}
    logps = [logp for rollout in rollouts for turn in rollout.turns for logp in turn.logps]
    if logps:
        told["entropy"] = -fmean(logps)  # of sampled tokens: an unbiased estimate of the mean entropy
    return ({"reward": fmean(scored)} if scored else {}) | told


def tally(groups: Sequence[Group]) -> dict[str, float]:
    """The figures over all groups, and those of each task as "figure/task"."""
    tasks = by_task(groups)
    split = {f"{name}/{task}": value for task, told in tasks.items() for name, value in told.items()} if len(tasks) > 1 else {}
    return _figures(groups) | split
