"""What peers may ask of a node, over real sockets."""

import os
from collections.abc import Sequence
from pathlib import Path

import pytest

from hoard_p2p.config import Json
from hoard_p2p.errors import StoreFailed
from hoard_p2p.ids import ChunkId, chunk_id, origin_key, snapshot_id
from hoard_p2p.node.app import Node
from hoard_p2p.node.names_wire import snapshot_json
from hoard_p2p.node.service import NodeService
from hoard_p2p.storage.records import SnapshotRecord
from hoard_p2p.storage.writer import ChunkWriter
from hoard_p2p.transfer.wire import Announcement
from tests.unit.node_cluster import run, running
from tests.unit.node_roots import a_root


def test_a_goodbye_in_the_name_of_another_node_evicts_nobody(tmp_path: Path) -> None:
    async def main() -> None:
        async with (
            running(tmp_path / "a") as node,
            running(tmp_path / "b", node) as victim,
            running(tmp_path / "c", node, victim) as stranger,
        ):
            await stranger.control.leave(node.me, victim.me.node_id, victim.me.incarnation)
            await stranger.control.leave(node.me, victim.me.node_id, 2**63)
            assert victim.me.node_id in node.agent.view().by_id

    run(main)


@pytest.mark.expect_warnings
def test_an_announcement_with_bad_records_is_answered_and_its_good_ones_are_taken(tmp_path: Path) -> None:
    async def main() -> None:
        root = a_root(1)
        good = snapshot_json(SnapshotRecord(snapshot_id(root), 1, 1, 2, False, 1, True, "x", 0), root)
        bad: list[dict[str, Json]] = [
            {},
            {**good, "source": "\ud800"},
            {**good, "removed": 2**63 - 1},
            {**good, "id": snapshot_id(b"x").hex(), "root": "eA=="},
        ]
        async with running(tmp_path / "a") as node, running(tmp_path / "b", node) as peer:
            refs: tuple[dict[str, Json], ...] = ({"name": "\udcff"},)
            await peer.control.announce(node.me, Announcement(snapshots=(*bad, good), refs=refs))
            assert [record.id for record in node.names.snapshots()] == [snapshot_id(root)]

    run(main)


def test_what_a_peer_is_being_sent_is_not_given_back_until_it_was_sent(tmp_path: Path) -> None:
    async def main() -> None:
        async with running(tmp_path / "a") as node:
            await node.blocking(_drop_while_it_is_sent, node)

    run(main)


class _KnownMeanwhile:
    """The writer of a node, to which a piece becomes known right after it was asked what that is."""

    def __init__(self, writer: ChunkWriter, key: ChunkId, data: bytes) -> None:
        self._writer = writer
        self._piece = (key, data)

    def contents(self, ids: Sequence[ChunkId]) -> list[ChunkId | None]:
        found = self._writer.contents(ids)
        key, data = self._piece
        self._writer.put(chunk_id(data), data)
        self._writer.know(key, chunk_id(data))
        return found

    def __getattr__(self, name: str) -> object:
        return getattr(self._writer, name)


def test_a_piece_that_becomes_known_while_it_is_looked_for_is_never_sent_under_its_key(tmp_path: Path) -> None:
    """The peer would take that for its content id, and this node for a liar."""

    async def main() -> None:
        async with running(tmp_path / "a") as node:
            key, data = origin_key(b"object", b"version", 0, 39), b"x" * 39
            writer = node.writer
            node.writer = _KnownMeanwhile(writer, key, data)  # type: ignore[assignment]
            service = NodeService(node)
            assert await node.blocking(service.locate, [key]) == [None]
            (extent,) = await node.blocking(service.locate, [key])
            assert extent is not None and extent.content == chunk_id(data)
            service.release([extent], 1)
            node.writer = writer

    run(main)


def test_chunks_are_not_counted_as_being_sent_when_another_cannot_be_opened(tmp_path: Path) -> None:
    async def main() -> None:
        async with running(tmp_path / "a") as node:
            await node.blocking(_fail_to_open, node)

    run(main)


def _fail_to_open(node: Node) -> None:
    datas, service = [os.urandom(100_000) for _ in range(3)], NodeService(node)
    for data in datas:
        with node.store.writer() as writer:
            writer.put(chunk_id(data), data)
    place = node.reader.place(chunk_id(datas[1]))
    assert place is not None
    path = node.reader.slab_path(place.slab)
    path.unlink()
    path.symlink_to(path)  # an error like that of a process without descriptors
    with pytest.raises(StoreFailed):
        service.locate([chunk_id(data) for data in datas])
    node.store.reclaimer.drop([chunk_id(datas[0]), chunk_id(datas[2])])
    assert not node.store.reclaimer.reclaim().waiting


def _drop_while_it_is_sent(node: Node) -> None:
    data, service = os.urandom(100_000), NodeService(node)
    with node.store.writer() as writer:
        writer.put(chunk_id(data), data)
    (extent,) = service.locate([chunk_id(data)])
    assert extent is not None
    node.store.reclaimer.drop([chunk_id(data)])
    assert node.store.reclaimer.reclaim().waiting
    assert service.locate([chunk_id(data)]) == [None]
    assert os.pread(extent.fd, len(data), extent.offset) == data
    service.release([extent], 1)
    assert not node.store.reclaimer.reclaim().waiting
    assert node.store.reclaimer.reclaim().bytes == 0
