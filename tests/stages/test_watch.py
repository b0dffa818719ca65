"""Reward hacking: told once, when the judge's score clearly rises while what it stands for clearly falls."""

from collections.abc import Sequence

from cascade_rl.stages.watch import WINDOW, HackingWatch


def told(judge: Sequence[float], **others: Sequence[float]) -> list[str]:
    watch, found = HackingWatch(), []
    for step, score in enumerate(judge):
        metrics = {"part.judge": score, **{f"part.{name}": values[step] for name, values in others.items()}}
        found += watch.add(metrics)
    return found


NOISE = [0.02, -0.02, 0.01, -0.01, 0.0]
UP = [3 + 0.1 * step + NOISE[step % 5] for step in range(20)]
DOWN = [0.9 - 0.02 * step + NOISE[step % 5] for step in range(20)]
FLAT = [0.5 + NOISE[step % 5] for step in range(20)]


def test_a_rising_judge_and_a_falling_rule_are_told_once() -> None:
    (warning,) = told(UP, rule=DOWN, rule_agreement=[0.8] * 10 + [0.4] * 10, answer_chars=[40.0] * 10 + [90.0] * 10)
    assert "the judge's score rose by" in warning
    assert "while the held-out rule fell by" in warning
    assert "its agreement with the judge went from 80% to " in warning
    assert "length from 40 to " in warning


def test_nothing_is_told_of_what_goes_well_or_of_noise() -> None:
    assert told(UP, rule=UP) == []
    assert told(UP, rule=FLAT) == []
    assert told(DOWN, rule=DOWN) == []
    assert told(FLAT, rule=DOWN) == []
    assert told(UP) == []
    assert told(UP[: 2 * WINDOW - 1], rule=DOWN[: 2 * WINDOW - 1]) == []


def test_a_second_judge_counts_too_and_each_task_by_itself() -> None:
    (warning,) = told(UP, second=DOWN)
    assert "the second judge fell" in warning
    watch, found = HackingWatch(), []
    for step in range(20):
        found += watch.add(
            {"part.judge/a": UP[step], "part.rule/a": UP[step], "part.judge/b": UP[step], "part.rule/b": DOWN[step]}
        )
    assert len(found) == 1
    assert found[0].startswith('reward hacking on "b"?')


def test_what_is_told_is_a_function_of_the_metrics() -> None:
    assert told(UP, rule=DOWN) == told(UP, rule=DOWN)
