"""The unix socket of a node: messages, operations, cancellation. Real sockets."""

import asyncio
import os
import resource
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from hoard_p2p.errors import ChunkUnavailable, HoardError, NoNode, SnapshotUnknown
from hoard_p2p.node import framing
from hoard_p2p.node.client import NodeClient
from hoard_p2p.node.local import Handler, LocalReply, LocalRequest, LocalServer


@contextmanager
def serving(data_dir: Path, handler: Handler, *, beat: float = 5.0) -> Iterator[None]:
    """A server in a thread of its own."""
    loop = asyncio.new_event_loop()
    task: asyncio.Task[None] | None = None
    up = threading.Event()

    async def main() -> None:
        nonlocal task
        server = LocalServer(data_dir, handler, beat=beat)
        async with asyncio.TaskGroup() as group:
            task = group.create_task(server.run())
            up.set()

    def body() -> None:
        with asyncio.Runner(loop_factory=lambda: loop) as runner, suppress(asyncio.CancelledError):
            runner.run(main())

    thread = threading.Thread(target=body)
    thread.start()
    assert up.wait(5)
    try:
        yield
    finally:
        assert task is not None
        loop.call_soon_threadsafe(task.cancel)
        thread.join(5)
        assert not thread.is_alive()


@pytest.fixture
def pair() -> Iterator[tuple[socket.socket, socket.socket]]:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with ours, theirs:
        yield ours, theirs


@pytest.mark.parametrize("size", [0, 10, framing.INLINE_LIMIT + 1, 3_000_000])
def test_a_message_of_any_size_arrives_whole(pair: tuple[socket.socket, socket.socket], size: int) -> None:
    framing.send(pair[0], {"text": "x" * size})
    message = framing.receive(pair[1])
    assert message is not None
    assert message.body == {"text": "x" * size}
    assert message.fds == ()


def test_descriptors_travel_beside_a_large_message(pair: tuple[socket.socket, socket.socket]) -> None:
    fd = framing.memfd_of(b"bytes")
    framing.send(pair[0], {"text": "y" * 100_000}, (fd,))
    os.close(fd)
    message = framing.receive(pair[1])
    assert message is not None
    assert framing.memfd_bytes(message.fds[0]) == b"bytes"
    message.close()


@pytest.mark.parametrize("garbage", [b"{", b"[]", b"\xff\xff", b"@memfd", b"3"])
def test_garbage_is_an_error_and_leaks_no_descriptor(pair: tuple[socket.socket, socket.socket], garbage: bytes) -> None:
    before = len(os.listdir("/proc/self/fd"))
    with (Path("/dev/null")).open() as null:
        socket.send_fds(pair[0], [garbage], [null.fileno()])
    with pytest.raises(HoardError, match="malformed"):
        framing.receive(pair[1])
    assert len(os.listdir("/proc/self/fd")) == before


def test_descriptors_beside_an_empty_message_are_closed(pair: tuple[socket.socket, socket.socket]) -> None:
    before = len(os.listdir("/proc/self/fd"))
    with (Path("/dev/null")).open() as null:
        socket.send_fds(pair[0], [b""], [null.fileno()])
    assert framing.receive(pair[1]) is None
    assert len(os.listdir("/proc/self/fd")) == before


def test_names_that_are_no_text_survive(pair: tuple[socket.socket, socket.socket]) -> None:
    name = os.fsdecode(b"caf\xe9\n")
    framing.send(pair[0], {"name": name})
    message = framing.receive(pair[1])
    assert message is not None
    assert message.body["name"] == name


def test_a_call_gets_its_progress_and_its_result(tmp_path: Path) -> None:
    async def handler(request: LocalRequest) -> LocalReply:
        await request.report({"step": 1})
        await request.report({"step": 2})
        return LocalReply({"echo": request.args["word"]}, (framing.memfd_of(b"file"),))

    steps: list[object] = []
    with serving(tmp_path, handler), NodeClient.connect(tmp_path) as client:
        reply = client.call("x", {"word": "w"}, progress=lambda body: steps.append(body["step"]))
        assert reply.body == {"echo": "w"}
        assert framing.memfd_bytes(reply.fds[0]) == b"file"
        os.close(reply.fds[0])
    assert steps == [1, 2]


def test_errors_keep_their_type(tmp_path: Path) -> None:
    async def handler(request: LocalRequest) -> LocalReply:
        raise SnapshotUnknown("no snapshot begins with abcdef")

    with (
        serving(tmp_path, handler),
        NodeClient.connect(tmp_path) as client,
        pytest.raises(SnapshotUnknown, match="abcdef"),
    ):
        client.call("x", {})


