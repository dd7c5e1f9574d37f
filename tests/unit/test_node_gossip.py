"""How nodes learn of each other's names, and what strangers may tell them."""

import asyncio
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, asynccontextmanager, contextmanager
from pathlib import Path
from random import Random

import pytest

from hoard_p2p.cluster.discovery import Address
from hoard_p2p.config import Json
from hoard_p2p.errors import BadRequest
from hoard_p2p.ids import SnapshotId, snapshot_id
from hoard_p2p.node import gossip, names_exchange
from hoard_p2p.node.gossip import Gossip
from hoard_p2p.node.merging import Snapshots, tombstone
from hoard_p2p.node.names import Names
from hoard_p2p.node.names_wire import snapshot_json
from hoard_p2p.node.presence import Presence
from hoard_p2p.node.service import NodeService
from hoard_p2p.peer import NodeId, Peer
from hoard_p2p.storage.records import SnapshotRecord
from hoard_p2p.storage.store import Store
from hoard_p2p.testing.network import FileService, a_peer, serving
from hoard_p2p.transfer.control import PeerControl
from hoard_p2p.transfer.wire import Announcement, Hello, Record
from hoard_p2p.transfer.wire_names import (
    MARK,
    Comparison,
    Differences,
    Kind,
    Lack,
    Supply,
    encode_comparison,
    encode_differences,
    encode_lack,
    encode_supply,
)
from tests.unit.node_cluster import run, running, until
from tests.unit.node_roots import a_root

NOTHING = Snapshots({}).buckets.digests
SOMETHING, OTHER = b"1" * MARK + NOTHING[MARK:], b"2" * MARK + NOTHING[MARK:]
"""Digests of parts, the first of which is not that of a node that knows nothing."""


class CountingService(FileService):
    """Counts how often its records were asked for."""

    asked = 0

    async def supply(self, lack: Lack) -> Supply:
        self.asked += 1
        return await super().supply(lack)


def record(seed: int, **changes: Json) -> Record:
    root = a_root(seed)
    told = SnapshotRecord(snapshot_id(root), seed, seed, 2, False, 1, True, "/data", 0)
    return {**snapshot_json(told, root), **changes}


def at(service: FileService, port: int) -> Peer:
    return Peer(service.me.node_id, 1, "n9", "", "127.0.0.1", port, 1 << 16)


def test_names_reach_a_node_that_joins_and_then_all_digests_are_equal(tmp_path: Path) -> None:
    async def main() -> None:
        async with running(tmp_path / "a") as first:
            root = a_root(1)
            first.names.add_snapshot(root, SnapshotRecord(snapshot_id(root), 1, 1, 2, False, 1, True, "x", 0))
            first.names.tag(snapshot_id(root), "set", move=False)
            async with running(tmp_path / "b", first) as second:
                await until(lambda: second.names.digests() == first.names.digests())
                assert second.names.resolve("set") == snapshot_id(root)

    run(main)


@pytest.mark.expect_warnings
def test_a_record_that_cannot_be_encoded_does_not_end_the_node(tmp_path: Path) -> None:
    async def main() -> None:
        stranger = FileService(a_peer(9), tmp_path / "f", digests=(SOMETHING, SOMETHING))
        stranger.snapshot_records = [record(1, source="\ud800"), record(2)]
        stranger.ref_records = [{"name": "\ud800"}]
        try:
            with serving(stranger) as port:
                async with running(tmp_path / "a") as node:
                    node.agent.found(Address("127.0.0.1", port))
                    await until(lambda: len(node.names.snapshots()) == 1)
                    stranger.snapshot_records.append(record(3))
                    await node.ask_names()
                    assert len(node.names.snapshots()) == 2
        finally:
            stranger.close()

    run(main)


class BrokenNames(Names):
    """Fails with a bug the first time that it is told something."""

    broken = True

    def merge_snapshots(self, records: Sequence[Record], sender: str) -> int:
        if self.broken:
            self.broken = False
            raise UnicodeEncodeError("utf-8", "\ud800", 0, 1, "surrogates not allowed")
        return super().merge_snapshots(records, sender)


