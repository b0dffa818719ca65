"""Equal questions are asked once: the answers of a group are often the same, and a verdict that does not depend on chance is too."""

import asyncio
import weakref
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Hashable
from dataclasses import dataclass
from typing import Generic, TypeVar

Answer = TypeVar("Answer")


@dataclass(eq=False)
class _Running(Generic[Answer]):
    """Work under way, and how many wait for it."""

    future: asyncio.Future[Answer]
    num_waiting: int = 0


class Once(Generic[Answer]):
    """`await once.ask(key, work)`: what `work` gave for this key before, or gives now, while others with the same key wait for it.

    keeps: whether an answer may be used again; one that may not is given only to who asked first, and the others ask for themselves.
    One who gives up waiting does not end the work for the others; the last one does.
    """

    def __init__(self, keeps: Callable[[Answer], bool], size: int = 20_000) -> None:
        self._keeps, self._size = keeps, size
        self._known: OrderedDict[Hashable, Answer] = OrderedDict()
        self._running: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, dict[Hashable, _Running[Answer]]]
        self._running = weakref.WeakKeyDictionary()

    async def ask(self, key: Hashable, work: Callable[[], Awaitable[Answer]]) -> Answer:
        if key in self._known:
            self._known.move_to_end(key)
            return self._known[key]
        running = self._running.setdefault(asyncio.get_running_loop(), {})
        if key in running:
            answer = await self._wait(running, key)
            return answer if self._keeps(answer) else await work()
        running[key] = _Running(asyncio.ensure_future(work()))
        answer = await self._wait(running, key)
        if self._keeps(answer):
            self._known[key] = answer
            while len(self._known) > self._size:
                self._known.popitem(last=False)
        return answer

    async def _wait(self, running: dict[Hashable, _Running[Answer]], key: Hashable) -> Answer:
        asked = running[key]
        asked.num_waiting += 1
        try:
            return await asyncio.shield(asked.future)
        finally:
            asked.num_waiting -= 1
            if running.get(key) is asked and (asked.future.done() or not asked.num_waiting):
                del running[key]  # before it is cancelled: who asks from now on asks anew
            if not asked.num_waiting:
                asked.future.cancel()  # nothing to one that is done

    def forget(self) -> None:
        """All answers that are known."""
        self._known.clear()
