"""Pieces of a lazy snapshot between real nodes: what a piece is is named, and who lies about it is found out."""

import asyncio
import os
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import pytest

from hoard_p2p.errors import ChunkCorrupt
from hoard_p2p.fetch.segment import Segment, Wanted, segment_of
from hoard_p2p.ids import ChunkId, SnapshotId, chunk_id, is_origin_key, snapshot_id
from hoard_p2p.interfaces import AskMode, SegmentAsk, StreamEnd
from hoard_p2p.node.app import Node
from hoard_p2p.node.service import NodeService
from hoard_p2p.objects import RangeAsk
from hoard_p2p.peer import Peer
from hoard_p2p.storage.records import SnapshotRecord
from hoard_p2p.transfer.service import SendExtent
from hoard_p2p.transfer.wire import Announcement
from hoard_p2p.transfer.wire_names import Kind
from tests.unit.node_cluster import run, running, until
from tests.unit.test_node_lazy_ingest import listed

TRUTH = b"truth" * 20_000
LIE = b"wrong" * 20_000


class Forger(NodeService):
    """Gives other bytes of the right length for each origin key, under the content id that they have."""

    def __init__(self, node: Node) -> None:
        super().__init__(node)
        self._forged = os.memfd_create("forged", os.MFD_CLOEXEC)
        os.write(self._forged, LIE)

    def locate(self, ids: Sequence[ChunkId]) -> list[SendExtent | None]:
        lie = SendExtent(self._forged, 0, len(LIE), chunk_id(LIE))
        true = iter(super().locate([one for one in ids if not is_origin_key(one)]))
        return [lie if is_origin_key(one) else next(true) for one in ids]

    def release(self, extents: Sequence[SendExtent], sent: int) -> None:
        super().release([extent for extent in extents if extent.fd != self._forged], sent)


@pytest.fixture
def origin(tmp_path: Path) -> Path:
    """A directory with one file, of one piece."""
    (tmp_path / "set").mkdir()
    (tmp_path / "set" / "file").write_bytes(TRUTH)
    os.utime(tmp_path / "set" / "file", (1_000_000_000, 1_000_000_000))
    return tmp_path / "set"


async def lazy_snapshot(origin: Path, *nodes: Node, url: str = "") -> tuple[SnapshotId, Segment, Wanted]:
    """Of the directory `origin`, or said to be of `url`; all nodes have its catalog. And the one piece in it."""
    ingested = await listed(nodes[0], origin)
    snapshot = snapshot_id(ingested.root)
    record = SnapshotRecord(snapshot, 1, 1, 1, False, 86_400, True, "set", origin=url or f"dir:{origin}")
    for node in nodes:
        await node.blocking(node.names.add_snapshot, ingested.root, record)
        opened = await node.open(snapshot)
        await node.known_origins.look()
    segment = segment_of(opened.catalog, snapshot, 0)
    return snapshot, segment, segment.chunks[0]


async def fetched(node: Node, peer: Peer, segment: Segment, chunk: Wanted) -> list[int]:
    """What it lacks; what comes is kept."""

    def keep(index: int, data: memoryview) -> None:
        node.keeper.keep(segment, chunk, data)

    def fetch() -> list[int]:
        return node.bulk.fetch(peer, [(chunk.chunk_id, chunk.length)], keep, timeout=5)

    return await node.blocking(fetch)


async def keep(node: Node, segment: Segment, chunk: Wanted, data: bytes) -> None:
    await node.blocking(node.keeper.keep, segment, chunk, memoryview(data))


def test_a_node_gives_a_piece_by_its_key_once_it_knows_what_it_is(tmp_path: Path, origin: Path) -> None:
    async def main() -> None:
        async with running(tmp_path / "a") as giver, running(tmp_path / "b", giver) as taker:
            snapshot, segment, chunk = await lazy_snapshot(origin, giver, taker)
            assert is_origin_key(chunk.chunk_id)
            assert await fetched(taker, giver.me, segment, chunk) == [0]
            await keep(giver, segment, chunk, TRUTH)
            assert await fetched(taker, giver.me, segment, chunk) == []
            assert taker.keeper.content(chunk.chunk_id) == chunk_id(TRUTH)
            got: list[bytes] = []
            ask = SegmentAsk(snapshot, 0, AskMode.GATE, 0, (chunk.run,))

            def stream() -> StreamEnd:
                wanted = [(chunk.chunk_id, chunk.length)]
                return taker.bulk.stream(
                    giver.me, ask, wanted, lambda index, data: got.append(bytes(data)), patience=0.1, timeout=5
                )

            assert (await taker.blocking(stream)).absent == []
            assert got == [TRUTH]

    run(main)


