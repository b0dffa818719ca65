"""What multi-domain on-policy distillation wins back, how fast, and which of its choices matter; on runs of recipes/nano.toml, or of a
recipe like it, of which nothing is changed.

    python benchmarks/mopd.py --runs runs/nano-0 runs/nano-1 runs/nano-2 --work runs/mopd --out mopd.json

--runs    one run a seed, finished at least up to the student. What the run's recipe evaluates is measured; what its first distillation
          after the student trains is trained (all that is evaluated, where there is none).
--student the stage whose checkpoint is the student; the checkpoints before it may teach, but for branches and stages without a row.
--out     figures by part, and by student and seed: those of another student or seed stay as they are.
--parts   recovery    from the student that RL has hurt: (after - before) / (teacher - before) over the regressed domains, and
                      whether anything else fell;
          efficiency  MOPD and GRPO from the same student on the domain that fell most: steps, rollouts, sampled tokens and seconds
                      until the accuracy is within one standard error of the teacher's;
          ablation    one choice changed at a time.

A training is 5,120 rollouts (GRPO's more), an evaluation 200 (dev) or 300 (test) of each task; a seed has eight trainings, one, three
and four in the order of the parts. Everything is kept in --work, so that the same command goes on where it stopped. Teachers are
chosen on dev prompts, all figures are of test prompts, the same ones for every checkpoint.
"""

import argparse
import contextlib
import dataclasses
import math
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from mopd_tables import show

from cascade_rl.errors import CascadeError, RunError, unknown
from cascade_rl.eval.matrix import Matrix, significant_changes
from cascade_rl.eval.suite import Suite
from cascade_rl.eval.teachers import Recovery, Teacher, recovery, select
from cascade_rl.model.optim import AdamW
from cascade_rl.model.policy import Policy
from cascade_rl.model.render import load_renderer
from cascade_rl.model.sources import load_tokenizer
from cascade_rl.observe.log import read_log
from cascade_rl.pipeline import run_recipe
from cascade_rl.plan import digest, make_plan
from cascade_rl.recipe import parse_recipe
from cascade_rl.records import Split
from cascade_rl.run import Checkpoint, RunDir, StageDir, folder_atomic, read_json, write_json
from cascade_rl.stages.context import StageContext
from cascade_rl.stages.feed import Feed

NUM_DEV, NUM_TEST = 200, 300
MAX_NEW_TOKENS = 128

MOPD: dict[str, Any] = {
    "kind": "distill", "name": "mopd", "steps": 20, "prompts_per_step": 64, "group_size": 4, "max_new_tokens": MAX_NEW_TOKENS,
    "form": "full_vocabulary", "learning_rate": 3e-4, "min_learning_rate": 3e-5, "schedule": "linear", "warmup_steps": 4,
    "warmup_from": 3e-5, "save_every": 5, "rollouts_every": 0,
}  # fmt: skip
GRPO: dict[str, Any] = {
    "kind": "rl", "name": "grpo", "steps": 40, "prompts_per_step": 32, "group_size": 8, "max_new_tokens": MAX_NEW_TOKENS,
    "learning_rate": 3e-4, "warmup_steps": 3, "save_every": 5, "rollouts_every": 0,
}  # fmt: skip
LOOK_EVERY = 4  # the efficiency part evaluates the checkpoints of the first so many steps, and then of every so-manieth
SAMPLED = {"form": "sampled_token"}  # the paper's form
VARIANTS: dict[str, dict[str, Any]] = {
    "by sequence, whole vocabulary, warm-up": {},
    "sampled token": SAMPLED,
    "balance by domain": {"balance": "domain"},
    "balance by gap": {"balance": "gap"},
    "no warm-up": {"warmup_steps": 0},
}
WAYS = {"mopd": MOPD, "mopd, sampled token": {**MOPD, **SAMPLED}, "grpo": GRPO}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=Path, nargs="+", required=True, metavar="RUN")
    parser.add_argument("--student", default="multi-rl", metavar="STAGE", help="default: multi-rl")
    parser.add_argument("--work", type=Path, required=True, metavar="FOLDER")
    parser.add_argument("--out", type=Path, required=True, metavar="JSON")
    parser.add_argument("--parts", nargs="+", choices=list(PARTS), default=list(PARTS))
    args = parser.parse_args()
    seeds = load_seeds(args.runs, args.work, args.student)
    read_figures(args.out)
    for part in args.parts:
        for seed in seeds:
            print(f"{part}: {seed.run}")
            told = read_figures(args.out)
            told.setdefault(part, {})[seed.name] = PARTS[part](seed)
            write_json(args.out, told)
    show(read_figures(args.out))


