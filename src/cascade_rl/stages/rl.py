"""Reinforcement learning with verifiable rewards, strictly on-policy by default: sample, grade, one update, sync, again."""

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal

from cascade_rl.algo.advantages import ADVANTAGES
from cascade_rl.algo.samples import to_samples
from cascade_rl.errors import RunError
from cascade_rl.records import Sample, SamplingParams
from cascade_rl.stages.collect import Collected, Collector
from cascade_rl.stages.limits import check_finite, check_optimizer

if TYPE_CHECKING:
    from cascade_rl.algo.policy_loss import PolicyLoss
    from cascade_rl.model.optim import AdamW
    from cascade_rl.model.policy import Policy
    from cascade_rl.stages.context import StageContext
    from cascade_rl.stages.step import StepStats

# Mean |log p of the trainer - log p of the sampler| above which a run stops: rounding is 1e-6 in float32, and bf16 noise 0.03.
MAX_GAP = {"float32": 1e-3, "bfloat16": 0.2}


@dataclass(frozen=True)
class TaskShare:
    """A task of an RL stage: `{ task = "choice", weight = 55 }`; its share of the prompts is its weight over all weights."""

    task: str
    weight: float = 1.0

    def __post_init__(self) -> None:
        check_finite(self)
        if not self.weight > 0:
            raise ValueError(f"weight {self.weight} must be more than 0; leave the task out to drop it")


