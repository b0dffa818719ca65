"""Blocking calls in threads that Python does not wait for at its end: a server that is silent must not hold up Ctrl-C."""

import asyncio
import contextlib
import threading
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


class TooSlow(Exception):
    """No result in time; the thread is left behind."""


async def in_thread(name: str, call: Callable[[], T], timeout_s: float | None = None) -> T:
    """What a call gives or raises, made in a thread of its own. Raises TooSlow; whoever gives up waiting leaves the thread behind."""
    loop = asyncio.get_running_loop()
    future: asyncio.Future[tuple[T | None, BaseException | None]] = loop.create_future()

    def deliver(result: T | None, error: BaseException | None) -> None:
        if not future.done():
            future.set_result((result, error))

    def run() -> None:
        result, error = None, None
        try:
            result = call()
        except BaseException as raised:  # SystemExit too: in a thread nobody else would hear of it
            error = raised
        with contextlib.suppress(RuntimeError):  # the loop was closed meanwhile
            loop.call_soon_threadsafe(deliver, result, error)

    threading.Thread(target=run, name=name, daemon=True).start()
    try:
        result, error = await asyncio.wait_for(future, timeout_s)
    except TimeoutError:
        raise TooSlow from None
    if error is None:
        return result  # type: ignore[return-value]
    raise error if isinstance(error, Exception) else RuntimeError(f"{type(error).__name__}: {error}")
