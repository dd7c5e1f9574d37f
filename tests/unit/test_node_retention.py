"""What goes from a node and what stays: evict, gc, rm, pins, over real nodes."""

import asyncio
import itertools
import os
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack, closing
from pathlib import Path
from random import Random

import pytest

from hoard_p2p.config import Json
from hoard_p2p.errors import Refused, Unavailable
from hoard_p2p.ids import ChunkId, SnapshotId, chunk_id, parse_snapshot_id
from hoard_p2p.node import collecting
from hoard_p2p.node.app import STORE_THREADS, Node
from hoard_p2p.node.course import Course
from hoard_p2p.node.evicting import Outcome
from hoard_p2p.node.leases import Leases
from hoard_p2p.node.publishing import publish
from hoard_p2p.node.service import NodeService
from hoard_p2p.storage.claims import Claims
from hoard_p2p.storage.eviction import Part
from hoard_p2p.storage.reclaim import STEP
from hoard_p2p.storage.records import SnapshotRecord
from hoard_p2p.transfer.wire_life import VouchRequest
from tests.unit.node_cluster import run, running, until

MIB = 1 << 20


def a_tree(path: Path, seed: int, size: int = 12 * MIB) -> Path:
    """One large file, two segments and more, and a small one."""
    path.mkdir()
    (path / "large").write_bytes(Random(seed).randbytes(size))
    (path / "small").write_bytes(b"%d" % seed)
    return path


async def published(node: Node, source: Path, **options: Json) -> SnapshotId:
    async def report(body: dict[str, Json]) -> None:
        return None

    fd = os.open(source, os.O_RDONLY | os.O_DIRECTORY)
    try:
        told = await publish(node, fd, {"source": os.fspath(source), **options}, report)
    finally:
        os.close(fd)
    return parse_snapshot_id(str(told["snapshot"]))


async def read_whole(node: Node, snapshot: SnapshotId) -> None:
    """Have all of it here, as a reader of every file would."""
    opened = await node.open(snapshot)
    mark = node.writer.mark()
    for number in range(opened.catalog.segments):
        await node.fetcher.whole(node.demand.segment(opened, number), timeout=20)
    await node.blocking(node.writer.flush, mark)


async def segments_here(node: Node, snapshot: SnapshotId) -> set[int]:
    opened = await node.open_local(snapshot)
    assert opened is not None
    node.held.forget()
    residency = await node.blocking(node.held.residency, snapshot, opened.catalog)
    return {number for number in range(opened.catalog.segments) if residency.holds(number)}


async def spread(one: Node, two: Node, path: Path) -> SnapshotId:
    """A set of which each node is home of a part, and that is whole on both. (Node ids are drawn: try a few sets.)"""
    for seed in range(1, 20):
        snapshot = await published(one, a_tree(path / f"set{seed}", seed), replicas=1)
        catalog, held = (await one.open(snapshot)).catalog, await two.blocking(two.store.holds, snapshot)
        large = {number for number in range(catalog.segments) if catalog.segment_size(number) > MIB}
        if held & large and large - held:
            await read_whole(two, snapshot)
            return snapshot
    raise AssertionError("one node is home of everything")


def known(node: Node, snapshot: SnapshotId) -> SnapshotRecord:
    record = node.names.snapshot(snapshot)
    assert record is not None
    return record


def test_the_only_node_of_a_cluster_evicts_nothing_and_says_what_to_do(tmp_path: Path) -> None:
    async def main() -> None:
        async with running(tmp_path / "n") as node:
            snapshot = await published(node, a_tree(tmp_path / "a", 1), replicas=1)
            before = await segments_here(node, snapshot)
            outcome = await node.retention.evict(snapshot)
            assert (outcome.chunks, outcome.size) == (0, 0)
            assert "only node" in outcome.kept[0]
            assert "hoard rm" in outcome.kept[0]
            assert await segments_here(node, snapshot) == before != set()

    run(main)


