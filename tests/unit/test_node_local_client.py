"""Deadlines of calls to a node: one that hangs is named, one that works is waited for. Real sockets."""

import os
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from hoard_p2p.config import Json
from hoard_p2p.errors import DeadlineExceeded, NoNode, SnapshotUnknown
from hoard_p2p.node import framing
from hoard_p2p.node.client import LONG, USUAL, NodeClient, Patience

HASTY = Patience(quick=0.05, silence=0.05)


@contextmanager
def answered_by(node: Callable[[socket.socket], None]) -> Iterator[socket.socket]:
    """The client's end of a connection whose other end a thread serves."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    thread = threading.Thread(target=node, args=(theirs,))
    thread.start()
    try:
        with ours:
            yield ours
    finally:
        theirs.close()
        thread.join(5)
        assert not thread.is_alive()


@pytest.mark.parametrize("op", ["status", "ping", "down", "publish", "open"])
def test_a_node_that_does_not_answer_is_named_with_what_to_do(op: str) -> None:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with ours, theirs, pytest.raises(DeadlineExceeded, match=rf"{op}.*kill -9 {os.getpid()}"):
        NodeClient(ours, HASTY).call(op, {})


def test_a_node_that_hangs_in_the_middle_of_a_publish_is_named() -> None:
    def node(sock: socket.socket) -> None:
        framing.receive(sock)
        framing.send(sock, {"seq": 0, "progress": {"phase": "reading"}})

    seen: list[Json] = []
    with answered_by(node) as sock, pytest.raises(DeadlineExceeded, match="publish"):
        NodeClient(sock, Patience(quick=0.05, silence=0.5)).call("publish", {}, progress=seen.append)
    assert seen == [{"phase": "reading"}]


def test_signs_of_life_are_asked_for_and_are_no_progress() -> None:
    asked: list[Json] = []

    def node(sock: socket.socket) -> None:
        message = framing.receive(sock)
        assert message is not None
        asked.append(message.body["heartbeat"])
        for _ in range(3):
            framing.send(sock, {"seq": 0, "alive": True})
        framing.send(sock, {"seq": 0, "result": {"done": True}})

    seen: list[Json] = []
    with answered_by(node) as sock:
        assert NodeClient(sock, USUAL).call("publish", {}, progress=seen.append).body == {"done": True}
    assert asked == [True] and seen == []


def test_only_operations_that_the_node_bounds_are_waited_for_while_it_lives() -> None:
    assert {"ping", "status", "peers", "refs", "snapshots", "untag", "down"}.isdisjoint(LONG)


def test_a_closed_standard_error_is_not_taken_for_the_end_of_the_node() -> None:
    def node(sock: socket.socket) -> None:
        framing.receive(sock)
        framing.send(sock, {"seq": 0, "progress": {}})

    def show(_: dict[str, Json]) -> None:
        raise BrokenPipeError

    with answered_by(node) as sock, pytest.raises(BrokenPipeError):
        NodeClient(sock, USUAL).call("publish", {}, progress=show)


def test_a_node_that_ends_and_one_that_refuses_are_told_apart() -> None:
    def refuses(sock: socket.socket) -> None:
        framing.receive(sock)
        framing.send(sock, {"seq": 0, **framing.error_body(SnapshotUnknown("none such"))})

    def ends(sock: socket.socket) -> None:
        framing.receive(sock)
        sock.close()

    with answered_by(refuses) as sock, pytest.raises(SnapshotUnknown, match="none such"):
        NodeClient(sock, USUAL).call("open", {})
    with answered_by(ends) as sock, pytest.raises(NoNode, match="ended"):
        NodeClient(sock, USUAL).call("open", {})


def test_a_node_that_takes_no_connections_is_a_deadline(tmp_path: Path) -> None:
    with ExitStack() as stack:
        stack.enter_context(framing.listen(tmp_path))
        with pytest.raises(DeadlineExceeded, match="takes no connections"):
            while True:
                stack.enter_context(framing.connect(tmp_path, seconds=0))
        with pytest.raises(DeadlineExceeded, match="takes no connections"):
            framing.connect(tmp_path, seconds=0.05)