@pytest.mark.expect_warnings
def test_a_lie_that_came_first_is_replaced_by_what_the_origin_says(tmp_path: Path, origin: Path) -> None:
    async def main() -> None:
        async with (
            running(tmp_path / "a") as honest,
            running(tmp_path / "l", honest, service=Forger) as liar,
            running(tmp_path / "b", honest, liar, allow=[tmp_path]) as taker,
        ):
            _, segment, chunk = await lazy_snapshot(origin, honest, taker)
            await keep(honest, segment, chunk, TRUTH)
            assert await fetched(taker, liar.me, segment, chunk) == []
            assert taker.keeper.content(chunk.chunk_id) == chunk_id(LIE)
            with pytest.raises(ChunkCorrupt, match=r"by l, not"):
                await fetched(taker, honest.me, segment, chunk)
            await until(lambda: taker.keeper.content(chunk.chunk_id) == chunk_id(TRUTH))
            now = taker.loop.time()
            assert taker.favour.shunned(liar.me.node_id, now) and taker.favour.shunned(honest.me.node_id, now)
            assert await fetched(taker, honest.me, segment, chunk) == []
            with pytest.raises(ChunkCorrupt, match=r"not " + chunk_id(LIE).hex()[:12]):
                await fetched(taker, liar.me, segment, chunk)
            assert taker.keeper.content(chunk.chunk_id) == chunk_id(TRUTH)

    run(main)


@pytest.mark.expect_warnings
def test_who_cannot_read_the_origin_keeps_what_came_first_and_takes_nothing_else(tmp_path: Path, origin: Path) -> None:
    async def main() -> None:
        async with (
            running(tmp_path / "a") as honest,
            running(tmp_path / "l", honest, service=Forger) as liar,
            running(tmp_path / "b", honest, liar) as taker,
        ):
            _, segment, chunk = await lazy_snapshot(origin, honest, taker)
            await keep(honest, segment, chunk, TRUTH)
            assert await fetched(taker, honest.me, segment, chunk) == []
            with pytest.raises(ChunkCorrupt, match=r"by a, not"):
                await fetched(taker, liar.me, segment, chunk)
            assert taker.keeper.content(chunk.chunk_id) == chunk_id(TRUTH)
            assert taker.namings.disputes == 1

    run(main)


@pytest.mark.parametrize("url", ["s3://bucket/set?endpoint={endpoint}&anonymous=1&style=path", "dir:{directory}"])
def test_no_word_of_a_peer_makes_a_node_talk_to_an_origin_that_nobody_allowed(
    tmp_path: Path, origin: Path, url: str
) -> None:
    async def main() -> None:
        callers: list[asyncio.StreamWriter] = []
        store = await asyncio.start_server(lambda _, writer: callers.append(writer), "127.0.0.1", 0)
        named = url.format(endpoint=f"http://127.0.0.1:{store.sockets[0].getsockname()[1]}", directory=origin)
        async with store, running(tmp_path / "l") as liar, running(tmp_path / "a", liar) as node:
            snapshot, segment, chunk = await lazy_snapshot(origin, liar, url=named)
            told = await liar.blocking(liar.gossip.exchange.listed, Kind.SNAPSHOTS)
            await liar.control.announce(node.me, Announcement(tuple(told), node=liar.me.node_id))
            await node.known_origins.look()
            assert (await node.open(snapshot)).catalog.is_lazy
            assert not node.known_origins.is_open(named)
            ask = SegmentAsk(snapshot, segment.number, AskMode.FETCH, 0, (chunk.run,))
            end = await liar.blocking(stream, liar, node.me, ask, chunk)
            assert end.absent == [0]
            part, into = RangeAsk(snapshot, chunk.run, 0, 100, 0, 0.1), memoryview(bytearray(100))
            answer = await liar.blocking(partial(liar.bulk.range, node.me, part, into, timeout=5))
            assert not answer.got
        assert callers == []

    run(main)


def stream(node: Node, peer: Peer, ask: SegmentAsk, chunk: Wanted) -> StreamEnd:
    """Blocking: ask for one piece and let it go."""
    wanted = [(chunk.chunk_id, chunk.length)]
    return node.bulk.stream(peer, ask, wanted, lambda _index, _data: None, patience=0.1, timeout=5)
