"""Publishing over real nodes: names that are taken, and what is shown when."""

import os
from dataclasses import replace
from pathlib import Path

import pytest

from hoard_p2p.config import Json
from hoard_p2p.errors import BadRequest, Refused
from hoard_p2p.ids import SnapshotId, parse_snapshot_id
from hoard_p2p.node.app import Node
from hoard_p2p.node.publishing import publish
from hoard_p2p.node.roots import find_root
from hoard_p2p.node.service import NodeService
from hoard_p2p.transfer.wire import AdoptReply, AdoptRequest
from tests.unit.node_cluster import run, running, until

Body = dict[str, Json]


def a_tree(path: Path, text: str = "text") -> Path:
    path.mkdir()
    (path / "file").write_text(text)
    return path


async def published(node: Node, source: Path, reports: list[Body] | None = None, **options: Json) -> Body:
    async def report(body: Body) -> None:
        if reports is not None:
            reports.append({**body, "shown": len(node.names.snapshots())})

    fd = os.open(source, os.O_RDONLY | os.O_DIRECTORY)
    try:
        return await publish(node, fd, {"source": os.fspath(source), **options}, report)
    finally:
        os.close(fd)


def test_a_name_that_is_taken_is_told_at_once_and_refused_at_the_end(tmp_path: Path) -> None:
    async def main() -> None:
        async with running(tmp_path / "n") as node:
            first = await published(node, a_tree(tmp_path / "a"), name="set:1", replicas=1)
            reports: list[Body] = []
            with pytest.raises(Refused, match=r"published [0-9a-f]{64}, but set:1 names"):
                await published(node, a_tree(tmp_path / "b", "other"), reports, name="set:1", replicas=1)
            assert str(first["snapshot"])[:12] in str(reports[0]["note"])
            assert len(node.names.snapshots()) == 2, "what was published stays"

    run(main)


def test_who_looks_for_a_snapshot_while_it_is_being_published_here_finds_it(tmp_path: Path) -> None:
    """A collection of garbage does, for what is leased; the publish then shares that look."""

    async def main() -> None:
        async with running(tmp_path / "a") as other:
            name = str((await published(other, a_tree(tmp_path / "s"), replicas=1))["snapshot"])
            snapshot = parse_snapshot_id(name)
            root, record = other.names.root(snapshot), other.names.snapshot(snapshot)
            assert root is not None and record is not None
            known = (root, replace(record, shown=False))
            looking: list[Node] = []

            class PublishedMeanwhile(NodeService):
                async def root(self, snapshot: SnapshotId) -> bytes | None:
                    for node in looking:
                        node.names.add_snapshot(*known)
                    return None

            async with (
                running(tmp_path / "b", service=PublishedMeanwhile) as peer,
                running(tmp_path / "n", peer) as node,
            ):
                looking.append(node)
                assert await find_root(node, snapshot) == root

    run(main)


def test_identical_content_under_its_own_name_is_published_again(tmp_path: Path) -> None:
    async def main() -> None:
        async with running(tmp_path / "n") as node:
            first = await published(node, a_tree(tmp_path / "a"), name="set:1", replicas=1)
            reports: list[Body] = []
            again = await published(node, tmp_path / "a", reports, name="set:1", replicas=1)
            assert again["snapshot"] == first["snapshot"]
            assert reports[-1]["note"] == "set:1 names it already"

    run(main)


@pytest.mark.parametrize("replicas", [0, -1, 1 << 16, True, "2", 1.5])
def test_a_number_of_copies_that_cannot_be_is_refused(tmp_path: Path, replicas: Json) -> None:
    async def main() -> None:
        async with running(tmp_path / "n") as node:
            with pytest.raises(BadRequest, match="copies"):
                await published(node, a_tree(tmp_path / "a"), replicas=replicas)

    run(main)


def test_what_was_removed_and_is_published_again_is_not_shown_before_its_copies_exist(tmp_path: Path) -> None:
    async def main() -> None:
        async with running(tmp_path / "n") as node, running(tmp_path / "m", node) as home:
            source = a_tree(tmp_path / "a")
            told = await published(node, source, replicas=2)
            snapshot = parse_snapshot_id(str(told["snapshot"]))
            assert [record.id for record in home.names.snapshots()] == [snapshot]
            await node.remove(snapshot, force=False)
            assert home.names.snapshots() == []

            reports: list[Body] = []
            again = await published(node, source, reports, replicas=2)
            assert {body["shown"] for body in reports} == {0}
            assert any(body.get("phase") == "replicating" for body in reports)
            assert again["under_replicated"] == 0, "homes take back what they know as removed"
            assert [record.id for record in home.names.snapshots()] == [snapshot]
            await until(lambda: node.names.digests() == home.names.digests())

    run(main)


@pytest.mark.expect_warnings
def test_a_home_that_only_says_it_stored_is_found_out_and_its_copies_do_not_count(tmp_path: Path) -> None:
    class Liar(NodeService):
        async def adopt(self, request: AdoptRequest) -> AdoptReply:
            return AdoptReply(request.segments)

    async def main() -> None:
        async with running(tmp_path / "n") as node, running(tmp_path / "m", node, service=Liar):
            told = await published(node, a_tree(tmp_path / "a"), replicas=2)
            assert told["under_replicated"] == 1

    run(main)


def test_the_publishers_wishes_are_known_at_the_homes(tmp_path: Path) -> None:
    async def main() -> None:
        async with running(tmp_path / "n") as node, running(tmp_path / "m", node) as home:
            await published(node, a_tree(tmp_path / "a"), replicas=2)
            (record,) = home.names.snapshots()
            (own,) = node.names.snapshots()
            assert (record.source, record.replicas, record.keep, record.created) == (
                own.source,
                own.replicas,
                own.keep,
                own.created,
            )
            assert record.source == os.fspath(tmp_path / "a")
            assert node.names.digests() == home.names.digests()

    run(main)