def load_seeds(runs: Sequence[Path], work: Path, student: str) -> list["Seed"]:
    """One for each run. Raises RunError for a folder that is none, or that the benchmark can do nothing with."""
    if work.exists() and not work.is_dir():
        raise RunError(f"--work {work}: is a file; give a folder, which is made where there is none")
    seeds = [Seed(run, work, student) for run in runs]
    of: dict[str, Path] = {}
    for seed in seeds:
        if seed.name in of:
            raise RunError(
                f"--runs: {of[seed.name]} and {seed.run} are both of seed {seed.number}, and the figures of one would replace those of"
                f" the other; give one run a seed, or another --work and --out for each"
            )
        of[seed.name] = seed.run
    return seeds


def read_figures(out: Path) -> dict[str, Any]:
    """What --out holds: part -> student and seed -> figures. Raises RunError for another file."""
    if not out.exists():
        return {}
    told = {} if out.is_dir() else read_json(out)
    if out.is_dir() or not isinstance(told, dict) or not all(isinstance(told.get(part, {}), dict) for part in PARTS):
        raise RunError(f"--out {out}: is no file of this benchmark's figures; give another name, or delete it")
    return told


def read_recipe_of(run: Path) -> dict[str, Any]:
    """The resolved recipe of a run. Raises RunError for what is no run."""
    place = RunDir(run).recipe
    told = read_json(place) if place.is_file() else None
    if not isinstance(told, dict) or not {"seed", "eval", "tasks", "stages"} <= told.keys():
        what = "is not there" if not run.exists() else "holds no run" if run.is_dir() else "is a file"
        raise RunError(
            f"--runs {run}: {what}; give the folder of `cascade run --run`, or one of `cascade ablate --out`: FOLDER/VARIANT/seed-N"
        )
    return told


class Seed:
    """A run: the student, the checkpoints before it that may teach, the tasks, and one matrix for all that follows.

    name: of student and seed, as --out has it. tasks: what is measured; trained: those of them that a distillation trains;
    domains: task -> domain.
    """

    def __init__(self, run: Path, work: Path, student: str) -> None:
        told = read_recipe_of(run)
        self.run, self.number = run, int(told["seed"])
        self.name = f"{student}/seed-{self.number}"
        self.place = work / f"seed-{self.number}-{student}"
        self.history = history(run, told, student)
        self.student = self.history[-1]
        self.tasks = [task for task in told["eval"]["tasks"] if task not in told["eval"].get("only", {})]
        after = told["stages"][[stage["name"] for stage in told["stages"]].index(student) + 1 :]
        distilled = [[share["task"] for share in stage["tasks"]] for stage in after if stage["kind"] == "distill"]
        self.trained = [task for task in self.tasks if not distilled or task in distilled[0]]
        if not self.trained:
            raise RunError(
                f"--runs {run}: the benchmark needs eval.tasks, asked of all checkpoints and trained by the first distillation after"
                f' "{student}", and the recipe of this run has none; give a run whose recipe evaluates what it trains'
            )
        sizes = {"num_dev": NUM_DEV, "num_test": NUM_TEST}
        table = {
            "name": "mopd", "seed": self.number, "model": {"source": str(self.student.folder), "dtype": "float32"},
            "eval": {"tasks": self.tasks, "dev": NUM_DEV, "test": NUM_TEST, "max_new_tokens": 192, "rollouts_kept": 0},
            "tasks": {task: {**settings(told, task), **sizes} for task in self.tasks},
        }  # fmt: skip
        self.table, self.recipe = table, parse_recipe(table)
        self.domains = {task: self.recipe.tasks[task].domain for task in self.tasks}

    @property
    def matrix(self) -> Matrix:
        return Matrix.load(self.place)

    def measure(self, checkpoint: Checkpoint, split: Split, tasks: Sequence[str] | None = None) -> None:
        """Fills the checkpoint's row, of these tasks or of all; what is recorded already is not asked again."""
        config = dataclasses.replace(self.recipe.eval, tasks=tuple(self.tasks if tasks is None else tasks))
        renderer = load_renderer(load_tokenizer(checkpoint.folder), self.recipe.render)
        suite = Suite(config, self.recipe.tasks, renderer, RunDir(self.place), "float32", self.number)
        suite.measure(checkpoint.folder, checkpoint.stage, checkpoint.name, split, lambda: False)

    def teachers(self) -> dict[str, Teacher]:
        """Chosen on dev prompts; then every checkpoint of the history has its test row too."""
        for checkpoint in self.history:
            self.measure(checkpoint, "dev")
            self.measure(checkpoint, "test")
        return select(self.matrix, self.history)

    def regressed(self) -> list[str]:
        """Domains whose teacher is not the student: it was significantly better on dev."""
        chosen = self.teachers()
        return [domain for domain in self.taught() if chosen[domain].checkpoint != self.student.name]

    def taught(self) -> list[str]:
        """The domains of the tasks that are trained."""
        trained = {self.domains[task] for task in self.trained}
        return [domain for domain in self.teachers() if domain in trained]

    def train(self, name: str, stage: Mapping[str, Any], tasks: Sequence[str], look_every: int = 0) -> StageDir:
        """The stage run from the student on these tasks, in a folder of its own."""
        stage = {**stage, "tasks": [{"task": task} for task in tasks]}
        if stage["kind"] == "distill":
            folders = {checkpoint.name: str(checkpoint.folder.resolve()) for checkpoint in self.history}
            chosen = self.teachers()
            stage["teachers"] = {self.domains[task]: folders[chosen[self.domains[task]].checkpoint] for task in tasks}
        table = {**self.table, "eval": {}, "stage": [stage]}
        run = self.place / "training" / f"{name}-{digest(stage)}"
        recipe = parse_recipe(table)
        with looking(run, look_every):
            run_recipe(recipe, run)
        return make_plan(recipe, run)[0].dir


