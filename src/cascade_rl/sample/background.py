"""One event loop in a background thread: tools and graders are async and keep their loop from the first call to the verdict."""

import asyncio
import threading
from collections.abc import Coroutine
from functools import cache
from typing import Any, TypeVar

T = TypeVar("T")


@cache
def _loop() -> asyncio.AbstractEventLoop:
    loop = asyncio.new_event_loop()
    threading.Thread(target=loop.run_forever, name="cascade-async", daemon=True).start()
    return loop


def run_async(work: Coroutine[Any, Any, T]) -> T:
    """Runs a coroutine on the background loop and waits for it; Ctrl-C here cancels it there."""
    future = asyncio.run_coroutine_threadsafe(work, _loop())
    try:
        return future.result()
    except BaseException:
        future.cancel()
        raise
