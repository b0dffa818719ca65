"""What the stages that train on their own rollouts have in common: settings, their limits, and the proof of on-policyness."""

from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal

from cascade_rl.errors import DataError, RunError
from cascade_rl.protocols import Task
from cascade_rl.records import Group, Prompt, SamplingParams
from cascade_rl.stages.limits import check_at_least, check_finite, check_optimizer, check_update

if TYPE_CHECKING:
    from cascade_rl.model.policy import Policy
    from cascade_rl.stages.context import StageContext
    from cascade_rl.stages.feed import Feed
    from cascade_rl.stages.step import StepStats

# Mean |log p of the trainer - log p of the sampler| above which a run stops: rounding is 1e-6 in float32, and bf16 noise 0.03.
MAX_GAP = {"float32": 1e-3, "bfloat16": 0.2}


@dataclass(frozen=True)
class TaskShare:
    """A task of a stage: `{ task = "choice", weight = 55 }`; its share of the prompts is its weight over all weights.

    keep: a file that `cascade filter` wrote; of the task's prompts only those that it keeps are asked.
    """

    task: str
    weight: float = 1.0
    keep: str = ""

    def __post_init__(self) -> None:
        check_finite(self)
        if not self.weight > 0:
            raise ValueError(f"weight {self.weight} must be more than 0; leave the task out to drop it")


@dataclass(frozen=True)
class OnPolicy:
    """The settings that `rl` and `distill` share.

    start             the earlier stage whose checkpoint it trains ("": the stage before; "start": the model of the run).
    branch            its checkpoint is a judge's or a teacher's, not the student's: the next stage goes on from the one before it.
    tasks, steps, prompts_per_step, group_size    a step samples group_size rollouts of each of prompts_per_step prompts.
    temperature, top_p, max_new_tokens            sampling; max_new_tokens is the budget of a whole rollout, all turns together.
    importance_low, importance_high   bounds of the weight pi_train / pi_sampler, where the stage uses it.
    learning_rate ... constant after warmup_steps unless a schedule is asked for; AdamW.
    max_gap           stop when the mean gap between trainer and sampler log-probs passes this (0: 1e-3 in float32, 0.2 in bfloat16).
    max_unscored      stop when more than this share of a step's rollouts is unscored.
    rollouts_every    steps between written rollouts (0: none); the first group of each task is written.
    """

    NOT_IN_FINGERPRINT: ClassVar[tuple[str, ...]] = (
        "save_every",
        "rollouts_every",
        "start",
        "branch",
    )  # the start is known by its own fingerprint

    name: str = ""
    start: str = ""
    branch: bool = False
    tasks: tuple[TaskShare, ...] = ()
    steps: int = 50
    prompts_per_step: int = 128
    group_size: int = 16
    temperature: float = 1.0
    top_p: float = 1.0
    max_new_tokens: int = 192
    importance_low: float = 0.5
    importance_high: float = 2.0
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
        check_at_least(self, 1, "steps", "prompts_per_step", "group_size", "max_new_tokens", "microbatch_tokens")
        check_at_least(self, 0, "max_gap", "save_every", "rollouts_every")
        most = self.prompts_per_step * self.group_size * self.max_new_tokens
        check_update(most, "prompts_per_step x group_size x max_new_tokens")
        if not self.temperature > 0:
            raise ValueError(f"temperature {self.temperature} must be more than 0: greedy rollouts of one prompt are all alike")
        if not 0 <= self.max_unscored <= 1:
            raise ValueError(f"max_unscored = {self.max_unscored} is a share and must be in [0, 1]")
        if not 0 < self.importance_low < 1 < self.importance_high:
            raise ValueError(f"importance bounds ({self.importance_low}, {self.importance_high}) must have 1 between them")
        check_optimizer(self)
        self.sampling()

    def task_names(self) -> tuple[str, ...]:
        return tuple(share.task for share in self.tasks)

    def files(self) -> tuple[str, ...]:
        return ()

    def keep_files(self) -> tuple[str, ...]:
        """Files whose content says which prompts are asked."""
        return tuple(share.keep for share in self.tasks if share.keep)

    def asked(self, share: TaskShare, tasks: Mapping[str, Task]) -> Sequence[Prompt]:
        """The training prompts of a share. Raises DataError for a file of kept prompts that does not fit its task."""
        from cascade_rl.eval.keep import kept_prompts
        from cascade_rl.tasks import prompts_of

        prompts = prompts_of(tasks[share.task], "train")
        with self._named():
            return kept_prompts(share.keep, share.task, prompts) if share.keep else prompts

    def check_prompts(self, tasks: Mapping[str, Task]) -> None:
        """Raises DataError for a file of kept prompts that cannot be read, or does not fit its task where that is given."""
        from cascade_rl.eval.keep import read_kept

        for share in (share for share in self.tasks if share.keep):
            if share.task in tasks:
                self.asked(share, tasks)
                continue
            with self._named():
                read_kept(share.keep, share.task)

    @contextmanager
    def _named(self) -> Generator[None]:
        """A DataError raised inside says which stage it is about."""
        try:
            yield
        except DataError as error:
            raise DataError(f'stage "{self.name}": {error}') from None

    def feed(self, ctx: "StageContext") -> "Feed[Prompt]":
        """The order in which prompts are asked; those about one document follow each other, so that it is read once for all."""
        from cascade_rl.stages.feed import Feed

        weights = [share.weight for share in self.tasks]
        prompts = [self.asked(share, ctx.tasks) for share in self.tasks]
        return Feed(prompts, weights, ctx.seed, together=lambda prompt: prompt.facets.get("document"))

    def sampling(self) -> SamplingParams:
        return SamplingParams(temperature=self.temperature, top_p=self.top_p, max_new_tokens=self.max_new_tokens)

    def lr(self, step: int) -> float:
        """The learning rate of step `step`, counted from 0."""
        from cascade_rl.model.optim import learning_rate

        return learning_rate(
            step, schedule=self.schedule, peak=self.learning_rate, floor=self.min_learning_rate,
            warmup_steps=self.warmup_steps, horizon_steps=self.steps,
        )  # fmt: skip

    def check_on_policy(self, stats: "StepStats", groups: Sequence[Group], step: int, dtype: str) -> str:
        """Invariants 6 and 7, each step: the weights that sampled are the weights that train, and both see the same log-probs."""
        stale = {turn.version for group in groups for r in group.rollouts for turn in r.turns} - {step}
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


def dtype_name(policy: "Policy") -> str:
    return str(policy.dtype).removeprefix("torch.")


def figures(stats: "StepStats") -> dict[str, float | int]:
    """An update's figures as the log names them."""
    means = {{"gap": "gap_mean", "k3": "gap_k3"}.get(name, name): value for name, value in stats.means.items()}
    return {
        "loss": stats.loss, "grad_norm": stats.grad_norm, "num_samples": stats.num_samples, "num_targets": stats.num_targets,
        "num_tokens": stats.num_tokens, "num_computed": stats.num_computed, **means,
        **({"gap_max": stats.maxes["gap"]} if stats.maxes else {}),
    }  # fmt: skip
