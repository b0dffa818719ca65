"""The C library's allocator, told to keep what training frees."""

import ctypes
import sys
from functools import cache

# Parameters of mallopt(3).
M_TRIM_THRESHOLD, M_MMAP_MAX, M_ARENA_MAX = -1, -4, -8


@cache
def keep_freed_memory() -> bool:
    """Makes glibc hand freed memory to the next tensor instead of to the system; True where that was possible.

    By default each large tensor is mapped when made and unmapped when freed, so every activation, gradient and chunk of logits pays
    for fresh zeroed pages: 5 to 10% of an update's time on a CPU. What is kept is at most the peak, as all threads share one heap.
    Holds for the whole process; nothing happens where the C library is another one.
    """
    if not sys.platform.startswith("linux"):
        return False
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    # -1, read as an unsigned size, is more than there is: never trim.
    if mallopt is None:
        return False
    return all([mallopt(M_MMAP_MAX, 0) == 1, mallopt(M_TRIM_THRESHOLD, -1) == 1, mallopt(M_ARENA_MAX, 1) == 1])


def give_back_freed_memory() -> None:
    """Hands freed pages to the system where the C library is glibc: after sampling, whose buffers are of sizes that training never
    asks for, so that the two peaks do not add up."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None) if sys.platform.startswith("linux") else None
    if trim is not None:
        trim(0)
