"""Publishing from an origin over real nodes: a directory that all of them see."""

import os
from pathlib import Path
from random import Random

import pytest

from hoard_p2p.catalog.root import decode
from hoard_p2p.cli.answers import Fields
from hoard_p2p.config import Json
from hoard_p2p.errors import BadRequest
from hoard_p2p.ids import SnapshotId, parse_snapshot_id
from hoard_p2p.node.app import Node
from hoard_p2p.node.autosealing import AutoSealing
from hoard_p2p.node.publishing import publish
from tests.unit.node_cluster import run, running, until

Body = dict[str, Json]
MIB = 1 << 20


def a_tree(path: Path) -> Path:
    """Small files, two that are equal, an empty one, and one of several pieces."""
    draw = Random(6)
    (path / "sub").mkdir(parents=True)
    for number in range(20):
        (path / "sub" / f"{number:02d}").write_bytes(draw.randbytes(30_000 + number))
    (path / "twin").write_bytes((path / "sub" / "00").read_bytes())
    (path / "empty").write_bytes(b"")
    (path / "large").write_bytes(draw.randbytes(9 * MIB + 5))
    return path


async def published(node: Node, source: Path, reports: list[Body] | None = None, **options: Json) -> Body:
    async def report(body: Body) -> None:
        if reports is not None:
            reports.append(body)

    fd = os.open(source, os.O_RDONLY | os.O_DIRECTORY)
    try:
        return await publish(node, fd, {"source": os.fspath(source), "shared_origin": True, **options}, report)
    finally:
        os.close(fd)


def lazy(node: Node, snapshot: SnapshotId) -> bool:
    root = node.names.root(snapshot)
    return root is not None and decode(root).lazy


def read_origin(*nodes: Node) -> int:
    """Bytes that the nodes read from their origins."""
    told = [Fields({"origins": node.known_origins.body(lambda _: 0)}) for node in nodes]
    return sum(origin.number("read") for one in told for origin in one.rows("origins"))


def test_a_lazy_publish_shows_and_names_what_it_listed_and_reads_nothing(tmp_path: Path) -> None:
    async def main() -> None:
        async with running(tmp_path / "n") as node:
            told = await published(node, a_tree(tmp_path / "set"), lazy=True, name="set:1", replicas=1)
            snapshot = parse_snapshot_id(str(told["snapshot"]))
            assert told["lazy"] is True and told["files"] == 23
            assert [record.id for record in node.names.snapshots()] == [snapshot]
            assert lazy(node, snapshot) and node.names.names_of(snapshot) == ["set:1"]
            assert read_origin(node) == 0

    run(main)


def test_a_shared_origin_is_read_sealed_and_shown(tmp_path: Path) -> None:
    async def main() -> None:
        async with running(tmp_path / "n") as node:
            told = await published(node, a_tree(tmp_path / "set"), name="set:1", replicas=1)
            snapshot = parse_snapshot_id(str(told["snapshot"]))
            assert told["lazy"] is False and not lazy(node, snapshot)
            assert [record.id for record in node.names.known()] == [snapshot], "nothing hidden is left"
            opened = await node.open(snapshot)
            here = await node.blocking(node.held.residency, snapshot, opened.catalog)
            assert all(here.holds(segment) for segment in range(opened.catalog.segments))
            assert await node.blocking(node.store.holds, snapshot) == set(range(opened.catalog.segments))

    run(main)


def test_three_nodes_read_their_shares_and_each_byte_once(tmp_path: Path) -> None:
    async def main() -> None:
        allow = [tmp_path]
        async with (
            running(tmp_path / "a", allow=allow) as a,
            running(tmp_path / "b", a, allow=allow) as b,
            running(tmp_path / "c", a, b, allow=allow) as c,
        ):
            source = a_tree(tmp_path / "set")
            size = sum(file.stat().st_size for file in source.rglob("*") if file.is_file())
            told = await published(a, source, replicas=2)
            snapshot = parse_snapshot_id(str(told["snapshot"]))
            assert told["under_replicated"] == 0
            await until(lambda: all(snapshot in {one.id for one in node.names.snapshots()} for node in (b, c)))
            opened = await a.open(snapshot)
            held = [await node.blocking(node.store.holds, snapshot) for node in (a, b, c)]
            copies = [sum(segment in one for one in held) for segment in range(opened.catalog.segments)]
            assert copies == [2] * opened.catalog.segments
            sample = 32 * 40_000 + 9 * MIB  # what sealing reads again, at most
            assert size <= read_origin(a, b, c) <= size + sample

    run(main)


def test_a_second_publish_reads_what_changed(tmp_path: Path) -> None:
    async def main() -> None:
        async with running(tmp_path / "n") as node:
            source = a_tree(tmp_path / "set")
            first = await published(node, source, replicas=1)
            again = await published(node, source, replicas=1)
            assert again["snapshot"] == first["snapshot"]
            assert (again["read"], again["unchanged"], again["stored"]) == (0, 23, 0)
            (source / "sub" / "07").write_bytes(b"other")
            third = await published(node, source, replicas=1)
            assert third["snapshot"] != first["snapshot"]
            assert (third["read"], third["unchanged"], third["stored"]) == (1, 22, 5)

    run(main)


def test_the_sealed_id_is_that_of_the_bytes_wherever_they_lie(tmp_path: Path) -> None:
    async def main() -> None:
        async with running(tmp_path / "n") as node:
            first = await published(node, a_tree(tmp_path / "one"), replicas=1, reproducible=True)
            second = await published(node, a_tree(tmp_path / "two"), replicas=1, reproducible=True)
            assert first["snapshot"] == second["snapshot"]

    run(main)


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"lazy": True, "shared_origin": False}, "--lazy"),
        ({"lazy": True, "chunker": "fastcdc"}, "--chunker"),
        ({"rehash": True}, "--rehash"),
    ],
)
def test_wishes_that_cannot_go_together_are_refused(tmp_path: Path, options: Body, why: str) -> None:
    async def main() -> None:
        async with running(tmp_path / "n") as node:
            with pytest.raises(BadRequest, match=why):
                await published(node, a_tree(tmp_path / "set"), None, **options)

    run(main)


def test_a_chunker_means_that_this_node_reads_all_and_keeps_it(tmp_path: Path) -> None:
    async def main() -> None:
        async with running(tmp_path / "n") as node:
            told = await published(node, a_tree(tmp_path / "set"), chunker="fastcdc", replicas=1)
            assert "lazy" not in told and str(told["origin"]).startswith("dir:")
            assert read_origin(node) == 0

    run(main)


@pytest.mark.expect_warnings
def test_what_cannot_be_sealed_since_an_object_changed_is_not_read_again_and_again(tmp_path: Path) -> None:
    async def main() -> None:
        source, now = a_tree(tmp_path / "set"), [1e6]
        async with running(tmp_path / "n") as node:
            told = await published(node, source, lazy=True, replicas=1)
            opened = await node.open(parse_snapshot_id(str(told["snapshot"])))
            await node.pull(opened.id, range(opened.catalog.segments), None)
            os.utime(source / "large", ns=(1, 1))
            sealing, read = AutoSealing(node, lambda: now[0]), list[int]()
            for _ in range(6):
                await sealing.look()
                read.append(read_origin(node))
                now[0] += 60
            assert lazy(node, opened.id) and read[0] == read[-1]

    run(main)
