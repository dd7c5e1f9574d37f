"""What every `PeerRanges` promises: the fake, and the real client against the real server."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from random import Random

import pytest

from hoard_p2p.errors import PeerUnavailable
from hoard_p2p.ids import SnapshotId
from hoard_p2p.objects import PeerRanges, RangeAsk, RangeEnd
from hoard_p2p.peer import Peer
from hoard_p2p.testing.network import FileService, MemoryPeers, a_peer, serving
from hoard_p2p.testing.secured import encrypted, keyed
from hoard_p2p.transfer.bulk import BulkClient
from hoard_p2p.transfer.keys import OPEN, Security
from hoard_p2p.transfer.service import FeedEnd

PIECE = Random(5).randbytes(4 << 20)
SNAPSHOT = SnapshotId(b"s" * 32)


@dataclass
class Case:
    """A client, a peer that has `PIECE` as run 0, and one that does not answer; `asks` came to the peer."""

    client: PeerRanges
    peer: Peer
    absent: Peer
    asks: Callable[[], list[RangeAsk]]
    ends_with: Callable[[FeedEnd], None]

    def range(self, start: int, length: int, run: int = 0) -> tuple[RangeEnd, bytes]:
        into = bytearray(length)
        return self.client.range(self.peer, an_ask(start, length, run), memoryview(into), timeout=10), bytes(into)


def an_ask(start: int, length: int, run: int = 0) -> RangeAsk:
    return RangeAsk(SNAPSHOT, run, start, length, 1, 0.1)


def memory_case(stack: ExitStack, tmp_path: Path) -> Case:
    peers = MemoryPeers({a_peer(1).node_id: {}})
    peers.pieces[a_peer(1).node_id] = {0: PIECE}

    def ends_with(end: FeedEnd) -> None:
        peers.ends[a_peer(1).node_id] = end

    return Case(peers, a_peer(1), a_peer(2), lambda: [ask for _, ask in peers.ranges], ends_with)


def http_case(stack: ExitStack, tmp_path: Path, server: Security = OPEN, client: Security = OPEN) -> Case:
    service = FileService(a_peer(1), tmp_path / "slab", [PIECE])
    stack.callback(service.close)
    port = stack.enter_context(serving(service, security=server))

    def ends_with(end: FeedEnd) -> None:
        service.feed_end = end

    bulk = stack.enter_context(BulkClient(security=client))
    return Case(bulk, a_peer(1, port=port), a_peer(2, port=1), lambda: service.ranges, ends_with)


def keyed_case(stack: ExitStack, tmp_path: Path) -> Case:
    return http_case(stack, tmp_path, keyed(1), keyed(3))


def encrypted_case(stack: ExitStack, tmp_path: Path) -> Case:
    return http_case(stack, tmp_path, encrypted(1), encrypted(3))


@pytest.fixture(
    params=[memory_case, http_case, keyed_case, encrypted_case], ids=["memory", "http", "keyed", "encrypted"]
)
def case(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Case]:
    make: Callable[[ExitStack, Path], Case] = request.param
    with ExitStack() as stack:
        yield make(stack, tmp_path)


@pytest.mark.parametrize(("start", "length"), [(0, 1), (4096, 110_592), (0, 1 << 20), ((4 << 20) - 7, 7)])
def test_exactly_the_range_arrives_and_the_question_as_it_was_put(case: Case, start: int, length: int) -> None:
    end, data = case.range(start, length)
    assert end == RangeEnd(True, False, "")
    assert data == PIECE[start : start + length]
    assert case.asks() == [an_ask(start, length)]


def test_what_cannot_be_had_has_a_reason(case: Case) -> None:
    assert case.range(0, 100, run=7)[0] == RangeEnd(False, False, "nobody has it")


def test_what_may_come_soon_is_pending(case: Case) -> None:
    case.ends_with(FeedEnd(True, "the reader is on it"))
    assert case.range(0, 100, run=7)[0] == RangeEnd(False, True, "the reader is on it")


def test_a_peer_that_does_not_answer_is_unavailable(case: Case) -> None:
    with pytest.raises(PeerUnavailable):
        case.client.range(case.absent, an_ask(0, 10), memoryview(bytearray(10)), timeout=2)


def test_ranges_follow_each_other(case: Case) -> None:
    for start in range(0, 1 << 20, 100_000):
        assert case.range(start, 5000) == (RangeEnd(True, False, ""), PIECE[start : start + 5000])