@pytest.mark.expect_warnings
def test_a_bug_in_what_handles_a_peers_lists_is_logged_and_gossip_goes_on(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def main() -> None:
        stranger = CountingService(a_peer(9), tmp_path / "f", snapshot_records=[record(1)], digests=(SOMETHING, b""))
        try:
            with Store.open(tmp_path / "s") as store, ThreadPoolExecutor(1) as pool, serving(stranger) as port:
                names = BrokenNames(store, NodeId(b"m" * 16), time.time_ns)
                async with PeerControl() as control, asyncio.TaskGroup() as group:
                    talk = Gossip(names, control, pool, NodeId(b"m" * 16), tuple, presence=Presence(store, names, pool))
                    task = group.create_task(talk.run())
                    talk.greeted(Hello(stranger.me, "test", snapshots_digest=b"1"), at(stranger, port))
                    await until(lambda: not names.broken)
                    talk.greeted(Hello(stranger.me, "test", snapshots_digest=b"2"), at(stranger, port))
                    await until(lambda: len(names.snapshots()) == 1)
                    task.cancel()
        finally:
            stranger.close()

    run(main)
    assert [entry.levelname for entry in caplog.records if entry.exc_info] == ["ERROR"]


def test_lists_that_brought_nothing_new_are_not_asked_for_again_and_again(tmp_path: Path) -> None:
    async def main() -> None:
        stranger = CountingService(a_peer(9), tmp_path / "f", digests=(SOMETHING, b""))
        try:
            with Store.open(tmp_path / "s") as store, ThreadPoolExecutor(1) as pool, serving(stranger) as port:
                names = Names(store, NodeId(b"m" * 16), time.time_ns)
                async with PeerControl() as control, asyncio.TaskGroup() as group:
                    talk = Gossip(names, control, pool, NodeId(b"m" * 16), tuple, presence=Presence(store, names, pool))
                    task = group.create_task(talk.run())
                    same = Hello(stranger.me, "test", snapshots_digest=b"1", refs_digest=names.digests()[1])
                    talk.greeted(same, at(stranger, port))
                    await until(lambda: stranger.asked == 1)
                    for count in range(2, 5):
                        talk.greeted(same, at(stranger, port))
                        await until(lambda count=count: len(stranger.compared) == count)  # type: ignore[misc]
                    stranger.digests = OTHER, b""
                    talk.greeted(same, at(stranger, port))
                    await until(lambda: stranger.asked >= 2)
                    assert stranger.asked == 2, "for what differed first, and for what differs now"
                    task.cancel()
        finally:
            stranger.close()

    run(main)


class SilentService(FileService):
    """Does not tell what differs."""

    async def compare(self, comparison: Comparison) -> Differences:
        await asyncio.Event().wait()
        return Differences(b"", b"")


def test_who_asks_for_a_list_does_not_wait_long_for_silent_peers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gossip, "ASK_SECONDS", 0.1)

    async def main() -> None:
        silent = SilentService(a_peer(9), tmp_path / "f")
        try:
            with serving(silent) as port:
                async with running(tmp_path / "a") as node:
                    node.agent.found(Address("127.0.0.1", port))
                    await until(lambda: len(node.agent.view().others) == 1)
                    async with asyncio.timeout(5):
                        await node.ask_names()
        finally:
            silent.close()

    run(main)


class OldService(CountingService):
    """Of a version that knows nothing of parts."""

    listed = 0

    def hello(self) -> Hello:
        return Hello(self.me, self.cluster, snapshots_digest=b"1" * 32, refs_digest=b"2" * 32, boot=self.boot)

    async def compare(self, comparison: Comparison) -> Differences:
        raise BadRequest("there is nothing at /v1/compare")

    async def snapshots(self) -> Sequence[Record]:
        self.listed += 1
        return await super().snapshots()


@contextmanager
def strangers(tmp_path: Path, count: int) -> Iterator[list[tuple[FileService, Peer]]]:
    """Nodes that note what they are told."""
    with ExitStack() as stack:
        made = []
        for number in range(1, count + 1):
            service = FileService(a_peer(number), tmp_path / f"f{number}")
            stack.callback(service.close)
            made.append((service, at(service, stack.enter_context(serving(service)))))
        yield made


@asynccontextmanager
async def talking(tmp_path: Path, others: Sequence[Peer]) -> AsyncIterator[Gossip]:
    """Gossip of a node that knows nothing and sees `others`."""
    with Store.open(tmp_path / "s") as store, ThreadPoolExecutor(1) as pool:
        names = Names(store, ME, time.time_ns)
        async with PeerControl() as control, asyncio.TaskGroup() as group:
            talk = Gossip(
                names, control, pool, ME, lambda: others, presence=Presence(store, names, pool), random=Random(1)
            )
            task = group.create_task(talk.run())
            yield talk
            task.cancel()


ME = NodeId(b"m" * 16)


def test_a_peer_of_an_older_version_is_asked_for_its_lists(tmp_path: Path) -> None:
    async def main() -> None:
        old = OldService(a_peer(9), tmp_path / "f", snapshot_records=[record(1)])
        try:
            with serving(old) as port:
                async with running(tmp_path / "a") as node:
                    node.agent.found(Address("127.0.0.1", port))
                    await until(lambda: len(node.names.snapshots()) == 1)
                    listed = 0
                    while listed != old.listed:  # lists that bring nothing new are not asked for again
                        listed = old.listed
                        await node.ask_names()
        finally:
            old.close()

    run(main)


