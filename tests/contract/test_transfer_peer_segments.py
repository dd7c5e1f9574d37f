"""What every `PeerSegments` promises: the fake, and the real client against the real server."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from random import Random

import pytest

from hoard_p2p.errors import ChunkCorrupt, PeerUnavailable
from hoard_p2p.ids import ChunkId, SnapshotId, chunk_id
from hoard_p2p.interfaces import AskMode, PeerSegments, SegmentAsk, StreamEnd
from hoard_p2p.peer import Peer
from hoard_p2p.testing.network import FileService, MemoryPeers, a_peer, serving
from hoard_p2p.testing.secured import encrypted, keyed
from hoard_p2p.transfer.bulk import BulkClient
from hoard_p2p.transfer.keys import OPEN, Security
from hoard_p2p.transfer.service import FeedEnd
from tests.contract.test_transfer_peer_chunks import Names, key_of

SIZES = [0, 1, 4, 1000, 65535, 65536, 65537, 110_000, 1 << 20, (4 << 20) + 20_000, 9 << 20]
NOWHERE = 1 << 20
"""A run that no peer has."""
KEYED = range(2, 60)
"""Runs that have origin keys."""
SOON = FeedEnd(True, "the reader is on it")


@dataclass
class Case:
    """A client, a peer that has `chunks` as runs 0, 1, 2 …, and one that does not answer; `asks` came to the peer."""

    client: PeerSegments
    peer: Peer
    absent: Peer
    chunks: list[bytes]
    asks: Callable[[], list[SegmentAsk]]
    ends_with: Callable[[FeedEnd], None]
    names: Names

    def wanted(self, runs: list[int]) -> list[tuple[ChunkId, int]]:
        nowhere = (chunk_id(b"nobody has this"), 15)
        return [nowhere if run == NOWHERE else (self.id_of(run), len(self.chunks[run])) for run in runs]

    def id_of(self, run: int) -> ChunkId:
        return key_of(run) if run in KEYED else chunk_id(self.chunks[run])

    def stream(self, runs: list[int]) -> tuple[dict[int, bytes], StreamEnd]:
        got: dict[int, bytes] = {}
        end = self.client.stream(
            self.peer,
            an_ask(runs),
            self.wanted(runs),
            lambda index, data: got.update({index: bytes(data)}),
            patience=0.1,
            timeout=10,
        )
        return got, end


def an_ask(runs: list[int]) -> SegmentAsk:
    return SegmentAsk(SnapshotId(b"s" * 32), 7, AskMode.CHAIN, 1, tuple(runs))


def memory_case(stack: ExitStack, chunks: list[bytes], tmp_path: Path) -> Case:
    held = {chunk_id(data): data for data in chunks} | {key_of(run): chunks[run] for run in KEYED}
    names = Names()
    peers = MemoryPeers({a_peer(1).node_id: held}, names)

    def ends_with(end: FeedEnd) -> None:
        peers.ends[a_peer(1).node_id] = end

    return Case(peers, a_peer(1), a_peer(2), chunks, lambda: [ask for _, ask in peers.asks], ends_with, names)


def http_case(
    stack: ExitStack, chunks: list[bytes], tmp_path: Path, server: Security = OPEN, client: Security = OPEN
) -> Case:
    unstored = {chunk_id(chunks[index]): chunks[index] for index in (0, 5, 9)}
    keys, names = {run: key_of(run) for run in KEYED}, Names()
    service = FileService(a_peer(1), tmp_path / "slab", chunks, unstored=unstored, keys=keys)
    stack.callback(service.close)
    port = stack.enter_context(serving(service, security=server))

    def ends_with(end: FeedEnd) -> None:
        service.feed_end = end

    bulk = stack.enter_context(BulkClient(security=client, named=names))
    peer = a_peer(1, port=port)
    return Case(bulk, peer, a_peer(2, port=1), chunks, lambda: [ask for ask, _ in service.asks], ends_with, names)


def keyed_case(stack: ExitStack, chunks: list[bytes], tmp_path: Path) -> Case:
    return http_case(stack, chunks, tmp_path, keyed(1), keyed(3))


def encrypted_case(stack: ExitStack, chunks: list[bytes], tmp_path: Path) -> Case:
    return http_case(stack, chunks, tmp_path, encrypted(1), encrypted(3))


@pytest.fixture(
    params=[memory_case, http_case, keyed_case, encrypted_case], ids=["memory", "http", "keyed", "encrypted"]
)
def case(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Case]:
    make: Callable[[ExitStack, list[bytes], Path], Case] = request.param
    random = Random(7)
    chunks = [random.randbytes(size) for size in SIZES] + [random.randbytes(900) for _ in range(3000)]
    with ExitStack() as stack:
        yield make(stack, chunks, tmp_path)


def test_every_chunk_arrives_whole_and_the_question_as_it_was_put(case: Case) -> None:
    runs = list(range(len(case.chunks)))[::-1]
    got, end = case.stream(runs)
    assert end == StreamEnd([], False, "")
    assert [got[index] for index in range(len(runs))] == case.chunks[::-1]
    assert case.names.told == {key_of(run): (case.peer.node_id, chunk_id(case.chunks[run])) for run in KEYED}
    assert case.asks() == [an_ask(runs)]


def test_what_does_not_come_is_named_with_the_reason(case: Case) -> None:
    got, end = case.stream([NOWHERE, 3, 8])
    assert end == StreamEnd([0], False, "nobody has it")
    assert got == {1: case.chunks[3], 2: case.chunks[8]}


def test_what_may_come_soon_is_pending(case: Case) -> None:
    case.ends_with(SOON)
    assert case.stream([NOWHERE]) == ({}, StreamEnd([0], True, "the reader is on it"))


def test_asking_for_nothing_is_answered_with_nothing(case: Case) -> None:
    assert case.stream([]) == ({}, StreamEnd([], False, ""))
    assert case.asks() == []


def test_a_chunk_of_another_length_than_expected_is_corrupt(case: Case) -> None:
    ((expected, length),) = case.wanted([4])
    with pytest.raises(ChunkCorrupt):
        case.client.stream(
            case.peer, an_ask([4]), [(expected, length + 1)], lambda index, data: None, patience=0.1, timeout=10
        )


def test_a_peer_that_does_not_answer_is_unavailable(case: Case) -> None:
    with pytest.raises(PeerUnavailable):
        case.client.stream(
            case.absent, an_ask([4]), case.wanted([4]), lambda index, data: None, patience=0.1, timeout=2
        )


def test_what_deliver_raises_passes_through_and_the_client_stays_usable(case: Case) -> None:
    def refuse(index: int, data: memoryview) -> None:
        raise RuntimeError("disk full")

    with pytest.raises(RuntimeError, match="disk full"):
        case.client.stream(case.peer, an_ask([4]), case.wanted([4]), refuse, patience=0.1, timeout=10)
    assert case.stream([4, 5])[1].absent == []


def test_streams_follow_each_other(case: Case) -> None:
    for run in (10, 2, 2000):
        assert case.stream([run]) == ({0: case.chunks[run]}, StreamEnd([], False, ""))


def test_a_name_that_is_not_believed_makes_the_bytes_wrong_and_they_are_not_delivered(case: Case) -> None:
    case.names.refused.add(key_of(8))
    got: list[int] = []
    with pytest.raises(ChunkCorrupt, match="something else"):
        case.client.stream(
            case.peer,
            an_ask([7, 8, 10]),
            case.wanted([7, 8, 10]),
            lambda index, data: got.append(index),
            patience=0.1,
            timeout=10,
        )
    assert 1 not in got
