"""Tasks: prompts + interaction + verdict. The house's own by name; a user's as "package.module:name" or by entry point."""

import importlib
from importlib.metadata import entry_points

from cascade_rl.errors import RecipeError, unknown

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
    "rows": "cascade_rl.tasks.custom:RowsTask",
    "instructions": "cascade_rl.tasks.instructions:Instructions",
    "ifeval": "cascade_rl.tasks.ifeval:IFEval",
    "gsm8k": "cascade_rl.tasks.gsm8k:GSM8K",
    "mmlu": "cascade_rl.tasks.mmlu:MMLU",
    "mbpp": "cascade_rl.tasks.mbpp:MBPP",
    "bfcl": "cascade_rl.tasks.bfcl:BFCL",
    "nemotron": "cascade_rl.tasks.nemotron:NemotronRL",
}


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
        return getattr(importlib.import_module(module), name)
    except ImportError as error:
        raise RecipeError(f'{where}: cannot import "{module}" ({error}); is it installed, or its folder in PYTHONPATH?') from None
    except AttributeError:
        raise RecipeError(f'{where}: module "{module}" has no "{name}"') from None


def kind_of(task: object) -> str:
    """The name by which a recipe calls a task's class."""
    place = f"{type(task).__module__}:{type(task).__qualname__}"
    return next((kind for kind, known in TASKS.items() if known == place), place)
