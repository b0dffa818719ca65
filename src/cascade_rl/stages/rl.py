"""Reinforcement learning with verifiable rewards, strictly on-policy by default: sample, grade, one update, sync, again."""

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from cascade_rl.algo.advantages import ADVANTAGES
from cascade_rl.algo.samples import to_samples
from cascade_rl.records import Sample
from cascade_rl.stages.collect import SignalCollector
from cascade_rl.stages.limits import check_at_least, first_growth, warmup_note
from cascade_rl.stages.on_policy import OnPolicy, dtype_name, figures
from cascade_rl.stages.watch import HackingWatch

if TYPE_CHECKING:
    from cascade_rl.algo.policy_loss import PolicyLoss
    from cascade_rl.model.optim import AdamW
    from cascade_rl.model.policy import Policy
    from cascade_rl.stages.context import StageContext
    from cascade_rl.stages.step import StepStats


@dataclass(frozen=True)
class RL(OnPolicy):
    """The stage's settings. The defaults are the paper's algorithm (arXiv 2603.19220, section 4.1 and tables 8 to 10).

    OnPolicy has those of sampling and of the optimizer; here are the rest:

    advantage         "group_normalised" (r - mean) / std, "mean_centred" (Dr. GRPO) or "leave_one_out".
    average           "token": over all trained tokens of the update; "sequence": each rollout weighs the same.
    updates_per_batch optimizer steps per batch of rollouts; 1 is strictly on-policy. Beyond, (clip_low, clip_high) bounds the ratio.
    kl                coefficient of the KL to the stage's start (the paper: 0; 0.03 in RLHF).
    importance        weight for a sampler that differs from the trainer: "none", "truncate" (TIS) or "mask" (IcePop), with bounds.
    dynamic_filtering drop groups whose rollouts all have the same reward and draw others, at most max_refills times a step.
    solved_above      groups without a reward above it do not train, and count as without signal (the paper, agentless SWE RL where a
                      judge gives a probability: 0.5; left out: off).
    overlong          a rollout cut at its budget of tokens or turns: "zero" gives it reward 0, "mask" leaves it out as if unscored.
    soft_overlong_tokens   the last so many tokens of the budget cost up to 1 of the reward, linearly (DAPO; 0: off).
    max_growth        answers of five steps on average may be so many times as long as those of the first five (0: no limit). Beyond,
                      on_growth says whether the stage ends there or warns. In the paper's long-context RL they ran away after 30 steps.
    """

    name: str = "rl"
    advantage: Literal["group_normalised", "mean_centred", "leave_one_out"] = "group_normalised"
    average: Literal["token", "sequence"] = "token"
    updates_per_batch: int = 1
    clip_low: float = 0.2
    clip_high: float = 0.28
    kl: float = 0.0
    importance: Literal["none", "truncate", "mask"] = "none"
    dynamic_filtering: bool = True
    max_refills: int = 3
    solved_above: float | None = None
    overlong: Literal["zero", "mask"] = "zero"
    soft_overlong_tokens: int = 0
    max_growth: float = 0.0
    on_growth: Literal["end", "warn"] = "end"

    def __post_init__(self) -> None:
        super().__post_init__()
        check_at_least(self, 1, "updates_per_batch")
        check_at_least(self, 0, "clip_low", "clip_high", "kl", "max_refills", "soft_overlong_tokens")
        if self.max_growth and not self.max_growth > 1:
            raise ValueError(f"max_growth = {self.max_growth} is a factor and must be more than 1; 0 turns the limit off")
        if self.group_size < 2:
            raise ValueError(
                f"group_size = {self.group_size} must be at least 2: a rollout is judged against the others of its group"
            )
        if self.soft_overlong_tokens >= self.max_new_tokens:
            raise ValueError(
                f"soft_overlong_tokens = {self.soft_overlong_tokens} must be less than max_new_tokens = {self.max_new_tokens}"
            )
        if self.prompts_per_step * self.group_size < self.updates_per_batch:
            raise ValueError(f"updates_per_batch = {self.updates_per_batch} is more than the rollouts of a step")

    def rewarded_tasks(self) -> tuple[str, ...]:
        """Tasks whose rewards train: their graders are tried before the stage."""
        return self.task_names()

    def arithmetic(self) -> str:
        rollouts = self.prompts_per_step * self.group_size
        updates = "1 update" if self.updates_per_batch == 1 else f"{self.updates_per_batch} updates"
        return (
            f"{self.prompts_per_step} prompts x {self.group_size} rollouts = {rollouts:,} rollouts = {updates};"
            f" {self.steps:,} steps = {self.steps * rollouts:,} rollouts of at most {self.max_new_tokens:,} tokens, refills apart"
            f"{warmup_note(self)}"
        )

    def run(self, ctx: "StageContext") -> None:
        """Trains from ctx.start and leaves ctx.dir.checkpoint; goes on from the last saved state if there is one."""
        from cascade_rl.model.optim import AdamW
        from cascade_rl.model.policy import Policy
        from cascade_rl.sample.local import LocalSampler

        policy = Policy(ctx.start, dtype=ctx.dtype, checkpointing=self.checkpointing)
        optim = AdamW(policy.model, betas=self.betas, weight_decay=self.weight_decay)
        start = Policy(ctx.start, dtype=ctx.dtype) if self.kl else None
        sampler = LocalSampler(policy.model, dtype=dtype_name(policy), tokenizer=policy.tokenizer)
        feed = self.feed(ctx)
        collector = SignalCollector(self, ctx, sampler, feed)
        first = ctx.resume(policy, optim, feed)
        watch, lengths = HackingWatch(), list[float]()
        for line in ctx.metrics():  # of the steps before a resume
            ctx.notes.extend(watch.add(line))
            lengths.append(line["mean_tokens"])
        sampler.load(policy.weights(), version=first)
        with ctx.progress(self.steps, first) as bar:
            for step in range(first, self.steps):
                batch = collector.collect(step)
                samples = to_samples(batch.groups, ADVANTAGES[self.advantage])
                with ctx.timed("training"):
                    stats = self._update(policy, optim, start, samples, step)
                verdict = self.check_on_policy(stats, batch.groups, step, dtype_name(policy))
                with ctx.timed("sync"):
                    sampler.load(policy.weights(), version=step + 1)
                ctx.log(step + 1, {**batch.metrics, **figures(stats), "on_policy": verdict, "learning_rate": self.lr(step)})
                for warning in watch.add(batch.metrics):
                    ctx.note(warning)
                if self.rollouts_every and step % self.rollouts_every == 0:
                    ctx.log_rollouts(step + 1, batch.groups, ADVANTAGES[self.advantage])
                bar.step(step + 1, {"reward": batch.metrics.get("reward")}, tokens=batch.num_sampled)
                lengths.append(batch.metrics["mean_tokens"])
                if self.on_growth == "end" and first_growth(lengths, self.max_growth):
                    break
                ctx.save_if_due(step + 1, self.steps, self.save_every, policy, optim, feed)
        self._tell_growth(lengths, ctx)
        ctx.finish(policy.save, {"steps": len(lengths), "prompts": feed.draws, "rollouts": feed.draws * self.group_size})

    def _tell_growth(self, lengths: Sequence[float], ctx: "StageContext") -> None:
        if found := first_growth(lengths, self.max_growth):
            step, times = found
            ended = f"ended after step {step} of {self.steps}: " if self.on_growth == "end" else ""
            ctx.note(
                f"{ended}answers are {times:.2f} times as long as at the start since step {step}, more than max_growth ="
                f" {self.max_growth:g} ({lengths[0]:.0f} tokens in step 1, {lengths[-1]:.0f} in step {len(lengths)})"
            )

    def _update(
        self, policy: "Policy", optim: "AdamW", start: "Policy | None", samples: Sequence[Sample], step: int
    ) -> "StepStats":
        """The step's optimizer updates; gives the figures of the first, in which the policy is still the one that sampled."""
        from cascade_rl.model.scoring import score_samples
        from cascade_rl.stages.step import update

        if start is not None:
            logps = score_samples(start, samples, self.microbatch_tokens, self.temperature)
            samples = [dataclasses.replace(s, logp_start=told) for s, told in zip(samples, logps, strict=True)]
        if self.updates_per_batch > 1:
            logps = score_samples(policy, samples, self.microbatch_tokens, self.temperature)
            samples = [dataclasses.replace(s, logp_old=told) for s, told in zip(samples, logps, strict=True)]
        parts = [samples[i :: self.updates_per_batch] for i in range(self.updates_per_batch)]
        told = [
            update(
                policy, optim, part, self._loss(), lr=self.lr(step), max_tokens_per_microbatch=self.microbatch_tokens,
                max_grad_norm=self.max_grad_norm, temperature=self.temperature,
            )
            for part in parts
        ]  # fmt: skip
        return told[0]

    def _loss(self) -> "PolicyLoss":
        from cascade_rl.algo.policy_loss import PolicyLoss

        return PolicyLoss(
            average=self.average,
            clip=(self.clip_low, self.clip_high) if self.updates_per_batch > 1 else (0.0, 0.0),
            kl=self.kl,
            importance=self.importance,
            bounds=(self.importance_low, self.importance_high),
        )
