"""Nodes that find each other, and are members, by leases in a real etcd."""

import asyncio
import base64
import json
import os
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from hoard_p2p.errors import Refused, Unavailable
from hoard_p2p.ids import SnapshotId, snapshot_id
from hoard_p2p.node.app import Node
from hoard_p2p.registry import Change, parse_registry
from hoard_p2p.storage.records import RefRecord, SnapshotRecord
from hoard_p2p.transfer.etcd import EtcdClient
from tests.realetcd import RealEtcd, needs_etcd, real_etcd
from tests.unit.node_cluster import run, running, until
from tests.unit.node_roots import a_root

pytestmark = needs_etcd


@pytest.fixture
def etcd(tmp_path: Path) -> Iterator[RealEtcd]:
    (tmp_path / "etcd").mkdir()
    with real_etcd(tmp_path / "etcd") as one:
        yield one


def client(etcd: RealEtcd) -> EtcdClient:
    return EtcdClient(parse_registry(f"etcd:{etcd.url}"))


def compact(etcd: RealEtcd, revision: int) -> None:
    body = json.dumps({"revision": revision, "physical": True}).encode()
    urllib.request.urlopen(f"{etcd.url}/v3/kv/compaction", body, timeout=5).close()


def names(node: Node) -> set[str]:
    return {peer.name for peer in node.agent.view().peers}


