"""Publishing a directory again over a real node: what is read, and what is forgotten."""

import os
from pathlib import Path

from hoard_p2p.config import Json
from hoard_p2p.ids import SnapshotId, chunk_id, parse_snapshot_id
from hoard_p2p.node.app import Node
from hoard_p2p.node.publishing import publish
from hoard_p2p.node.shelf import Shelf
from hoard_p2p.publish.stamps import StampFile
from tests.unit.node_cluster import run, running
from tests.unit.publish_stamps import aged

Body = dict[str, Json]


class Source:
    """A directory that a node publishes again and again."""

    def __init__(self, node: Node, path: Path) -> None:
        self._node = node
        self._path = path
        self.reports: list[Body] = []

    async def publish(self, **options: Json) -> tuple[SnapshotId, Json, Json]:
        """The snapshot, and how many files were read and unchanged."""

        async def report(body: Body) -> None:
            self.reports.append(body)

        self.reports.clear()
        fd = os.open(self._path, os.O_RDONLY | os.O_DIRECTORY)
        try:
            told = await publish(self._node, fd, {"source": os.fspath(self._path), "replicas": 1, **options}, report)
        finally:
            os.close(fd)
        assert (told["files"], told["bytes"]) == (3, 3000)
        return parse_snapshot_id(str(told["snapshot"])), told["read"], told["unchanged"]

    @property
    def was_read(self) -> bool:
        """Whether an ingest process ran."""
        return any(report.get("phase") == "reading" for report in self.reports)

    def shelf(self) -> list[Path]:
        return list((self._node.settings.data_dir / "stamps").iterdir())

    def age(self) -> None:
        """As if the last publish had begun later."""
        (path,) = self.shelf()
        with path.open("rb") as file:
            data = aged(StampFile(file.fileno()))
        path.write_bytes(data)


def a_source(node: Node, path: Path) -> Source:
    path.mkdir()
    for name in ("a", "b", "c"):
        (path / name).write_text(name * 1000)
    return Source(node, path)


def test_a_node_reads_what_changed_and_nothing_else(tmp_path: Path) -> None:
    async def main() -> None:
        async with running(tmp_path / "n") as node:
            source = a_source(node, tmp_path / "s")
            first = await source.publish()
            assert first[1:] == (3, 0)
            source.age()
            again = await source.publish(name="set:1")
            assert again == (first[0], 0, 3)
            assert not source.was_read
            assert node.leases.users(first[0]) == []

            (tmp_path / "s" / "b").write_text("B" * 1000)
            second = await source.publish()
            assert second[1:] == (1, 2)
            assert (await source.publish(rehash=True)) == (second[0], 3, 0)
            assert second[0] != first[0]

    run(main)


def test_a_chunk_that_was_dropped_is_read_from_the_source_again(tmp_path: Path) -> None:
    async def main() -> None:
        async with running(tmp_path / "n") as node:
            source = a_source(node, tmp_path / "s")
            first = await source.publish()
            opened = await node.open_local(first[0])
            assert opened is not None
            chunk = opened.catalog.chunk_id(1)
            (place,) = node.reader.places_of(chunk)
            source.age()
            assert await node.blocking(node.store.quarantine, chunk, place)
            assert await source.publish() == (first[0], 1, 2)
            assert node.reader.places_of(chunk)
            source.age()
            assert await source.publish() == (first[0], 0, 3)

    run(main)


def test_a_drop_of_other_chunks_costs_one_look_at_all(tmp_path: Path) -> None:
    async def main() -> None:
        async with running(tmp_path / "n") as node:
            source = a_source(node, tmp_path / "s")
            first = await source.publish()
            source.age()
            before = await node.blocking(node.store.drops)
            other = chunk_id(b"other")
            writer = node.store.writer()
            await node.blocking(writer.put, other, b"other")
            await node.blocking(writer.flush)
            (place,) = node.reader.places_of(other)
            await node.blocking(node.store.quarantine, other, place)
            assert await node.blocking(node.store.drops) != before
            assert await source.publish() == (first[0], 0, 3)

    run(main)


def test_what_is_remembered_goes_with_its_snapshot(tmp_path: Path) -> None:
    async def main() -> None:
        async with running(tmp_path / "n") as node:
            source = a_source(node, tmp_path / "s")
            first = await source.publish()
            source.age()
            shelf = Shelf(tmp_path / "n")
            assert await node.blocking(shelf.clear, node.names) == 0
            await node.remove(first[0], force=True)
            assert await source.publish() == (first[0], 3, 0)
            await node.remove(first[0], force=True)
            await node.retention.gc()
            assert source.shelf() == []

    run(main)
