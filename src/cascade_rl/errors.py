"""One exception tree. Every message says: subject, value, expectation, way out."""

import difflib
from collections.abc import Iterable


class CascadeError(Exception):
    """Base of every error that cascade-rl raises on purpose; the CLI prints it without a traceback."""


class RecipeError(CascadeError, ValueError):
    """A recipe (or a `--set` override) that cannot be run as written."""


class DataError(CascadeError, ValueError):
    """A row, file or data set that does not have the layout it must have."""


class RenderError(CascadeError, ValueError):
    """Messages that this format or chat template cannot express."""


class ModelError(CascadeError, ValueError):
    """A model folder, hub id or architecture that cannot be used as asked."""


class GraderError(CascadeError, ValueError):
    """A grader's configuration is wrong (unknown instruction id, bad schema): raised when a task loads, never as a verdict."""


class ToolError(CascadeError):
    """A tool call that failed for a reason the model should read; its text goes back to the model."""


class SandboxError(CascadeError):
    """This machine cannot isolate programs as asked (or a kept sandbox is used after its end); the message says the way out."""


class NonFiniteError(CascadeError):
    """A loss or gradient that is not finite; raised before the optimizer moves and before anything is saved."""


class RunError(CascadeError):
    """A run directory that cannot be used: locked, foreign, or damaged."""


class Interrupted(CascadeError):
    """The user asked to stop; the state is saved and the message says how to go on."""


def unknown(subject: str, value: str, known: Iterable[str], way_out: str = "") -> str:
    """The text of an error about a name that is not in a known set, with the nearest known name as a suggestion.

    `unknown('stage "sft": key', "learing_rate", ["learning_rate"])` reads
    `stage "sft": key "learing_rate" is not known; did you mean "learning_rate"? known: learning_rate`.
    """
    names = sorted(known)
    near = difflib.get_close_matches(value, names, n=1, cutoff=0.6)
    guess = f'did you mean "{near[0]}"? ' if near else ""
    tail = f"; {way_out}" if way_out else ""
    return f'{subject} "{value}" is not known; {guess}known: {", ".join(names) or "none"}{tail}'
