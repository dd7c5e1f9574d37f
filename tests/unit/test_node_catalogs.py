"""Opening catalogs: from this disk, from peers, with damage and without room. Real store, peers in memory."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from hoard_p2p.catalog.root import decode
from hoard_p2p.errors import CatalogCorrupt, ChunkUnavailable, StoreFailed
from hoard_p2p.fetch.fetcher import Fetcher, Outlook
from hoard_p2p.fetch.segment import Segment, Wanted
from hoard_p2p.fetch.sources import Favour, Sources
from hoard_p2p.ids import ChunkId, SnapshotId, snapshot_id
from hoard_p2p.interfaces import Place, Residency
from hoard_p2p.node.catalogs import Catalogs
from hoard_p2p.node.keeping import StoreKeeper
from hoard_p2p.peer import ClusterView, Peer
from hoard_p2p.storage.store import Store
from hoard_p2p.testing.network import MemoryPeers, a_peer
from tests.unit.publish_trees import publish

ME, OTHER = a_peer(1), a_peer(2)


class FullKeeper(StoreKeeper):
    """A keeper whose disk is full."""

    def keep(self, segment: Segment, chunk: Wanted, data: memoryview) -> Place:
        raise StoreFailed("the disk is full")

    def keep_many(self, segment: Segment, chunks: Sequence[tuple[Wanted, memoryview]]) -> list[Place]:
        raise StoreFailed("the disk is full")


@dataclass
class Scene:
    """A snapshot that a peer has, and a store that has nothing."""

    root: bytes
    held: dict[ChunkId, bytes]
    store: Store
    asked: list[SnapshotId] = field(default_factory=list)
    keeper: type[StoreKeeper] = StoreKeeper
    max_catalog: int = 1 << 30

    @property
    def id(self) -> SnapshotId:
        return snapshot_id(self.root)

    async def get_root(self, snapshot: SnapshotId) -> bytes:
        self.asked.append(snapshot)
        return self.root

    async def residency(self, peer: Peer, snapshot: SnapshotId) -> Residency | None:
        return None

    def run(self, scenario: Callable[[Catalogs, MemoryPeers], Awaitable[None]]) -> None:
        async def main() -> None:
            peers = MemoryPeers({OTHER.node_id: self.held})
            with ThreadPoolExecutor(4) as pool, self.store.writer() as writer:
                async with asyncio.timeout(20), asyncio.TaskGroup() as group:
                    keeper = self.keeper(writer, self.store.reader(), self.store.heal)
                    fetcher = self._fetcher(group, pool, keeper, peers)
                    catalogs = Catalogs(
                        store=self.store,
                        fetcher=fetcher,
                        get_root=self.get_root,
                        place=keeper.place,
                        group=group,
                        executor=pool,
                        max_catalog=self.max_catalog,
                    )
                    await scenario(catalogs, peers)

        asyncio.run(main())

    def _fetcher(
        self, group: asyncio.TaskGroup, pool: ThreadPoolExecutor, keeper: StoreKeeper, peers: MemoryPeers
    ) -> Fetcher:
        favour = Favour()
        return Fetcher(
            group=group,
            executor=pool,
            fillers=pool,
            keeper=keeper,
            peers=peers,
            sources=Sources(
                view=lambda: ClusterView(ME.node_id, (ME, OTHER)),
                replicas=lambda _: 2,
                residency=self.residency,
                group=group,
                favour=favour,
                suspects=lambda: (),
                clock=time.monotonic,
            ),
            favour=favour,
            failed=lambda node: None,
            outlook=lambda: Outlook(()),
            me=ME.node_id,
        )


@pytest.fixture
def scene(tmp_path: Path) -> Iterator[Scene]:
    source = tmp_path / "source"
    source.mkdir()
    for number in range(300):
        (source / f"{number:04d}").write_bytes(b"%d" % number)
    published = publish(source)
    chunks = published.sink.chunks
    held = {identifier: chunks.get(identifier) for identifier in chunks.ids()}
    with Store.open(tmp_path / "store") as store:
        yield Scene(published.result.root, held, store)


def test_a_catalog_is_fetched_verified_and_stored(scene: Scene) -> None:
    async def first(catalogs: Catalogs, peers: MemoryPeers) -> None:
        opened = await catalogs.open(scene.id, timeout=5)
        assert opened.catalog.inodes == 301
        assert peers.fetched

    async def again(catalogs: Catalogs, peers: MemoryPeers) -> None:
        local = await catalogs.local(scene.id, scene.root)
        assert local is not None
        assert (await catalogs.open(scene.id, timeout=5)).catalog.find(b"0299") > 0
        assert peers.fetched == []

    scene.run(first)
    scene.run(again)


def test_asking_for_what_is_here_asks_no_peer(scene: Scene) -> None:
    async def scenario(catalogs: Catalogs, peers: MemoryPeers) -> None:
        assert await catalogs.local(scene.id, scene.root) is None
        assert (peers.fetched, scene.asked) == ([], [])

    scene.run(scenario)


@pytest.mark.expect_warnings
def test_a_full_disk_does_not_keep_a_catalog_from_being_opened(scene: Scene) -> None:
    scene.keeper = FullKeeper

    async def scenario(catalogs: Catalogs, peers: MemoryPeers) -> None:
        assert (await catalogs.open(scene.id, timeout=5)).catalog.inodes == 301

    scene.run(scenario)


@pytest.mark.expect_warnings
def test_a_damaged_catalog_chunk_is_fetched_again(scene: Scene, tmp_path: Path) -> None:
    async def first(catalogs: Catalogs, peers: MemoryPeers) -> None:
        await catalogs.open(scene.id, timeout=5)

    async def again(catalogs: Catalogs, peers: MemoryPeers) -> None:
        assert (await catalogs.open(scene.id, timeout=5)).catalog.find(b"0000") > 0
        assert peers.fetched

    scene.run(first)
    for slab in (tmp_path / "store" / "slabs").glob("*.slab"):
        with slab.open("r+b") as file:
            file.seek(100)
            file.write(b"damage")
    scene.run(again)


def test_a_catalog_that_nobody_has_is_unavailable(scene: Scene) -> None:
    scene.held.clear()

    async def scenario(catalogs: Catalogs, peers: MemoryPeers) -> None:
        with pytest.raises(ChunkUnavailable):
            await catalogs.open(scene.id, timeout=5)

    scene.run(scenario)


def test_a_catalog_longer_than_memory_allows_is_refused_before_memory_is_taken(scene: Scene) -> None:
    scene.max_catalog = decode(scene.root).catalog_length - 1

    async def scenario(catalogs: Catalogs, peers: MemoryPeers) -> None:
        with pytest.raises(CatalogCorrupt):
            await catalogs.open(scene.id, timeout=5)
        assert peers.fetched == []

    scene.run(scenario)


def test_those_who_open_one_snapshot_at_the_same_time_share_the_work(scene: Scene) -> None:
    async def scenario(catalogs: Catalogs, peers: MemoryPeers) -> None:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(catalogs.open(scene.id, timeout=5)) for _ in range(5)]
        assert len({id(task.result()) for task in tasks}) == 1
        assert scene.asked == [scene.id]

    scene.run(scenario)
