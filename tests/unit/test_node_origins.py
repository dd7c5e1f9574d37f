"""Origins over real nodes: who may read what, publishing without copies, evicting what can be read again."""

import asyncio
import os
import re
from collections.abc import Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from random import Random

import pytest

from hoard_p2p.config import Json
from hoard_p2p.errors import BadRequest, Refused, Unavailable
from hoard_p2p.fetch.segment import Segment, Wanted, segment_of
from hoard_p2p.ids import SnapshotId, parse_snapshot_id
from hoard_p2p.interfaces import AskMode, SegmentAsk, StreamEnd
from hoard_p2p.node.app import Node
from hoard_p2p.node.originreads import OriginReads
from hoard_p2p.node.publishing import publish
from hoard_p2p.node.status import full_status
from hoard_p2p.peer import Peer, origin_id
from tests.unit.node_cluster import run, running, until

Body = dict[str, Json]

SIZE = 300_000


def a_source(path: Path, files: int = 4) -> Path:
    path.mkdir()
    draw = Random(3)
    for number in range(files):
        (path / f"{number}").write_bytes(draw.randbytes(SIZE))
    return path


async def published(node: Node, source: Path, /, **options: Json) -> Body:
    async def report(body: Body) -> None:
        return

    fd = os.open(source, os.O_RDONLY | os.O_DIRECTORY)
    try:
        told: Body = {"source": os.fspath(source), "shared_origin": True, "chunker": "fastcdc", **options}
        return await publish(node, fd, told, report)
    finally:
        os.close(fd)


async def shared(node: Node, source: Path, /, **options: Json) -> SnapshotId:
    return parse_snapshot_id(str((await published(node, source, **options))["snapshot"]))


async def first_segment(node: Node, snapshot: SnapshotId) -> Segment:
    return segment_of((await node.open(snapshot)).catalog, snapshot, 0)


def read(node: Node, segment: Segment, wanted: Sequence[Wanted]) -> tuple[dict[int, bytes], list[int]]:
    got: dict[int, bytes] = {}
    failed = node.origins.read(segment, wanted, lambda index, data: got.update({index: bytes(data)}))
    return got, failed


def asked(node: Node, peer: Peer, ask: SegmentAsk, chunk: Wanted) -> StreamEnd:
    """Blocking."""
    wanted = [(chunk.chunk_id, chunk.length)]
    return node.bulk.stream(peer, ask, wanted, lambda _index, _data: None, patience=0.2, timeout=5)


def url_of(source: Path) -> str:
    return f"dir:{source}"


def reads(node: Node, source: Path) -> bool:
    return node.me.node_id in node.agent.reading(origin_id(url_of(source)))


def test_a_shared_origin_is_published_without_copies_and_known_everywhere(tmp_path: Path) -> None:
    async def main() -> None:
        source = a_source(tmp_path / "source")
        async with running(tmp_path / "n") as node, running(tmp_path / "m", node) as other:
            told = await published(node, source)
            assert told["under_replicated"] == 0
            assert told["origin"] == url_of(source)
            (record,) = other.names.snapshots()
            assert record.origin == url_of(source)
            assert other.store.extents_count() == 0, "nothing was sent"
            assert node.names.digests() == other.names.digests()

    run(main)


def test_few_copies_of_what_some_node_can_read_again_are_no_alarm(tmp_path: Path) -> None:
    async def main() -> None:
        source = a_source(tmp_path / "source")
        async with running(tmp_path / "n") as node, running(tmp_path / "m", node) as other:
            await shared(node, source)
            await until(lambda: bool(other.agent.reading(origin_id(url_of(source)))))
            for one in (node, other):
                assert (await full_status(one))["under_replicated_bytes"] == 0

    run(main)


def test_a_node_reads_what_its_user_named_or_its_operator_allowed_and_nothing_on_a_peers_word(tmp_path: Path) -> None:
    async def main() -> None:
        source = a_source(tmp_path / "source")
        async with (
            running(tmp_path / "n") as node,
            running(tmp_path / "allowed", node, allow=[tmp_path]) as allowed,
            running(tmp_path / "other", node, allow=[tmp_path / "else"]) as other,
        ):
            snapshot = await shared(node, source)
            await until(lambda: reads(node, source) and reads(allowed, source))
            await until(lambda: len(node.agent.reading(origin_id(url_of(source)))) == 2)
            segment = await first_segment(other, snapshot)
            got, failed = read(allowed, segment, segment.chunks)
            assert sum(map(len, got.values())) == 4 * SIZE
            assert failed == []
            await until(lambda: bool(other.known_origins.body(lambda _: 0)))
            with pytest.raises(Unavailable, match=r"may not be read by this node; .*--allow-origin"):
                read(other, segment, segment.chunks)
            assert not reads(other, source)

    run(main)


