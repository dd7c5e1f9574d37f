"""One load per key, whoever leaves."""

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from hoard_p2p.errors import Unavailable
from hoard_p2p.fetch.singleflight import SingleFlight


def run(scenario: Callable[[SingleFlight[str, int]], Awaitable[None]]) -> None:
    async def main() -> None:
        async with asyncio.timeout(10), asyncio.TaskGroup() as group:
            await scenario(SingleFlight(group))

    asyncio.run(main())


class Gate:
    """A load that counts its starts and ends when it is opened."""

    def __init__(self) -> None:
        self.starts = 0
        self.cancelled = False
        self.open = asyncio.Event()
        self.started = asyncio.Event()
        self.ended = asyncio.Event()

    async def load(self) -> int:
        self.starts += 1
        self.started.set()
        try:
            await self.open.wait()
        except asyncio.CancelledError:
            self.cancelled = True
            self.ended.set()
            raise
        return 7


def test_callers_of_one_key_share_one_load() -> None:
    async def scenario(flights: SingleFlight[str, int]) -> None:
        gate = Gate()
        async with asyncio.TaskGroup() as callers:
            tasks = [callers.create_task(flights.do("k", gate.load)) for _ in range(3)]
            await gate.started.wait()
            gate.open.set()
        assert [task.result() for task in tasks] == [7, 7, 7]
        assert gate.starts == 1

    run(scenario)


def test_a_cancelled_caller_leaves_and_the_others_keep_the_load() -> None:
    async def scenario(flights: SingleFlight[str, int]) -> None:
        gate = Gate()
        async with asyncio.TaskGroup() as callers:
            first = callers.create_task(flights.do("k", gate.load))
            second = callers.create_task(flights.do("k", gate.load))
            await gate.started.wait()
            first.cancel()
            gate.open.set()
        assert first.cancelled()
        assert second.result() == 7
        assert not gate.cancelled

    run(scenario)


def test_the_last_caller_out_cancels_the_load() -> None:
    async def scenario(flights: SingleFlight[str, int]) -> None:
        gate = Gate()
        async with asyncio.TaskGroup() as callers:
            only = callers.create_task(flights.do("k", gate.load))
            await gate.started.wait()
            only.cancel()
        await asyncio.wait_for(gate.ended.wait(), 5)
        assert gate.cancelled

    run(scenario)


def test_a_failed_load_fails_its_callers_and_is_tried_anew_by_the_next() -> None:
    async def fail() -> int:
        raise Unavailable("nobody is there")

    async def succeed() -> int:
        return 8

    async def scenario(flights: SingleFlight[str, int]) -> None:
        with pytest.raises(Unavailable):
            await flights.do("k", fail)
        assert await flights.do("k", succeed) == 8

    run(scenario)


def test_a_cancelled_load_does_not_end_the_sharing_of_the_next_one() -> None:
    async def scenario(flights: SingleFlight[str, int]) -> None:
        first, second = Gate(), Gate()
        async with asyncio.TaskGroup() as callers:
            leaver = callers.create_task(flights.do("k", first.load))
            await first.started.wait()
            leaver.cancel()
            early = callers.create_task(flights.do("k", second.load))
            await second.started.wait()
            await asyncio.wait_for(first.ended.wait(), 5)
            await asyncio.sleep(0)
            late = callers.create_task(flights.do("k", second.load))
            await asyncio.sleep(0)
            second.open.set()
        assert (early.result(), late.result(), second.starts) == (7, 7, 1)

    run(scenario)
