"""The control client against peers that answer badly: every such failure is PeerUnavailable, in bounded time."""

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from hoard_p2p.errors import PeerUnavailable
from hoard_p2p.ids import SnapshotId
from hoard_p2p.peer import Peer
from hoard_p2p.testing.network import a_peer
from hoard_p2p.transfer.control import PeerControl
from hoard_p2p.transfer.wire import AdoptRequest, Announcement
from hoard_p2p.transfer.wire_life import Handed, VouchRequest

SNAPSHOT = SnapshotId(bytes(32))


def json_answer(body: bytes, status: str = "200 OK") -> bytes:
    head = f"HTTP/1.1 {status}\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    return head.encode() + body


async def against(answer: bytes, ask: Callable[[PeerControl, Peer], Awaitable[object]]) -> None:
    """Let `ask` question a server that answers everything with the same bytes and then hangs up."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(65536)
        writer.write(answer)
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    try:
        async with asyncio.timeout(10), PeerControl() as control:
            await ask(control, a_peer(1, port=server.sockets[0].getsockname()[1]))
    finally:
        server.close()


QUESTIONS: dict[str, Callable[[PeerControl, Peer], Awaitable[object]]] = {
    "hello": lambda control, peer: control.hello(peer.host, peer.port),
    "root": lambda control, peer: control.root(peer, SNAPSHOT),
    "snapshots": lambda control, peer: control.snapshots(peer),
    "refs": lambda control, peer: control.refs(peer),
    "residency": lambda control, peer: control.residency(peer, SNAPSHOT),
    "adopt": lambda control, peer: control.adopt(peer, AdoptRequest(SNAPSHOT, (1,), peer.node_id), timeout=5),
    "uses": lambda control, peer: control.uses(peer, [SNAPSHOT]),
    "vouch": lambda control, peer: control.vouch(peer, VouchRequest(SNAPSHOT, (1,))),
    "contents": lambda control, peer: control.contents(peer, SNAPSHOT, (1, 2)),
}
TELLINGS: dict[str, Callable[[PeerControl, Peer], Awaitable[object]]] = {
    "announce": lambda control, peer: control.announce(peer, Announcement(({},))),
    "hand": lambda control, peer: control.hand(peer, Handed(SNAPSHOT, 1, (2,), peer.node_id)),
    "leave": lambda control, peer: control.leave(peer, peer.node_id, 1),
}
ANSWERS = {
    "nothing": b"",
    "half an answer": b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n{",
    "another protocol": b"220 mail ESMTP\r\n",
    "an error": json_answer(b'{"error": "StoreFailed", "message": "disk full"}', "507 x"),
    "an error page": json_answer(b"<html>", "502 Bad Gateway"),
    "a redirect": b"HTTP/1.1 302 Found\r\nLocation: http://127.0.0.1:1/\r\nContent-Length: 0\r\n\r\n",
    "not found by another server": json_answer(b"no such page", "404 Not Found"),
}


@pytest.mark.parametrize("answer", ANSWERS.values(), ids=ANSWERS.keys())
@pytest.mark.parametrize("ask", [*QUESTIONS.values(), *TELLINGS.values()], ids=[*QUESTIONS, *TELLINGS])
def test_a_bad_answer_makes_the_peer_unavailable(
    answer: bytes, ask: Callable[[PeerControl, Peer], Awaitable[object]]
) -> None:
    with pytest.raises(PeerUnavailable):
        asyncio.run(against(answer, ask))


@pytest.mark.parametrize("ask", QUESTIONS.values(), ids=QUESTIONS.keys())
@pytest.mark.parametrize("body", [b"[]", b"{}", b"<html>", b"\xff"])
def test_an_answer_that_is_no_record_makes_the_peer_unavailable(
    body: bytes, ask: Callable[[PeerControl, Peer], Awaitable[object]]
) -> None:
    with pytest.raises(PeerUnavailable):
        asyncio.run(against(json_answer(body), ask))


def test_a_body_beyond_the_bound_is_not_read_to_its_end() -> None:
    huge = b"HTTP/1.1 200 OK\r\nContent-Length: 99999999999\r\n\r\n" + b"x" * 200_000
    with pytest.raises(PeerUnavailable, match="more than"):
        asyncio.run(against(huge, QUESTIONS["root"]))


def test_a_message_of_the_peer_is_passed_on() -> None:
    answer = json_answer(b'{"error": "StoreFailed", "message": "disk full"}', "507 x")
    with pytest.raises(PeerUnavailable, match="disk full"):
        asyncio.run(against(answer, QUESTIONS["adopt"]))


def test_nobody_there_is_unavailable() -> None:
    async def main() -> None:
        async with PeerControl() as control:
            await control.hello("127.0.0.1", 1)

    with pytest.raises(PeerUnavailable):
        asyncio.run(main())


def test_a_peer_that_says_nothing_is_given_up_at_the_deadline() -> None:
    async def main() -> None:
        ended = asyncio.Event()

        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await ended.wait()
            writer.close()

        server = await asyncio.start_server(serve, "127.0.0.1", 0)
        try:
            async with asyncio.timeout(10), PeerControl() as control:
                peer = a_peer(1, port=server.sockets[0].getsockname()[1])
                await control.hello(peer.host, peer.port, timeout=0.2)
        finally:
            ended.set()
            server.close()

    with pytest.raises(PeerUnavailable, match=r"in 0\.2 s"):
        asyncio.run(main())
