"""The arguments of instructions: the types that a check's signature may name, and how a value from a row becomes one of them."""

import inspect
import math
from collections.abc import Callable, Mapping
from typing import Annotated, Any, Literal, get_args, get_origin

from cascade_rl.errors import GraderError, unknown
from cascade_rl.grade.instructions.text import language_codes

Relation = Literal["less than", "at least"]
Position = Annotated[int, "a whole number from 1"]
Percent = Annotated[float, "a number from 0 to 100"]
Letter = Annotated[str, "one visible character"]
LanguageCode = Annotated[str, "an ISO 639 language code"]


def compare(count: int, relation: Relation, bound: int) -> bool:
    return count < bound if relation == "less than" else count >= bound


def convert_arguments(check: Callable[..., bool], given: Mapping[str, Any], where: str) -> dict[str, Any]:
    """The arguments of a check, typed by its signature. None means "not given" (rows on the hub fill every name with None).

    Numbers may come as floats with a whole value (39.0). Raises GraderError for a name that the check does not take, one that it
    needs and does not get, and a value that does not fit.
    """
    signature = inspect.signature(check, eval_str=True)
    wanted = {name: parameter for name, parameter in signature.parameters.items() if name != "text"}
    values = {name: value for name, value in given.items() if value is not None}
    for name in values:
        if name not in wanted:
            raise GraderError(unknown(f"{where}: argument", name, wanted, "leave it out or set it to null"))
    missing = [name for name in wanted if name not in values]
    if missing:
        raise GraderError(f"{where}: needs {', '.join(missing)}; nothing is drawn at random, so give every argument")
    return {name: _convert(values[name], wanted[name].annotation, f"{where}: {name}") for name in wanted}


def _convert(value: Any, kind: Any, where: str) -> Any:
    if kind is int:
        return _whole(value, 0, "a whole number from 0", where)
    if kind == Position:
        return _whole(value, 1, kind.__metadata__[0], where)
    if kind == Percent:
        _expect(_is_number(value) and 0 <= value <= 100, value, kind.__metadata__[0], where)
        return float(value)
    if kind == Letter:
        _expect(isinstance(value, str) and len(value.strip()) == 1, value, kind.__metadata__[0], where)
        return value.strip()
    if kind == LanguageCode:
        if not isinstance(value, str) or value not in language_codes():
            raise GraderError(unknown(f"{where}: language", str(value), language_codes()))
        return value
    if kind is str:
        _expect(isinstance(value, str) and value.strip() != "", value, "a text that is not blank", where)
        return value
    if get_origin(kind) is tuple:
        fits = isinstance(value, list | tuple) and len(value) > 0 and all(isinstance(v, str) and v.strip() for v in value)
        _expect(fits, value, "a list of texts, at least one, none blank", where)
        return tuple(value)
    assert get_origin(kind) is Literal, f"no conversion to {kind}"
    _expect(value in get_args(kind), value, " or ".join(f'"{choice}"' for choice in get_args(kind)), where)
    return value


def _whole(value: Any, least: int, expectation: str, where: str) -> int:
    _expect(_is_number(value) and value == int(value) and value >= least, value, expectation, where)
    return int(value)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _expect(holds: bool, value: Any, expectation: str, where: str) -> None:
    if not holds:
        raise GraderError(f"{where} is {value!r}; it must be {expectation}")
