"""From logits to a token: counter-based uniforms, truncation, inverse CDF, and the log-prob from the same pass.

No generator state anywhere: the uniform of a token is a hash of (seed, answer, position), so a token does not depend on what else
was sampled before or beside it.
"""

from collections.abc import Iterator, Sequence

import numpy as np
import torch
from torch import Tensor

from cascade_rl.errors import NonFiniteError
from cascade_rl.records import SamplingParams

# The cumulative sum over a whole vocabulary is slow and inexact: sums of blocks first, then inside the one block that matters.
BLOCK = 256
# How many of the best tokens top-p looks at before it falls back on sorting the vocabulary.
NUCLEUS = 1024
# Rows handled at once are bounded by this many float32 numbers (4 MB), so that the passes over them stay in cache.
PASS_NUMBERS = 1 << 20

GOLDEN = np.uint64(0x9E3779B97F4A7C15)


def uniforms(seeds: Sequence[int], answers: Sequence[int], positions: Sequence[int]) -> np.ndarray:
    """float64 [R] in [0, 1): a hash of (seed, answer index, position) for each row.

    Three rounds of the finaliser of splitmix64 (Steele, Lea and Flood 2014, "Fast splittable pseudorandom number generators").
    Seeds count modulo 2**64.
    """
    state = _mixed(np.array([seed & 0xFFFFFFFFFFFFFFFF for seed in seeds], dtype=np.uint64))
    state = _mixed(state ^ np.array(answers, dtype=np.uint64))
    state = _mixed(state ^ np.array(positions, dtype=np.uint64))
    return (state >> np.uint64(11)).astype(np.float64) * 2.0**-53


def _mixed(x: np.ndarray) -> np.ndarray:
    with np.errstate(over="ignore"):
        x = x + GOLDEN
        x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


def choose_rows(logits_RV: Tensor, params: Sequence[SamplingParams], uniform_R: np.ndarray) -> tuple[list[int], list[float]]:
    """`choose` where each row has settings of its own: ids and log-probs, in row order."""
    ids, logps = [0] * len(params), [0.0] * len(params)
    for settings, rows in _alike(params):
        here = slice(None) if len(rows) == len(params) else rows
        ids_R, logps_R = choose(logits_RV[here], uniform_R[here], *settings)
        for row, token, logp in zip(rows, ids_R.tolist(), logps_R.tolist(), strict=True):
            ids[row], logps[row] = token, logp
    return ids, logps


def _alike(params: Sequence[SamplingParams]) -> Iterator[tuple[tuple[float, float, int], list[int]]]:
    """Rows by what decides their choice: ((temperature, top_p, top_k), row numbers)."""
    rows: dict[tuple[float, float, int], list[int]] = {}
    for row, p in enumerate(params):
        rows.setdefault((p.temperature, p.top_p, p.top_k), []).append(row)
    yield from rows.items()


