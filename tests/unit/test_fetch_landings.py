"""Chunks that threads have brought are landed on the loop, in order, all before the thread's end is told."""

import asyncio

from hoard_p2p.fetch.landings import Landings
from hoard_p2p.fetch.segment import Landed
from hoard_p2p.ids import ChunkId
from hoard_p2p.interfaces import Place


def test_everything_noted_is_landed_in_order_before_the_end_of_the_work() -> None:
    landed: list[ChunkId] = []
    ids = [ChunkId(number.to_bytes(32, "little")) for number in range(20_000)]

    async def main() -> None:
        loop = asyncio.get_running_loop()
        landings = Landings(loop, lambda chunk_id, _: landed.append(chunk_id))

        def work() -> None:
            for chunk_id in ids:
                landings.note(chunk_id, Landed(None, b""))

        await loop.run_in_executor(None, work)
        assert landed == ids

    asyncio.run(main())


def test_what_is_noted_after_the_loop_looked_wakes_it_again() -> None:
    landed: list[ChunkId] = []

    async def main() -> None:
        loop = asyncio.get_running_loop()
        landings = Landings(loop, lambda chunk_id, _: landed.append(chunk_id))
        for number in range(3):
            landings.note(ChunkId(bytes([number]) * 32), Landed(None, b""))
            await asyncio.sleep(0)
            assert len(landed) == number + 1

    asyncio.run(main())


def test_what_nobody_waits_for_is_told_when_somebody_comes_or_at_the_end() -> None:
    landed: list[ChunkId] = []
    here = Landed(Place(1, 0, 1, 1), b"")

    async def main() -> None:
        loop = asyncio.get_running_loop()
        landings = Landings(loop, lambda chunk_id, _: landed.append(chunk_id), lambda: False)
        landings.note(ChunkId(b"1" * 32), here)
        landings.tell()  # somebody came
        assert landed == [b"1" * 32]

        def work() -> None:
            landings.note(ChunkId(b"2" * 32), here)
            landings.end()

        await loop.run_in_executor(None, work)
        assert landed == [b"1" * 32, b"2" * 32]

    asyncio.run(main())


def test_bytes_that_could_not_be_stored_are_told_at_once() -> None:
    landed: list[ChunkId] = []

    async def main() -> None:
        landings = Landings(
            asyncio.get_running_loop(), lambda chunk_id, _: landed.append(chunk_id), awaited=lambda: False
        )
        landings.note(ChunkId(b"1" * 32), Landed(None, b"1"))
        await asyncio.sleep(0)
        assert landed

    asyncio.run(main())