def test_who_has_news_tells_a_few_and_asks_them_to_pass_it_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gossip, "TOLD_FIRST", 2)

    async def main() -> None:
        with strangers(tmp_path, 5) as others:
            async with talking(tmp_path, [peer for _, peer in others]) as talk:
                await talk.announce(Announcement(snapshots=(record(1),)))
            told = [service.announced[0] for service, _ in others if service.announced]
            assert [(news.node, news.pass_on) for news in told] == [(ME, True)] * 2

    run(main)


def test_in_a_small_cluster_all_are_told_and_nobody_passes_it_on(tmp_path: Path) -> None:
    async def main() -> None:
        with strangers(tmp_path, 3) as others:
            async with talking(tmp_path, [peer for _, peer in others]) as talk:
                await talk.announce(Announcement(snapshots=(record(1),)))
                talk.heard(others[0][0].announced[0])
            assert [[news.pass_on for news in service.announced] for service, _ in others] == [[False]] * 3

    run(main)


def test_news_that_not_everybody_was_told_is_passed_on(tmp_path: Path) -> None:
    async def main() -> None:
        with strangers(tmp_path, 3) as others:
            async with talking(tmp_path, [peer for _, peer in others]) as talk:
                talk.heard(Announcement(snapshots=(record(1),), pass_on=True))
                await until(lambda: all(service.announced for service, _ in others))

    run(main)


def test_what_is_announced_and_known_already_is_not_passed_on(tmp_path: Path) -> None:
    async def main() -> None:
        with strangers(tmp_path, 1) as others:
            async with running(tmp_path / "a") as node:
                node.agent.found(Address("127.0.0.1", others[0][1].port))
                await until(lambda: len(node.agent.view().others) == 1)
                news = Announcement(snapshots=(record(1),), pass_on=True)
                for _ in range(3):
                    await NodeService(node).announce(news)
                await until(lambda: bool(others[0][0].announced))
                await NodeService(node).announce(Announcement(snapshots=(record(2),), pass_on=True))
                await until(lambda: others[0][0].announced[-1].snapshots[0] == record(2))
                assert len(others[0][0].announced) == 2

    run(main)


def test_who_is_compared_with_asks_back_once(tmp_path: Path) -> None:
    async def main() -> None:
        with strangers(tmp_path, 1) as others:
            service, peer = others[0]
            async with talking(tmp_path, [peer]) as talk:
                talk.compared(Comparison(peer.node_id, b"1" * 32, b"1" * 32, again=True))
                talk.compared(Comparison(NodeId(b"?" * 16), b"1" * 32, b"1" * 32))
                talk.compared(Comparison(peer.node_id, b"1" * 32, b"1" * 32))
                await until(lambda: bool(service.compared))
                assert [asked.again for asked in service.compared] == [True]

    run(main)


def many(count: int) -> dict[SnapshotId, SnapshotRecord]:
    ids = [SnapshotId(Random(number).randbytes(32)) for number in range(count)]
    return {one: SnapshotRecord(one, 5, 5, 2, False, 1, True, "/data/set", 0) for one in ids}


def test_one_difference_among_sixty_thousand_costs_kilobytes() -> None:
    theirs = many(60_000)
    lost = next(iter(theirs))
    ours = {one: known for one, known in theirs.items() if one != lost}
    asked, answerer = Snapshots(ours).buckets, Snapshots(theirs).buckets
    parts = tuple((part, asked.marks(part)) for part in asked.differing(answerer.digests))
    supplied = [one for part, marks in parts for one in answerer.missing(part, marks)]
    assert [one.id for one in supplied] == [lost]
    said = [
        encode_comparison(Comparison(ME, bytes(32), bytes(32))),
        encode_differences(Differences(answerer.digests, b"")),
        encode_lack(Lack(Kind.SNAPSHOTS, parts)),
        encode_supply(Supply((snapshot_json(supplied[0], a_root(1)),), more=False)),
    ]
    assert sum(map(len, said)) < 8 << 10


def test_a_node_that_knows_nothing_takes_everything_page_by_page(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(names_exchange, "MAX_SUPPLIED", 500)

    async def main() -> None:
        async with running(tmp_path / "a") as first:
            first.names.merge_snapshots([record(seed) for seed in range(1, 40)], "a test")
            async with running(tmp_path / "b", first) as second:
                await until(lambda: second.names.digests() == first.names.digests())

    run(main)


def test_what_is_known_after_changes_is_told_as_if_it_had_been_known_at_once() -> None:
    random, known = Random(7), Snapshots(many(300))
    fresh = iter(many(400).items())
    for _ in range(40):
        changed = dict(known.records)
        for one in random.sample(sorted(changed), 3):
            changed[one] = tombstone(one, 9)
        del changed[random.choice(sorted(changed))]
        changed.update(next(fresh) for _ in range(2))
        known = known.after(changed)
        anew = Snapshots(dict(changed))
        assert (known.digest, known.told, known.buckets.digests) == (anew.digest, anew.told, anew.buckets.digests)
