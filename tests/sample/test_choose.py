"""Choosing a token: exact probabilities by sweeping the uniform, truncation, log-probs, and the counter-based uniforms."""

import math

import numpy as np
import pytest
import torch

from cascade_rl.errors import NonFiniteError
from cascade_rl.records import SamplingParams
from cascade_rl.sample import choose as module
from cascade_rl.sample.choose import choose, choose_rows, uniforms

SWEEP = 20_000


def shares(logits: torch.Tensor, **settings: float) -> torch.Tensor:
    """How often each id comes when the uniform takes SWEEP evenly spaced values: its probability, to 1 / SWEEP."""
    uniform = (np.arange(SWEEP) + 0.5) / SWEEP
    ids, _ = choose(logits.expand(SWEEP, -1), uniform, **settings)
    return torch.bincount(ids, minlength=len(logits)) / SWEEP


@pytest.mark.parametrize("num_ids", [7, 256, 300, 1000])
@pytest.mark.parametrize("temperature", [1.0, 0.6, 2.5])
def test_an_id_comes_as_often_as_its_probability_says(num_ids: int, temperature: float) -> None:
    logits = torch.randn(num_ids, generator=torch.Generator().manual_seed(num_ids)) * 3
    want = (logits / temperature).softmax(0)
    assert (shares(logits, temperature=temperature) - want).abs().max() < 1.01 / SWEEP


def test_top_k_keeps_the_k_best() -> None:
    logits = torch.tensor([0.4, 0.1, 0.3, 0.2]).log()
    assert torch.allclose(shares(logits, top_k=2), torch.tensor([4 / 7, 0, 3 / 7, 0]), atol=1 / SWEEP)


@pytest.mark.parametrize(
    "top_p, want",
    [
        (0.39, [1, 0, 0, 0]),
        (0.41, [4 / 7, 0, 3 / 7, 0]),
        (0.69, [4 / 7, 0, 3 / 7, 0]),
        (0.71, [4 / 9, 0, 3 / 9, 2 / 9]),
        (0.91, [0.4, 0.1, 0.3, 0.2]),
        (0.01, [1, 0, 0, 0]),
    ],
)
def test_top_p_keeps_the_fewest_best_ids_that_reach_it(top_p: float, want: list[float]) -> None:
    logits = torch.tensor([0.4, 0.1, 0.3, 0.2]).log()
    assert torch.allclose(shares(logits, top_p=top_p), torch.tensor(want, dtype=torch.float32), atol=1 / SWEEP)


def test_top_p_counts_within_what_top_k_left() -> None:
    # Of 0.4 and 0.3 the first has 4/7 = 0.571 of the mass: 0.57 needs it alone, 0.58 both.
    logits = torch.tensor([0.4, 0.1, 0.3, 0.2]).log()
    assert torch.allclose(shares(logits, top_k=2, top_p=0.57), torch.tensor([1.0, 0, 0, 0]), atol=1 / SWEEP)
    assert torch.allclose(shares(logits, top_k=2, top_p=0.58), torch.tensor([4 / 7, 0, 3 / 7, 0]), atol=1 / SWEEP)


def test_a_nucleus_wider_than_the_first_look_is_still_exact(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "NUCLEUS", 4)
    logits = torch.randn(2, 50, generator=torch.Generator().manual_seed(0)) * torch.tensor([[0.3], [8.0]])
    uniform = np.array([0.83, 0.83])
    narrow = module._choose_few(logits, torch.from_numpy(uniform), 1.0, 0.95, 0)
    for row in range(2):
        p = logits[row].softmax(0).sort(descending=True)
        kept = p.values[(p.values.cumsum(0) - p.values) < 0.95]
        place = int((kept.cumsum(0) <= 0.83 * kept.sum()).sum())
        assert narrow[0][row] == p.indices[place]


def test_greedy_takes_the_best_and_tells_its_log_prob_at_one() -> None:
    logits = torch.tensor([[0.1, 2.0, -1.0]])
    ids, logps = choose(logits, np.array([0.99]), temperature=0)
    assert ids.tolist() == [1]
    assert logps.item() == pytest.approx(logits.log_softmax(1)[0, 1].item(), abs=1e-6)


