"""Plain Python values as JSON that keeps their types: how a program's values leave the sandbox. Nothing is ever pickled.

    encode((1, "a", {2.5})) == ["tuple", [["int", "0x1"], "a", ["set", [["float", "0x1.4000000000000p+1"]]]]]

What crosses: None, bool, int (any size), float (NaN and infinities too), complex, str, bytes, list, tuple, dict, set, frozenset.
A subclass of one of these crosses as its base; whatever it overrides (equality, hash) stays behind. The encoder runs in a process
that a hostile program owns, so what arrives is a claim: `decode` takes nothing for granted, and only plain values come out of it.
"""

from typing import Any

MAX_DEPTH = 100
MAX_HASHED = 10_000  # items of a set or dict: a hostile program chooses keys that collide, and pays nothing for it
_CONTAINERS = (list, tuple, set, frozenset)


class NotPlain(ValueError):
    """A value that does not cross; the message says why in a few words."""


def encode(value: Any, depth: int = 0) -> Any:
    """JSON values for a plain value. Raises NotPlain."""
    if depth > MAX_DEPTH:
        raise NotPlain(f"a value nested deeper than {MAX_DEPTH}")
    if value is None or value is True or value is False:
        return value
    if isinstance(value, str):
        return str.__str__(value)
    if isinstance(value, int):
        return ["int", hex(int.__index__(value))]
    if isinstance(value, float):
        return ["float", float.hex(value)]
    if isinstance(value, complex):
        return ["complex", [float.hex(value.real), float.hex(value.imag)]]
    if isinstance(value, (bytes, bytearray)):
        return ["bytes", bytes(value).hex()]
    if isinstance(value, dict):
        return ["dict", [[encode(key, depth + 1), encode(item, depth + 1)] for key, item in dict.items(value)]]
    for kind in _CONTAINERS:
        if isinstance(value, kind):
            return [kind.__name__, [encode(item, depth + 1) for item in value]]
    raise NotPlain(f"a value of type {type(value).__name__}")


def decode(data: Any, depth: int = 0) -> Any:
    """The value of `encode`'s result; of exactly the built-in types, whoever wrote the data. Raises NotPlain."""
    if data is None or isinstance(data, (bool, str)):
        return data
    if depth > MAX_DEPTH or not isinstance(data, list) or len(data) != 2 or not isinstance(data[0], str):
        raise NotPlain("not a value's encoding")
    kind, body = data
    try:
        return _decode(kind, body, depth)
    except (TypeError, ValueError, OverflowError) as error:  # an unhashable key, digits that are none
        raise error if isinstance(error, NotPlain) else NotPlain(f"not the encoding of a {kind[:20]}") from None


def _decode(kind: str, body: Any, depth: int) -> Any:
    if kind == "int":
        return int(body, 16)
    if kind == "float":
        return float.fromhex(body)
    if kind == "complex":
        real, imaginary = body
        return complex(float.fromhex(real), float.fromhex(imaginary))
    if kind == "bytes":
        return bytes.fromhex(body)
    if not isinstance(body, list) or (kind not in ("list", "tuple") and len(body) > MAX_HASHED):
        raise NotPlain("not a container's encoding, or too large a one")
    if kind == "dict":
        return {decode(key, depth + 1): decode(item, depth + 1) for key, item in body}
    for container in _CONTAINERS:
        if kind == container.__name__:
            return container(decode(item, depth + 1) for item in body)
    raise NotPlain(f"no value of type {kind[:20]}")