@dataclass(frozen=True)
class RL:
    """The stage's settings. The defaults are the paper's algorithm (arXiv 2603.19220, section 4.1 and tables 8 to 10).

    tasks, steps, prompts_per_step, group_size    a step samples group_size rollouts of each of prompts_per_step prompts.
    temperature, top_p, max_new_tokens            sampling; max_new_tokens is the budget of a whole rollout, all turns together.
    advantage         "group_normalised" (r - mean) / std, "mean_centred" (Dr. GRPO) or "leave_one_out".
    average           "token": over all trained tokens of the update; "sequence": each rollout weighs the same.
    updates_per_batch optimizer steps per batch of rollouts; 1 is strictly on-policy. Beyond, (clip_low, clip_high) bounds the ratio.
    kl                coefficient of the KL to the stage's start (the paper: 0; 0.03 in RLHF).
    importance        weight for a sampler that differs from the trainer: "none", "truncate" (TIS) or "mask" (IcePop), with bounds.
    dynamic_filtering drop groups whose rollouts all have the same reward and draw others, at most max_refills times a step.
    overlong          a rollout cut at its budget: "zero" gives it reward 0, "mask" leaves it out as if unscored.
    soft_overlong_tokens   the last so many tokens of the budget cost up to 1 of the reward, linearly (DAPO; 0: off).
    learning_rate ... constant after warmup_steps unless a schedule is asked for; AdamW.
    max_gap           stop when the mean gap between trainer and sampler log-probs passes this (0: 1e-3 in float32, 0.2 in bfloat16).
    max_unscored      stop when more than this share of a step's rollouts is unscored.
    rollouts_every    steps between written rollouts (0: none); the first group of each task is written.
    """

    NOT_IN_FINGERPRINT: ClassVar = ("save_every", "rollouts_every")

    name: str = "rl"
    tasks: tuple[TaskShare, ...] = ()
    steps: int = 50
    prompts_per_step: int = 128
    group_size: int = 16
    temperature: float = 1.0
    top_p: float = 1.0
    max_new_tokens: int = 192
    advantage: Literal["group_normalised", "mean_centred", "leave_one_out"] = "group_normalised"
    average: Literal["token", "sequence"] = "token"
    updates_per_batch: int = 1
    clip_low: float = 0.2
    clip_high: float = 0.28
    kl: float = 0.0
    importance: Literal["none", "truncate", "mask"] = "none"
    importance_low: float = 0.5
    importance_high: float = 2.0
    dynamic_filtering: bool = True
    max_refills: int = 3
    overlong: Literal["zero", "mask"] = "zero"
    soft_overlong_tokens: int = 0
    learning_rate: float = 3e-6
    min_learning_rate: float = 0.0
    warmup_steps: int = 0
    schedule: Literal["constant", "linear", "cosine"] = "constant"
    betas: tuple[float, float] = (0.9, 0.95)
    weight_decay: float = 0.0
    max_grad_norm: float = 1.0
    microbatch_tokens: int = 8192
    checkpointing: bool = False
    max_gap: float = 0.0
    max_unscored: float = 0.5
    save_every: int = 20
    rollouts_every: int = 10

    def __post_init__(self) -> None:
        check_finite(self)
        if not self.tasks:
            raise ValueError('needs tasks = [{ task = "NAME" }, ...]')
        for key in ("steps", "prompts_per_step", "max_new_tokens", "updates_per_batch", "microbatch_tokens"):
            if getattr(self, key) < 1:
                raise ValueError(f"{key} = {getattr(self, key)} must be at least 1")
        if self.group_size < 2:
            raise ValueError(
                f"group_size = {self.group_size} must be at least 2: a rollout is judged against the others of its group"
            )
        if not self.temperature > 0:
            raise ValueError(f"temperature {self.temperature} must be more than 0: greedy rollouts of one prompt are all alike")
        for key in (
            "clip_low", "clip_high", "kl", "max_refills", "soft_overlong_tokens", "max_gap", "save_every", "rollouts_every",
        ):  # fmt: skip
            if getattr(self, key) < 0:
                raise ValueError(f"{key} = {getattr(self, key)} must be 0 or more")
        if not 0 <= self.max_unscored <= 1:
            raise ValueError(f"max_unscored = {self.max_unscored} is a share and must be in [0, 1]")
        if self.soft_overlong_tokens >= self.max_new_tokens:
            raise ValueError(
                f"soft_overlong_tokens = {self.soft_overlong_tokens} must be less than max_new_tokens = {self.max_new_tokens}"
            )
        if not 0 < self.importance_low < 1 < self.importance_high:
            raise ValueError(f"importance bounds ({self.importance_low}, {self.importance_high}) must have 1 between them")
        if self.prompts_per_step * self.group_size < self.updates_per_batch:
            raise ValueError(f"updates_per_batch = {self.updates_per_batch} is more than the rollouts of a step")
        check_optimizer(self)
        self.sampling()

    def task_names(self) -> tuple[str, ...]:
        return tuple(share.task for share in self.tasks)

    def files(self) -> tuple[str, ...]:
        return ()

    def sampling(self) -> SamplingParams:
        return SamplingParams(temperature=self.temperature, top_p=self.top_p, max_new_tokens=self.max_new_tokens)

    def arithmetic(self) -> str:
        rollouts = self.prompts_per_step * self.group_size
        updates = "1 update" if self.updates_per_batch == 1 else f"{self.updates_per_batch} updates"
        return (
            f"{self.prompts_per_step} prompts x {self.group_size} rollouts = {rollouts:,} rollouts = {updates};"
            f" {self.steps:,} steps = {self.steps * rollouts:,} rollouts of at most {self.max_new_tokens:,} tokens, refills apart"
        )

    def run(self, ctx: "StageContext") -> None:
        """Trains from ctx.start and leaves ctx.dir.checkpoint; goes on from the last saved state if there is one."""
        from cascade_rl.model.optim import AdamW
        from cascade_rl.model.policy import Policy
        from cascade_rl.sample.local import LocalSampler
        from cascade_rl.stages.feed import Feed

        policy = Policy(ctx.start, dtype=ctx.dtype, checkpointing=self.checkpointing)
        optim = AdamW(policy.model, betas=self.betas, weight_decay=self.weight_decay)
        start = Policy(ctx.start, dtype=ctx.dtype) if self.kl else None
        sampler = LocalSampler(policy.model, dtype=_name(policy), tokenizer=policy.tokenizer)
        feed = Feed([ctx.tasks[share.task].prompts("train") for share in self.tasks], [s.weight for s in self.tasks], ctx.seed)
        collector = Collector(self, ctx, sampler, feed)
        first = ctx.resume(policy, optim, feed)
        sampler.load(policy.weights(), version=first)
        with ctx.progress(self.steps, first) as bar:
            for step in range(first, self.steps):
                batch = collector.collect(step)
                samples = to_samples(batch.groups, ADVANTAGES[self.advantage])
                with ctx.timed("training"):
                    stats = self._update(policy, optim, start, samples, step)
                verdict = self._on_policy(stats, batch, step, _name(policy))
                with ctx.timed("sync"):
                    sampler.load(policy.weights(), version=step + 1)
                ctx.log(step + 1, {**batch.metrics, **_figures(stats), "on_policy": verdict, "learning_rate": self._lr(step)})
                if self.rollouts_every and step % self.rollouts_every == 0:
                    ctx.log_rollouts(step + 1, batch.groups, ADVANTAGES[self.advantage])
                bar.step(step + 1, {"reward": batch.metrics.get("reward")}, tokens=batch.num_sampled)
                ctx.save_if_due(step + 1, self.steps, self.save_every, policy, optim, feed)
        ctx.finish(policy, {"steps": self.steps, "prompts": feed.draws, "rollouts": feed.draws * self.group_size})

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
                policy, optim, part, self._loss(), lr=self._lr(step), max_tokens_per_microbatch=self.microbatch_tokens,
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

    def _lr(self, step: int) -> float:
        from cascade_rl.model.optim import learning_rate

        return learning_rate(
            step, schedule=self.schedule, peak=self.learning_rate, floor=self.min_learning_rate,
            warmup_steps=self.warmup_steps, horizon_steps=self.steps,
        )  # fmt: skip

    def _on_policy(self, stats: "StepStats", batch: Collected, step: int, dtype: str) -> str:
        """Invariants 6 and 7, each step: the weights that sampled are the weights that train, and both see the same log-probs."""
        stale = {turn.version for group in batch.groups for r in group.rollouts for turn in r.turns} - {step}
        if stale:
            raise RunError(
                f'stage "{self.name}": step {step} trains rollouts of weight versions {sorted(stale)}; expected {step} alone'
            )
        if not stats.stepped:
            return "nothing trained"
        assert stats.maxes["ratio"] < 1e-4, "the first update after sampling has ratio 1"
        gap, limit = stats.means["gap"], self.max_gap or MAX_GAP[dtype]
        if gap > limit:
            raise RunError(
                f'stage "{self.name}": step {step + 1}: trainer and sampler disagree by {gap:.3g} nats a token on average; expected at'
                f" most {limit:g}. Nothing of this step was saved. Rollouts of another model or format train nothing useful; if the"
                f" sampler is meant to differ, raise max_gap and set importance"
            )
        return "on-policy: equal up to rounding" if gap < 1e-4 else f"on-policy: gap {gap:.2g} within the noise of {dtype}"


def _name(policy: "Policy") -> str:
    return str(policy.dtype).removeprefix("torch.")


def _figures(stats: "StepStats") -> dict[str, float | int]:
    means = {{"gap": "gap_mean", "k3": "gap_k3"}.get(name, name): value for name, value in stats.means.items()}
    return {
        "loss": stats.loss, "grad_norm": stats.grad_norm, "num_samples": stats.num_samples, "num_targets": stats.num_targets,
        "num_tokens": stats.num_tokens, "num_computed": stats.num_computed, **means,
        **({"gap_max": stats.maxes["gap"]} if stats.maxes else {}),
    }  # fmt: skip
