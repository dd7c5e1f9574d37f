"""What a question brings is stored in bursts where its views last, one by one where they do not."""

import asyncio
from collections.abc import Sequence

from hoard_p2p.fetch.delivery import BURST_BYTES, Delivery, Received
from hoard_p2p.fetch.landings import Landings
from hoard_p2p.fetch.segment import Landed, Wanted
from hoard_p2p.ids import ChunkId, chunk_id
from hoard_p2p.interfaces import Gathering, Place

DATA = [bytes([number]) * (BURST_BYTES // 4) for number in range(6)]
BATCH = [Wanted(run, chunk_id(data), len(data)) for run, data in enumerate(DATA)]


def landed_in(gathers: bool, *, end: bool = True) -> tuple[list[int], list[ChunkId]]:
    """Sizes of the bursts that were stored, and what landed."""
    bursts: list[int] = []
    landed: list[ChunkId] = []

    def store(burst: Sequence[Received]) -> list[Landed]:
        bursts.append(len(burst))
        return [Landed(Place(1, 0, received.chunk.length, 1), b"") for received in burst]

    async def main() -> None:
        loop = asyncio.get_running_loop()
        delivery = Delivery(BATCH, store, Landings(loop, lambda chunk, _: landed.append(chunk), lambda: False))
        assert isinstance(delivery, Gathering)

        def work() -> None:
            if gathers:
                delivery.gather()
            for number, data in enumerate(DATA):
                delivery(number, memoryview(data))
            if end:
                delivery.end()

        await loop.run_in_executor(None, work)
        assert delivery.given == list(range(sum(bursts)))

    asyncio.run(main())
    return bursts, landed


def test_views_that_last_are_stored_in_bursts_of_a_bounded_size_and_the_rest_at_the_end() -> None:
    assert landed_in(gathers=True) == ([4, 2], [chunk.chunk_id for chunk in BATCH])


def test_views_that_do_not_last_are_stored_one_by_one() -> None:
    assert landed_in(gathers=False) == ([1] * 6, [chunk.chunk_id for chunk in BATCH])


def test_nothing_is_stored_before_a_burst_is_full_or_settled() -> None:
    assert landed_in(gathers=True, end=False)[0] == [4]
