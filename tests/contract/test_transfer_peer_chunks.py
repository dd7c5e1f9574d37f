"""What every `PeerChunks` promises: the fake, and the real client against the real server."""

import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from random import Random

import pytest

from hoard_p2p.errors import ChunkCorrupt, PeerUnavailable
from hoard_p2p.ids import ChunkId, chunk_id, origin_key, short
from hoard_p2p.interfaces import PeerChunks
from hoard_p2p.peer import NodeId, Peer
from hoard_p2p.testing.network import FileService, MemoryPeers, a_peer, serving
from hoard_p2p.testing.secured import encrypted, keyed
from hoard_p2p.transfer.bulk import BulkClient
from hoard_p2p.transfer.keys import OPEN, Security

SIZES = [0, 1, 4, 1000, 65535, 65536, 65537, 110_000, 1 << 20, (4 << 20) + 20_000, 9 << 20]


UNKNOWN = origin_key(b"bucket/unknown", b"1", 0, 15)


def key_of(index: int) -> ChunkId:
    """The origin key under which a peer has chunk `index`, too."""
    return origin_key(b"bucket/%d" % index, b"1", 0, 1)


@dataclass
class Case:
    """A client, a peer that has `chunks`, and one that does not answer. `names` is what peers named for keys, all of
    which is believed but for `refused`."""

    client: PeerChunks
    peer: Peer
    absent: Peer
    chunks: list[bytes]
    names: "Names"

    def wanted(self) -> list[tuple[ChunkId, int]]:
        return [(chunk_id(data), len(data)) for data in self.chunks]

    def fetch(self, wanted: list[tuple[ChunkId, int]]) -> tuple[dict[int, bytes], list[int]]:
        got: dict[int, bytes] = {}
        missing = self.client.fetch(self.peer, wanted, lambda index, data: got.update({index: bytes(data)}), timeout=10)
        return got, missing


class Names:
    """Takes note of what is named, and does not believe what a test says."""

    def __init__(self) -> None:
        self.told: dict[ChunkId, tuple[NodeId, ChunkId]] = {}
        self.refused: set[ChunkId] = set()

    def __call__(self, peer: Peer, key: ChunkId, content: ChunkId) -> None:
        self.told[key] = (peer.node_id, content)
        if key in self.refused:
            raise ChunkCorrupt(f"key {short(key)} is something else")


class Gatherer:
    """Keeps the views that it is given until it has to settle, if its client gathers."""

    def __init__(self) -> None:
        self.got: dict[int, bytes] = {}
        self._held: list[tuple[int, memoryview]] = []
        self._gathers = False

    def gather(self) -> None:
        self._gathers = True

    def __call__(self, index: int, data: memoryview) -> None:
        self._held.append((index, data))
        if not self._gathers:
            self.settle()

    def settle(self) -> None:
        self.got.update((index, bytes(data)) for index, data in self._held)
        self._held.clear()


def memory_case(stack: ExitStack, chunks: list[bytes], tmp_path: Path) -> Case:
    held = {chunk_id(data): data for data in chunks} | {key_of(index): data for index, data in enumerate(chunks)}
    names = Names()
    return Case(MemoryPeers({a_peer(1).node_id: held}, names), a_peer(1), a_peer(2), chunks, names)


def http_case(
    stack: ExitStack, chunks: list[bytes], tmp_path: Path, server: Security = OPEN, client: Security = OPEN
) -> Case:
    keys, names = {index: key_of(index) for index in range(len(chunks))}, Names()
    service = FileService(a_peer(1), tmp_path / "slab", chunks, keys=keys)
    stack.callback(service.close)
    port = stack.enter_context(serving(service, security=server))
    bulk = stack.enter_context(BulkClient(security=client, named=names))
    return Case(bulk, a_peer(1, port=port), a_peer(2, port=1), chunks, names)


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
    chunks = [random.randbytes(size) for size in SIZES] + [random.randbytes(900) for _ in range(5000)]
    with ExitStack() as stack:
        yield make(stack, chunks, tmp_path)


def test_every_chunk_arrives_whole_in_the_order_asked(case: Case) -> None:
    order: list[int] = []
    got, missing = case.fetch(case.wanted())
    assert missing == []
    assert [got[index] for index in range(len(case.chunks))] == case.chunks
    case.client.fetch(case.peer, case.wanted(), lambda index, data: order.append(index), timeout=10)
    assert order == list(range(len(case.chunks)))


