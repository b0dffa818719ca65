"""Equal questions are asked once: the answers of a group are often the same, and a verdict that does not depend on chance is too."""

import asyncio
import weakref
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Hashable
from typing import Generic, TypeVar

Answer = TypeVar("Answer")


class Once(Generic[Answer]):
    """`await once.ask(key, work)`: what `work` gave for this key before, or gives now, while others with the same key wait for it.

    keeps: whether an answer may be used again; one that may not is given only to who asked first, and the others ask for themselves.
    """

    def __init__(self, keeps: Callable[[Answer], bool], size: int = 20_000) -> None:
        self._keeps, self._size = keeps, size
        self._known: OrderedDict[Hashable, Answer] = OrderedDict()
        self._running: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, dict[Hashable, asyncio.Future[Answer]]]
        self._running = weakref.WeakKeyDictionary()

    async def ask(self, key: Hashable, work: Callable[[], Awaitable[Answer]]) -> Answer:
        if key in self._known:
            self._known.move_to_end(key)
            return self._known[key]
        running = self._running.setdefault(asyncio.get_running_loop(), {})
        if key in running:
            answer = await asyncio.shield(running[key])
            return answer if self._keeps(answer) else await work()
        future = running[key] = asyncio.ensure_future(work())
        future.add_done_callback(lambda _: running.pop(key))
        answer = await asyncio.shield(future)  # one who gives up waiting does not end it for the others
        if self._keeps(answer):
            self._known[key] = answer
            while len(self._known) > self._size:
                self._known.popitem(last=False)
        return answer

    def forget(self) -> None:
        """All answers that are known."""
        self._known.clear()
