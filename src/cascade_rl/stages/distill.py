"""Multi-domain on-policy distillation: the student samples, the teacher of each prompt's domain judges every token, one update."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, Literal

from cascade_rl.algo.advantages import ADVANTAGES, Advantages
from cascade_rl.algo.balance import DomainGap, domain_gaps, domain_weights
from cascade_rl.algo.samples import to_samples
from cascade_rl.errors import RecipeError, unknown
from cascade_rl.eval.teachers import read_teachers
from cascade_rl.records import Prompt, Sample
from cascade_rl.run import Checkpoint, StageDir
from cascade_rl.stages.collect import Collector
from cascade_rl.stages.limits import check_at_least, warmup_note
from cascade_rl.stages.on_policy import OnPolicy, dtype_name, figures

if TYPE_CHECKING:
    from cascade_rl.model.optim import AdamW
    from cascade_rl.model.policy import Policy
    from cascade_rl.model.teachers import Teachers
    from cascade_rl.stages.context import StageContext
    from cascade_rl.stages.feed import Feed
    from cascade_rl.stages.step import StepStats

START = "(start)"  # the name under which the stage's start is asked like a teacher


@dataclass(frozen=True)
class Distill(OnPolicy):
    """The stage's settings. The defaults are the paper's MOPD (arXiv 2603.19220, section 4.2); OnPolicy has those of sampling and of
    the optimizer, and here are the rest:

    teachers          domain -> an earlier stage's name, "start", or a model folder (with a "/"). A domain that is not named has the
                      teacher that the last `select` stage before this one chose.
    warmup_from       learning rate from which the warm-up climbs.
    form              "sampled_token": the gap at the token that was sampled (the paper); "full_vocabulary": the whole KL of each
                      state; "top_k": over the teacher's top_k likeliest tokens, with the term that keeps its minimum at the teacher.
    gap_clip          the gap of a token is cut to [-gap_clip, gap_clip] nats (0: off).
    extrapolation     lambda of ExOPD: beyond 1 the student is drawn past the teacher, away from the stage's start.
    outcome           weight of the group-normalised reward that is added to the gap (0: rewards are only logged).
    balance           "sequence": every rollout weighs the same; "domain": every domain does; "gap": and more where the gap is wider,
                      by a factor within (balance_low, balance_high).
    close_below       a domain whose reverse KL falls below so many nats a token is closed: no more of its prompts (0: never).
    teacher_memory_gb weights of teachers kept in memory between steps; the rest is read from disk when its turn comes.
    only_if_behind    pass the start on untrained where it is the teacher of every domain: there is nothing to win back.
    """

    NOT_IN_FINGERPRINT: ClassVar[tuple[str, ...]] = (*OnPolicy.NOT_IN_FINGERPRINT, "teacher_memory_gb")

    name: str = "distill"
    teachers: Mapping[str, str] = field(default_factory=dict)
    steps: int = 52
    group_size: int = 4
    learning_rate: float = 2e-6
    warmup_steps: int = 30
    warmup_from: float = 2e-7
    max_unscored: float = 1.0
    form: Literal["sampled_token", "full_vocabulary", "top_k"] = "sampled_token"
    top_k: int = 64
    gap_clip: float = 0.0
    extrapolation: float = 1.0
    outcome: float = 0.0
    balance: Literal["sequence", "domain", "gap"] = "sequence"
    balance_low: float = 0.05
    balance_high: float = 20.0
    close_below: float = 0.0
    teacher_memory_gb: float = 1.0
    only_if_behind: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        check_at_least(self, 1, "top_k")
        check_at_least(self, 0, "warmup_from", "gap_clip", "extrapolation", "outcome", "close_below", "teacher_memory_gb")
        if not 0 < self.balance_low <= 1 <= self.balance_high:
            raise ValueError(f"balance bounds ({self.balance_low}, {self.balance_high}) must have 1 between them")
        if self.warmup_steps and self.warmup_from > self.learning_rate:
            raise ValueError(f"warmup_from = {self.warmup_from} must be at most learning_rate = {self.learning_rate}")
        if self.form != "sampled_token" and (self.gap_clip or self.extrapolation != 1):
            raise ValueError(
                f'gap_clip and extrapolation are of the sampled token\'s gap; with form = "{self.form}" leave them out'
            )
        if self.outcome and self.group_size < 2:
            raise ValueError(
                f"outcome = {self.outcome} needs group_size of at least 2: a reward is judged against its group's others"
            )

    def rewarded_tasks(self) -> tuple[str, ...]:
        return self.task_names() if self.outcome else ()

    def folders(self) -> tuple[Path, ...]:
        """Teachers that are folders: their content belongs to the fingerprint."""
        return tuple(dict.fromkeys(Path(told).expanduser() for told in self.teachers.values() if "/" in told))

    def arithmetic(self) -> str:
        rollouts = self.prompts_per_step * self.group_size
        return (
            f"{self.prompts_per_step} prompts x {self.group_size} rollouts = {rollouts:,} rollouts = 1 update;"
            f" {self.steps:,} steps = {self.steps * rollouts:,} rollouts of at most {self.max_new_tokens:,} tokens"
            f"{warmup_note(self)}"
        )

    def lr(self, step: int) -> float:
        """As of all on-policy stages, but that the warm-up climbs from `warmup_from`: from 2e-7 to 2e-6 over 30 steps in the paper."""
        rate = super().lr(step)
        if step >= self.warmup_steps:
            return rate
        return self.warmup_from + (self.learning_rate - self.warmup_from) * rate / self.learning_rate

    def run(self, ctx: "StageContext") -> None:
        """Trains from ctx.start and leaves ctx.dir.checkpoint; goes on from the last saved state if there is one."""
        from cascade_rl.model.optim import AdamW
        from cascade_rl.model.policy import Policy
        from cascade_rl.sample.local import LocalSampler

        chosen = self.choose(ctx)
        told = {"student": ctx.earlier[-1].name, "teachers": {domain: teacher.name for domain, teacher in chosen.items()}}
        if set(told["teachers"].values()) == {told["student"]}:
            if self.only_if_behind:
                ctx.note("not needed: no earlier checkpoint is better at any domain")
                ctx.pass_on(**told)
                return
            ctx.note("the student is the teacher of every domain, so there is nothing to learn from")
        policy = Policy(ctx.start, dtype=ctx.dtype, checkpointing=self.checkpointing)
        teachers = self._open(chosen, ctx, dtype_name(policy))
        if self.form != "sampled_token":
            teachers.heads()  # teachers that cannot be compared are refused before step 1
        optim = AdamW(policy.model, betas=self.betas, weight_decay=self.weight_decay)
        sampler = LocalSampler(policy.model, dtype=dtype_name(policy), tokenizer=policy.tokenizer)
        feed = self.feed(ctx)
        collector = Collector(self, ctx, sampler, feed)
        first = ctx.resume(policy, optim, feed)
        sampler.load(policy.weights(), version=first)
        with ctx.progress(self.steps, first) as bar:
            for step in range(first, self.steps):
                if feed.is_closed:
                    ctx.note(f"ended after step {step}: every domain is within {self.close_below} nats of its teacher")
                    break
                batch = collector.collect(step)
                with ctx.timed("teachers"):
                    samples, gaps = self._judged(to_samples(batch.groups, _or_zero), teachers)
                with ctx.timed("training"):
                    stats = self._update(policy, optim, teachers, samples, step)
                verdict = self.check_on_policy(stats, batch.groups, step, dtype_name(policy))
                with ctx.timed("sync"):
                    sampler.load(policy.weights(), version=step + 1)
                ctx.log(step + 1, {**batch.metrics, **figures(stats), **_by_domain(gaps, samples),
                                   "on_policy": verdict, "learning_rate": self.lr(step)})  # fmt: skip
                if self.rollouts_every and step % self.rollouts_every == 0:
                    ctx.log_rollouts(step + 1, batch.groups, _or_zero)
                bar.step(step + 1, {"reverse KL": _mean_kl(gaps)}, tokens=batch.num_sampled)
                self._close(feed, gaps, ctx)
                ctx.save_if_due(step + 1, self.steps, self.save_every, policy, optim, feed)
        ctx.finish(policy.save, {"prompts": feed.draws, "rollouts": feed.draws * self.group_size}, **told)

    # --- teachers -------------------------------------------------------------------------------------------------------------

    def choose(self, ctx: "StageContext") -> dict[str, Checkpoint]:
        """domain -> its teacher, for every domain of the tasks. Raises RecipeError or ModelError before any work is spent."""
        from cascade_rl.model.teachers import check_same_tokens

        earlier = {checkpoint.stage: checkpoint for checkpoint in ctx.earlier}
        files = [StageDir(checkpoint.folder.parent).teachers for checkpoint in reversed(ctx.earlier)]
        selected = next((read_teachers(file) for file in files if file.is_file()), {})
        chosen = {}
        for domain in dict.fromkeys(ctx.tasks[name].domain for name in self.task_names()):
            told = self.teachers.get(domain) or (selected[domain].stage if domain in selected else "")
            where = f'stage "{self.name}": teacher of domain "{domain}"'
            if not told:
                raise RecipeError(f"{where}: none was chosen, since no dev prompt of it has a score; name one in teachers")
            if "/" in told:
                chosen[domain] = Checkpoint("", told, Path(told).expanduser())
            elif told in earlier:
                chosen[domain] = earlier[told]
            else:
                raise RecipeError(unknown(where, told, earlier, 'name an earlier stage, or a model folder with a "/"'))
            check_same_tokens(ctx.start, chosen[domain].folder, where, None if told in earlier else ctx.renderer.template)
        return chosen

    def _open(self, chosen: Mapping[str, Checkpoint], ctx: "StageContext", dtype: str) -> "Teachers":
        from cascade_rl.model.teachers import Teachers

        folders = {domain: checkpoint.folder for domain, checkpoint in chosen.items()}
        if self.extrapolation != 1:
            folders[START] = ctx.start
        return Teachers(folders, dtype, self.teacher_memory_gb)

    # --- a step ---------------------------------------------------------------------------------------------------------------

    def _judged(self, samples: Sequence[Sample], teachers: "Teachers") -> tuple[list[Sample], dict[str, DomainGap]]:
        """The samples with what the loss needs of teachers and balance, and each domain's distance from its teacher."""
        how = self.microbatch_tokens, self.temperature
        judged = teachers.judge(samples, [sample.domain for sample in samples], *how, hidden=self.form != "sampled_token")
        if self.extrapolation != 1:
            starts = teachers.score(judged, [START] * len(judged), *how)
            judged = [replace(sample, logp_start=logp_T) for sample, logp_T in zip(judged, starts, strict=True)]
        gaps = domain_gaps(judged)
        weights = domain_weights(gaps, self.balance, (self.balance_low, self.balance_high))
        return [replace(sample, weight=weights.get(sample.domain, 1.0)) for sample in judged], gaps

    def _update(
        self, policy: "Policy", optim: "AdamW", teachers: "Teachers", samples: Sequence[Sample], step: int
    ) -> "StepStats":
        from cascade_rl.algo.distill_loss import DistillLoss
        from cascade_rl.model.divergence import Divergence
        from cascade_rl.stages.step import update

        whole = self.form != "sampled_token"
        loss = DistillLoss(
            bounds=(self.importance_low, self.importance_high), extrapolation=self.extrapolation, gap_clip=self.gap_clip,
            outcome=self.outcome, divergence=whole,
        )  # fmt: skip
        return update(
            policy, optim, samples, loss, lr=self.lr(step), max_tokens_per_microbatch=self.microbatch_tokens,
            max_grad_norm=self.max_grad_norm, temperature=self.temperature,
            divergence=Divergence(teachers.heads(), self.top_k if self.form == "top_k" else 0) if whole else None,
        )  # fmt: skip

    def _close(self, feed: "Feed[Prompt]", gaps: Mapping[str, DomainGap], ctx: "StageContext") -> None:
        """Ends the prompts of domains that have reached their teacher."""
        for source, share in enumerate(self.tasks):
            told = gaps.get(ctx.tasks[share.task].domain)
            if told is not None and told.reverse_kl < self.close_below:
                feed.close(source)


