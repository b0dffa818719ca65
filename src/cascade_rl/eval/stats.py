"""Figures over prompts: mean and standard error, pass@k, and the paired comparison of two checkpoints.

Scores come as one list per prompt: the scores of its n samples, None where a sample is *unscored*. The prompt is the unit: the
samples of one prompt are not independent, so they are averaged first and the error is taken over prompts (a clustered standard
error). An unscored sample is left out of its prompt's mean and counted; a prompt without any score is left out and counted.
Neither is ever a zero.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

PromptScores = Sequence[float | None]

MAX_EXACT_FLIPS = 16  # up to 2^16 sign patterns are enumerated; beyond, they are drawn
NUM_DRAWN_FLIPS = 20_000
SOLVED = 1.0 - 1e-9  # pass@k counts a sample with full marks, whatever rounding left of them


@dataclass(frozen=True, slots=True)
class Estimate:
    """A mean over prompts: `Estimate(n=200, mean=0.61, stderr=0.034, unscored_samples=3, unscored_prompts=0)`.

    n: prompts with a figure. mean is NaN when n is 0, stderr is NaN when n is below 2: not known, as opposed to 0.
    """

    n: int
    mean: float
    stderr: float
    unscored_samples: int = 0
    unscored_prompts: int = 0


@dataclass(frozen=True, slots=True)
class Paired:
    """Checkpoint B against checkpoint A on the prompts that both have: mean of B - A, its standard error, and a two-sided p.

    n: prompts compared. left_out: prompts that only one of the two has a score for.
    """

    n: int
    difference: float
    stderr: float
    p: float
    left_out: int = 0


def prompt_mean(scores: PromptScores) -> float | None:
    """The mean of one prompt's scored samples; None when none is scored."""
    scored = [score for score in scores if score is not None]
    return math.fsum(scored) / len(scored) if scored else None


def mean_and_stderr(prompts: Sequence[PromptScores]) -> Estimate:
    """Mean of the per-prompt means and its standard error sd / sqrt(n), with sd over prompts (n - 1 in its denominator)."""
    means = [prompt_mean(scores) for scores in prompts]
    unscored = sum(score is None for scores in prompts for score in scores)
    return _estimate(means, unscored)


def pass_at_k(n: int, c: int, k: int) -> float:
    """The chance that at least one of k samples is right, from n samples of which c are: 1 - C(n-c, k) / C(n, k), unbiased.

    Chen et al. 2021 (Evaluating Large Language Models Trained on Code), section 2.1, as a product of factors in [0, 1] so that no
    binomial coefficient is ever formed.
    """
    if not 1 <= k <= n:
        raise ValueError(f"pass@k: k is {k}; it must be from 1 to the number of scored samples, {n}")
    if not 0 <= c <= n:
        raise ValueError(f"pass@k: {c} right samples of {n}; it must be from 0 to {n}")
    if n - c < k:
        return 1.0
    return 1.0 - math.prod(1.0 - k / i for i in range(n - c + 1, n + 1))


def mean_pass_at_k(prompts: Sequence[PromptScores], k: int) -> Estimate:
    """pass@k over prompts. A prompt with fewer than k scored samples has no unbiased estimate: it is left out and counted."""
    figures: list[float | None] = []
    for scores in prompts:
        scored = [score for score in scores if score is not None]
        right = sum(score >= SOLVED for score in scored)
        figures.append(pass_at_k(len(scored), right, k) if len(scored) >= k else None)
    unscored = sum(score is None for scores in prompts for score in scores)
    return _estimate(figures, unscored)


def win_rate(before: Mapping[str, PromptScores], after: Mapping[str, PromptScores]) -> Estimate:
    """How often `after` beats `before` on a prompt, over the prompts that both have; a tie is half a win, so no change is one half.

    With several samples a prompt: the share of all pairs of its samples.
    """
    rates: list[PromptScores] = []
    for prompt in before.keys() & after.keys():
        olds = [score for score in before[prompt] if score is not None]
        news = [score for score in after[prompt] if score is not None]
        wins = [0.5 if new == old else float(new > old) for new in news for old in olds]
        rates.append([math.fsum(wins) / len(wins) if wins else None])
    return mean_and_stderr(rates)


