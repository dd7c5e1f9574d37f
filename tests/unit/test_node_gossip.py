"""How nodes learn of each other's names, and what strangers may tell them."""

import asyncio
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from hoard_p2p.cluster.discovery import Address
from hoard_p2p.config import Json
from hoard_p2p.ids import snapshot_id
from hoard_p2p.node import gossip
from hoard_p2p.node.gossip import Gossip
from hoard_p2p.node.names import Names
from hoard_p2p.node.names_wire import snapshot_json
from hoard_p2p.peer import NodeId, Peer
from hoard_p2p.storage.records import SnapshotRecord
from hoard_p2p.storage.store import Store
from hoard_p2p.testing.network import FileService, a_peer, serving
from hoard_p2p.transfer.control import PeerControl
from hoard_p2p.transfer.wire import Hello, Record
from tests.unit.node_cluster import run, running, until
from tests.unit.node_roots import a_root


class CountingService(FileService):
    """Counts how often its list was asked for."""

    asked = 0

    async def snapshots(self) -> Sequence[Record]:
        self.asked += 1
        return await super().snapshots()


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
        stranger = FileService(a_peer(9), tmp_path / "f")
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
        stranger = CountingService(a_peer(9), tmp_path / "f", snapshot_records=[record(1)])
        try:
            with Store.open(tmp_path / "s") as store, ThreadPoolExecutor(1) as pool, serving(stranger) as port:
                names = BrokenNames(store, NodeId(b"m" * 16), time.time_ns)
                async with PeerControl() as control, asyncio.TaskGroup() as group:
                    talk = Gossip(names, control, pool)
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
        stranger = CountingService(a_peer(9), tmp_path / "f")
        try:
            with Store.open(tmp_path / "s") as store, ThreadPoolExecutor(1) as pool, serving(stranger) as port:
                names = Names(store, NodeId(b"m" * 16), time.time_ns)
                async with PeerControl() as control, asyncio.TaskGroup() as group:
                    talk = Gossip(names, control, pool)
                    task = group.create_task(talk.run())
                    same = Hello(stranger.me, "test", snapshots_digest=b"1", refs_digest=names.digests()[1])
                    talk.greeted(same, at(stranger, port))
                    await until(lambda: stranger.asked == 1)
                    await control.snapshots(at(stranger, port))  # the answer to the first has been read by then
                    await asyncio.get_running_loop().run_in_executor(pool, int)
                    await asyncio.sleep(0)
                    for _ in range(5):
                        talk.greeted(same, at(stranger, port))
                    other = Hello(stranger.me, "test", snapshots_digest=b"2", refs_digest=names.digests()[1])
                    talk.greeted(other, at(stranger, port))
                    await until(lambda: stranger.asked >= 3)
                    assert stranger.asked == 3, "ours, the barrier, and the one for the new digest"
                    task.cancel()
        finally:
            stranger.close()

    run(main)


class SilentService(FileService):
    """Does not tell its lists."""

    async def snapshots(self) -> Sequence[Record]:
        await asyncio.Event().wait()
        return ()


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