def history(run: Path, told: Mapping[str, Any], student: str) -> list[Checkpoint]:
    """Checkpoints of a run up to the student, from old to new: no branch, none whose files are another's, and none that the recipe
    gives no row of the matrix (one that only copies teaches nothing that an evaluation asks for). told: the resolved recipe.

    Raises RunError for a student that is not there, that may not be one, or before which a stage is not finished.
    """
    names = [stage["name"] for stage in told["stages"]]
    if student not in names:
        raise RunError(unknown(f"{run}: --student: stage", student, names))
    found = []
    for index, stage in enumerate(told["stages"][: names.index(student) + 1], 1):
        place = RunDir(run).stage(index, stage["name"], stage["fingerprint"])
        if stage.get("branch") or stage["name"] in told["eval"].get("skip", []):
            continue
        if not place.whole:
            raise RunError(f'{run}: stage "{stage["name"]}" is not finished or its checkpoint was deleted; run the recipe first')
        if not place.passed_on:
            found.append(Checkpoint(stage["name"], place.root.name, place.checkpoint))
    if not found or found[-1].stage != student:
        others = ", ".join(checkpoint.stage for checkpoint in found)
        raise RunError(
            f"{run}: --student {student}: a branch, a stage that trains nothing, or one of eval.skip cannot be the student;"
            f" {f'choose of: {others}' if others else 'nor can a stage before it: name a later one'}"
        )
    return found


def settings(told: Mapping[str, Any], task: str) -> dict[str, Any]:
    """A task of a resolved recipe as a recipe has it."""
    return {key: value for key, value in told["tasks"][task].items() if key != "name" and value is not None}


@contextlib.contextmanager
def looking(run: Path, often: int) -> Iterator[None]:
    """Keeps the weights of the first `often` steps, and of every so-manieth, as RUN/at-STEP: a stage itself keeps only what resuming
    needs."""
    original = StageContext.save_if_due

    def save(self: StageContext, step: int, total: int, every: int, policy: Policy, optim: AdamW, feed: Feed[Any]) -> None:
        if often and (step <= often or step % often == 0):
            with folder_atomic(run / f"at-{step:03d}") as folder:
                policy.save(folder)
        original(self, step, total, every, policy, optim, feed)

    StageContext.save_if_due = save
    try:
        yield
    finally:
        StageContext.save_if_due = original


# --- parts --------------------------------------------------------------------------------------------------------------------------


def recovery_part(seed: Seed) -> dict[str, Any]:
    """All tasks that are trained, each domain with its teacher (the student itself where nothing better is known)."""
    place = seed.train("recovery", MOPD, seed.trained)
    after = Checkpoint("mopd", "mopd-recovery", place.checkpoint)
    seed.measure(after, "test")
    teachers = {domain: teacher.checkpoint for domain, teacher in seed.teachers().items()}
    regressed = seed.regressed()
    changes = significant_changes(seed.matrix, after.name, against=seed.student.name, split="test")
    return {
        "student": seed.student.stage,
        "teachers": {domain: dataclasses.asdict(told) for domain, told in seed.teachers().items()},
        "regressed": regressed,
        "domains": [as_json(told) for told in recovery(seed.matrix, seed.student.name, after.name, teachers, "test")],
        "fell": [change.task for change in changes if change.verdict == "drop"],
        "rose": [change.task for change in changes if change.verdict == "rise"],
        **spent(place),
    }


