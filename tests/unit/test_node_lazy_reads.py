"""What a node reads of the origin of a lazy snapshot: pieces whose ids nobody knows yet, each byte once."""

import os
from collections.abc import Sequence
from pathlib import Path

import pytest

from hoard_p2p.config import Json
from hoard_p2p.errors import ObjectChanged
from hoard_p2p.fetch.segment import Segment, Wanted, segment_of
from hoard_p2p.ids import chunk_id, is_origin_key, parse_snapshot_id
from hoard_p2p.node.app import Node
from hoard_p2p.node.local import LocalRequest
from hoard_p2p.node.operations import OPERATIONS
from hoard_p2p.node.publishing import publish
from hoard_p2p.origin.meter import Reading
from tests.unit.node_cluster import run, running

MIB = 1 << 20


def a_source(path: Path) -> Path:
    path.mkdir()
    (path / "large").write_bytes(os.urandom(9 * MIB))
    for number in range(4):
        (path / f"s{number}").write_bytes(os.urandom(100_000))
    os.utime(path / "large", (1, 1))
    return path


async def lazy_segments(node: Node, source: Path) -> list[Segment]:
    async def report(body: dict[str, Json]) -> None:
        return

    fd = os.open(source, os.O_RDONLY | os.O_DIRECTORY)
    try:
        told: dict[str, Json] = {"source": os.fspath(source), "shared_origin": True, "lazy": True, "replicas": 1}
        snapshot = parse_snapshot_id(str((await publish(node, fd, told, report))["snapshot"]))
    finally:
        os.close(fd)
    catalog = (await node.open(snapshot)).catalog
    return [segment_of(catalog, snapshot, number) for number in range(catalog.segments)]


def read(node: Node, segment: Segment, wanted: Sequence[Wanted]) -> tuple[dict[int, bytes], list[int]]:
    got: dict[int, bytes] = {}
    failed = node.origins.read(segment, wanted, lambda index, data: got.update({index: bytes(data)}))
    return got, failed


def meter(node: Node, source: Path) -> Reading:
    return node.origins.meter(f"dir:{source}").reading


def test_pieces_are_delivered_as_they_are_in_the_files_and_each_byte_is_read_once(tmp_path: Path) -> None:
    async def main() -> None:
        source = a_source(tmp_path / "source")
        async with running(tmp_path / "n") as node:
            came = 0
            for segment in await lazy_segments(node, source):
                assert all(is_origin_key(chunk.chunk_id) for chunk in segment.chunks)
                got, failed = await node.blocking(read, node, segment, segment.chunks)
                assert failed == []
                files = {path.name: path.read_bytes() for path in source.iterdir()}
                assert all(any(data in content for content in files.values()) for data in got.values())
                came += sum(map(len, got.values()))
            assert came == 9 * MIB + 400_000
            assert meter(node, source).read == meter(node, source).good == came

    run(main)


def test_a_range_that_a_reader_waits_for_is_read_alone(tmp_path: Path) -> None:
    async def main() -> None:
        source = a_source(tmp_path / "source")
        async with running(tmp_path / "n") as node:
            segments = await lazy_segments(node, source)
            segment = next(each for each in segments if each.chunks[0].length > MIB)
            data = await node.blocking(node.origins.read_range, segment, segment.chunks[0], 4096, 120_000)
            assert data in (source / "large").read_bytes()
            assert len(data) == 120_000 - 4096 == meter(node, source).read

    run(main)


@pytest.mark.expect_warnings
def test_what_changed_since_it_was_listed_fails_with_its_name_and_is_never_given(tmp_path: Path) -> None:
    async def main() -> None:
        source = a_source(tmp_path / "source")
        async with running(tmp_path / "n") as node:
            segments = await lazy_segments(node, source)
            segment = next(each for each in segments if each.chunks[0].length > MIB)
            (source / "large").write_bytes(bytes(9 * MIB))
            got, failed = await node.blocking(read, node, segment, segment.chunks)
            assert got == {}
            assert failed == list(range(len(segment.chunks)))
            assert "/large: changed since it was listed" in node.origins.why(segment)
            with pytest.raises(ObjectChanged, match="/large: changed since"):
                await node.blocking(node.origins.read_range, segment, segment.chunks[0], 0, 4096)

    run(main)


@pytest.mark.expect_warnings
def test_an_object_that_changed_is_asked_for_once_however_many_wait_for_it(tmp_path: Path) -> None:
    async def main() -> None:
        source = a_source(tmp_path / "source")
        async with running(tmp_path / "n") as node:
            segments = await lazy_segments(node, source)
            os.truncate(source / "s2", 50)
            for segment in segments:
                wanted = [chunk for chunk in segment.chunks if chunk.length < MIB]
                _, failed = read(node, segment, wanted)
                for number in failed:
                    assert "s2" in node.origins.changed(segment, wanted[number])
                    (source / "s2").unlink()
                    again, lost = read(node, segment, wanted)
                    assert lost == failed and len(again) == len(wanted) - 1
                    assert "gone" not in node.origins.why(segment), "the answer is that of the first look"

    run(main)


def asked(args: dict[str, Json]) -> LocalRequest:
    async def report(body: dict[str, Json]) -> None:
        return

    return LocalRequest("need", args, [], os.getpid(), report)


def test_a_worker_is_told_what_the_piece_that_it_waited_for_was_found_to_be(tmp_path: Path) -> None:
    async def main() -> None:
        source = a_source(tmp_path / "source")
        async with running(tmp_path / "n") as node:
            segments = await lazy_segments(node, source)
            segment = next(each for each in segments if each.chunks[0].length < MIB)
            args: dict[str, Json] = {"snapshot": segment.snapshot.hex(), "run": segment.chunks[0].run}
            told = (await OPERATIONS["need"](node, asked(args))).body
            files = {chunk_id(path.read_bytes()).hex() for path in source.iterdir()}
            assert told["place"] and told["content"] in files
            span: dict[str, Json] = {**args, "span": [0, 4096]}
            assert (await OPERATIONS["need"](node, asked(span))).body == {**told, "part": False}

    run(main)
