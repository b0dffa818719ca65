"""Tasks: prompts + interaction + verdict. The house's own by name; a user's as "package.module:name" or by entry point."""

import importlib
from importlib.metadata import entry_points

from cascade_rl.errors import RecipeError, unknown
from cascade_rl.tasks.bfcl import BFCL
from cascade_rl.tasks.gsm8k import GSM8K
from cascade_rl.tasks.ifeval import IFEval
from cascade_rl.tasks.mbpp import MBPP
from cascade_rl.tasks.mmlu import MMLU
from cascade_rl.tasks.nano import NANO_TASKS

TASKS: dict[str, type] = {
    **{f"nano.{name}": cls for name, cls in NANO_TASKS.items()},
    "ifeval": IFEval,
    "gsm8k": GSM8K,
    "mmlu": MMLU,
    "mbpp": MBPP,
    "bfcl": BFCL,
}


def load_task_class(kind: str, where: str) -> type:
    """The task class of a kind: a name of the house, an entry point of group "cascade_rl.tasks", or "package.module:name"."""
    if kind in TASKS:
        return TASKS[kind]
    for point in entry_points(group="cascade_rl.tasks", name=kind):
        return point.load()
    module, colon, name = kind.partition(":")
    if not colon:
        raise RecipeError(unknown(f"{where}: task", kind, TASKS, 'or write "package.module:name" for a task of your own'))
    try:
        return getattr(importlib.import_module(module), name)
    except ImportError as error:
        raise RecipeError(f'{where}: cannot import "{module}" ({error}); is it installed, or its folder in PYTHONPATH?') from None
    except AttributeError:
        raise RecipeError(f'{where}: module "{module}" has no "{name}"') from None