@pytest.mark.parametrize("settings", [{}, {"temperature": 0.5}, {"top_k": 3}, {"top_p": 0.4}])
def test_log_probs_are_at_the_temperature_and_before_truncation(settings: dict[str, float]) -> None:
    logits = torch.randn(5, 600, generator=torch.Generator().manual_seed(1)) * 2
    ids, logps = choose(logits, np.linspace(0, 0.99, 5), **settings)
    want = (logits / settings.get("temperature", 1.0)).log_softmax(1).gather(1, ids[:, None])[:, 0]
    assert torch.allclose(logps, want, atol=1e-5)


def test_an_impossible_id_never_comes_even_at_the_ends() -> None:
    logits = torch.full((2, 700), -torch.inf)
    logits[:, [3, 500]] = 0.0
    ids, logps = choose(logits, np.array([0.0, 1 - 2**-53]))
    assert ids.tolist() == [3, 500]
    assert logps.tolist() == pytest.approx([math.log(0.5)] * 2)


def test_rounding_between_block_sums_and_places_never_leaves_the_ids() -> None:
    """The block sums are float32, the search inside a block float64: a uniform near 1 may lie above the latter's total."""
    logits = torch.randn(400, 300, generator=torch.Generator().manual_seed(4))
    logits[:, 280:] = -torch.inf
    ids, _ = choose(logits, np.full(400, 1 - 2**-53))
    assert ids.max() < 280


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_logits_that_are_no_distribution_are_an_error(bad: float) -> None:
    logits = torch.zeros(3, 10)
    logits[1, 4] = bad
    with pytest.raises(NonFiniteError, match="not finite"):
        choose(logits, np.zeros(3))
    with pytest.raises(NonFiniteError):
        choose(torch.full((1, 4), -torch.inf), np.zeros(1))


def test_rows_may_have_settings_of_their_own() -> None:
    logits = torch.randn(3, 40, generator=torch.Generator().manual_seed(2))
    params = [SamplingParams(temperature=0), SamplingParams(temperature=0.5), SamplingParams(top_k=1)]
    ids, logps = choose_rows(logits, params, np.array([0.7, 0.7, 0.7]))
    for row, settings in enumerate([{"temperature": 0}, {"temperature": 0.5}, {"top_k": 1}]):
        alone = choose(logits[row : row + 1], np.array([0.7]), **settings)
        assert (ids[row], logps[row]) == (alone[0].item(), alone[1].item())


def test_passes_over_few_rows_at_a_time_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    logits, uniform = torch.randn(9, 300, generator=torch.Generator().manual_seed(3)), np.linspace(0, 0.9, 9)
    whole = choose(logits, uniform)
    monkeypatch.setattr(module, "PASS_NUMBERS", 600)
    parts = choose(logits, uniform)
    assert torch.equal(whole[0], parts[0])
    assert torch.equal(whole[1], parts[1])


def test_uniforms_depend_on_seed_answer_and_position_alone() -> None:
    one = uniforms([7], [2], [5])
    assert uniforms([1, 7, 9], [0, 2, 4], [3, 5, 5])[1] == one[0]
    others = np.concatenate([uniforms([8], [2], [5]), uniforms([7], [3], [5]), uniforms([7], [2], [6]), uniforms([7], [5], [2])])
    assert len({*others, *one}) == 5
    assert uniforms([-1], [0], [0]) == uniforms([2**64 - 1], [0], [0])


def test_uniforms_are_uniform_and_uncorrelated_along_every_axis() -> None:
    n = 20_000
    zeros, counts = [0] * n, list(range(n))
    for axis in ((counts, zeros, zeros), (zeros, counts, zeros), (zeros, zeros, counts)):
        u = uniforms(*axis)
        assert abs(u.mean() - 0.5) < 5 * math.sqrt(1 / 12 / n)
        histogram = np.bincount((u * 20).astype(int), minlength=20)
        assert ((histogram - n / 20) ** 2 / (n / 20)).sum() < 50  # chi-square with 19 degrees of freedom: p = 1e-4 at 50
        assert abs(np.corrcoef(u[1:], u[:-1])[0, 1]) < 5 / math.sqrt(n)
