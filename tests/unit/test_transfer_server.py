"""The HTTP door: every endpoint through the real client, and what it refuses."""

import asyncio
import json
import re
import socket
import zlib
from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from random import Random

import pytest

from hoard_p2p.errors import (
    ChunkUnavailable,
    DeadlineExceeded,
    HoardError,
    PathNotFound,
    PeerUnavailable,
    Refused,
    SnapshotUnknown,
    StoreFailed,
)
from hoard_p2p.ids import SnapshotId, chunk_id, snapshot_id
from hoard_p2p.interfaces import Residency
from hoard_p2p.testing.network import FileService, a_peer
from hoard_p2p.transfer.control import PeerControl
from hoard_p2p.transfer.endpoints import Endpoints
from hoard_p2p.transfer.guard import error_response
from hoard_p2p.transfer.server import Limits, PeerServer, bind, make_server
from hoard_p2p.transfer.sessions import PATH as SESSION_PATH
from hoard_p2p.transfer.wire import (
    MAX_NEWS,
    AdoptReply,
    AdoptRequest,
    Announcement,
    Hello,
    Record,
    encode_adopt_request,
    encode_announcement,
)

SMALL = b"small chunk"
LARGE = Random(3).randbytes(3_000_000)
ROOT = b"an encoded root"


@pytest.fixture
def service(tmp_path: Path) -> Iterator[FileService]:
    service = FileService(a_peer(1), tmp_path / "slab", [SMALL, LARGE])
    service.roots[snapshot_id(ROOT)] = ROOT
    yield service
    assert service.open_extents == 0, "extents were not released"
    service.close()


Use = Callable[[int, PeerControl], Awaitable[None]]


def with_server(service: FileService, use: Use, limits: Limits = Limits(stall_time=5.0)) -> PeerServer:  # noqa: B008 - immutable
    """Run `use(port, control)` while a real server runs on loopback."""

    async def main() -> PeerServer:
        server = make_server(service, limits=limits)
        port = await server.start("127.0.0.1", 0)
        try:
            async with asyncio.timeout(30), PeerControl() as control:
                await use(port, control)
        finally:
            await server.stop()
        return server

    return asyncio.run(main())