def efficiency_part(seed: Seed) -> dict[str, Any]:
    """One domain, that whose teacher leads most on dev; both ways learn on its prompts alone and are looked at after the same steps."""
    teachers = seed.teachers()
    domain = max(seed.regressed() or seed.taught(), key=lambda domain: teachers[domain].lead)
    task = next(task for task in seed.trained if seed.domains[task] == domain)
    teacher = accuracy(seed, teachers[domain].checkpoint, task)
    goal = teacher["mean"] - teacher["stderr"]
    told: dict[str, Any] = {"domain": domain, "task": task, "teacher": teacher, "goal": goal, "ways": {}}
    for number, (way, stage) in enumerate(WAYS.items()):
        place = seed.train(f"efficiency-{number}", stage, [task], look_every=LOOK_EVERY)
        curve = [{"step": 0, **accuracy(seed, seed.student.name, task)}]
        for folder in sorted(place.root.parent.parent.glob("at-*")):
            step = int(folder.name.removeprefix("at-"))
            look = Checkpoint(way, f"efficiency-{number}-{step:03d}", folder)
            seed.measure(look, "test", [task])
            curve.append({"step": step, **accuracy(seed, look.name, task), **spent(place, step)})
        reached = next((look for look in curve if look["mean"] >= goal), None)
        told["ways"][way] = {"curve": curve, "reached": reached}
    return told


def ablation_part(seed: Seed) -> dict[str, Any]:
    """One choice changed at a time; the tasks of the regressed domains are measured."""
    regressed = seed.regressed()
    teachers = {domain: told.checkpoint for domain, told in seed.teachers().items() if domain in regressed}
    told = {}
    for number, (name, changes) in enumerate(VARIANTS.items()):
        place = seed.train(f"ablation-{number}" if changes else "recovery", {**MOPD, **changes}, seed.trained)
        after = Checkpoint("mopd", f"mopd-ablation-{number}", place.checkpoint)
        seed.measure(after, "test", [task for task, domain in seed.domains.items() if domain in regressed])
        found = recovery(seed.matrix, seed.student.name, after.name, teachers, "test")
        last = list(read_log(place.metrics))[-1]
        told[name] = {
            "domains": [as_json(each) for each in found],
            "first_grad_norm": next(iter(read_log(place.metrics)))["grad_norm"],
            "last_reverse_kl": {domain: last[f"reverse_kl/{domain}"] for domain in regressed if f"reverse_kl/{domain}" in last},
            **spent(place),
        }
    return told


PARTS = {"recovery": recovery_part, "efficiency": efficiency_part, "ablation": ablation_part}


def accuracy(seed: Seed, checkpoint: str, task: str) -> dict[str, float]:
    row = seed.matrix.row(checkpoint, task, "test")
    assert row is not None, f"{checkpoint} was measured on {task}"
    return {"mean": row.mean, "stderr": row.stderr}


def spent(place: StageDir, steps: int | None = None) -> dict[str, float]:
    """What a stage took up to a step: rollouts and sampled tokens, refills included, and seconds."""
    metrics = [line for line in read_log(place.metrics) if steps is None or line["step"] <= steps]
    timing = [line for line in read_log(place.timing) if steps is None or line["step"] <= steps]
    stage = read_json(place.root.parent.parent / "recipe.resolved.json")["stages"][0]
    rollouts = [line.get("groups_sampled", stage["prompts_per_step"]) * stage["group_size"] for line in metrics]
    return {
        "steps": len(metrics),
        "rollouts": sum(rollouts),
        "tokens": round(sum(num * line["mean_tokens"] for num, line in zip(rollouts, metrics, strict=True))),
        "seconds": round(sum(line["seconds"] for line in timing), 1),
    }


def as_json(told: Recovery) -> dict[str, Any]:
    values = dataclasses.asdict(told)
    return {key: None if isinstance(value, float) and math.isnan(value) else value for key, value in values.items()}


if __name__ == "__main__":
    try:
        main()
    except CascadeError as error:
        sys.exit(f"error: {error}")
