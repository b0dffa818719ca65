"""The data step before RL: which prompts a reference model does not solve every time, kept in a file that stages read.

The paper drops from code RL every prompt that a reference model solves n times of n, and from SWE RL nine tenths of those that it
never solves besides: the one kind has nothing to teach, of the other there is too much.

    {"made_of": {...}, "tasks": {"program": {"kept": {"nano.program/train/3": "5f0c...", ...}, "num_prompts": 2000, ...}}}

Beside each id stands a digest of its prompt, so that a file made with other settings of a task is refused and never misread.
"""

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cascade_rl import strict_json
from cascade_rl.errors import DataError, RecipeError
from cascade_rl.protocols import Sampler, Task
from cascade_rl.records import Group, Prompt, SamplingParams
from cascade_rl.seeds import derive_seed

if TYPE_CHECKING:
    from cascade_rl.model.render import Renderer

SOLVED = 1.0  # full marks


@dataclass(frozen=True)
class Kept:
    """What became of a task's prompts: `Kept("program", kept=(...), num_prompts=10, num_always=4, num_never=2, ...)`.

    num_always: solved by every answer that has a verdict, and dropped. num_never: solved by none; num_never_kept: how many of these
    stay. num_unscored: prompts of which no answer has a verdict; they stay. num_tokens: sampled for all of it.
    """

    task: str
    kept: tuple[Prompt, ...]
    num_prompts: int
    num_always: int
    num_never: int
    num_never_kept: int
    num_unscored: int
    num_tokens: int

    def told(self) -> dict[str, Any]:
        """As the file has it; a function of model, prompts and settings alone."""
        counts = {key: value for key, value in asdict(self).items() if key.startswith("num_")}
        return {**counts, "kept": {prompt.id: digest(prompt) for prompt in self.kept}}


def choose_prompts(groups: Sequence[Group], keep_unsolved: float, seed: int) -> Kept:
    """Of graded groups of one task, all but those always solved, and the share `keep_unsolved` of those never solved.

    Which of these stay depends on seed and prompt id alone.
    """
    if not 0 <= keep_unsolved <= 1:
        raise RecipeError(f"--keep-unsolved {keep_unsolved}: a share, 0 to 1")
    always, never, unscored = set(), [], set()
    for group in groups:
        values = [reward.value for reward in group.rewards if reward.value is not None]
        if not values:
            unscored.add(group.prompt.id)
        elif min(values) >= SOLVED:
            always.add(group.prompt.id)
        elif max(values) < SOLVED:
            never.append(group.prompt.id)
    staying = set(sorted(never, key=lambda name: (derive_seed(seed, "keep", name), name))[: round(keep_unsolved * len(never))])
    dropped = always | (set(never) - staying)
    return Kept(
        task=groups[0].prompt.task,
        kept=tuple(group.prompt for group in groups if group.prompt.id not in dropped),
        num_prompts=len(groups),
        num_always=len(always),
        num_never=len(never),
        num_never_kept=len(staying),
        num_unscored=len(unscored),
        num_tokens=sum(rollout.num_sampled for group in groups for rollout in group.rollouts),
    )


def try_prompts(
    sampler: Sampler,
    renderer: "Renderer",
    tasks: Mapping[str, Task],
    prompts: Sequence[Prompt],
    samples: int,
    params: SamplingParams,
    seed: int,
    done: Callable[[int, Sequence[Group]], None],
    at_once: int = 32,
) -> list[Group]:
    """`samples` graded answers of each prompt; `done` is told after every few prompts how many there are, and the new ones."""
    from cascade_rl.sample.verdicts import sample_and_grade

    groups: list[Group] = []
    for start in range(0, len(prompts), at_once):
        groups += sample_and_grade(sampler, renderer, tasks, prompts[start : start + at_once], samples, params, seed)
        done(len(groups), groups[start:])
    return groups


def digest(prompt: Prompt) -> str:
    """Twelve hex digits of what a prompt asks and is graded with."""
    told = [[repr(message) for message in prompt.messages], prompt.tools, prompt.thinking, prompt.reference]
    return hashlib.sha256(json.dumps(told, sort_keys=True, default=str).encode()).hexdigest()[:12]


_AGAIN = "make it again with `cascade filter`, with the recipe that the stage is of"


def kept_prompts(path: str, task: str, prompts: Sequence[Prompt]) -> list[Prompt]:
    """Those of a task's prompts that a file of `cascade filter` keeps, in their order. Raises DataError."""
    kept = read_kept(path, task)
    chosen = [prompt for prompt in prompts if prompt.id in kept]
    other = next((prompt.id for prompt in chosen if digest(prompt) != kept[prompt.id]), None)
    if other is not None or len(chosen) < len(kept):
        why = f"prompt {other} is another one now" if other else f"{len(kept) - len(chosen)} of its prompts are not there"
        raise DataError(f'keep: {path} was made with other settings of task "{task}": {why}; {_AGAIN}')
    if not chosen:
        raise DataError(f'keep: {path} keeps no prompt of task "{task}"; nothing is left to train on')
    return chosen


def read_kept(path: str, task: str) -> dict[str, str]:
    """Prompt id -> digest, of what a file keeps of a task. Raises DataError."""
    place = Path(path).expanduser()
    if not place.is_file():
        raise DataError(f"keep: {path} is {'a folder' if place.is_dir() else 'no file'}; {how_to_make(path, task)}")
    tasks = _read(place)
    if task not in tasks:
        raise DataError(f'keep: {path} has no task "{task}"; it has {", ".join(sorted(tasks)) or "none"}; {_AGAIN}')
    return tasks[task]["kept"]


def how_to_make(path: str, task: str) -> str:
    """The way out where `path` is no file of kept prompts yet."""
    if Path(path).expanduser().is_dir():
        return f"name a file, which `cascade filter CHECKPOINT --tasks {task} --out FILE` makes"
    return f"make it with `cascade filter CHECKPOINT --tasks {task} --out {path}`"


def is_kept_file(place: Path) -> bool:
    """Whether a file is one that `cascade filter` wrote."""
    try:
        return place.is_file() and bool(_read(place))
    except DataError:
        return False


def _read(place: Path) -> dict[str, Any]:
    """Task -> what `Kept.told` told of it. Raises DataError."""
    way_out = "expected a file that `cascade filter` wrote: name one, or make it under another name"
    try:
        told = strict_json.loads(place.read_text(encoding="utf-8"))
    except ValueError as error:  # no JSON, or no text
        raise DataError(f"keep: {place} is no JSON ({error}); {way_out}") from None
    tasks = told.get("tasks") if isinstance(told, dict) else None
    if not isinstance(tasks, dict) or not all(isinstance(t, dict) and isinstance(t.get("kept"), dict) for t in tasks.values()):
        raise DataError(f"keep: {place} is no file of kept prompts; {way_out}")
    return tasks