async def ask(port: int, request: bytes, *, half_close: bool = False) -> tuple[int, bytes]:
    """Send raw bytes; the status and body of the answer, 0 if there was none."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        writer.write(request)
        head = await reader.readuntil(b"\r\n\r\n")
        length = int(head.lower().partition(b"content-length: ")[2].split(b"\r\n")[0])
        return int(head.split()[1]), await reader.readexactly(length)
    except (asyncio.IncompleteReadError, ConnectionError):
        return 0, b""
    finally:
        writer.close()


def get(path: str, *more: str) -> bytes:
    return "\r\n".join([f"GET {path} HTTP/1.1", "Host: 127.0.0.1", *more, "", ""]).encode()


def post(path: str, body: bytes, *more: str) -> bytes:
    lines = [f"POST {path} HTTP/1.1", "Host: 127.0.0.1", f"Content-Length: {len(body)}", *more, "", ""]
    return "\r\n".join(lines).encode() + body


def test_hello_tells_who_is_there_at_the_address_it_was_reached_at(service: FileService) -> None:
    service.members = (a_peer(2), a_peer(3))

    async def use(port: int, control: PeerControl) -> None:
        hello = await control.hello("127.0.0.1", port)
        assert hello == replace(service.hello(), peer=replace(service.me, host="127.0.0.1", port=port))
        assert service.callers == []

    with_server(service, use)


def test_a_hello_that_introduces_the_caller_fills_in_where_it_came_from(service: FileService) -> None:
    async def use(port: int, control: PeerControl) -> None:
        for host in ("0.0.0.0", "10.1.2.3"):
            me = Hello(a_peer(2, host, 7001), "test", (a_peer(9),), boot=b"b")
            await control.hello("127.0.0.1", port, me=me)
        assert [caller.peer.host for caller in service.callers] == ["127.0.0.1", "10.1.2.3"]
        assert service.callers[0].members == ()

    with_server(service, use)


def test_roots_are_fetched_by_id_and_unknown_ones_are_none(service: FileService) -> None:
    async def use(port: int, control: PeerControl) -> None:
        peer = replace(service.me, port=port)
        assert await control.root(peer, snapshot_id(ROOT)) == ROOT
        assert await control.root(peer, SnapshotId(bytes(32))) is None

    with_server(service, use)


def test_a_root_that_is_not_the_one_asked_for_is_refused(service: FileService) -> None:
    service.roots[SnapshotId(bytes(32))] = ROOT

    async def use(port: int, control: PeerControl) -> None:
        with pytest.raises(PeerUnavailable, match="another root"):
            await control.root(replace(service.me, port=port), SnapshotId(bytes(32)))

    with_server(service, use)


def test_lists_of_snapshots_and_refs_pass_through(service: FileService) -> None:
    service.snapshot_records = [{"id": str(number), "files": number} for number in range(3000)]
    service.ref_records = [{"name": "imagenet", "at": [1, None]}]

    async def use(port: int, control: PeerControl) -> None:
        peer = replace(service.me, port=port)
        assert list(await control.snapshots(peer)) == service.snapshot_records
        assert list(await control.refs(peer)) == service.ref_records

    with_server(service, use)


def test_residency_is_told_and_must_be_the_one_asked_for(service: FileService) -> None:
    snapshot, other = SnapshotId(b"s" * 32), SnapshotId(b"o" * 32)
    service.residencies[snapshot] = Residency(snapshot, service.me.node_id, 3, b"\x05")
    service.residencies[other] = Residency(snapshot, service.me.node_id, 3, b"\x05")

    async def use(port: int, control: PeerControl) -> None:
        peer = replace(service.me, port=port)
        assert await control.residency(peer, snapshot) == service.residencies[snapshot]
        assert await control.residency(peer, SnapshotId(bytes(32))) is None
        with pytest.raises(PeerUnavailable):
            await control.residency(peer, other)

    with_server(service, use)


def test_adopt_announce_and_leave_reach_the_service(service: FileService) -> None:
    request = AdoptRequest(SnapshotId(bytes(32)), (1, 5), a_peer(2).node_id)
    news = Announcement(({"root": "r"},), ({"name": "x"},))
    service.reply = AdoptReply((5,), full=True, error="no room")

    async def use(port: int, control: PeerControl) -> None:
        peer = replace(service.me, port=port)
        assert await control.adopt(peer, request, timeout=5) == service.reply
        await control.announce(peer, news)
        await control.leave(peer, a_peer(2).node_id, 7)
        assert (service.adopted, service.announced) == ([request], [news])
        assert service.gone == [(a_peer(2).node_id, 7)]
        service.reply = AdoptReply((6,))
        with pytest.raises(PeerUnavailable, match="not asked"):
            await control.adopt(peer, request, timeout=5)

    with_server(service, use)


def test_more_news_than_one_announcement_takes_are_told_in_several(service: FileService) -> None:
    refs: tuple[Record, ...] = tuple({"name": str(number)} for number in range(2 * MAX_NEWS + 1))
    snapshots: tuple[Record, ...] = tuple({"id": str(number)} for number in range(MAX_NEWS + 1))

    async def use(port: int, control: PeerControl) -> None:
        await control.announce(replace(service.me, port=port), Announcement(snapshots, refs))
        assert len(service.announced) == 3
        assert tuple(record for told in service.announced for record in told.refs) == refs
        assert tuple(record for told in service.announced for record in told.snapshots) == snapshots
        too_many = encode_announcement(Announcement((), refs[: MAX_NEWS + 1]))
        assert (await ask(port, post("/v1/announce", too_many)))[0] == 400

    with_server(service, use)


def test_chunks_are_served_as_frames_in_the_order_asked(service: FileService) -> None:
    async def use(port: int, control: PeerControl) -> None:
        ids = chunk_id(LARGE) + bytes(32) + chunk_id(SMALL)
        status, body = await ask(port, post("/v1/chunks", ids))
        frames = [len(LARGE).to_bytes(4, "little"), LARGE, b"\xff" * 4, len(SMALL).to_bytes(4, "little"), SMALL]
        assert (status, body) == (200, b"".join(frames))

    with_server(service, use)


def test_requests_may_follow_each_other_on_one_connection_without_waiting(service: FileService) -> None:
    async def use(port: int, control: PeerControl) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        for data in (LARGE, SMALL, LARGE):
            writer.write(post("/v1/chunks", chunk_id(data)))
        for data in (LARGE, SMALL, LARGE):
            await reader.readuntil(b"\r\n\r\n")
            assert (await reader.readexactly(4 + len(data)))[4:] == data
        writer.close()

    with_server(service, use)


def test_status_and_metrics_are_for_people_and_collectors(service: FileService) -> None:
    async def use(port: int, control: PeerControl) -> None:
        assert json.loads((await ask(port, get("/v1/status")))[1]) == {"node": "n1"}
        assert await ask(port, get("/v1/metrics")) == (200, b"hoard_chunks 1\n")

    with_server(service, use)


@pytest.mark.parametrize(
    ("host", "expected"),
    [
        ("127.0.0.1", 200),
        ("127.0.0.1:7000", 200),
        ("[::1]:7000", 200),
        ("[fe80::1]", 200),
        ("localhost:7000", 200),
        ("LOCALHOST.", 200),
        (socket.gethostname(), 200),
        ("known.example", 200),
        ("evil.example", 403),
        ("127.0.0.1.evil.example:7000", 403),
        ("", 403),
    ],
)
def test_only_hosts_that_are_ours_are_answered(service: FileService, host: str, expected: int) -> None:
    async def use(port: int, control: PeerControl) -> None:
        request = f"GET /v1/hello HTTP/1.1\r\nHost: {host}\r\n\r\n".encode()
        assert (await ask(port, request))[0] == expected

    with_server(service, use, Limits(names=("known.example",)))


def test_a_web_page_is_refused(service: FileService) -> None:
    async def use(port: int, control: PeerControl) -> None:
        assert (await ask(port, get("/v1/status", "Origin: http://127.0.0.1")))[0] == 403

    with_server(service, use)


@pytest.mark.parametrize(
    ("request_bytes", "expected"),
    [
        (get("/"), 404),
        (get("/v1/../etc/passwd"), 404),
        (get("/v1/chunks"), 405),
        (get("/v1/root/zz"), 400),
        (get(f"/v1/root/{'AB' * 32}"), 400),
        (get(f"/v1/root/{'0' * 63}"), 400),
        (get(f"/v1/root/{'0' * 64}"), 404),
        (get(f"/v1/residency/{'0' * 64}"), 404),
        (post("/v1/chunks", b""), 400),
        (post("/v1/chunks", b"x" * 33), 400),
        (post("/v1/adopt", b"[]"), 400),
        (post("/v1/announce", b"\xff\xfe"), 400),
        (post("/v1/leave", b'{"node": "00"}'), 400),
        (post("/v1/leave", b" " * 5000), 400),
        (post("/v1/hello", b"{}"), 400),
    ],
)
def test_what_makes_no_sense_is_refused_with_a_reason(
    service: FileService, request_bytes: bytes, expected: int
) -> None:
    async def use(port: int, control: PeerControl) -> None:
        status, body = await ask(port, request_bytes)
        assert status == expected
        assert set(json.loads(body)) == {"error", "message"}

    with_server(service, use)


def test_a_body_beyond_the_bound_is_refused_before_it_is_sent(service: FileService) -> None:
    async def use(port: int, control: PeerControl) -> None:
        head = b"POST /v1/chunks HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 99999999999\r\n\r\n"
        assert (await ask(port, head))[0] == 400

    with_server(service, use)


def test_a_body_without_a_length_is_bounded_too(service: FileService) -> None:
    async def use(port: int, control: PeerControl) -> None:
        head = b"POST /v1/leave HTTP/1.1\r\nHost: 127.0.0.1\r\nTransfer-Encoding: chunked\r\n\r\n"
        status, answer = await ask(port, head + b"1f40\r\n" + b" " * 8000 + b"\r\n0\r\n\r\n")
        assert status == 400
        assert b"more than" in answer

    with_server(service, use)


def test_a_body_that_does_not_arrive_is_given_up(service: FileService) -> None:
    async def use(port: int, control: PeerControl) -> None:
        head = b"POST /v1/chunks HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 64\r\n\r\nhalf"
        assert (await ask(port, head))[0] == 400

    with_server(service, use, Limits(body_time=0.2))


def test_a_connection_that_asks_nothing_is_closed(service: FileService) -> None:
    async def use(port: int, control: PeerControl) -> None:
        assert await ask(port, b"GET /v1/hello HTT") == (0, b"")

    with_server(service, use, Limits(first_request_time=0.2))


def test_connections_beyond_the_bound_are_closed(service: FileService) -> None:
    async def use(port: int, control: PeerControl) -> None:
        first = await asyncio.open_connection("127.0.0.1", port)
        second = await asyncio.open_connection("127.0.0.1", port)
        first[1].write(get("/v1/hello"))
        assert (await first[0].readline()).startswith(b"HTTP/1.1 200")
        second[1].write(get("/v1/hello"))
        assert (await second[0].readline()).startswith(b"HTTP/1.1 200")
        assert await ask(port, get("/v1/hello")) == (0, b"")
        first[1].close()
        second[1].close()

    with_server(service, use, Limits(connections=2))


def test_a_connection_that_only_begins_handshakes_is_closed(service: FileService) -> None:
    async def use(port: int, control: PeerControl) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"POST /v1/session HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 57\r\n\r\n\1" + bytes(56))
        assert (await reader.readline()).startswith(b"HTTP/1.1 401")
        with suppress(ConnectionError):
            await reader.read()
        writer.close()

    with_server(service, use, Limits(first_request_time=1.5))


def test_one_host_cannot_take_the_connections_of_all(service: FileService) -> None:
    async def use(port: int, control: PeerControl) -> None:
        greedy = await asyncio.open_connection("127.0.0.1", port, local_addr=("127.0.0.2", 0))
        greedy[1].write(get("/v1/hello"))
        assert (await greedy[0].readline()).startswith(b"HTTP/1.1 200")
        more = await asyncio.open_connection("127.0.0.1", port, local_addr=("127.0.0.2", 0))
        with suppress(ConnectionError):
            assert await more[0].read() == b""
        assert (await ask(port, get("/v1/hello")))[0] == 200
        greedy[1].close()
        more[1].close()

    with_server(service, use, Limits(connections=8, connections_per_host=1))


def test_who_does_not_take_an_answer_is_hung_up_on_and_counts_until_then(service: FileService) -> None:
    service.ref_records = [{"name": "x" * 1000} for _ in range(20_000)]

    async def use(port: int, control: PeerControl) -> None:
        slow = await asyncio.open_connection("127.0.0.1", port, limit=1024)
        slow[1].write(get("/v1/refs"))
        assert (await slow[0].readline()).startswith(b"HTTP/1.1 200")
        status, answer = await ask(port, get("/v1/status"))
        assert status == 503
        assert b"in flight" in answer
        while status != 200:
            status, _ = await ask(port, get("/v1/status"))
        taken = b""
        with suppress(ConnectionError):
            taken = await slow[0].read()
        assert len(taken) < 20_000_000
        slow[1].close()

    with_server(service, use, Limits(requests=1, answer_time=3.0))


def test_a_body_that_would_grow_is_not_unpacked(service: FileService) -> None:
    body = zlib.compress(json.dumps({"snapshots": []}).encode())

    async def use(port: int, control: PeerControl) -> None:
        head = "POST /v1/uses HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Encoding: deflate\r\n"
        assert (await ask(port, f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body))[0] == 400

    with_server(service, use)


class WaitingService(FileService):
    """Answers a request for a root when the test says so."""

    go: asyncio.Event
    waiting: asyncio.Event

    async def root(self, snapshot: SnapshotId) -> bytes | None:
        self.waiting.set()
        await self.go.wait()
        return ROOT


@pytest.fixture
def waiting(tmp_path: Path) -> Iterator[WaitingService]:
    service = WaitingService(a_peer(1), tmp_path / "slab")
    service.go, service.waiting = asyncio.Event(), asyncio.Event()
    yield service
    service.close()


def test_requests_beyond_the_bound_are_told_to_come_later_but_probes_are_answered(waiting: WaitingService) -> None:
    async def use(port: int, control: PeerControl) -> None:
        async with asyncio.TaskGroup() as group:
            slow = group.create_task(ask(port, get(f"/v1/root/{snapshot_id(ROOT).hex()}")))
            await waiting.waiting.wait()
            assert (await ask(port, get("/v1/status")))[0] == 503
            assert (await ask(port, get("/v1/hello")))[0] == 200
            waiting.go.set()
            assert await slow == (200, ROOT)
            assert (await ask(port, get("/v1/status")))[0] == 200

    with_server(waiting, use, Limits(requests=1))


def test_an_answer_that_takes_too_long_is_an_error(waiting: WaitingService) -> None:
    async def use(port: int, control: PeerControl) -> None:
        status, body = await ask(port, get(f"/v1/root/{'0' * 64}"))
        assert (status, json.loads(body)["error"]) == (504, "DeadlineExceeded")

    with_server(waiting, use, Limits(answer_time=0.2))


def test_stopping_does_not_wait_for_a_request_that_hangs(waiting: WaitingService) -> None:
    async def main() -> float:
        server = make_server(waiting)
        port = await server.start("127.0.0.1", 0)
        loop = asyncio.get_running_loop()
        async with asyncio.timeout(10), asyncio.TaskGroup() as group:
            hanging = group.create_task(ask(port, get(f"/v1/root/{'0' * 64}")))
            await waiting.waiting.wait()
            begin = loop.time()
            await server.stop()
            stopped = loop.time() - begin
            await hanging
        await server.stop()
        return stopped

    assert asyncio.run(main()) < 5


class AdoptingService(FileService):
    """Adopts when the test says so."""

    go: asyncio.Event

    async def adopt(self, request: AdoptRequest) -> AdoptReply:
        self.adopted.append(request)
        await self.go.wait()
        return AdoptReply(request.segments)


def test_few_adopts_run_at_a_time_and_few_more_wait_for_their_turn(tmp_path: Path) -> None:
    service = AdoptingService(a_peer(1), tmp_path / "slab")
    service.go = asyncio.Event()
    body = encode_adopt_request(AdoptRequest(SnapshotId(bytes(32)), (1,), a_peer(2).node_id))
    states: dict[int, list[int]] = {1: [], 2: []}

    async def one(port: int, round_number: int) -> None:
        states[round_number].append((await ask(port, post("/v1/adopt", body)))[0])

    async def use(port: int, control: PeerControl) -> None:
        async with asyncio.TaskGroup() as group:
            for _ in range(9):
                group.create_task(one(port, 1))
            async with asyncio.timeout(10):
                while len(states[1]) < 3:  # noqa: ASYNC110 - the server is another party, polled with a deadline
                    await asyncio.sleep(0.01)
            assert len(service.adopted) == 4
            service.go.set()
        assert sorted(states[1]) == [200] * 6 + [503] * 3
        service.go.clear()
        async with asyncio.TaskGroup() as group:
            for _ in range(5):
                group.create_task(one(port, 2))
            async with asyncio.timeout(10):
                while not states[2]:  # noqa: ASYNC110 - the same
                    await asyncio.sleep(0.01)
            assert states[2] == [503], "a turn that does not come in time is told so"
            service.go.set()

    with_server(service, use, Limits(adopts=4, adopts_waiting=2, answer_time=0.5))
    service.close()


class FailingService(FileService):
    """Fails in the way the test chose."""

    error: Exception

    async def snapshots(self) -> list[dict[str, object]]:  # type: ignore[override]  # never returns
        raise self.error


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (SnapshotUnknown("x"), 404),
        (PathNotFound("x"), 404),
        (Refused("x"), 409),
        (ChunkUnavailable("x"), 503),
        (DeadlineExceeded("x"), 504),
        (StoreFailed("x"), 507),
        (HoardError("x"), 500),
    ],
)
def test_errors_of_the_service_cross_the_wire_by_name(error: HoardError, status: int) -> None:
    response = error_response(error)
    assert response.status == status
    assert isinstance(response.body, bytes)
    assert json.loads(response.body) == {"error": type(error).__name__, "message": "x"}


@pytest.mark.expect_warnings
def test_a_bug_is_an_error_that_tells_the_asker_nothing_and_the_log_everything(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    service = FailingService(a_peer(1), tmp_path / "slab")
    service.error = ZeroDivisionError("the secret")

    async def use(port: int, control: PeerControl) -> None:
        status, body = await ask(port, get("/v1/snapshots"))
        assert status == 500
        assert b"secret" not in body
        with pytest.raises(PeerUnavailable):
            await control.snapshots(replace(service.me, port=port))

    with_server(service, use)
    service.close()
    assert "the secret" in caplog.text


def test_a_taken_port_is_an_os_error(service: FileService) -> None:
    async def use(port: int, control: PeerControl) -> None:
        second = make_server(service)
        try:
            with pytest.raises(OSError, match="in use"):
                await second.start("127.0.0.1", port)
        finally:
            await second.stop()

    with_server(service, use)


def test_a_server_may_be_given_a_socket_whose_port_is_known_before(service: FileService) -> None:
    async def main() -> None:
        listener = bind("127.0.0.1", 0)
        port = int(listener.getsockname()[1])
        server = make_server(service)
        await server.serve(listener)
        try:
            assert (await ask(port, get("/v1/hello")))[0] == 200
        finally:
            await server.stop()

    asyncio.run(main())


def test_the_paths_are_those_of_the_document(service: FileService) -> None:
    page = (Path(__file__).parents[2] / "docs" / "wire.md").read_text()
    written = set(re.findall(r"^\| `(GET|POST) (/v1/\S+)` \|", page, re.MULTILINE))
    with ThreadPoolExecutor(1) as executor:
        routes = Endpoints(service, Limits(), executor).routes()
    served = {(route.method, route.path.replace("{id}", "ID")) for route in routes}
    assert served | {("POST", SESSION_PATH)} == written