def _or_zero(rewards: Sequence[float | None]) -> Advantages:
    """Every rollout trains, also one that no reward tells apart from its group."""
    return [advantage or 0.0 for advantage in ADVANTAGES["group_normalised"](rewards)]


def _mean_kl(gaps: Mapping[str, DomainGap]) -> float | None:
    tokens = sum(told.num_tokens for told in gaps.values())
    return sum(told.reverse_kl * told.num_tokens for told in gaps.values()) / tokens if tokens else None


def _by_domain(gaps: Mapping[str, DomainGap], samples: Sequence[Sample]) -> dict[str, float]:
    """Each domain's gap, reverse KL, share of the trained tokens and share of the loss, as "figure/domain"."""
    weights = {sample.domain: sample.weight for sample in samples}
    tokens = sum(told.num_tokens for told in gaps.values())
    weight = sum(told.num_samples * weights[domain] for domain, told in gaps.items())
    shown: dict[str, float] = {}
    for domain, told in gaps.items():
        shown |= {
            f"teacher_gap/{domain}": told.gap,
            f"reverse_kl/{domain}": told.reverse_kl,
            f"token_share/{domain}": told.num_tokens / tokens,
            f"loss_share/{domain}": told.num_samples * weights[domain] / weight,
        }
    return shown
