"""Preference pairs of the policy's own answers: sampled, graded by their tasks, and kept where one is better. Trains nothing."""

import json
import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import TYPE_CHECKING, Any, ClassVar

from cascade_rl.errors import DataError, RecipeError, RunError, unknown
from cascade_rl.grade.judge.own import Pair, Scored, equal, score_of, unequal
from cascade_rl.protocols import Task
from cascade_rl.records import Prompt, SamplingParams, Split
from cascade_rl.run import write_atomic
from cascade_rl.seeds import derive_seed
from cascade_rl.stages.limits import check_at_least, check_finite
from cascade_rl.tasks.preference import Preference

if TYPE_CHECKING:
    from cascade_rl.eval.suite import EvalConfig
    from cascade_rl.sample.local import LocalSampler
    from cascade_rl.stages.context import StageContext

Answers = dict[tuple[str, str], list[Scored | None]]  # (stage, prompt id) -> its answers; None for one without a verdict


@dataclass(frozen=True)
class Pairs:
    """The stage's settings.

    tasks               whose prompts are answered, and whose graders say how good an answer is (a judged task: its judge).
    answers_of          the stages whose checkpoints answer, "start" for the model of the run; (): the last one before this stage.
    samples             answers of each of them to each prompt; temperature, top_p and max_new_tokens: how they are sampled.
    train, dev, test    prompts of each task, split by split (0: none). A pair is of its prompt's split.
    most                pairs of a prompt.
    tie_share           of the pairs to train on, how many are of two equally good answers: a judge meets such when it is used.
    worst, best         the rewards that are worth a score of 1 and of 5 (of a judged task: 1 and 5).
    max_unscored        stop when more than this share of the answers has no verdict.
    save_every          prompts between saved states.
    """

    NOT_IN_FINGERPRINT: ClassVar[tuple[str, ...]] = ("save_every",)
    start: ClassVar = ""
    branch: ClassVar = True  # what trains next goes on from the stage before this one

    name: str = "pairs"
    tasks: tuple[str, ...] = ()
    answers_of: tuple[str, ...] = ()
    samples: int = 4
    train: int = 500
    dev: int = 100
    test: int = 100
    most: int = 2
    tie_share: float = 0.0
    worst: float = 0.0
    best: float = 1.0
    temperature: float = 1.0
    top_p: float = 1.0
    max_new_tokens: int = 192
    max_unscored: float = 0.5
    save_every: int = 128

    def __post_init__(self) -> None:
        check_finite(self)
        if not self.tasks:
            raise ValueError('needs tasks = ["NAME", ...], whose prompts are answered')
        check_at_least(self, 1, "train", "samples", "most", "save_every")
        check_at_least(self, 0, "dev", "test")
        for key in ("tasks", "answers_of"):
            if len(set(told := getattr(self, key))) < len(told):
                raise ValueError(f"{key} = {list(told)} names one twice")
        if self.samples * max(1, len(self.answers_of)) < 2:
            raise ValueError(f"samples = {self.samples} of one checkpoint makes no pair; ask for 2 or more")
        if not 0 <= self.tie_share < 1:
            raise ValueError(f"tie_share = {self.tie_share} is a share of the pairs and must be 0 or more, and less than 1")
        if not self.worst < self.best:
            raise ValueError(f"worst = {self.worst} must be less than best = {self.best}: the rewards worth 1 and 5")
        if not self.temperature > 0:
            raise ValueError(f"temperature {self.temperature} must be more than 0: greedy answers to one prompt are all alike")
        if not 0 <= self.max_unscored <= 1:
            raise ValueError(f"max_unscored = {self.max_unscored} is a share and must be in [0, 1]")
        self.sampling()

    def task_names(self) -> tuple[str, ...]:
        return self.tasks

    def rewarded_tasks(self) -> tuple[str, ...]:
        """Tasks whose verdicts a judge will learn: their graders are tried before the stage."""
        return self.tasks

    def files(self) -> tuple[str, ...]:
        return ()

    def sampling(self) -> SamplingParams:
        return SamplingParams(temperature=self.temperature, top_p=self.top_p, max_new_tokens=self.max_new_tokens)

    def num_prompts(self) -> dict[Split, int]:
        """Prompts of each task; training ones first."""
        return {"train": self.train, "dev": self.dev, "test": self.test}

    def arithmetic(self) -> str:
        prompts, answers = len(self.tasks) * sum(self.num_prompts().values()), self.samples * max(1, len(self.answers_of))
        return (
            f"at most {prompts:,} prompts x {answers} answers = {prompts * answers:,} answers of at most {self.max_new_tokens:,}"
            f" tokens; at most {self.most} pairs of each prompt; trains nothing"
        )

    def run(self, ctx: "StageContext") -> None:
        """Leaves ctx.dir.pairs, and ctx.dir.checkpoint as links to the files of ctx.start; goes on with the answers that are saved."""
        from cascade_rl.sample.local import LocalSampler

        asked = [prompt for name in self.tasks for prompt in self.asked(name, ctx.tasks)]
        folders = {told.stage: told.folder for told in ctx.earlier}
        answers: Answers = {}
        for piece in ctx.pieces():
            answers |= {
                (piece["of"], name): [told and Scored(**told) for told in texts] for name, texts in piece["answers"].items()
            }
        stages = self.answers_of or (ctx.earlier[-1].stage,)
        with ctx.progress(len(asked) * len(stages), len(answers)) as bar:
            for stage in stages:
                left = [prompt for prompt in asked if (stage, prompt.id) not in answers]
                sampler = LocalSampler(folders[stage], dtype=ctx.dtype) if left else None
                while left and sampler is not None:
                    new, num_tokens = self._answer(ctx, sampler, stage, left[: self.save_every])
                    answers |= {(stage, name): scored for name, scored in new.items()}
                    left = left[self.save_every :]
                    self._check_unscored(answers)
                    bar.step(len(answers), {"score": mean_score(new)}, tokens=num_tokens)
                    told = {name: [one and _plain(one) for one in scored] for name, scored in new.items()}
                    ctx.save_piece({"of": stage, "answers": told}, last=len(answers) == len(asked) * len(stages))
        self._finish(ctx, asked, {prompt.id: [one for stage in stages for one in answers[stage, prompt.id]] for prompt in asked})

    def asked(self, name: str, tasks: Mapping[str, Task]) -> list[Prompt]:
        """The prompts of one of its tasks that are answered, split by split. Raises DataError for prompts with tools."""
        from cascade_rl.tasks import prompts_of

        wanted = self.num_prompts().items()
        asked = [prompt for split, num in wanted if num for prompt in prompts_of(tasks[name], split)[:num]]
        if with_tools := next((prompt for prompt in asked if prompt.tools), None):
            raise DataError(
                f'stage "{self.name}": task "{name}": prompt {with_tools.id} has tools, and a judge is shown only what an answer says;'
                " name tasks without tools"
            )
        return asked

    def check_prompts(self, tasks: Mapping[str, Task]) -> None:
        """Raises DataError for prompts that it cannot ask; tasks that are not given are passed over."""
        for name in self.tasks:
            if name in tasks:
                self.asked(name, tasks)

    def _answer(
        self, ctx: "StageContext", sampler: "LocalSampler", stage: str, prompts: Sequence[Prompt]
    ) -> tuple[dict[str, list[Scored | None]], int]:
        """Prompt id -> scored answers, and the sampled tokens."""
        from cascade_rl.sample.verdicts import sample_and_grade

        seed = derive_seed(ctx.seed, "answers", stage)
        with ctx.timed("sampling"):
            graded = sample_and_grade(sampler, ctx.renderer, ctx.tasks, prompts, self.samples, self.sampling(), seed)
        found = {
            group.prompt.id: [
                None if reward.value is None
                else Scored(told.answer.strip(), score_of(reward.value, self.worst, self.best), stage, reward.why)
                for told, reward in zip(group.rollouts, group.rewards, strict=True)
            ]
            for group in graded
        }  # fmt: skip
        return found, sum(told.num_sampled for group in graded for told in group.rollouts)

    def _check_unscored(self, answers: Answers) -> None:
        every = [answer for told in answers.values() for answer in told]
        if (missing := every.count(None)) > self.max_unscored * len(every):
            raise RunError(
                f'stage "{self.name}": {missing} of {len(every)} answers have no verdict, above max_unscored ='
                f" {self.max_unscored:g}; try the task's grader with `cascade audit`"
            )

    def _finish(self, ctx: "StageContext", asked: Sequence[Prompt], answers: Mapping[str, Sequence[Scored | None]]) -> None:
        """Chooses the pairs, writes them, and says how many there are."""
        scored = {prompt.id: [one for one in answers[prompt.id] if one is not None] for prompt in asked}
        chosen = {p.id: unequal(scored[p.id], self.most, self._rng(ctx, p.id)) for p in asked}
        ties = self._ties(ctx, [p for p in asked if p.split == "train"], scored, chosen)
        rows = [row for p in asked for row in _rows(p, [*chosen[p.id], *ties.get(p.id, [])])]
        counts = {split: sum(row["split"] == split for row in rows) for split in self.num_prompts()}
        for split, num in self.num_prompts().items():
            if num and not counts[split]:
                raise RunError(
                    f'stage "{self.name}": none of the {num * len(self.tasks):,} {split} prompts has two answers of different scores;'
                    f" ask for more samples or prompts, or let an earlier, weaker checkpoint answer too (answers_of); where rewards are no"
                    f" shares from 0 to 1, worst ({self.worst:g}) and best ({self.best:g}) say what scores 1 and 5 stand for"
                )
        write_atomic(ctx.dir.pairs, "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows))
        every = [one for told in answers.values() for one in told]
        known = {"prompts": len(asked), "answers": len(every), "unscored": every.count(None) / len(every),
                 "score": mean_score(scored), "ties": sum(map(len, ties.values()))}  # fmt: skip
        ctx.log(1, {**known, **{f"pairs/{split}": num for split, num in counts.items()}})
        told = ", ".join(f"{num:,} {split}" for split, num in counts.items())
        ctx.note(f"pairs of {len(every):,} answers: {told}; {known['ties']:,} of the training ones are ties")
        ctx.pass_on()

    def _ties(
        self,
        ctx: "StageContext",
        prompts: Sequence[Prompt],
        scored: Mapping[str, Sequence[Scored]],
        chosen: Mapping[str, list[Pair]],
    ) -> dict[str, list[Pair]]:
        """Prompt id -> a pair of equals, for so many training prompts that ties have their share."""
        wanted = round(self.tie_share / (1 - self.tie_share) * sum(len(chosen[prompt.id]) for prompt in prompts))
        found = {p.id: pair for p in prompts if (pair := equal(scored[p.id], self._rng(ctx, p.id, "tie"))) is not None}
        order = sorted(found, key=lambda name: (derive_seed(ctx.seed, "ties", name), name))
        return {name: [found[name]] for name in order[:wanted]}

    def _rng(self, ctx: "StageContext", *told: str) -> random.Random:
        return random.Random(derive_seed(ctx.seed, "pairs", *told))


def check_pairs(stage: Any, before: Sequence[Any], tasks: Mapping[str, Task]) -> None:
    """Whether those that answer, and the stage that makes the pairs of a task, come before. Raises RecipeError."""
    for name in stage.answers_of if isinstance(stage, Pairs) else ():
        if name not in (known := ["start", *(other.name for other in before)]):
            raise RecipeError(unknown(f'stage "{stage.name}": answers_of: stage', name, known, "earlier ones can answer"))
    for name in stage.task_names():
        if isinstance(task := tasks[name], Preference) and task.stage:
            known = [other.name for other in before if isinstance(other, Pairs)]
            if task.stage not in known:
                way_out = "name an earlier stage of kind pairs, or a file with path"
                raise RecipeError(unknown(f'stage "{stage.name}": task "{name}": stage', task.stage, known, way_out))
            if isinstance(stage, Pairs):
                _check_splits(f'stage "{stage.name}"', stage.num_prompts(), task, before)


def check_measured(config: "EvalConfig", stages: Sequence[Any], tasks: Mapping[str, Task]) -> None:
    """Whether pairs that a stage makes are asked of later stages alone. Raises RecipeError."""
    names = [stage.name for stage in stages]
    for name in config.tasks:
        if isinstance(task := tasks[name], Preference) and task.stage:
            made = names.index(task.stage) if task.stage in names else len(names)
            asked = config.only.get(name, ())
            if not asked or any(names.index(stage) <= made for stage in asked):
                raise RecipeError(
                    f'eval: task "{name}" reads the pairs of stage "{task.stage}", which the checkpoints before it cannot be asked; name'
                    f" the later stages that are: only = {{ {name} = [...] }}"
                )
            _check_splits("eval", {"dev": config.dev, "test": config.test}, task, stages)


def _check_splits(where: str, asked: Mapping[Split, int], task: Preference, stages: Sequence[Any]) -> None:
    """Whether the stage that makes the pairs of a task makes some of each split that is asked of it."""
    known = {stage.name: stage for stage in stages if isinstance(stage, Pairs)}
    if (made := known.get(task.stage)) is None:
        raise RecipeError(unknown(f'{where}: task "{task.name}": stage', task.stage, known, "name one of kind pairs"))
    for split, num in asked.items():
        if num and not made.num_prompts()[split]:
            raise RecipeError(
                f'{where}: {split} = {num:,}, but task "{task.name}" has no {split} prompts: stage "{made.name}" makes no such pairs'
                f" ({made.name}.{split} = 0); set that to a number of prompts, or {split} of {where} to 0"
            )


def mean_score(answers: Mapping[str, Sequence[Scored | None]]) -> float | None:
    """Over all answers that have one."""
    scores = [answer.score for told in answers.values() for answer in told if answer is not None]
    return fmean(scores) if scores else None


def _plain(answer: Scored) -> dict[str, Any]:
    return {"text": answer.text, "score": answer.score, "of": answer.of, "why": answer.why}


def _said(answer: Scored) -> list[dict[str, str]]:
    return [{"role": "assistant", "content": answer.text}]


def _rows(prompt: Prompt, pairs: Sequence[Pair]) -> Iterator[dict[str, Any]]:
    """As the task `preference` reads them: TRL's layout, with both scores and the split."""
    asked = [{"role": message.role, "content": message.content} for message in prompt.messages]
    for number, (better, worse) in enumerate(pairs):
        yield {
            "id": f"{prompt.id}/{number}", "split": prompt.split, "prompt": asked, "chosen": _said(better), "rejected": _said(worse),
            "helpfulness": [better.score, worse.score], "of": [better.of, worse.of], "why": [better.why, worse.why],
        }  # fmt: skip