def choose(
    logits_RV: Tensor, uniform_R: np.ndarray, temperature: float = 1.0, top_p: float = 1.0, top_k: int = 0
) -> tuple[Tensor, Tensor]:
    """One token for each row of logits, and its log-prob.

    logits_RV    any float type; computed with in float32.
    uniform_R    float64 [R] in [0, 1): where on the cumulative distribution to look.
    temperature  0 takes the most probable token. top_k keeps the k best (0: all); top_p then keeps the fewest best tokens
                 whose share of what is left reaches top_p (1: all).
    Gives ids int64 [R] and logps float32 [R]: log-probs at the temperature (at 1 when greedy) in the untruncated distribution.
    Raises NonFiniteError for a row that is no distribution (NaN, +inf, or nothing but -inf).
    """
    num_rows, num_ids = logits_RV.shape
    uniform = torch.from_numpy(np.ascontiguousarray(uniform_R))
    step = max(1, PASS_NUMBERS // num_ids)
    passes = [
        _choose_few(logits_RV[at : at + step], uniform[at : at + step], temperature, top_p, top_k)
        for at in range(0, num_rows, step)
    ]
    ids, logps = (torch.cat(parts) for parts in zip(*passes, strict=True))
    return ids, logps


def _choose_few(logits_RV: Tensor, uniform_R: Tensor, temperature: float, top_p: float, top_k: int) -> tuple[Tensor, Tensor]:
    scaled_RV = logits_RV.float()
    if temperature not in (0, 1):
        scaled_RV = scaled_RV / temperature
    top_R1 = scaled_RV.amax(-1, keepdim=True)
    weight_RV = (scaled_RV - top_R1).exp_()
    block_RN = _block_sums(weight_RV)
    total_R1 = block_RN.sum(-1, keepdim=True)
    if not torch.isfinite(total_R1).all():
        raise NonFiniteError("sampler: the model gave logits that are not finite; its weights are damaged or it overflowed")
    if temperature == 0:
        id_R = scaled_RV.argmax(-1)
    elif top_p < 1 or top_k:
        id_R = _draw_truncated(scaled_RV, weight_RV, total_R1, uniform_R, top_p, top_k)
    else:
        id_R = _draw(weight_RV, block_RN, uniform_R)
    logp_R = scaled_RV.gather(1, id_R[:, None]) - top_R1 - total_R1.log()
    return id_R, logp_R.squeeze(1).float()


def _block_sums(weight_RV: Tensor) -> Tensor:
    """float64 [R, N]: the sums of blocks of BLOCK neighbours; the last block may be short."""
    missing = -weight_RV.shape[1] % BLOCK
    padded_RV = torch.nn.functional.pad(weight_RV, (0, missing)) if missing else weight_RV
    return padded_RV.view(len(weight_RV), -1, BLOCK).sum(-1).double()


def _draw(weight_RV: Tensor, block_RN: Tensor, uniform_R: Tensor) -> Tensor:
    """The id at which the cumulative weight passes uniform * total."""
    cumulative_RN = block_RN.cumsum(-1)
    target_R1 = uniform_R[:, None] * cumulative_RN[:, -1:]
    block_R1 = _first_above(cumulative_RN, target_R1)
    target_R1 = target_R1 - (cumulative_RN - block_RN).gather(1, block_R1)
    column_RB = block_R1 * BLOCK + torch.arange(BLOCK)
    inside_RB = weight_RV.gather(1, column_RB.clamp(max=weight_RV.shape[1] - 1)).double()
    inside_RB.masked_fill_(column_RB >= weight_RV.shape[1], 0.0)
    return (block_R1 * BLOCK + _first_above(inside_RB.cumsum(-1), target_R1)).squeeze(1)


def _first_above(cumulative_RN: Tensor, target_R1: Tensor) -> Tensor:
    """[R, 1]: the first place whose cumulative weight exceeds the target; never a place of weight zero.

    A target that rounding has put at or above the total is taken just below it.
    """
    total_R1 = cumulative_RN[:, -1:]
    below_R1 = torch.minimum(target_R1, torch.nextafter(total_R1, torch.zeros_like(total_R1)))
    return torch.searchsorted(cumulative_RN, below_R1, right=True)


def _draw_truncated(
    scaled_RV: Tensor, weight_RV: Tensor, total_R1: Tensor, uniform_R: Tensor, top_p: float, top_k: int, look_at: int = 0
) -> Tensor:
    """The same among the best `look_at` ids only (by default top_k or NUCLEUS); all of them where those do not reach top_p."""
    num_ids = scaled_RV.shape[1]
    look_at = min(look_at or top_k or NUCLEUS, num_ids)
    best_RK = scaled_RV.topk(look_at).indices
    kept_RK = weight_RV.gather(1, best_RK).double()
    cumulative_RK = kept_RK.cumsum(-1)
    mass_R1 = top_p * (cumulative_RK[:, -1:] if top_k else total_R1)
    short_R = cumulative_RK[:, -1] < mass_R1[:, 0]
    kept_RK.masked_fill_(cumulative_RK - kept_RK >= mass_R1, 0.0)
    cumulative_RK = kept_RK.cumsum(-1)
    place_R1 = _first_above(cumulative_RK, uniform_R[:, None] * cumulative_RK[:, -1:])
    id_R = best_RK.gather(1, place_R1).squeeze(1)
    if look_at < num_ids and not top_k and short_R.any():
        again = (scaled_RV[short_R], weight_RV[short_R], total_R1[short_R], uniform_R[short_R])
        id_R[short_R] = _draw_truncated(*again, top_p, top_k, look_at=num_ids)
    return id_R
