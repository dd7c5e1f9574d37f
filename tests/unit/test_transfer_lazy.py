"""Questions about lazy snapshots, over a real server: parts of pieces, and what pieces were found to be."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from hoard_p2p.errors import BadRequest, PeerUnavailable
from hoard_p2p.ids import SnapshotId
from hoard_p2p.objects import RangeAsk
from hoard_p2p.testing.network import FileService, a_peer
from hoard_p2p.transfer import ranges, wire_contents
from hoard_p2p.transfer.control import PeerControl
from hoard_p2p.transfer.ranges import MAX_RANGE, encode_range
from hoard_p2p.transfer.wire_contents import MAX_CONTENTS_ASKED, ContentsRequest
from tests.unit.test_transfer_server import ask, post, with_server

SNAPSHOT = SnapshotId(b"s" * 32)


@pytest.fixture
def service(tmp_path: Path) -> Iterator[FileService]:
    service = FileService(a_peer(1), tmp_path / "slab", [b"p" * 5000])
    yield service
    service.close()


def test_what_pieces_are_is_told_segment_by_segment(service: FileService) -> None:
    service.segment_contents = {3: b"a" * 32 + bytes(32), 4: b"", 9: b"b" * 32 * 16_384}

    async def use(port: int, control: PeerControl) -> None:
        peer = a_peer(1, port=port)
        told = await control.contents(peer, SNAPSHOT, [9, 3, 4])
        assert told == [service.segment_contents[segment] for segment in (9, 3, 4)]
        assert await control.contents(peer, SNAPSHOT, []) == []

    with_server(service, use)


class TellsMore(FileService):
    """Of one segment more than it was asked about."""

    async def contents(self, request: ContentsRequest) -> list[bytes]:
        return [b"a" * 32] * (len(request.segments) + 1)


def test_a_peer_that_tells_of_more_segments_than_asked_is_not_understood(tmp_path: Path) -> None:
    service = TellsMore(a_peer(1), tmp_path / "slab")

    async def use(port: int, control: PeerControl) -> None:
        with pytest.raises(PeerUnavailable, match="2 segments instead of 1"):
            await control.contents(a_peer(1, port=port), SNAPSHOT, [3])

    with_server(service, use)
    service.close()


def test_too_many_segments_and_repeated_ones_are_refused() -> None:
    for segments in (tuple(range(MAX_CONTENTS_ASKED + 1)), (1, 1)):
        with pytest.raises(BadRequest):
            wire_contents.decode_contents_request(
                wire_contents.encode_contents_request(ContentsRequest(SNAPSHOT, segments))
            )


BAD = {
    "no bytes": (0, 0),
    "too many": (0, MAX_RANGE + 1),
    "beyond the end of any piece": ((4 << 20) - 10, 11),
    "beyond all numbers": ((1 << 64) - 1, 1),
}


@pytest.mark.parametrize(("start", "length"), BAD.values(), ids=BAD.keys())
def test_a_range_that_no_piece_has_is_refused_before_the_service_is_asked(
    service: FileService, start: int, length: int
) -> None:
    body = encode_range(RangeAsk(SNAPSHOT, 0, start, length, 0, 0.1))

    async def use(port: int, control: PeerControl) -> None:
        assert (await ask(port, post("/v1/range", body)))[0] == 400
        assert (await ask(port, post("/v1/range", body + b"x")))[0] == 400

    with_server(service, use)
    assert service.ranges == []


def test_an_answer_is_as_the_document_says(service: FileService) -> None:
    body = encode_range(RangeAsk(SNAPSHOT, 0, 4000, 1000, 0, 0.1))

    async def use(port: int, control: PeerControl) -> None:
        status, answer = await ask(port, post("/v1/range", body))
        assert (status, answer[:5], answer[37:]) == (200, b"\2\xe8\3\0\0", b"p" * 1000)
        status, answer = await ask(port, post("/v1/range", encode_range(RangeAsk(SNAPSHOT, 7, 0, 1, 0, 0.0))))
        assert (status, answer[:5], answer[37:]) == (200, b"\0\x0d\0\0\0", b"nobody has it")

    with_server(service, use)


def test_a_patience_beyond_the_bound_is_cut() -> None:
    asked = RangeAsk(SNAPSHOT, 1, 2, 3, 999, 1e9)
    assert ranges.decode_range(encode_range(asked)) == asked._replace(hops=255, patience=60.0)