@pytest.mark.expect_warnings
def test_a_bug_is_an_error_for_one_client_and_not_the_end_of_the_server(tmp_path: Path) -> None:
    async def handler(request: LocalRequest) -> LocalReply:
        if request.op == "bug":
            raise KeyError("oops")
        return LocalReply({"fine": True})

    with serving(tmp_path, handler), NodeClient.connect(tmp_path) as client:
        with pytest.raises(HoardError, match="internal error in bug"):
            client.call("bug", {})
        assert client.call("x", {}).body == {"fine": True}


def test_a_client_that_leaves_cancels_its_operation(tmp_path: Path) -> None:
    cancelled, begun = threading.Event(), threading.Event()

    async def handler(request: LocalRequest) -> LocalReply:
        begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            cancelled.set()
        return LocalReply()

    with serving(tmp_path, handler):
        sock = framing.connect(tmp_path)
        framing.send(sock, {"op": "wait", "args": {}, "seq": 0})
        assert begun.wait(5)
        sock.close()
        assert cancelled.wait(5)


def test_a_client_that_asked_hears_that_its_operation_goes_on(tmp_path: Path) -> None:
    enough = threading.Event()

    async def handler(request: LocalRequest) -> LocalReply:
        await asyncio.to_thread(enough.wait, 5)
        return LocalReply({"fine": True})

    with serving(tmp_path, handler, beat=0.01), framing.connect(tmp_path) as sock:
        framing.send(sock, {"op": "x", "args": {}, "seq": 4, "heartbeat": True})
        for _ in range(3):
            message = framing.receive(sock)
            assert message is not None and message.body == {"seq": 4, "alive": True}
        enough.set()
        while message is not None and "alive" in message.body:
            message = framing.receive(sock)
        assert message is not None and message.body == {"seq": 4, "result": {"fine": True}}


def test_a_client_that_did_not_ask_hears_nothing_in_between(tmp_path: Path) -> None:
    """Such as a mount, which has one request that is never answered."""

    async def handler(request: LocalRequest) -> LocalReply:
        await asyncio.sleep(0.05)
        return LocalReply()

    with serving(tmp_path, handler, beat=0.001), framing.connect(tmp_path) as sock:
        framing.send(sock, {"op": "x", "args": {}, "seq": 4})
        message = framing.receive(sock)
        assert message is not None and "result" in message.body


def test_a_client_that_leaves_cancels_an_operation_that_beats(tmp_path: Path) -> None:
    cancelled = threading.Event()

    async def handler(request: LocalRequest) -> LocalReply:
        try:
            await asyncio.Event().wait()
        finally:
            cancelled.set()
        return LocalReply()

    with serving(tmp_path, handler, beat=0.01):
        with framing.connect(tmp_path) as sock:
            framing.send(sock, {"op": "x", "args": {}, "seq": 0, "heartbeat": True})
            assert framing.receive(sock) is not None
        assert cancelled.wait(5)


def test_a_node_leaves_the_socket_of_its_successor_alone(tmp_path: Path) -> None:
    """Its data directory was removed and made anew before it noticed."""

    async def handler(request: LocalRequest) -> LocalReply:
        return LocalReply()

    with serving(tmp_path, handler):
        successor = framing.listen(tmp_path)
    with successor:
        assert (tmp_path / framing.SOCKET_NAME).exists()
        framing.connect(tmp_path).close()


def test_without_a_node_the_message_says_how_to_start_one(tmp_path: Path) -> None:
    with pytest.raises(NoNode, match="hoard up --detach"):
        NodeClient.connect(tmp_path)


def test_a_path_longer_than_a_socket_address_works(tmp_path: Path) -> None:
    deep = tmp_path / ("d" * 100) / ("e" * 100)
    deep.mkdir(parents=True)

    async def handler(request: LocalRequest) -> LocalReply:
        return LocalReply({"pid": request.pid})

    with serving(deep, handler), NodeClient.connect(deep) as client:
        assert client.call("x", {}).body == {"pid": os.getpid()}


def test_only_the_owner_may_connect(tmp_path: Path) -> None:
    async def handler(request: LocalRequest) -> LocalReply:
        return LocalReply()

    with serving(tmp_path, handler):
        assert (tmp_path / framing.SOCKET_NAME).stat().st_mode & 0o777 == 0o600
    assert not (tmp_path / framing.SOCKET_NAME).exists()


Waiter = Callable[[], bool]