def test_what_the_peer_does_not_have_is_named_and_the_rest_arrives(case: Case) -> None:
    nowhere = (chunk_id(b"nobody has this"), 15)
    wanted = [nowhere, *case.wanted()[3:6], nowhere, *case.wanted()[8:9], nowhere]
    got, missing = case.fetch(wanted)
    assert missing == [0, 4, 6]
    assert [got[index] for index in (1, 2, 3, 5)] == [*case.chunks[3:6], case.chunks[8]]


def test_asking_for_nothing_is_answered_with_nothing(case: Case) -> None:
    assert case.fetch([]) == ({}, [])


def test_one_chunk_may_be_asked_for_twice(case: Case) -> None:
    got, missing = case.fetch([case.wanted()[4]] * 2)
    assert missing == []
    assert got == {0: case.chunks[4], 1: case.chunks[4]}


def test_a_chunk_of_another_length_than_expected_is_corrupt(case: Case) -> None:
    expected, length = case.wanted()[4]
    with pytest.raises(ChunkCorrupt):
        case.fetch([(expected, length + 1)])


def test_a_peer_that_does_not_answer_is_unavailable(case: Case) -> None:
    with pytest.raises(PeerUnavailable):
        case.client.fetch(case.absent, case.wanted()[:1], lambda index, data: None, timeout=2)


def test_what_deliver_raises_passes_through_and_the_client_stays_usable(case: Case) -> None:
    def refuse(index: int, data: memoryview) -> None:
        raise RuntimeError("disk full")

    with pytest.raises(RuntimeError, match="disk full"):
        case.client.fetch(case.peer, case.wanted(), refuse, timeout=10)
    assert case.fetch(case.wanted()[:9])[1] == []


def test_several_threads_fetch_at_once(case: Case) -> None:
    results: list[tuple[dict[int, bytes], list[int]]] = []
    threads = [threading.Thread(target=lambda: results.append(case.fetch(case.wanted()[:100]))) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert len(results) == 6
    for got, missing in results:
        assert missing == []
        assert list(got.values()) == case.chunks[:100]


def test_a_peer_that_moved_is_asked_at_its_new_address(case: Case) -> None:
    with pytest.raises(PeerUnavailable):
        case.client.fetch(replace(case.absent, port=1), case.wanted()[:1], lambda index, data: None, timeout=2)
    assert case.fetch(case.wanted()[:1])[1] == []


def test_who_gathers_finds_every_chunk_right_when_it_settles(case: Case) -> None:
    gatherer = Gatherer()
    assert case.client.fetch(case.peer, case.wanted(), gatherer, timeout=10) == []
    assert gatherer.got == dict(enumerate(case.chunks))


def test_pieces_arrive_by_their_origin_keys_and_the_peer_names_what_they_are(case: Case) -> None:
    data = case.chunks
    wanted = [(UNKNOWN, 15), *((key_of(at), len(data[at])) for at in range(3000)), (chunk_id(data[5]), len(data[5]))]
    got, missing = case.fetch(wanted)
    assert missing == [0]
    assert [got[index] for index in range(1, len(wanted))] == [*data[:3000], data[5]]
    assert case.names.told == {key_of(at): (case.peer.node_id, chunk_id(data[at])) for at in range(3000)}


def test_a_piece_of_another_length_than_expected_is_corrupt(case: Case) -> None:
    with pytest.raises(ChunkCorrupt):
        case.fetch([(key_of(4), len(case.chunks[4]) + 1)])
    assert case.names.told == {}


def test_a_name_that_is_not_believed_makes_the_bytes_wrong_and_they_are_not_delivered(case: Case) -> None:
    case.names.refused.add(key_of(4))
    got: list[int] = []
    wanted = [(key_of(at), len(case.chunks[at])) for at in (3, 4, 5)]
    with pytest.raises(ChunkCorrupt, match="something else"):
        case.client.fetch(case.peer, wanted, lambda index, data: got.append(index), timeout=10)
    assert got == [0]
    assert case.fetch(wanted[:1])[1] == []
