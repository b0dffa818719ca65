"""Seeds: everything random derives from the recipe's one seed and from what it is for, never from a shared generator's state."""

import hashlib


def derive_seed(*parts: int | str) -> int:
    """A 63-bit seed from any mix of numbers and names: `derive_seed(0, "sft", "data")`. Equal parts give equal seeds."""
    text = "\x1f".join(f"{type(part).__name__}:{part}" for part in parts)
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big") >> 1
