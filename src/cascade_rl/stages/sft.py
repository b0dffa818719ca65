"""Supervised fine-tuning: packed conversations, loss on what the assistant wrote."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal

from cascade_rl.errors import DataError
from cascade_rl.records import Sample
from cascade_rl.stages.limits import check_at_least, check_finite, check_optimizer, check_update, warmup_note

if TYPE_CHECKING:
    from collections.abc import Mapping

    from cascade_rl.model.render import Renderer
    from cascade_rl.protocols import Task
    from cascade_rl.stages.context import StageContext

# Conversations of a source whose length is looked at before a run.
LOOKED_AT = 50


@dataclass(frozen=True)
class Source:
    """One ingredient of an SFT mixture: demonstrations of a task, or rows of a file, folder or hub data set in TRL's layouts.

    weight: share of the samples drawn, relative to the other sources'. num: at most so many rows (0: all).
    """

    task: str = ""
    rows: str = ""
    weight: float = 1.0
    num: int = 0

    def __post_init__(self) -> None:
        check_finite(self)
        if bool(self.task) == bool(self.rows):
            raise ValueError('a source needs either task = "NAME" or rows = "PATH", and not both')
        if not self.weight > 0:
            raise ValueError(f"weight {self.weight} must be more than 0; leave the source out to drop it")
        if self.num < 0:
            raise ValueError(f"num {self.num} must be 0 (all rows) or more")

    @property
    def label(self) -> str:
        return self.task or self.rows


@dataclass(frozen=True)
class SFT:
    """The stage's settings; the frozen config is the stage.

    start, branch      where it begins and whether the next stage goes on from it, as for `rl`.
    data               the mixture.
    steps              optimizer steps.
    batch_size         packed sequences a step.
    pack_tokens        length of a packed sequence; also the longest sample allowed (the paper: 256K).
    too_long           "refuse" a sample longer than pack_tokens before step 1, or "skip" and count it. None is ever cut.
    learning_rate ...  the paper's schedule: linear warm-up, cosine from learning_rate to min_learning_rate over `horizon_steps`
                       (0: over `steps`), which training may stop short of.
    betas, weight_decay, max_grad_norm   AdamW and gradient clipping (0: off).
    microbatch_tokens  tokens a forward pass holds; changes memory and speed, never the result.
    checkpointing      recompute activations in the backward pass: less memory, about a third more time.
    compile            torch.compile each layer: faster steps after a slow start.
    save_every         steps between saved states (0: only at the end).
    """

    NOT_IN_FINGERPRINT: ClassVar[tuple[str, ...]] = ("save_every", "start", "branch")  # changes nothing that a checkpoint holds

    name: str = "sft"
    start: str = ""
    branch: bool = False
    data: tuple[Source, ...] = ()
    steps: int = 100
    batch_size: int = 8
    pack_tokens: int = 2048
    too_long: Literal["refuse", "skip"] = "refuse"
    learning_rate: float = 5e-5
    min_learning_rate: float = 5e-6
    warmup_steps: int = 0
    horizon_steps: int = 0
    schedule: Literal["cosine", "linear", "constant"] = "cosine"
    betas: tuple[float, float] = (0.9, 0.98)
    weight_decay: float = 0.1
    max_grad_norm: float = 1.0
    microbatch_tokens: int = 8192
    checkpointing: bool = False
    compile: bool = False
    save_every: int = 100

    def __post_init__(self) -> None:
        check_finite(self)
        if not self.data:
            raise ValueError('needs data = [{ task = "NAME" }, ...] or [{ rows = "PATH" }, ...]')
        check_at_least(self, 1, "steps", "batch_size", "pack_tokens", "microbatch_tokens")
        check_at_least(self, 0, "save_every")
        check_update(self.batch_size * self.pack_tokens, "batch_size x pack_tokens")
        if self.horizon_steps and self.horizon_steps < self.steps:
            raise ValueError(f"horizon_steps = {self.horizon_steps} must be 0 (steps = {self.steps}) or at least steps")
        check_optimizer(self)

    def task_names(self) -> tuple[str, ...]:
        return tuple(source.task for source in self.data if source.task)

    def rewarded_tasks(self) -> tuple[str, ...]:
        return ()

    def files(self) -> tuple[str, ...]:
        """Row files whose content belongs to the stage's fingerprint."""
        return tuple(source.rows for source in self.data if source.rows)

    def arithmetic(self) -> str:
        most = self.batch_size * self.pack_tokens
        return (
            f"{self.batch_size} packed sequences x {self.pack_tokens} tokens = 1 update of at most {most:,} tokens;"
            f" {self.steps:,} updates = at most {self.steps * most:,} tokens{warmup_note(self)}"
        )

    def run(self, ctx: "StageContext") -> None:
        """Trains from ctx.start and leaves ctx.dir.checkpoint; goes on from the last saved state if there is one."""
        from cascade_rl.model.optim import AdamW
        from cascade_rl.model.policy import Policy
        from cascade_rl.stages.feed import Feed, take_packed
        from cascade_rl.stages.step import update

        feed = Feed([self._samples(source, ctx) for source in self.data], [s.weight for s in self.data], seed=ctx.seed)
        policy = Policy(ctx.start, dtype=ctx.dtype, checkpointing=self.checkpointing, compile=self.compile)
        optim = AdamW(policy.model, betas=self.betas, weight_decay=self.weight_decay)
        first = ctx.resume(policy, optim, feed)
        with ctx.progress(self.steps, first) as bar:
            for step in range(first, self.steps):
                samples = take_packed(feed, self.batch_size, self.pack_tokens)
                stats = update(
                    policy, optim, samples, "sft", lr=self._lr(step),
                    max_tokens_per_microbatch=self.microbatch_tokens, max_grad_norm=self.max_grad_norm,
                )  # fmt: skip
                ctx.log(step + 1, {"loss": stats.loss, "grad_norm": stats.grad_norm, "learning_rate": self._lr(step),
                                   "num_tokens": stats.num_tokens, "num_computed": stats.num_computed,
                                   "num_targets": stats.num_targets})  # fmt: skip
                bar.step(step + 1, {"loss": stats.loss}, tokens=stats.num_tokens)
                ctx.save_if_due(step + 1, self.steps, self.save_every, policy, optim, feed)
        ctx.finish(policy.save, {"steps": self.steps, "samples": feed.draws})

    def _lr(self, step: int) -> float:
        from cascade_rl.model.optim import learning_rate

        return learning_rate(
            step, schedule=self.schedule, peak=self.learning_rate, floor=self.min_learning_rate,
            warmup_steps=self.warmup_steps, horizon_steps=self.horizon_steps or self.steps,
        )  # fmt: skip

    def check_lengths(self, tasks: "Mapping[str, Task]", renderer: "Renderer") -> None:
        """Refuses, before any stage has run, what `run` would refuse for its length; tasks that have no prompts yet are not among
        `tasks`. A look, not a proof: only the conversations of most bytes are tokenised, since all of them would take minutes."""
        from cascade_rl.stages.demonstrations import demonstrations, samples

        limit = min(self.pack_tokens, renderer.max_context or self.pack_tokens)
        for source in self.data:
            if not source.rows and source.task not in tasks:
                continue
            found = demonstrations(tasks, source.task, source.rows, source.num)
            large = sorted((told for told in found if told.most_tokens > limit), key=lambda told: -told.most_tokens)
            if any(len(sample) > limit for sample in samples(renderer, large[:LOOKED_AT], source.label)):
                self._fitting(list(samples(renderer, large, source.label)), source, renderer)  # all of them, to count and name

    def _samples(self, source: Source, ctx: "StageContext") -> list[Sample]:
        """A source's samples that fit; a longer one is refused by name, or skipped and counted."""
        from cascade_rl.stages.demonstrations import demonstrations, samples

        found = demonstrations(ctx.tasks, source.task, source.rows, source.num)
        made = list(samples(ctx.renderer, found, source.label))
        fitting = self._fitting(made, source, ctx.renderer)
        if len(fitting) < len(made):
            ctx.note(f'{len(made) - len(fitting)} samples of "{source.label}" skipped: longer than {self.pack_tokens} tokens')
        if not fitting:
            raise DataError(f'stage "{self.name}": "{source.label}" has no sample to train on')
        return fitting

    def _fitting(self, made: list[Sample], source: Source, renderer: "Renderer") -> list[Sample]:
        """Those of at most pack_tokens. Raises DataError for longer ones that are to be refused, and where the model's context ends."""
        fitting = [sample for sample in made if len(sample) <= self.pack_tokens]
        if len(fitting) < len(made) and self.too_long == "refuse":
            longest = max(made, key=len)
            raise DataError(
                f'stage "{self.name}": {len(made) - len(fitting)} samples of "{source.label}" are longer than'
                f" pack_tokens = {self.pack_tokens}; the longest, {longest.source}, has {len(longest)} tokens;"
                f' raise pack_tokens, or set too_long = "skip" to leave them out'
            )
        longest = max(fitting, key=len, default=None)
        if longest is not None and renderer.max_context is not None and len(longest) > renderer.max_context:
            raise DataError(
                f'stage "{self.name}": {longest.source} has {len(longest)} tokens and the model takes {renderer.max_context};'
                f' set pack_tokens = {renderer.max_context} and too_long = "skip", or take a model with a longer context'
            )
        return fitting