def test_what_a_user_named_is_allowed_after_a_restart(tmp_path: Path) -> None:
    async def main() -> None:
        source = a_source(tmp_path / "source")
        async with running(tmp_path / "n") as node:
            await shared(node, source)
        async with running(tmp_path / "n") as node:
            await until(lambda: reads(node, source))

    run(main)


def test_a_link_that_leads_out_of_what_is_allowed_is_not_followed(tmp_path: Path) -> None:
    async def main() -> None:
        source, allowed = a_source(tmp_path / "source"), tmp_path / "allowed"
        allowed.mkdir()
        (allowed / "link").symlink_to(source)
        async with running(tmp_path / "n") as node, running(tmp_path / "m", node, allow=[allowed]) as other:
            told = await published(node, source, source=os.fspath(allowed / "link"))
            assert told["origin"] == url_of(allowed / "link")
            await until(lambda: bool(other.known_origins.body(lambda _: 0)))
            with pytest.raises(Unavailable, match=f"the origin {source} may not be read"):
                other.known_origins.opened(url_of(allowed / "link"))
            assert node.known_origins.named() == [str(allowed / "link"), str(source)]

    run(main)


def test_nodes_agree_on_the_reader_and_pass_to_the_next_one(tmp_path: Path) -> None:
    async def main() -> None:
        source = a_source(tmp_path / "source")
        async with running(tmp_path / "n") as node, running(tmp_path / "m", node, allow=[source]) as other:
            snapshot = await shared(node, source)
            origin = origin_id(url_of(source))
            await until(lambda: all(len(one.agent.reading(origin)) == 2 for one in (node, other)))
            segment = await first_segment(node, snapshot)
            chosen = node.origins.reader(segment, ())
            assert chosen is not None
            assert chosen == other.origins.reader(segment, ())
            after = node.origins.reader(segment, {chosen.node_id})
            assert after is not None
            assert {chosen.node_id, after.node_id} == {node.me.node_id, other.me.node_id}
            assert node.origins.reader(segment, {chosen.node_id, after.node_id}) is None
            node.origins.bypassed(segment, chosen, 1)
            assert node.origins.reader(segment, ()) == chosen, "all nodes pass it by, each by a little"
            node.origins.silent(chosen)
            assert node.origins.reader(segment, ()) == after, "who was late ranks last"

    run(main)


def test_where_all_readers_of_the_set_gave_up_the_next_node_takes_over_and_all_agree_on_it(tmp_path: Path) -> None:
    async def main() -> None:
        source = a_source(tmp_path / "source")
        async with AsyncExitStack() as stack:
            nodes: list[Node] = []
            for number in range(3):
                nodes.append(await stack.enter_async_context(running(tmp_path / f"n{number}", *nodes, allow=[source])))
            snapshot = await shared(nodes[0], source)
            origin = origin_id(url_of(source))
            await until(lambda: all(len(node.agent.reading(origin)) == 3 for node in nodes))
            await until(lambda: all(node.names.snapshot(snapshot) is not None for node in nodes))
            segment = await first_segment(nodes[0], snapshot)
            lanes = [OriginReads(node.names, node.known_origins, node.agent, streams=1) for node in nodes]
            (first,) = {lane.reader(segment, ()) for lane in lanes}
            assert first is not None
            (second,) = {lane.reader(segment, {first.node_id}) for lane in lanes}
            assert second not in {None, first}
            for lane in lanes:
                lane.close()

    run(main)


def test_an_origin_that_is_named_while_others_are_looked_at_is_not_forgotten(tmp_path: Path) -> None:
    async def main() -> None:
        source = a_source(tmp_path / "source")
        async with running(tmp_path / "n") as node:
            fd = os.open(source, os.O_RDONLY | os.O_DIRECTORY)
            try:
                async with asyncio.TaskGroup() as group:
                    group.create_task(node.known_origins.look())
                    await asyncio.sleep(0)
                    url = await node.known_origins.name(os.fspath(source), fd)
            finally:
                os.close(fd)
            assert node.known_origins.is_open(url)

    run(main)


def test_a_snapshot_without_an_origin_has_no_reader(tmp_path: Path) -> None:
    async def main() -> None:
        async with running(tmp_path / "n") as node:
            snapshot = await shared(node, a_source(tmp_path / "source"), shared_origin=False, replicas=1)
            segment = await first_segment(node, snapshot)
            assert node.origins.reader(segment, ()) is None
            with pytest.raises(Unavailable, match="no origin"):
                read(node, segment, segment.chunks)

    run(main)