def test_what_stays_since_another_snapshot_has_it_too_is_told(tmp_path: Path) -> None:
    async def main() -> None:
        async with running(tmp_path / "n") as one, running(tmp_path / "m", one) as two:
            snapshot = await spread(one, two, tmp_path)
            assert not any("have them, too" in why for why in (await two.retention.evict(snapshot, dry_run=True)).kept)
            tree = Path(known(one, snapshot).source)
            (tree / "more").write_bytes(b"more")
            await read_whole(two, await published(one, tree, replicas=1))
            outcome = await two.retention.evict(snapshot, dry_run=True)
            assert outcome.size == 0
            assert any("other snapshots that are known here have them, too" in why for why in outcome.kept)

    run(main)


def test_an_ordinary_copy_goes_and_the_homes_copies_stay(tmp_path: Path) -> None:
    async def main() -> None:
        async with running(tmp_path / "n") as one, running(tmp_path / "m", one) as two:
            snapshot = await spread(one, two, tmp_path)
            everything = await segments_here(two, snapshot)
            held = await two.blocking(two.store.holds, snapshot)
            foreseen = await two.retention.evict(snapshot, dry_run=True)
            assert await segments_here(two, snapshot) == everything, "a dry run drops nothing"
            outcome = await two.retention.evict(snapshot)
            assert await segments_here(two, snapshot) == held
            assert (outcome.chunks, outcome.size) == (foreseen.chunks, foreseen.size)
            assert outcome.size > MIB
            assert outcome.reclaimed >= outcome.size * 0.9, "the disk space is back"
            # what one published it holds in full, though it is not the home of all: its surplus goes next
            await one.retention.evict(snapshot)
            mine, theirs = await segments_here(one, snapshot), await segments_here(two, snapshot)
            assert mine | theirs == everything, "of each segment a copy is left"

    run(main)


def test_two_nodes_that_evict_at_once_keep_a_copy_of_everything(tmp_path: Path) -> None:
    async def main() -> None:
        async with running(tmp_path / "n") as one, running(tmp_path / "m", one) as two:
            snapshot = await spread(one, two, tmp_path)
            everything = await segments_here(one, snapshot)
            async with asyncio.TaskGroup() as group:
                for node in (one, two):
                    group.create_task(node.retention.evict(snapshot))
            assert await segments_here(one, snapshot) | await segments_here(two, snapshot) == everything

    run(main)


class EagerVoucher(NodeService):
    """Vouches for everything that it is asked about, and has nothing."""

    async def vouch(self, request: VouchRequest) -> Sequence[int]:
        return request.segments


