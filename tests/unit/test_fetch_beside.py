"""How many segments are under way for peers, and who waits until there is room."""

import asyncio

from hoard_p2p.fetch.beside import Beside


def test_who_comes_when_there_is_no_room_waits_until_one_ends() -> None:
    async def main() -> None:
        beside = Beside(1)
        beside.begin("a")
        async with asyncio.TaskGroup() as group:
            waiter = group.create_task(beside.room(lambda: False, 10))
            await asyncio.sleep(0)
            assert not waiter.done()
            beside.end("a")
            assert await waiter

    asyncio.run(main())


def test_what_comes_anyway_needs_no_room_and_there_is_a_deadline() -> None:
    async def main() -> None:
        beside = Beside(1)
        beside.begin("a")
        flights = set[str]()
        async with asyncio.TaskGroup() as group:
            waiter = group.create_task(beside.room(lambda: "b" in flights, 10))
            await asyncio.sleep(0)
            flights.add("b")
            beside.stir()
            assert await waiter
        assert not await beside.room(lambda: "c" in flights, 0)

    asyncio.run(main())