@contextmanager
def a_process(data_dir: Path, etcd: RealEtcd) -> Iterator["subprocess.Popen[bytes]"]:
    argv = [sys.executable, "-m", "hoard_p2p.cli.main", "up", "--data-dir", str(data_dir), "--cluster", "test"]
    argv += ["--listen", "127.0.0.1:0", "--name", "other", "--capacity", "1GiB", "--discovery", f"etcd:{etcd.url}"]
    process = subprocess.Popen(argv, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        yield process
    finally:
        process.kill()
        process.wait(10)


def add_set(node: Node, seed: int) -> SnapshotId:
    """A snapshot that the node shows, and has told nobody."""
    root = a_root(seed)
    one = snapshot_id(root)
    node.names.add_snapshot(root, SnapshotRecord(one, 1, 1, 2, False, 1, True, "x", 0))
    return one


# --- the client


def test_the_client_lists_in_pages_sets_and_compares(etcd: RealEtcd, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hoard_p2p.transfer.etcd.PAGE", 3)

    async def main() -> None:
        async with client(etcd) as registry:
            for number in range(10):
                await registry.put(f"/a/{number}", b"%d" % number)
            await registry.put("/b/0", b"other")
            listing = await registry.list("/a/")
            assert [entry.value for entry in listing.entries] == [b"%d" % number for number in range(10)]
            seen = await registry.get("/a/3")
            assert seen is not None and await registry.get("/a/99") is None
            assert await registry.put_if("/a/3", b"x", revision=seen.revision)
            assert not await registry.put_if("/a/3", b"y", revision=seen.revision)
            assert await registry.put_if("/a/99", b"new", revision=0)
            assert not await registry.put_if("/a/99", b"newer", revision=0)

    run(main)


def test_a_key_goes_with_its_lease_and_a_lease_that_ended_is_told(etcd: RealEtcd) -> None:
    async def main() -> None:
        async with client(etcd) as registry:
            lease = await registry.grant(60)
            await registry.put("/n/1", b"me", lease=lease)
            assert await registry.keep_alive(lease)
            await registry.revoke(lease)
            assert await registry.get("/n/1") is None
            assert not await registry.keep_alive(lease)
            with pytest.raises(Unavailable, match="lease"):
                await registry.put("/n/1", b"me", lease=lease)

    run(main)


def test_a_watch_tells_changes_in_order_and_ends_where_history_was_compacted_away(etcd: RealEtcd) -> None:
    async def main() -> None:
        async with client(etcd) as registry:
            start = (await registry.list("/w/")).revision
            lease = await registry.grant(60)
            await registry.put("/w/1", b"a", lease=lease)
            await registry.put("/x/1", b"not watched")
            await registry.revoke(lease)
            told: list[Change] = []
            watch = registry.watch("/w/", start + 1)
            async for changes in watch:
                told += changes
                if len(told) == 2:
                    break
            await watch.aclose()
            assert [(change.key, change.value) for change in told] == [("/w/1", b"a"), ("/w/1", None)]
            compact(etcd, told[-1].revision)
            assert [changes async for changes in registry.watch("/w/", start + 1)] == []

    run(main)


def test_the_next_member_is_asked_when_one_does_not_answer(etcd: RealEtcd) -> None:
    async def main() -> None:
        async with EtcdClient(parse_registry(f"etcd:http://127.0.0.1:1,{etcd.url}")) as registry:
            await registry.put("/a", b"1")
            assert await registry.get("/a") is not None

    run(main)


def test_a_member_that_is_no_etcd_and_one_that_is_gone_are_unavailable(etcd: RealEtcd) -> None:
    etcd.stop()

    async def main() -> None:
        async with client(etcd) as registry:
            with pytest.raises(Unavailable, match=r"127\.0\.0\.1"):
                await registry.get("/a")
            with pytest.raises(Unavailable, match=r"127\.0\.0\.1"):
                async for _ in registry.watch("/a/", 1):
                    raise AssertionError("nothing is told")

    run(main)


def _ask(etcd: RealEtcd, path: str, body: dict[str, object], token: str = "") -> dict[str, object]:
    headers = {"Authorization": token} if token else {}
    request = urllib.request.Request(f"{etcd.url}/v3/{path}", json.dumps(body).encode(), headers)
    with urllib.request.urlopen(request, timeout=5) as answer:
        told: dict[str, object] = json.loads(answer.read())
    return told


def test_user_and_password_are_used_where_etcd_wants_them(etcd: RealEtcd) -> None:
    _ask(etcd, "auth/user/add", {"name": "root", "password": "secret"})
    _ask(etcd, "auth/role/add", {"name": "root"})
    _ask(etcd, "auth/user/grant", {"user": "root", "role": "root"})
    _ask(etcd, "auth/enable", {})

    async def main() -> None:
        place = etcd.url.removeprefix("http://")
        async with EtcdClient(parse_registry(f"etcd:http://root:secret@{place}")) as registry:
            await registry.put("/a/1", b"1")
            assert len((await registry.list("/a/")).entries) == 1
        async with EtcdClient(parse_registry(f"etcd:http://root:wrong@{place}")) as registry:
            with pytest.raises(Unavailable, match="refuses"):
                await registry.get("/a/1")

    run(main)


# --- membership


def test_nodes_meet_by_etcd_and_one_that_stops_is_gone_at_once(etcd: RealEtcd, tmp_path: Path) -> None:
    async def main() -> None:
        way = f"etcd:{etcd.url}"
        async with running(tmp_path / "a", discovery=way) as first:
            async with running(tmp_path / "b", discovery=way) as second:
                await until(lambda: names(first) == names(second) == {"a", "b"})
            await until(lambda: names(first) == {"a"}, 3)

    run(main)


def test_a_node_that_is_killed_leaves_the_view_with_its_lease(etcd: RealEtcd, tmp_path: Path) -> None:
    async def main() -> None:
        async with running(tmp_path / "a", discovery=f"etcd:{etcd.url}") as node:
            with a_process(tmp_path / "b", etcd) as process:
                await until(lambda: names(node) == {"a", "other"})
                os.kill(process.pid, signal.SIGKILL)
                await until(lambda: names(node) == {"a"}, 20)

    run(main)


def test_a_node_that_answers_and_lost_its_lease_leaves_the_view_and_comes_back(etcd: RealEtcd, tmp_path: Path) -> None:
    async def main() -> None:
        way = f"etcd:{etcd.url}"
        async with running(tmp_path / "a", discovery=way) as first, running(tmp_path / "b", discovery=way) as second:
            await until(lambda: names(first) == names(second) == {"a", "b"})
            async with client(etcd) as registry:
                key = base64.b64encode(f"/hoard/test/nodes/{second.me.node_id.hex()}".encode()).decode()
                found = _ask(etcd, "kv/range", {"key": key})["kvs"]
                assert isinstance(found, list)
                await registry.revoke(int(found[0]["lease"]))
            await until(lambda: names(first) == {"a"})
            await until(lambda: names(first) == {"a", "b"})

    run(main)


def test_a_node_whose_key_was_taken_away_enters_itself_again(etcd: RealEtcd, tmp_path: Path) -> None:
    async def main() -> None:
        way = f"etcd:{etcd.url}"
        async with running(tmp_path / "a", discovery=way) as first, running(tmp_path / "b", discovery=way) as second:
            await until(lambda: names(first) == names(second) == {"a", "b"})
            key = base64.b64encode(f"/hoard/test/nodes/{second.me.node_id.hex()}".encode()).decode()
            _ask(etcd, "kv/deleterange", {"key": key})
            await until(lambda: names(first) == {"a"})
            await until(lambda: names(first) == {"a", "b"})

    run(main)


@pytest.mark.expect_warnings
@pytest.mark.parametrize("empty", [False, True], ids=["with what it knew", "empty"])
def test_while_etcd_is_gone_the_view_stays_and_afterwards_nobody_was_missed(
    etcd: RealEtcd, tmp_path: Path, empty: bool
) -> None:
    async def main() -> None:
        way = f"etcd:{etcd.url}"
        async with running(tmp_path / "a", discovery=way) as first, running(tmp_path / "b", discovery=way) as second:
            await until(lambda: names(first) == names(second) == {"a", "b"})
            views: list[set[str]] = []
            watching = first.group.create_task(_note_views(first, views))
            await asyncio.to_thread(etcd.stop)
            await asyncio.sleep(4)
            await asyncio.to_thread(etcd.start, empty=empty)
            async with running(tmp_path / "c", discovery=way) as third:
                await until(lambda: names(third) == names(first) == names(second) == {"a", "b", "c"})
            await until(lambda: names(first) == {"a", "b"}, 40)
            watching.cancel()
            assert all({"a", "b"} <= view for view in views)

    run(main)


async def _note_views(node: Node, views: list[set[str]]) -> None:
    while True:
        views.append(names(node))
        await asyncio.sleep(0.02)


@pytest.mark.expect_warnings
def test_a_node_starts_without_etcd_and_meets_the_others_when_it_is_there(etcd: RealEtcd, tmp_path: Path) -> None:
    etcd.stop()

    async def main() -> None:
        way = f"etcd:{etcd.url}"
        async with running(tmp_path / "a", discovery=way) as first, running(tmp_path / "b", discovery=way) as second:
            await asyncio.to_thread(etcd.start)
            await until(lambda: names(first) == names(second) == {"a", "b"})

    run(main)


# --- names


def test_of_two_who_set_one_name_at_the_same_time_one_is_refused(etcd: RealEtcd, tmp_path: Path) -> None:
    async def main() -> None:
        way = f"etcd:{etcd.url}"
        async with running(tmp_path / "a", discovery=way) as first, running(tmp_path / "b", discovery=way) as second:
            for attempt in range(5):
                sets = add_set(first, 2 * attempt), add_set(second, 2 * attempt + 1)
                won, refused = list[RefRecord](), list[Refused]()

                async def tag(
                    node: Node,
                    one: SnapshotId,
                    name: str = f"set:{attempt}",
                    won: list[RefRecord] = won,
                    refused: list[Refused] = refused,
                ) -> None:
                    try:
                        won.append(await node.naming.tag(one, name, move=False))
                    except Refused as error:
                        refused.append(error)

                async with asyncio.TaskGroup() as group:
                    group.create_task(tag(first, sets[0]))
                    group.create_task(tag(second, sets[1]))
                assert (len(won), len(refused)) == (1, 1)
                await until(lambda: first.names.ref(won[0].name) == second.names.ref(won[0].name) == won[0])  # noqa: B023

    run(main)


def test_a_name_that_is_set_moved_and_removed_follows_on_every_node(etcd: RealEtcd, tmp_path: Path) -> None:
    async def main() -> None:
        way = f"etcd:{etcd.url}"
        async with running(tmp_path / "a", discovery=way) as first, running(tmp_path / "b", discovery=way) as second:
            old, new = add_set(first, 1), add_set(first, 2)
            await first.naming.tag(old, "set", move=False)
            await until(lambda: second.names.names_of(old) == ["set:latest"])
            await first.naming.tag(new, "set", move=True)
            await until(lambda: second.names.names_of(new) == ["set:latest"])
            moved = second.names.ref("set:latest")
            assert moved is not None and [value.snapshot for value in moved.history] == [old]
            await second.naming.untag("set")
            await until(lambda: first.names.refs() == [])

    run(main)


@pytest.mark.expect_warnings
def test_without_etcd_names_are_read_and_a_change_is_unavailable(etcd: RealEtcd, tmp_path: Path) -> None:
    async def main() -> None:
        async with running(tmp_path / "a", discovery=f"etcd:{etcd.url}") as node:
            one = add_set(node, 1)
            await node.naming.tag(one, "set", move=False)
            await asyncio.to_thread(etcd.stop)
            assert await node.resolve("set") == one
            with pytest.raises(Unavailable, match="set:latest cannot be changed now, since names are in etcd"):
                await node.naming.untag("set")
            assert node.names.names_of(one) == ["set:latest"]
            await asyncio.to_thread(etcd.start, empty=True)
            async with running(tmp_path / "b", discovery=f"etcd:{etcd.url}") as other:
                await until(lambda: other.names.names_of(one) == ["set:latest"])
                await node.naming.untag("set")

    run(main)