@pytest.mark.expect_warnings
def test_a_file_that_changed_is_named_and_its_bytes_are_never_given(tmp_path: Path) -> None:
    async def main() -> None:
        source = a_source(tmp_path / "source")
        async with running(tmp_path / "n") as node:
            snapshot = await shared(node, source)
            segment = await first_segment(node, snapshot)
            (source / "2").write_bytes(bytes(SIZE))
            got, failed = read(node, segment, segment.chunks)
            assert failed == [2]
            assert sorted(got) == [0, 1, 3]
            assert node.origins.why(segment) == "its origin: 2: changed since it was published"
            (told,) = node.known_origins.body(lambda _: 1)
            assert isinstance(told, dict)
            assert (told["read"], told["good"], told["errors"]) == (4 * SIZE, 3 * SIZE, 1)

    run(main)


@pytest.mark.expect_warnings
def test_an_origin_that_is_gone_is_told_to_nobody_any_more(tmp_path: Path) -> None:
    async def main() -> None:
        source = a_source(tmp_path / "source")
        async with running(tmp_path / "n") as node:
            snapshot = await shared(node, source)
            segment = await first_segment(node, snapshot)
            source.rename(tmp_path / "elsewhere")
            await node.known_origins.look()
            assert not reads(node, source)
            with pytest.raises(Unavailable, match="is not there"):
                read(node, segment, segment.chunks)
            (tmp_path / "elsewhere").rename(source)
            await node.known_origins.look()
            assert reads(node, source)

    run(main)


def test_the_last_copy_goes_where_the_origin_has_it_and_stays_where_that_is_gone(tmp_path: Path) -> None:
    async def main() -> None:
        source = a_source(tmp_path / "source")
        async with running(tmp_path / "n") as node:
            snapshot = await shared(node, source)
            (source / "1").rename(tmp_path / "away")
            kept = await node.retention.evict(snapshot)
            assert kept.chunks == 0
            assert "stay" in kept.kept[0]
            (tmp_path / "away").rename(source / "1")
            gone = await node.retention.evict(snapshot)
            assert gone.size == 4 * SIZE
            assert gone.kept == []
            residency = await node.residency(snapshot)
            assert residency is not None
            assert not any(residency.bits)

    run(main)


def test_a_directory_that_the_node_does_not_see_at_its_path_can_be_no_origin(tmp_path: Path) -> None:
    async def main() -> None:
        source, other = a_source(tmp_path / "source"), a_source(tmp_path / "other")
        async with running(tmp_path / "n") as node:
            with pytest.raises(Refused, match="another directory"):
                await published(node, source, source=os.fspath(other))
            with pytest.raises(Unavailable, match="cannot see"):
                await published(node, source, source="/not/there")
            with pytest.raises(BadRequest, match="no shared origin"):
                await published(node, source, source=f"{source}\x1b")
            assert node.names.snapshots() == []
            assert node.known_origins.named() == []

    run(main)


def test_bytes_past_a_reader_are_a_share_of_what_came(tmp_path: Path) -> None:
    async def main() -> None:
        source = a_source(tmp_path / "source")
        async with running(tmp_path / "n") as node:
            snapshot = await shared(node, source)
            segment = await first_segment(node, snapshot)
            assert not node.origins.may_bypass(segment, 1000, 10.0), "the bucket starts empty"
            node.origins.received(snapshot, 200_000)
            assert node.origins.may_bypass(segment, 1000, 10.0)
            assert not node.origins.may_bypass(segment, 1000, 0.01), "it is not late yet"
            node.origins.bypassed(segment, node.me, 1000)
            assert not node.origins.may_bypass(segment, 1, 10.0)

    run(main)


def test_all_nodes_that_want_a_snapshot_together_read_no_larger_share_past_its_readers(tmp_path: Path) -> None:
    async def main() -> None:
        source = a_source(tmp_path / "source")
        async with running(tmp_path / "n") as node, running(tmp_path / "m", node) as other:
            snapshot = await shared(node, source)
            segment = await first_segment(node, snapshot)
            node.origins.received(snapshot, 200_000)
            assert node.origins.may_bypass(segment, 1000, 10.0)
            await until(lambda: other.names.snapshot(snapshot) is not None)
            with node.fills.wanting(snapshot), other.fills.wanting(snapshot):
                await until(lambda: len(node.agent.wanting(snapshot)) == 2)
                assert not node.origins.may_bypass(segment, 501, 10.0)
                assert node.origins.may_bypass(segment, 500, 10.0)
                node.origins.bypassed(segment, node.me, 500)
                assert not node.origins.may_bypass(segment, 1, 10.0)

    run(main)


async def taken_in(node: Node, snapshot: SnapshotId) -> list[bytes]:
    """Every chunk run, as a reader of a mount wants it."""
    opened = await node.open(snapshot)
    got = []
    for number in range(opened.catalog.chunks):
        landed = await node.need(snapshot, number, wrong=None, timeout=20)
        data = bytearray(opened.catalog.length(number))
        if landed.place is None:
            data[:] = landed.data
        else:
            node.reader.read_at(landed.place, 0, memoryview(data))
        got.append(bytes(data))
    return got


