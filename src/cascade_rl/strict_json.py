"""JSON as the standard has it, for text that a model or a stranger wrote.

Python's own reader takes NaN and Infinity, turns 1e999 into infinity and keeps the last of repeated keys in silence. Here all of
these are faults: what two readers would understand differently is refused.
"""

import json
import math
from typing import Any

__all__ = ["Decoder", "JsonFault", "loads", "same"]


class JsonFault(ValueError):
    """Text that is not strict JSON; the message says why in a few words, without quoting the text."""


class Decoder:
    """Reads one JSON value out of a longer text: `Decoder().at('x {"a": 1} y', 2)` is `({"a": 1}, 10, "")`.

    A value that is well formed but breaks a strict rule is still read to its end, so that a scanner knows where to go on; the
    third item then names the fault ("" is none).
    """

    def __init__(self) -> None:
        self._fault = ""
        self._json = json.JSONDecoder(object_pairs_hook=self._object, parse_constant=self._constant, parse_float=self._float)

    def at(self, text: str, start: int) -> tuple[Any, int, str]:
        """(value, end, fault) of the value that begins exactly at `start`. Raises JsonFault where none can be read."""
        self._fault = ""
        try:
            value, end = self._json.raw_decode(text, start)
        except json.JSONDecodeError as error:
            raise JsonFault(f"not JSON at character {error.pos}: {error.msg}") from None
        except RecursionError:
            raise JsonFault("nested too deep") from None
        except ValueError:  # an integer beyond Python's digit limit (int-to-string conversion is quadratic)
            raise JsonFault("a number has too many digits") from None
        return value, end, self._fault

    def _object(self, pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        made = dict(pairs)
        if len(made) != len(pairs):
            self._fault = self._fault or "a key is repeated in an object"
        return made

    def _constant(self, name: str) -> None:
        self._fault = self._fault or f"{name} is not a JSON value"

    def _float(self, digits: str) -> float:
        number = float(digits)
        if not math.isfinite(number):
            self._fault = self._fault or "a number is too large"
        return number


def loads(text: str) -> Any:
    """The value of a text that is one JSON value and white space, nothing else. Raises JsonFault."""
    start = len(text) - len(text.lstrip(" \t\n\r"))
    value, end, fault = Decoder().at(text, start)
    if fault:
        raise JsonFault(fault)
    if text[end:].strip(" \t\n\r"):
        raise JsonFault(f"more text after the JSON value, at character {end}")
    return value


def same(one: Any, other: Any) -> bool:
    """Equality of JSON values: numbers by value (1 and 1.0 are equal), but true is not 1 and "1" is not 1."""
    if isinstance(one, bool) or isinstance(other, bool):
        return one is other
    if isinstance(one, (int, float)) and isinstance(other, (int, float)):
        return one == other
    if isinstance(one, (list, tuple)) and isinstance(other, (list, tuple)):
        return len(one) == len(other) and all(same(a, b) for a, b in zip(one, other, strict=True))
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(same(value, other[key]) for key, value in one.items())
    return type(one) is type(other) and one == other
