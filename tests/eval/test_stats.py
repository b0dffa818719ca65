import math

import numpy as np
import pytest

from cascade_rl.eval.stats import Estimate, holm, mean_and_stderr, mean_pass_at_k, paired, pass_at_k, sign_flip_p, win_rate


def test_mean_and_stderr_by_hand():
    # Per-prompt means 1, 0.5, 0: mean 0.5, sd 0.5, stderr 0.5 / sqrt(3).
    got = mean_and_stderr([[1.0, 1.0], [1.0, 0.0], [0.0, 0.0]])
    assert got == Estimate(3, 0.5, pytest.approx(0.5 / math.sqrt(3)))


def test_samples_of_one_prompt_are_not_counted_as_prompts():
    # Nine samples of one prompt and one of another: the mean is that of the two prompts, not of the ten samples.
    assert mean_and_stderr([[1.0] * 9, [0.0]]).mean == 0.5


def test_unscored_is_left_out_and_counted_never_zero():
    got = mean_and_stderr([[1.0, None], [None, None], [0.0, 0.0]])
    assert (got.n, got.mean, got.unscored_samples, got.unscored_prompts) == (2, 0.5, 3, 1)


def test_what_is_not_known_is_nan():
    assert math.isnan(mean_and_stderr([[None]]).mean)
    one = mean_and_stderr([[1.0, 0.0]])
    assert one.mean == 0.5
    assert math.isnan(one.stderr)


@pytest.mark.parametrize(
    "n, c, k, expected",
    [
        (4, 1, 2, 1 - 3 / 6),  # C(3,2) / C(4,2)
        (5, 2, 3, 1 - 1 / 10),  # C(3,3) / C(5,3)
        (10, 3, 1, 0.3),  # pass@1 is the plain share
        (4, 0, 4, 0.0),
        (4, 4, 1, 1.0),
        (4, 2, 3, 1.0),  # fewer than k wrong ones
    ],
)
def test_pass_at_k_by_hand(n, c, k, expected):
    assert pass_at_k(n, c, k) == pytest.approx(expected, abs=1e-15)


def test_pass_at_k_is_stable_where_binomials_overflow():
    expected = 1 - math.comb(99_990, 1000) / math.comb(100_000, 1000)  # exact in integers
    assert pass_at_k(100_000, 10, 1000) == pytest.approx(expected, rel=1e-9)


def test_pass_at_k_refuses_more_than_it_has():
    with pytest.raises(ValueError, match="k is 5"):
        pass_at_k(4, 1, 5)
    with pytest.raises(ValueError, match="5 right samples of 4"):
        pass_at_k(4, 5, 1)


def test_mean_pass_at_k_leaves_out_prompts_with_too_few_scores():
    got = mean_pass_at_k([[1.0, 0.0, 0.0, 0.0], [0.0, 0.0, 0.0, 0.0], [1.0, None, None, None]], 2)
    assert (got.n, got.mean, got.unscored_prompts) == (2, 0.25, 1)


def test_partial_marks_do_not_pass():
    assert mean_pass_at_k([[0.5, 0.9], [0.1 + 0.2 + 0.7, 0.0]], 2).mean == 0.5


def test_paired_by_hand():
    # Differences 1, 1, 1: of the 8 sign patterns, +++ and --- are as far out, so p = 2/8.
    a = {"x": [0.0], "y": [0.0], "z": [0.0, 0.0]}
    b = {"z": [1.0, 1.0], "y": [1.0], "x": [1.0], "only-b": [1.0]}
    got = paired(a, b)
    assert (got.n, got.difference, got.stderr, got.p, got.left_out) == (3, 1.0, 0.0, 0.25, 1)


def test_paired_joins_by_prompt_not_by_position():
    got = paired({"x": [0.0], "y": [1.0]}, {"y": [1.0], "x": [0.0]})
    assert (got.difference, got.p) == (0.0, 1.0)


def test_paired_sees_what_unpaired_errors_hide():
    # Every prompt gains 0.1 while prompts differ widely: paired, there is no doubt.
    a = {str(i): [i / 20] for i in range(16)}
    b = {name: [scores[0] + 0.1] for name, scores in a.items()}
    assert paired(a, b).p == pytest.approx(2 / 2**16)


def test_paired_leaves_unscored_prompts_out():
    got = paired({"x": [None], "y": [0.0], "z": [0.0]}, {"x": [1.0], "y": [1.0], "z": [None]})
    assert (got.n, got.difference, got.left_out) == (1, 1.0, 2)


def test_sign_flip_exact_by_hand():
    # |sum| over patterns of (3, 1, 1): 5 3 3 1 and mirrored; observed +3 +1 -1 = 3 is reached by 6 of 8.
    assert sign_flip_p(np.array([3.0, 1.0, -1.0])) == 6 / 8
    assert sign_flip_p(np.array([3.0, 1.0, -1.0, 0.0, 0.0])) == 6 / 8
    assert sign_flip_p(np.array([])) == 1.0


def test_ties_up_to_rounding_count_as_ties():
    # The sum of these, added up in another order, is larger by a bit: without the slack not even the observed pattern counts.
    assert sign_flip_p(np.array([-3, -3, -3, -1]) / 3) == 2 / 16
    assert sign_flip_p(np.array([0.1, 0.2, 0.3])) == 2 / 8
    assert sign_flip_p(np.array([0.3, -0.1, -0.2])) == 1.0


def test_drawn_flips_agree_with_the_binomial():
    # 17 prompts differ by one each, 13 up and 4 down: the sign test has p = 2 * P(X >= 13), X ~ Bin(17, 1/2).
    differences = np.array([1.0] * 13 + [-1.0] * 4)
    exact = 2 * sum(math.comb(17, i) for i in range(13, 18)) / 2**17
    assert sign_flip_p(differences) == pytest.approx(exact, abs=0.005)
    assert sign_flip_p(differences) == sign_flip_p(differences)
    assert sign_flip_p(np.ones(500)) == pytest.approx(1 / 20_001)


def test_false_alarms_keep_their_size():
    rng = np.random.default_rng(1)
    p = [sign_flip_p(rng.choice([-0.5, 0.0, 0.5], size=14)) for _ in range(300)]
    assert np.mean(np.array(p) <= 0.05) < 0.09


def test_holm_by_hand():
    # Sorted 0.01 0.02 0.03 0.04, times 4 3 2 1 = 0.04 0.06 0.06 0.04, made monotone.
    assert holm([0.04, 0.01, 0.03, 0.02]) == pytest.approx([0.06, 0.04, 0.06, 0.06])
    assert holm([0.5, 0.9]) == [1.0, 1.0]
    assert holm([]) == []


def test_a_win_rate_counts_ties_as_half_and_shared_prompts_alone() -> None:
    before = {"a": [0.5], "b": [1.0], "c": [0.0, 1.0], "d": [None], "e": [1.0]}
    after = {"a": [1.0], "b": [1.0], "c": [1.0, None], "d": [1.0], "f": [1.0]}
    rate = win_rate(before, after)
    assert rate.n == 3
    assert rate.mean == pytest.approx((1 + 0.5 + 0.75) / 3)  # c: a win and a tie
    assert win_rate(before, before).mean == pytest.approx(0.5)
    assert win_rate({}, after).n == 0