def paired(a: Mapping[str, PromptScores], b: Mapping[str, PromptScores], seed: int = 0) -> Paired:
    """Compares two checkpoints on the same prompts (prompt id -> scores), in the direction b - a.

    p is that of a sign-flip permutation test: if a and b were equally good, each prompt's difference would be as likely to have
    the other sign, so p is the share of sign patterns whose sum is at least as far from 0 as the one observed. All 2^m patterns
    are enumerated for m <= 16 prompts that differ; otherwise 20,000 are drawn with `seed` and p = (hits + 1) / (draws + 1), so
    that the test keeps its level (Phipson and Smyth 2010). No prompt differs, or none is shared: p is 1.
    """
    means_a = {name: mean for name, scores in a.items() if (mean := prompt_mean(scores)) is not None}
    means_b = {name: mean for name, scores in b.items() if (mean := prompt_mean(scores)) is not None}
    shared = sorted(means_a.keys() & means_b.keys())
    differences = np.array([means_b[name] - means_a[name] for name in shared], dtype=np.float64)
    estimate = _estimate(differences.tolist(), 0)
    left_out = len(a.keys() | b.keys()) - len(shared)
    return Paired(estimate.n, estimate.mean, estimate.stderr, sign_flip_p(differences, seed), left_out)


def ratio(parts: Sequence[float], wholes: Sequence[float]) -> tuple[float, float]:
    """Mean of parts over mean of wholes, item by item of the same prompts, and its standard error by the delta method.

    The error is that of the mean of part - ratio * whole, over |mean of wholes|. NaN where the wholes have no mean above or below 0,
    and the error also below two items. Parts 1, 0, 1 of wholes 1, 1, 1 give 2/3 with an error of 1/3.
    """
    part_N, whole_N = np.array(parts, dtype=np.float64), np.array(wholes, dtype=np.float64)
    if not len(whole_N) or abs(whole_N.mean()) < 1e-12:
        return math.nan, math.nan
    share = float(part_N.mean() / whole_N.mean())
    if len(whole_N) < 2:
        return share, math.nan
    return share, float((part_N - share * whole_N).std(ddof=1) / math.sqrt(len(whole_N)) / abs(whole_N.mean()))


def sign_flip_p(differences: np.ndarray, seed: int = 0) -> float:
    """Two-sided p of the sign-flip permutation test; see `paired`."""
    differences = differences[np.abs(differences) > 1e-12]  # flipping a zero changes nothing
    m = len(differences)
    if not m:
        return 1.0
    observed = abs(differences.sum()) - 1e-9 * np.abs(differences).sum()  # patterns that tie up to rounding are ties
    if m <= MAX_EXACT_FLIPS:
        patterns = (np.arange(2**m)[:, None] >> np.arange(m)) & 1
        return float(np.mean(np.abs((2 * patterns - 1) @ differences) >= observed))
    # Prompts that differ by the same amount are drawn together: the number of plus signs among them is binomial.
    rng = np.random.default_rng(seed)
    sizes, counts = np.unique(np.abs(differences).round(12), return_counts=True)
    sums = np.zeros(NUM_DRAWN_FLIPS)
    for size, count in zip(sizes, counts, strict=True):
        sums += size * (2 * rng.binomial(count, 0.5, size=NUM_DRAWN_FLIPS) - count)
    return float((np.sum(np.abs(sums) >= observed) + 1) / (NUM_DRAWN_FLIPS + 1))


def holm(p_values: Sequence[float]) -> list[float]:
    """Holm's step-down correction (1979), in input order: it bounds the chance of even one false alarm in the family."""
    m = len(p_values)
    adjusted = [1.0] * m
    running = 0.0
    for rank, i in enumerate(sorted(range(m), key=lambda i: p_values[i])):
        running = max(running, (m - rank) * p_values[i])
        adjusted[i] = min(1.0, running)
    return adjusted


def _estimate(figures: Sequence[float | None], unscored_samples: int) -> Estimate:
    known = np.array([figure for figure in figures if figure is not None], dtype=np.float64)
    n = len(known)
    mean = float(known.mean()) if n else math.nan
    stderr = float(known.std(ddof=1) / math.sqrt(n)) if n > 1 else math.nan
    return Estimate(n, mean, stderr, unscored_samples, len(figures) - n)
