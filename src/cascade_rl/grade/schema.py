"""JSON to a schema: is the answer one JSON value that the schema accepts?

Validity only; whether the values are the right ones is for the task to ask. JSON is read strictly (no NaN, no repeated keys).
"""

import re
from typing import Any, Protocol

import jsonschema_rs

from cascade_rl import strict_json
from cascade_rl.errors import GraderError
from cascade_rl.grade.extract import after_thinking
from cascade_rl.records import Reward

_FENCE = re.compile(r"```[ \t]*(?:json|JSON)?[ \t]*\n(.*?)\n?[ \t]*```", re.DOTALL)


class Validator(Protocol):
    """A compiled schema."""

    def is_valid(self, instance: Any) -> bool: ...

    def iter_errors(self, instance: Any) -> Any: ...


def compile_schema(schema: Any, where: str = "schema") -> Validator:
    """The validator of a JSON Schema; its draft is told by "$schema" (2020-12 if it says nothing). References stay offline.

    Raises GraderError, beginning with `where`, for a schema that is not one.
    """
    try:
        return jsonschema_rs.validator_for(schema, offline=True)
    except (jsonschema_rs.ValidationError, jsonschema_rs.ReferencingError, ValueError, TypeError, RecursionError) as error:
        reason = str(error).partition("\n")[0][:300]
        raise GraderError(f"{where}: not a valid JSON Schema ({reason}); expected one that its own draft accepts") from None


def grade_json(text: str, validator: Validator, *, allow_fence: bool) -> Reward:
    """1 if the text is one JSON value that the schema accepts, else 0.

    allow_fence: whether the JSON may stand in a Markdown code fence, with nothing around it. Parts: `parses` and `valid`.
    """
    answer = after_thinking(text).strip()
    if allow_fence and (fenced := _FENCE.fullmatch(answer)):
        answer = fenced.group(1)
    try:
        value = strict_json.loads(answer)
    except strict_json.JsonFault as fault:
        return Reward(0.0, {"parses": 0.0, "valid": 0.0}, str(fault) if answer else "no answer")
    try:
        error = next(iter(validator.iter_errors(value)), None)
    except ValueError as fault:  # nested deeper than the validator goes
        return Reward(0.0, {"parses": 1.0, "valid": 0.0}, f"cannot be checked: {fault}"[:300])
    if error is None:
        return Reward(1.0, {"parses": 1.0, "valid": 1.0}, "valid")
    place = "/".join(str(step) for step in error.instance_path)
    return Reward(0.0, {"parses": 1.0, "valid": 0.0}, f"at /{place}: {error.message}"[:300])
