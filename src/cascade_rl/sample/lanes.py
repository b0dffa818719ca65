"""Answers spread over the cores: each lane runs its share of the contexts in a thread of its own.

At the sizes of a decode step, threads inside an operator spend a good part of their time waiting for each other, thousands of times
a token; lanes meet once, at the end. They share the decoder's weights, and each has keys and values of its own.
"""

from collections.abc import Iterator, Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from itertools import groupby

import torch

from cascade_rl.sample.answers import Answer
from cascade_rl.sample.batching import Batching

# Each lane reads all weights at each step, so a lane of fewer rows than this costs more than it saves.
MIN_ROWS = 32


def num_lanes(num_contexts: int, num_rows: int, num_threads: int) -> int:
    """How many lanes serve `num_rows` answers: at most one a thread, none without a context, none too thin."""
    return max(1, min(num_threads, num_contexts, num_rows // MIN_ROWS))


def deal(answers: Sequence[Answer], num: int) -> list[list[Answer]]:
    """Shares of nearly equal size, in the order given; neighbours that answer one context stay together, as they share its keys."""
    shares: list[list[Answer]] = [[] for _ in range(num)]
    for _, group in groupby(answers, key=lambda answer: answer.context):
        min(shares, key=len).extend(group)
    return shares


def run_lanes(lanes: Sequence[Batching], shares: Sequence[Sequence[Answer]]) -> Iterator[int]:
    """Runs each share in its lane to the end; yields the number of live answers now and then.

    The first error of a lane is raised here, after the others have stopped; leaving the iterator early stops all of them.
    """
    num_threads = torch.get_num_threads()
    live = [0] * len(lanes)
    stopped = False

    def run(number: int) -> None:
        torch.set_num_threads(num_threads // len(lanes))  # for operators called from this thread
        for num_live in lanes[number].run(shares[number]):
            live[number] = num_live
            if stopped:
                return

    try:
        with ThreadPoolExecutor(len(lanes), thread_name_prefix="cascade-lane") as pool:
            try:
                jobs = [pool.submit(run, number) for number in range(len(lanes))]
                while not all(job.done() for job in jobs):
                    done, _ = wait(jobs, timeout=0.1, return_when=FIRST_EXCEPTION)
                    for job in done:
                        job.result()
                    yield sum(live)
                for job in jobs:
                    job.result()
            finally:
                stopped = True
    finally:
        torch.set_num_threads(num_threads)