@pytest.mark.expect_warnings
def test_who_vouches_for_what_it_does_not_have_costs_no_copy_and_is_named(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def main() -> None:
        async with running(tmp_path / "n") as node:
            snapshot = await published(node, a_tree(tmp_path / "a", 1), replicas=1)
            everything = await segments_here(node, snapshot)
            async with running(tmp_path / "liar", node, service=EagerVoucher):
                assert (await node.retention.evict(snapshot)).size == 0
                assert await segments_here(node, snapshot) == everything
                assert "what liar vouches for does not count" in caplog.text

    run(main)


def test_what_was_promised_stays_though_others_would_vouch(tmp_path: Path) -> None:
    async def main() -> None:
        async with running(tmp_path / "n") as one, running(tmp_path / "m", one) as two:
            snapshot = await spread(one, two, tmp_path)
            everything = await segments_here(two, snapshot)
            assert await two.retention.evictions.vouch(snapshot, sorted(everything)) == sorted(everything)
            assert await two.blocking(two.store.holds, snapshot) == everything, "also after a restart"
            await two.retention.evict(snapshot)
            assert await segments_here(two, snapshot) == everything

    run(main)


def test_what_is_leased_or_pinned_is_not_evicted(tmp_path: Path) -> None:
    async def main() -> None:
        async with running(tmp_path / "n") as node:
            snapshot = await published(node, a_tree(tmp_path / "a", 1), replicas=1)
            with node.leases.held(snapshot, "mounted on /mnt/x"), pytest.raises(Refused, match="mounted on /mnt/x"):
                await node.retention.evict(snapshot)
            await node.blocking(lambda: node.names.pin(snapshot, pinned=True))
            with pytest.raises(Refused, match="hoard unpin"):
                await node.retention.evict(snapshot)

    run(main)


def test_gc_collects_what_was_removed_and_nothing_that_lives(tmp_path: Path) -> None:
    async def main() -> None:
        async with running(tmp_path / "n") as node:
            stays = await published(node, a_tree(tmp_path / "a", 1), replicas=1)
            goes = await published(node, a_tree(tmp_path / "b", 2), replicas=1)
            before, used = await segments_here(node, stays), node.store.room.used
            assert (await node.retention.gc()).chunks == 0
            await node.remove(goes, force=False)
            foreseen = await node.retention.gc(dry_run=True)
            outcome = await node.retention.gc()
            assert (outcome.chunks, outcome.size) == (foreseen.chunks, foreseen.size)
            assert outcome.size >= 12 * MIB
            assert outcome.reclaimed >= 11 * MIB
            assert used - node.store.room.used >= 11 * MIB
            assert await segments_here(node, stays) == before
            assert await node.open_local(stays) is not None
            assert node.catalogs.peek(goes) is None
            assert (await node.retention.gc()).chunks == 0, "there is nothing more to collect"

    run(main)


def test_a_removed_snapshot_that_is_mounted_keeps_its_bytes_until_the_mount_ends(tmp_path: Path) -> None:
    async def main() -> None:
        async with running(tmp_path / "n") as node:
            snapshot = await published(node, a_tree(tmp_path / "a", 1), replicas=1)
            with node.leases.held(snapshot, "mounted on /mnt/x"):
                await node.remove(snapshot, force=True)
                assert (await node.retention.gc()).chunks == 0
            assert (await node.retention.gc()).chunks > 0

    run(main)


def test_nothing_is_collected_while_a_catalog_that_must_be_read_cannot(tmp_path: Path) -> None:
    async def main() -> None:
        async with running(tmp_path / "n") as node:
            snapshot = await published(node, a_tree(tmp_path / "a", 1), replicas=1)
        async with running(tmp_path / "n") as node:  # again: no catalog is open
            before = await segments_here(node, snapshot)
            opened = await node.open(snapshot)
            await node.blocking(node.store.reclaimer.drop, [run.chunk_id for run in opened.root.catalog_runs])
        async with running(tmp_path / "n") as node:
            chunks = await node.blocking(node.store.extents_count)
            with pytest.raises(Unavailable, match="nothing is collected"):
                await node.retention.gc()
            assert await node.blocking(node.store.extents_count) == chunks
            assert before

    run(main)


def test_what_is_used_while_it_is_looked_what_lives_is_not_swept_for_want_of_its_catalog(tmp_path: Path) -> None:
    async def main() -> None:
        async with running(tmp_path / "n") as node, asyncio.TaskGroup() as group:
            snapshot = await published(node, a_tree(tmp_path / "a", 1), replicas=1)
            opened = await node.open(snapshot)
            chunks = [opened.catalog.chunk_id(number) for number in range(opened.catalog.chunks)]
            await lose_catalog(node, snapshot)
            assert (await node.retention.gc()).chunks == 0, "it is open, in memory"
            node.catalogs.forget_all_but(())
            turn = node.retention._turn
            await turn.acquire()
            sweep = group.create_task(refused_sweep(node))
            await until(lambda: bool(turn._waiters))
            with node.leases.held(snapshot, "about to be mounted"):
                turn.release()
                await sweep
            assert None not in node.reader.places(chunks)

    run(main)


async def refused_sweep(node: Node) -> None:
    with pytest.raises(Unavailable):
        await node.retention.gc(thorough=False)


async def lose_catalog(node: Node, snapshot: SnapshotId) -> None:
    """Its catalog is damaged on this disk, and this node is no home of it."""
    opened = await node.open(snapshot)
    for catalog_run in opened.root.catalog_runs:
        for place in node.reader.places_of(catalog_run.chunk_id):
            await node.blocking(node.store.quarantine, catalog_run.chunk_id, place)
    await node.blocking(node.store.life.drop_holds, snapshot, node.store.holds(snapshot))


def test_rm_is_refused_while_another_node_uses_the_snapshot(tmp_path: Path) -> None:
    async def main() -> None:
        async with running(tmp_path / "n") as one, running(tmp_path / "m", one) as two:
            snapshot = await published(one, a_tree(tmp_path / "a", 1, size=MIB), replicas=1)
            with two.leases.held(snapshot, "mounted on /mnt/x"):
                with pytest.raises(Refused, match=r"mounted on /mnt/x on m\b"):
                    await one.remove(snapshot, force=False)
                await one.remove(snapshot, force=True)
            await until(lambda: bool(known(two, snapshot).removed))

    run(main)


def test_a_pin_can_be_taken_back_on_another_node(tmp_path: Path) -> None:
    async def main() -> None:
        async with running(tmp_path / "n") as one, running(tmp_path / "m", one) as two:
            snapshot = await published(one, a_tree(tmp_path / "a", 1, size=MIB), replicas=1, pin=True)
            await until(lambda: known(two, snapshot).pinned)
            with pytest.raises(Refused, match="pinned"):
                await two.remove(snapshot, force=False)
            await two.blocking(lambda: two.names.pin(snapshot, pinned=False))
            await one.ask_names()
            assert not known(one, snapshot).pinned
            await published(one, tmp_path / "a", replicas=1)
            assert not known(one, snapshot).pinned

    run(main)


def test_what_nothing_names_or_uses_goes_after_its_time(tmp_path: Path) -> None:
    async def main() -> None:
        async with running(tmp_path / "n") as one, running(tmp_path / "m", one) as two:
            goes = await published(one, a_tree(tmp_path / "a", 1, size=MIB), replicas=1, keep=0)
            named = await published(one, a_tree(tmp_path / "b", 2, size=MIB), replicas=1, keep=0, name="set:1")
            pinned = await published(one, a_tree(tmp_path / "c", 3, size=MIB), replicas=1, keep=0, pin=True)
            used = await published(one, a_tree(tmp_path / "d", 4, size=MIB), replicas=1, keep=0)
            with two.leases.held(used, "mounted on /mnt/x"):
                foreseen = await one.retention.gc(dry_run=True)
                assert foreseen.removed == [goes]
                assert known(one, goes).removed == 0
                outcome = await one.retention.gc()
            assert outcome.removed == [goes]
            assert {record.id for record in one.names.snapshots()} == {named, pinned, used}
            await until(lambda: bool(known(two, goes).removed))

    run(main)


class Watch(Claims):
    """Marks of a collection, which see what is held when a fetch looks for what it lacks: before it asks anybody."""

    def __init__(self, holds: Callable[[], set[int]]) -> None:
        super().__init__()
        self._holds = holds
        self.seen: list[set[int]] = []

    def mark(self, ids: Iterable[ChunkId]) -> None:
        self.seen.append(self._holds())
        super().mark(ids)


def test_a_pull_holds_its_segments_before_it_fetches_and_lets_go_of_those_it_did_not_get(tmp_path: Path) -> None:
    async def main() -> None:
        async with running(tmp_path / "n") as one, running(tmp_path / "m", one) as two:
            snapshot = await published(one, a_tree(tmp_path / "a", 1), replicas=1)
            opened = await two.open(snapshot)
            await two.blocking(two.store.life.drop_holds, snapshot, range(opened.catalog.segments))
            for number in range(opened.catalog.segments):
                ids = [chunk.chunk_id for chunk in opened.catalog.segment_chunks(number)]
                await two.blocking(two.store.reclaimer.drop, ids)
            lost, good = 0, 1
            chunks = [chunk.chunk_id for chunk in opened.catalog.segment_chunks(lost)]
            await one.blocking(one.store.reclaimer.drop, chunks)
            with closing(Watch(lambda: two.store.holds(snapshot))) as watch:
                two.keeper.claims = watch
                assert await two.pull(snapshot, [lost, good], one.me) == [good]
                two.keeper.claims = None
            assert len(watch.seen) >= 2
            assert all(held >= {lost, good} for held in watch.seen), "held before the first chunk was asked for"
            assert await two.blocking(two.store.holds, snapshot) == {good}
            assert await two.pull(snapshot, [lost], one.me) == []
            assert await two.blocking(two.store.holds, snapshot) == {good}

    run(main)


def test_a_publish_that_fails_leaves_nothing_known(tmp_path: Path) -> None:
    async def main() -> None:
        async with running(tmp_path / "n") as node, running(tmp_path / "m", node):
            copying = asyncio.Event()

            async def report(body: dict[str, Json]) -> None:
                if body.get("phase") == "replicating":  # all of it is stored, and it is about to be shown
                    copying.set()
                    await asyncio.Event().wait()

            fd = os.open(a_tree(tmp_path / "a", 1, size=MIB), os.O_RDONLY | os.O_DIRECTORY)
            async with asyncio.TaskGroup() as group:
                publishing = group.create_task(publish(node, fd, {"source": "a", "replicas": 2}, report))
                await copying.wait()
                (hidden,) = node.names.known()
                await node.retention.tend()
                assert (await node.retention.gc()).chunks == 0
                assert known(node, hidden.id).shown is False, "while it is being published it stays"
                publishing.cancel()
            os.close(fd)
            await node.retention.tend()
            assert node.names.known() == []
            assert await node.blocking(node.store.root, hidden.id) is None
            assert (await node.retention.gc()).size > MIB
            assert await node.blocking(node.store.extents_count) == 0

    run(main)


def test_a_full_store_makes_room_for_what_arrives_from_what_others_keep(tmp_path: Path) -> None:
    async def main() -> None:
        async with running(tmp_path / "n") as one, running(tmp_path / "m", one) as two:
            cold = await spread(one, two, tmp_path)
            held = await two.blocking(two.store.holds, cold)
            room = two.store.room
            wanted = room.available + 1
            assert await asyncio.to_thread(two.retention.relief, wanted)
            assert await segments_here(two, cold) == held

    run(main)


def test_room_is_made_though_all_threads_of_the_store_wait_for_it(tmp_path: Path) -> None:
    async def main() -> None:
        async with running(tmp_path / "n") as node:
            goes = await published(node, a_tree(tmp_path / "a", 1), replicas=1, keep=0)
            stays = await published(node, a_tree(tmp_path / "b", 2), replicas=1)
            room = node.store.room
            each = (room.available + 11 * MIB) // STORE_THREADS
            async with asyncio.TaskGroup() as group:
                for _ in range(STORE_THREADS):
                    group.create_task(node.blocking(room.grant, each))
            assert known(node, goes).removed
            assert not known(node, stays).removed
            room.give_back(each * STORE_THREADS)

    run(main)


class Arriving(Leases):
    """Somebody begins to use a snapshot between each first and second look."""

    def __init__(self) -> None:
        super().__init__()
        self._stay = ExitStack()
        self._looks = 0

    def leased(self) -> set[SnapshotId]:
        self._looks += 1
        if self._looks % 2:
            self._stay.close()
        else:
            self._stay.enter_context(self.held(SnapshotId(bytes(32)), "about to be mounted"))
        return super().leased()


def test_nothing_is_swept_while_snapshots_come_that_were_not_marked(tmp_path: Path) -> None:
    async def main() -> None:
        async with running(tmp_path / "n") as node:
            goes = await published(node, a_tree(tmp_path / "a", 1, size=MIB), replicas=1)
            await node.remove(goes, force=False)
            chunks = await node.blocking(node.store.extents_count)
            calm, node.leases = node.leases, Arriving()
            with pytest.raises(Unavailable, match="kept being mounted"):
                await node.retention.gc()
            assert await node.blocking(node.store.extents_count) == chunks
            node.leases = calm
            assert (await node.retention.gc()).chunks == chunks

    run(main)


def test_a_sweep_that_a_mount_interrupts_has_dropped_nothing_that_lives_and_goes_on_later(tmp_path: Path) -> None:
    async def main() -> None:
        async with running(tmp_path / "n") as node:
            stays = await published(node, a_tree(tmp_path / "a", 1), replicas=1)
            before, living = await segments_here(node, stays), await node.blocking(node.store.extents_count)
            await node.blocking(put_many, node, 2 * STEP + 500)
            asked = itertools.count()
            found = await node.blocking(collecting.marks, node.store, [stays], {stays})
            with pytest.raises(collecting.Interrupted) as interruption:
                await node.blocking(
                    lambda: collecting.sweep(
                        node.store, found, lambda: next(asked) > 2 * STEP + 100, Course(), dry_run=False
                    )
                )
            left = await node.blocking(node.store.extents_count) - living
            assert 0 < interruption.value.dropped.chunks == 2 * STEP + 500 - left < 2 * STEP + 500
            assert await segments_here(node, stays) == before
            assert (await node.retention.gc()).chunks == left
            assert await segments_here(node, stays) == before

    run(main)


def put_many(node: Node, count: int) -> None:
    """Chunks that no snapshot names."""
    for number in range(count):
        data = b"nobody's %d" % number
        node.writer.put(chunk_id(data), data)
    node.writer.flush()


def test_a_mount_that_comes_while_its_snapshot_is_evicted_ends_the_eviction(tmp_path: Path) -> None:
    async def main() -> None:
        async with running(tmp_path / "n") as one, running(tmp_path / "m", one) as two:
            snapshot = await spread(one, two, tmp_path)
            held = await two.blocking(two.store.holds, snapshot)
            everything = await segments_here(two, snapshot)
            await one.pull(snapshot, sorted(everything), two.me)

            async def mount(body: dict[str, Json]) -> None:
                assert body["phase"] == "evicting ordinary copies"
                await two.retention.expect_mount(snapshot)

            with pytest.raises(Refused, match="about to be mounted"):
                await two.retention.evict(snapshot, report=mount)
            assert await segments_here(two, snapshot) == held, "what was dropped is out of the index"
            await read_whole(two, snapshot)
            assert await segments_here(two, snapshot) == everything

    run(main)


def test_a_file_slab_that_no_living_snapshot_has_goes_though_what_lives_shares_a_chunk_of_it(tmp_path: Path) -> None:
    async def main() -> None:
        async with running(tmp_path / "n") as node:
            old, new = a_tree(tmp_path / "old", 1), a_tree(tmp_path / "new", 2)
            shared = (old / "large").read_bytes()[: 4 * MIB]
            (new / "large").write_bytes((new / "large").read_bytes() + shared)  # a quarter: it is copied into its slab
            goes = await published(node, old, replicas=1)
            slabs = dict(node.store.life.file_slabs())
            stays = await published(node, new, replicas=1)
            (slab,) = slabs.values()
            path = node.reader.slab_path(slab)
            with node.leases.held(goes, "mounted on /mnt/x"):
                await node.remove(goes, force=True)
                await node.retention.gc()
                assert path.read_bytes() == (old / "large").read_bytes(), "a mount's kernel may read the file itself"
            outcome = await node.retention.gc()
            assert outcome.reclaimed >= 12 * MIB
            assert not path.exists()
            assert (await node.retention.gc()).chunks == 0
            opened = await node.open(stays)
            assert await segments_here(node, stays) >= {
                number for number in range(opened.catalog.segments) if opened.catalog.segment_size(number)
            }

    run(main)


def test_what_a_publish_found_here_survives_an_eviction_that_began_before(tmp_path: Path) -> None:
    async def main() -> None:
        async with running(tmp_path / "n") as one, running(tmp_path / "m", one) as two:
            snapshot = await spread(one, two, tmp_path)
            record, catalog = known(two, snapshot), (await two.open(snapshot)).catalog
            evictor = await two.retention.evictions.evictor(snapshot)  # it has seen what else is here
            again = a_tree(tmp_path / "again", len([name for name in os.listdir(tmp_path) if name.startswith("set")]))
            (again / "small").write_bytes(b"other")
            published_again = await published(two, again, replicas=1)
            before = await segments_here(two, published_again)
            for part in Part:
                await two.retention.evictions.evict_part(record, catalog, evictor, part, Outcome())
            assert await segments_here(two, published_again) == before != set()

    run(main)
