"""What a status shows when records are damaged and peers are silent."""

import asyncio
import os
import threading
from pathlib import Path

import pytest

from hoard_p2p.cluster.discovery import Address
from hoard_p2p.config import Json
from hoard_p2p.ids import SnapshotId, snapshot_id
from hoard_p2p.interfaces import Residency
from hoard_p2p.node import status
from hoard_p2p.node.app import Node
from hoard_p2p.node.publishing import publish
from hoard_p2p.node.status import full_status, snapshot_body
from hoard_p2p.storage.records import SnapshotRecord
from hoard_p2p.storage.store import Store
from hoard_p2p.testing.network import FileService, a_peer, serving
from tests.unit.node_cluster import run, running, until
from tests.unit.node_roots import a_root


@pytest.mark.expect_warnings
def test_one_damaged_root_does_not_break_a_listing(tmp_path: Path) -> None:
    bad, good = b"no root", a_root(1)
    with Store.open(tmp_path / "a") as store:
        for root in (bad, good):
            store.put_root(snapshot_id(root), root, SnapshotRecord(snapshot_id(root), 1, 1, 2, False, 1, True, "x", 0))

    async def main() -> None:
        async with running(tmp_path / "a") as node:
            records = node.names.snapshots()
            bodies = [snapshot_body(node, record, node.names.root(record.id)) for record in records]
            assert {body["id"]: body["files"] for body in bodies} == {
                snapshot_id(bad).hex(): 0,
                snapshot_id(good).hex(): 1,
            }
            told = await full_status(node)
            assert isinstance(told["snapshots"], list)
            assert len(told["snapshots"]) == 2

    run(main)


class SilentService(FileService):
    """Does not tell what it holds."""

    async def residency(self, snapshot: SnapshotId) -> Residency | None:
        await asyncio.Event().wait()
        return None


class MeetingService(FileService):
    """Tells what it holds when another is asked at the same time."""

    meeting: threading.Barrier
    met = False

    async def residency(self, snapshot: SnapshotId) -> Residency | None:
        await asyncio.to_thread(self.meeting.wait, 5)
        self.met = True
        return Residency(snapshot, self.me.node_id, 1, b"\x01")


def small(source: Path) -> Path:
    source.mkdir()
    (source / "file").write_text("text")
    return source


async def publish_one(node: Node, source: Path) -> None:
    async def report(body: dict[str, Json]) -> None:
        return

    fd = os.open(source, os.O_RDONLY | os.O_DIRECTORY)
    try:
        await publish(node, fd, {"replicas": 1}, report)
    finally:
        os.close(fd)


async def status_of_one(node: Node) -> dict[str, Json]:
    told = await full_status(node)
    assert isinstance(told["snapshots"], list)
    (body,) = told["snapshots"]
    assert isinstance(body, dict)
    return body


def test_a_silent_peer_costs_a_few_seconds_and_the_count_of_copies(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def main() -> None:
        silent = SilentService(a_peer(9), tmp_path / "f")
        try:
            async with running(tmp_path / "a") as node:
                await publish_one(node, small(tmp_path / "s"))
                assert (await status_of_one(node))["under_replicated"] == 0
                monkeypatch.setattr(status, "COUNT_SECONDS", 0.3)
                with serving(silent) as port:
                    node.agent.found(Address("127.0.0.1", port))
                    await until(lambda: len(node.agent.view().others) == 1)
                    async with asyncio.timeout(5):
                        body = await status_of_one(node)
                assert (body["state"], body["segments_here"], body["under_replicated"]) == ("whole", 1, None)
        finally:
            silent.close()

    run(main)


def test_peers_are_asked_at_the_same_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(status, "COUNT_SECONDS", 20.0)

    async def main() -> None:
        peers = [MeetingService(a_peer(number), tmp_path / f"f{number}") for number in (8, 9)]
        peers[0].meeting = peers[1].meeting = threading.Barrier(2)
        try:
            async with running(tmp_path / "a") as node:
                await publish_one(node, small(tmp_path / "s"))
                with serving(peers[0]) as first, serving(peers[1]) as second:
                    for port in (first, second):
                        node.agent.found(Address("127.0.0.1", port))
                    await until(lambda: len(node.agent.view().others) == 2)
                    assert (await status_of_one(node))["under_replicated"] == 0
                    assert [peer.met for peer in peers] == [True, True]
        finally:
            for peer in peers:
                peer.close()

    run(main)