def poll(done: Waiter) -> None:
    deadline = threading.Event()
    for _ in range(500):
        if done():
            return
        deadline.wait(0.01)
    pytest.fail("it did not happen within 5 s")


@pytest.mark.parametrize("restart", [False, True])
def test_a_mount_worker_asks_again_when_the_node_comes_back(tmp_path: Path, restart: bool) -> None:
    from hoard_p2p.interfaces import Found, MissFailed
    from hoard_p2p.node.misses import NodeMisses

    asked = threading.Event()
    answering = threading.Event()
    if not restart:
        answering.set()

    async def handler(request: LocalRequest) -> LocalReply:
        asked.set()
        if not answering.is_set():
            await asyncio.Event().wait()
        if request.args["run"] == 5:
            raise ChunkUnavailable("nobody has it (asked: n2)")
        if request.args["run"] == 6:
            return LocalReply({"place": None}, (framing.memfd_of(b"inline"),))
        return LocalReply({"place": [1, 2, 3, 4]})

    misses = NodeMisses(tmp_path, "ab" * 32, 60.0)
    answers: list[Found | MissFailed] = []

    def collected() -> bool:
        misses.tend()
        answers.extend(misses.answers())
        return len(answers) == 3

    def reached() -> bool:
        misses.tend()
        return asked.is_set()

    for run in (4, 5, 6):
        misses.ask(run)
    misses.tend()
    assert misses.trouble() == f"no node is running on {tmp_path}"
    misses = NodeMisses(tmp_path, "ab" * 32, 60.0)  # which does not wait before it tries again
    for run in (4, 5, 6):
        misses.ask(run)
    if restart:
        with serving(tmp_path, handler):
            poll(reached)
        answering.set()
    with serving(tmp_path, handler):
        poll(collected)
        assert misses.trouble() == ""
    by_run = {answer.run: answer for answer in answers}
    assert by_run[4] == Found(4, (1, 2, 3, 4), b"")  # type: ignore[arg-type]  # a Place is such a tuple
    assert by_run[5] == MissFailed(5, "nobody has it (asked: n2)")
    assert by_run[6] == Found(6, None, b"inline")
    misses.close()


def test_parts_of_one_run_are_asked_for_and_answered_apart(tmp_path: Path) -> None:
    from hoard_p2p.ids import ChunkId
    from hoard_p2p.interfaces import Found, MissFailed, Place
    from hoard_p2p.node.misses import NodeMisses

    async def handler(request: LocalRequest) -> LocalReply:
        span = request.args.get("span")
        if span == [0, 4096]:
            return LocalReply({"place": [1, 2, 3, 4], "part": True})
        if span == [4096, 8192]:
            return LocalReply({"place": None, "part": True}, (framing.memfd_of(b"inline"),))
        if span == [8192, 9000]:
            return LocalReply({"place": [5, 6, 7, 8], "part": False, "content": "cd" * 32})
        raise ChunkUnavailable("it was v1 and is v2")

    answers: list[Found | MissFailed] = []
    with serving(tmp_path, handler):
        misses = NodeMisses(tmp_path, "ab" * 32, 60.0)

        def collected() -> bool:
            misses.tend()
            answers.extend(misses.answers())
            return len(answers) == 4

        for span in ((0, 4096), (4096, 8192), (8192, 9000), (9000, 9001)):
            misses.ask(4, span)
            misses.ask(4, span)  # dropped
        poll(collected)
        misses.close()
    assert sorted(answers, key=str) == sorted(
        [
            Found(4, Place(1, 2, 3, 4), b"", (0, 4096)),
            Found(4, None, b"inline", (4096, 8192)),
            Found(4, Place(5, 6, 7, 8), b"", content=ChunkId(b"\xcd" * 32)),
            MissFailed(4, "it was v1 and is v2", (9000, 9001)),
        ],
        key=str,
    )


def test_a_mount_worker_without_a_free_descriptor_goes_on_and_connects_later(tmp_path: Path) -> None:
    from hoard_p2p.node.misses import NodeMisses

    misses, limits = NodeMisses(tmp_path, "ab" * 32, 60.0), resource.getrlimit(resource.RLIMIT_NOFILE)
    misses.ask(1)
    resource.setrlimit(resource.RLIMIT_NOFILE, (0, limits[1]))
    try:
        misses.tend()
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
    assert misses.fileno() == -1

    async def handler(request: LocalRequest) -> LocalReply:
        return LocalReply({"place": [1, 2, 3, 4]})

    def collected() -> bool:
        misses.tend()
        return len(misses.answers()) == 1

    with serving(tmp_path, handler):
        poll(collected)
    misses.close()