def meter(node: Node) -> Body:
    (told,) = node.known_origins.body(lambda _: 0)
    assert isinstance(told, dict)
    return told


def test_what_was_evicted_everywhere_is_read_from_the_origin_once(tmp_path: Path) -> None:
    async def main() -> None:
        source = a_source(tmp_path / "source", files=40)
        async with running(tmp_path / "n") as node:
            snapshot = await shared(node, source)
            await node.retention.evict(snapshot)
            for _ in range(2):
                got = await taken_in(node, snapshot)
                assert got == [(source / name).read_bytes() for name in sorted(os.listdir(source))]
            assert meter(node)["read"] == 40 * SIZE

    run(main)


@pytest.mark.expect_warnings
def test_a_reader_of_a_file_that_changed_gets_an_error_that_names_it_and_the_rest_is_read(tmp_path: Path) -> None:
    async def main() -> None:
        source = a_source(tmp_path / "source")
        async with running(tmp_path / "n") as node:
            snapshot = await shared(node, source)
            await node.retention.evict(snapshot)
            (source / "2").write_bytes(bytes(SIZE))
            for number in (0, 1, 3):
                await node.need(snapshot, number, wrong=None, timeout=20)
            with pytest.raises(Unavailable, match="its origin: 2: changed since it was published"):
                await node.need(snapshot, 2, wrong=None, timeout=5)

    run(main)


@pytest.mark.expect_warnings
def test_an_origin_that_is_away_is_waited_for_within_the_deadline(tmp_path: Path) -> None:
    async def main() -> None:
        source = a_source(tmp_path / "source")
        async with running(tmp_path / "n") as node:
            snapshot = await shared(node, source)
            await node.retention.evict(snapshot)
            source.rename(tmp_path / "elsewhere")
            await node.known_origins.look()
            with pytest.raises(Unavailable, match=r"within 2 s.*the origin .*/source is"):
                await node.need(snapshot, 0, wrong=None, timeout=2)
            (tmp_path / "elsewhere").rename(source)
            await node.known_origins.look()
            await node.need(snapshot, 0, wrong=None, timeout=20)

    run(main)


@pytest.mark.expect_warnings
def test_a_node_that_asks_a_reader_whose_origin_is_away_hears_why(tmp_path: Path) -> None:
    async def main() -> None:
        source = a_source(tmp_path / "source")
        async with running(tmp_path / "n") as node, running(tmp_path / "m", node) as other:
            snapshot = await shared(node, source)
            await node.retention.evict(snapshot)
            await until(lambda: bool(other.agent.reading(origin_id(url_of(source)))))
            segment = await first_segment(other, snapshot)
            source.rename(tmp_path / "elsewhere")
            await node.known_origins.look()
            chunk, heard = segment.chunks[0], ""
            ask = SegmentAsk(snapshot, segment.number, AskMode.FETCH, 0, (chunk.run,))
            for _ in range(30):  # told once the first reading was in vain
                end = await other.blocking(asked, other, node.me, ask, chunk)
                assert end.absent == [0]
                heard = heard or end.reason
                if heard:
                    break
            assert re.search(r"its origin: .*/source", heard)

    run(main)


def test_a_node_that_may_not_read_gets_it_from_the_one_that_may(tmp_path: Path) -> None:
    async def main() -> None:
        source = a_source(tmp_path / "source")
        async with running(tmp_path / "n") as node, running(tmp_path / "m", node) as other:
            snapshot = await shared(node, source)
            await node.retention.evict(snapshot)
            await until(lambda: bool(other.agent.reading(origin_id(url_of(source)))))
            assert len(await taken_in(other, snapshot)) == 4
            assert meter(node)["read"] == 4 * SIZE

    run(main)


def test_what_all_holders_lost_is_read_from_the_origin_of_another_snapshot_that_names_it(tmp_path: Path) -> None:
    async def main() -> None:
        source, twin = a_source(tmp_path / "source"), a_source(tmp_path / "twin", files=5)
        async with running(tmp_path / "n") as node:
            await shared(node, source, chunker="fastcdc")
            private = await shared(node, twin, shared_origin=False, replicas=1, chunker="fastcdc")
            segment = await first_segment(node, private)
            got, failed = await node.blocking(read, node, segment, segment.chunks)
            assert b"".join(got[index] for index in sorted(got)) == b"".join(
                (source / f"{number}").read_bytes() for number in range(4)
            )
            assert sorted([*got, *failed]) == list(range(len(segment.chunks)))
            assert failed, "only the twin has its fifth file"

    run(main)
