"""Equal questions asked once, answers that may not be used again, and waiters that give up."""

import asyncio

import pytest

from cascade_rl.grade.once import Once


class Work:
    """Counts how often it is done; gives its results in order."""

    def __init__(self, *results: int) -> None:
        self.results, self.num = list(results), 0

    async def __call__(self) -> int:
        self.num += 1
        result = self.results.pop(0)
        await asyncio.sleep(0.02)
        return result


def test_the_same_is_asked_once_now_and_later() -> None:
    once, work = Once[int](lambda answer: True), Work(5, 7)

    async def ask() -> list[int]:
        return list(await asyncio.gather(*(once.ask("a", work) for _ in range(4)), once.ask("b", work)))

    assert sorted(asyncio.run(ask())) == [5, 5, 5, 5, 7]
    assert asyncio.run(ask())[:4] == [5] * 4  # in another event loop
    assert work.num == 2
    once.forget()
    work.results = [1, 2]
    assert asyncio.run(ask()) == [1, 1, 1, 1, 2]


def test_an_answer_that_may_not_be_used_again_is_for_who_asked_first() -> None:
    once, work = Once[int](lambda answer: answer > 0), Work(-1, 5, -1, 6)

    async def ask() -> list[int]:
        return list(await asyncio.gather(once.ask("a", work), once.ask("a", work)))

    assert asyncio.run(ask()) == [-1, 5]
    assert asyncio.run(ask()) == [-1, 6]


def test_one_who_gives_up_or_a_failure_leaves_nothing_behind() -> None:
    once, work = Once[int](lambda answer: True), Work(5)

    async def give_up() -> int:
        patient = asyncio.ensure_future(once.ask("a", work))
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(once.ask("a", work), 0.001)
        return await patient  # it went on

    assert asyncio.run(give_up()) == 5
    assert work.num == 1

    async def fails() -> int:
        raise OSError("no")

    for _ in range(2):
        with pytest.raises(OSError, match="no"):
            asyncio.run(once.ask("b", fails))
    assert asyncio.run(once.ask("b", Work(3))) == 3


def test_the_last_one_who_gives_up_ends_the_work() -> None:
    once, told = Once[int](lambda answer: True), []

    async def endless() -> int:
        try:
            await asyncio.sleep(60)
        finally:
            told.append("ending")
            await asyncio.sleep(0.01)
            told.append("ended")
        return 1

    async def all_give_up() -> int:
        asked = [asyncio.ensure_future(once.ask("a", endless)) for _ in range(3)]
        await asyncio.sleep(0.005)
        asked[0].cancel()
        await asyncio.sleep(0.005)
        assert told == []
        asked[1].cancel()
        asked[2].cancel()
        await asyncio.sleep(0.005)
        assert told == ["ending"]
        return await once.ask("a", Work(6))  # who comes now does not get what is ending

    assert asyncio.run(all_give_up()) == 6
    assert told == ["ending", "ended"]


def test_what_is_known_is_bounded() -> None:
    once = Once[int](lambda answer: True, size=2)
    for number in range(5):
        assert asyncio.run(once.ask(number, Work(number))) == number
    work = Work(9, 9)
    assert asyncio.run(once.ask(4, work)) == 4
    assert asyncio.run(once.ask(0, work)) == 9
