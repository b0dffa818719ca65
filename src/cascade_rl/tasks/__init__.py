"""Tasks: prompts + interaction + verdict. The house's own by name; a user's as "package.module:name" or by entry point."""

import importlib
import traceback
from collections.abc import Sequence
from importlib.metadata import entry_points
from pathlib import Path

from cascade_rl.errors import CascadeError, DataError, RecipeError, unknown
from cascade_rl.protocols import Task
from cascade_rl.records import Prompt, Split

# Named, not imported: a recipe pays only for the graders that it uses.
TASKS: dict[str, str] = {
    "nano.instructions": "cascade_rl.tasks.nano.instructions:InstructionsTask",
    "nano.choice": "cascade_rl.tasks.nano.choice:ChoiceTask",
    "nano.tools": "cascade_rl.tasks.nano.tools:ToolsTask",
    "nano.schema": "cascade_rl.tasks.nano.schema:SchemaTask",
    "nano.math": "cascade_rl.tasks.nano.math:MathTask",
    "nano.chat": "cascade_rl.tasks.nano.chat:ChatTask",
    "nano.needle": "cascade_rl.tasks.nano.needle:NeedleTask",
    "nano.program": "cascade_rl.tasks.nano.program:ProgramTask",
    "nano.repair": "cascade_rl.tasks.nano.repair:RepairTask",
    "nano.long": "cascade_rl.tasks.nano.long:LongTask",
    "needle": "cascade_rl.tasks.needle:Needle",
    "swe.nano": "cascade_rl.tasks.swe.nano:NanoAgent",
    "swe.made": "cascade_rl.tasks.swe.made:MadeRepositories",
    "swe": "cascade_rl.tasks.swe.rows:SWERows",
    "nano.judge": "cascade_rl.tasks.nano.judge:JudgeTask",
    "nano.preference": "cascade_rl.tasks.nano.preference:NanoPreference",
    "judged": "cascade_rl.tasks.judged:Judged",
    "preference": "cascade_rl.tasks.preference:Preference",
    "rows": "cascade_rl.tasks.custom:RowsTask",
    "instructions": "cascade_rl.tasks.instructions:Instructions",
    "ifeval": "cascade_rl.tasks.ifeval:IFEval",
    "gsm8k": "cascade_rl.tasks.gsm8k:GSM8K",
    "mmlu": "cascade_rl.tasks.mmlu:MMLU",
    "mbpp": "cascade_rl.tasks.mbpp:MBPP",
    "bfcl": "cascade_rl.tasks.bfcl:BFCL",
    "nemotron": "cascade_rl.tasks.nemotron:NemotronRL",
}


def is_kind(name: str) -> bool:
    """Whether a name is meant as a kind of task: one of the house, of an entry point, or a "package.module:name"."""
    return name in TASKS or ":" in name or bool(entry_points(group="cascade_rl.tasks", name=name))


def load_task_class(kind: str, where: str) -> type:
    """The task class of a kind: a name of the house, an entry point of group "cascade_rl.tasks", or "package.module:name"."""
    place = TASKS.get(kind, kind)
    if kind not in TASKS:
        for point in entry_points(group="cascade_rl.tasks", name=kind):
            place = point.value
    module, colon, name = place.partition(":")
    if not colon:
        raise RecipeError(unknown(f"{where}: kind", kind, TASKS, 'or write "package.module:name" for a task of your own'))
    try:
        found = importlib.import_module(module)
    except ImportError as error:
        raise RecipeError(f'{where}: cannot import "{module}" ({error}); is it installed, or its folder in PYTHONPATH?') from None
    except Exception as error:  # anyone's code
        raise RecipeError(f'{where}: importing "{module}" failed: {in_words(error)}') from error
    try:
        return getattr(found, name)
    except AttributeError:
        raise RecipeError(f'{where}: module "{module}" has no "{name}"') from None


def prompts_of(task: Task, split: Split) -> Sequence[Prompt]:
    """A task's prompts. What is wrong with a task of the user's is a DataError that names the task and the line of its code."""
    where = f'task "{task.name}"'
    try:
        prompts = task.prompts(split)
        found = list(prompts)
    except CascadeError:
        raise
    except Exception as error:  # anyone's code
        raise DataError(f'{where}: prompts("{split}") failed: {in_words(error)}') from error
    seen: set[str] = set()
    for number, prompt in enumerate(found):
        if not isinstance(prompt, Prompt):
            raise DataError(f'{where}: prompts("{split}")[{number}] is a {type(prompt).__name__}; expected a Prompt')
        for key, told, expected in (("task", prompt.task, task.name), ("split", prompt.split, split)):
            if told != expected:
                raise DataError(f'{where}: prompt {prompt.id} has {key} "{told}"; expected "{expected}"')
        if prompt.id in seen:
            raise DataError(f"{where}: two prompts of split {split} have the id {prompt.id}; each needs its own")
        seen.add(prompt.id)
    return prompts


def in_words(error: Exception) -> str:
    """`KeyError: 'answer' (my_tasks.py:12)`: an exception of someone's code, and the line where it came up."""
    if isinstance(error, SyntaxError):
        return f"{type(error).__name__}: {error}"  # which names its place itself
    frames = traceback.extract_tb(error.__traceback__)
    place = f" ({Path(frames[-1].filename).name}:{frames[-1].lineno})" if frames else ""
    return f"{type(error).__name__}: {error}{place}"


def kind_of(task: object) -> str:
    """The name by which a recipe calls a task's class."""
    place = f"{type(task).__module__}:{type(task).__qualname__}"
    return next((kind for kind, known in TASKS.items() if known == place), place)
