"""How domains are weighed against each other, by hand."""

import math

import numpy as np
import pytest

from cascade_rl.algo.balance import DomainGap, domain_gaps, domain_weights
from cascade_rl.records import Sample


def sample(domain: str, teacher: list[float], sampler: list[float]) -> Sample:
    """One token of prompt, and those given as trained ones."""
    mask = np.array([False] + [True] * len(teacher))
    values = [np.array([0.0, *told], dtype=np.float32) for told in (sampler, teacher)]
    return Sample(np.arange(len(mask), dtype=np.int32), mask, logp_sampler=values[0], logp_teacher=values[1], domain=domain)


def test_gap_and_reverse_kl_of_a_domain_are_over_its_tokens() -> None:
    told = domain_gaps(
        [sample("math", [-1.0, -2.0], [-1.5, -1.0]), sample("math", [-1.0], [-1.0]), sample("chat", [-2.0], [-1.0])]
    )
    assert list(told) == ["chat", "math"]
    assert (told["math"].gap, told["math"].num_samples, told["math"].num_tokens) == (pytest.approx(0.5), 2, 3)
    k3 = [math.exp(d) - d - 1 for d in (0.5, -1.0, 0.0)]
    assert told["math"].reverse_kl == pytest.approx(sum(k3) / 3)
    assert told["chat"].gap == pytest.approx(1.0)


GAPS = {"math": DomainGap(0.1, 0.01, 3, 300), "chat": DomainGap(0.3, 0.02, 1, 20)}


@pytest.mark.parametrize(
    "balance, expected",
    [("sequence", (1.0, 1.0)), ("domain", (2 / 3, 2.0)), ("gap", (1 / 3, 3.0))],
)
def test_weights_by_hand(balance, expected: tuple[float, float]) -> None:
    told = domain_weights(GAPS, balance)
    assert (told["math"], told["chat"]) == pytest.approx(expected)
    assert 3 * told["math"] + told["chat"] == pytest.approx(4)  # the mean over samples is 1


def test_the_factor_of_the_gap_is_clamped() -> None:
    """Factors 0.5 and 1.5, held within 0.8 and 1.2: shares 0.4 and 0.6."""
    told = domain_weights(GAPS, "gap", (0.8, 1.2))
    assert 3 * told["math"] / 4 == pytest.approx(0.4)
    closed = {name: DomainGap(0.0, 0.0, 2, 2) for name in ("a", "b")}
    assert domain_weights(closed, "gap") == {"a": 1.0, "b": 1.0}  # nobody has a gap: nothing to divide by
