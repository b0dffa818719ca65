"""Conciseness without loss: what is added to a group's base scores for being short (Nemotron 3 Nano; used by arXiv 2603.19220).

Thinking and answer are treated apart, each with lengths in characters.
"""

from collections.abc import Sequence

import numpy as np


def length_adjustment(lengths: Sequence[int], weight: float = 0.5) -> list[float]:
    """weight x (w_i - mean w) with w_i = 1 - (l_i - l_min) / (l_max - l_min); all 0 where all lengths are the same.

    `length_adjustment([10, 20, 40])`: w = 1, 2/3, 0; centred 4/9, 1/9, -5/9; times 0.5.
    """
    if not lengths or max(lengths) == min(lengths):
        return [0.0] * len(lengths)
    shortest, longest = min(lengths), max(lengths)
    shares = [1 - (length - shortest) / (longest - shortest) for length in lengths]
    mean = sum(shares) / len(shares)
    return [weight * (share - mean) for share in shares]


def shortest_bonus(lengths: Sequence[int], base: Sequence[float], bonus: float = 0.5, gate: float = 0.8) -> list[float]:
    """`bonus` for each shortest answer whose base score reaches the `gate` quantile of the group (linear between ranks).

    Where all have the same length nobody is short, and there is none.
    """
    if not lengths or max(lengths) == min(lengths):
        return [0.0] * len(lengths)
    enough = float(np.quantile(np.array(base, dtype=np.float64), gate))
    shortest = min(lengths)
    return [bonus * (length == shortest and score >= enough - 1e-9) for length, score in zip(lengths, base, strict=True)]
