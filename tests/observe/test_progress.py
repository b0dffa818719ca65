import io
import threading

import pytest
from rich.console import Console

from cascade_rl.observe.progress import progress


class Clock:
    now = 0.0

    def __call__(self):
        return self.now


def plain():
    return Console(file=io.StringIO(), force_terminal=False, width=200)


def test_plain_lines_by_hand():
    console, clock = plain(), Clock()
    with progress("sft", 10, console=console, clock=clock, every_s=10) as bar:
        for step in range(1, 11):
            clock.now += 4
            bar.step(step, {"loss": 1.5, "lr": 2e-5, "kl": None}, tokens=400)
    assert console.file.getvalue().splitlines() == [
        "sft  1/10  loss 1.5  lr 2.00e-05  100 tok/s  0:36 left",
        "sft  4/10  loss 1.5  lr 2.00e-05  100 tok/s  0:24 left",
        "sft  7/10  loss 1.5  lr 2.00e-05  100 tok/s  0:12 left",
        "sft  10/10  loss 1.5  lr 2.00e-05  100 tok/s  in 0:40",
    ]


def test_time_left_counts_only_the_steps_made_since_resuming():
    console, clock = plain(), Clock()
    with progress("sft", 1000, done=900, console=console, clock=clock) as bar:
        clock.now = 60.0
        bar.step(910)
    # 10 new steps took 60 s, 90 are left: 9 minutes, not the 6 seconds of 910 steps a minute.
    assert console.file.getvalue() == "sft  910/1000  9:00 left\n"


def test_nothing_is_said_of_speed_before_there_is_one():
    console = plain()
    with progress("eval sft", 200, unit="prompts", console=console, clock=Clock()) as bar:
        bar.step(0)
    assert console.file.getvalue() == "eval sft  0/200 prompts\n"


def test_plain_lines_have_no_control_codes_and_no_markup():
    console, clock = plain(), Clock()
    with progress("eval [bold]x[/]", 2, console=console, clock=clock) as bar:
        clock.now = 4000.0
        bar.step(1, {"reward": 0.0, "tokens": 123456.0})
    assert console.file.getvalue() == "eval [bold]x[/]  1/2  reward 0  tokens 123,456  1:06:40 left\n"


def test_the_terminal_bar_leaves_no_thread_and_a_visible_cursor_after_ctrl_c():
    console = Console(file=io.StringIO(), force_terminal=True, width=100, color_system=None)
    clock = Clock()
    threads = threading.active_count()

    def interrupted():
        with progress("rl", 10, console=console, clock=clock) as bar:
            for step in range(1, 4):
                clock.now += 0.01  # too fast to draw each step
                bar.step(step, {"reward": step / 10})
                assert threading.active_count() == threads
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    shown = console.file.getvalue()
    assert "3/10  reward 0.3" in shown  # the last state, though it was not due
    assert "2/10" not in shown
    assert shown.rindex("\x1b[?25h") > shown.rindex("\x1b[?25l")  # cursor shown again
    assert threading.active_count() == threads
