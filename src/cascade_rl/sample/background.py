"""One event loop in a background thread: tools and graders are async and keep their loop from the first call to the verdict."""

import asyncio
import threading
import time
from collections.abc import Coroutine
from concurrent.futures import Future
from functools import cache
from typing import Any, TypeVar

from cascade_rl.errors import RunError

T = TypeVar("T")

BLOCKED_AFTER_S = 120.0  # longer than any deadline of a tool or a verdict


@cache
def _loop() -> asyncio.AbstractEventLoop:
    loop = asyncio.new_event_loop()
    threading.Thread(target=loop.run_forever, name="cascade-async", daemon=True).start()
    return loop


def start_async(work: Coroutine[Any, Any, T]) -> Future[T]:
    """Starts a coroutine on the background loop and does not wait; cancelling the future cancels it there."""
    return asyncio.run_coroutine_threadsafe(work, _loop())


def run_async(work: Coroutine[Any, Any, T]) -> T:
    """Runs a coroutine on the background loop and waits for it; Ctrl-C here cancels it there.

    No deadline inside the loop can end code that never awaits. So the loop itself is watched: when it has not turned for
    BLOCKED_AFTER_S, RunError is raised here.
    """
    future = start_async(work)
    turned = time.monotonic()

    def turn() -> None:
        nonlocal turned
        turned = time.monotonic()

    try:
        while True:
            try:
                return future.result(timeout=BLOCKED_AFTER_S / 10)
            except TimeoutError:
                if future.done():  # its own
                    raise
            if time.monotonic() - turned > BLOCKED_AFTER_S:
                _loop.cache_clear()  # the blocked one is left behind
                raise RunError(
                    f"a tool or grader has not let its event loop turn for {BLOCKED_AFTER_S:g} s, so that no deadline can end it;"
                    " an async function must await what takes long, or run it in a thread (asyncio.to_thread)"
                )
            _loop().call_soon_threadsafe(turn)
    except BaseException:
        future.cancel()
        raise
