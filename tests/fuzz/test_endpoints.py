"""Any request to a real node gets an answer that is no failure of the node, whatever is in it."""

import http.client
import os
import socket
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hoard_p2p.node.app import Node
from hoard_p2p.transfer.endpoints import Endpoints
from hoard_p2p.transfer.keys import new_key, write_key_file
from tests.fuzz.bodies import bodies, examples
from tests.node_thread import node_in_thread

KINDS = st.sampled_from(["application/json", "application/octet-stream", "text/html", "", "\xff"])
ANSWERS = {200, 400, 403, 404, 405, 409, 503, 504}
"""What a node may say to a stranger; 500 is a bug and 507 its disk."""
HEX = "0123456789abcdef"


def paths() -> list[tuple[str, str]]:
    """Method and path of everything that a node answers."""
    routes = Endpoints.routes(_Unmade())  # type: ignore[arg-type]
    return [(route.method, route.path) for route in routes] + [("POST", "/v1/session")]


class _Unmade:
    """Stands for the endpoints of no server: whatever is asked of it is there."""

    def __getattr__(self, name: str) -> "_Unmade":
        return self

    def __float__(self) -> float:
        return 1.0


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    with node_in_thread(tmp_path_factory.mktemp("fuzz") / "node") as node:
        yield node


def asked(port: int, method: str, path: str, body: bytes, headers: dict[str, str]) -> int:
    """The status of the answer; the whole answer was read."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=20)
    try:
        connection.request(method, path, body=body, headers=headers)
        answer = connection.getresponse()
        with suppress(http.client.IncompleteRead):
            answer.read()
        return answer.status
    finally:
        connection.close()


@pytest.mark.parametrize(("method", "path"), paths(), ids=str)
@pytest.mark.expect_warnings
@examples(10)
@given(data=st.data())
def test_every_path_answers_anything(node: Node, method: str, path: str, data: st.DataObject) -> None:
    identifier = data.draw(st.text(HEX, min_size=64, max_size=64) | st.text(HEX + "gG%/.", max_size=70))
    where = path.replace("{id}", identifier.replace("%", "%25"))
    headers = {
        "Content-Type": data.draw(KINDS),
        "X-Any": data.draw(st.text(st.characters(max_codepoint=255, categories=["L", "N"]), max_size=50)),
    }
    status = asked(node.me.port, method, where, data.draw(bodies()), headers)
    assert status in ANSWERS | ({401} if path == "/v1/session" else set())
    assert asked(node.me.port, "GET", "/v1/hello", b"", {}) == 200


@examples(30)
@given(
    method=st.sampled_from(["GET", "POST", "PUT", "DELETE", "HEAD", "OPTIONS", "PATCH", "TRACE"]),
    path=st.text(st.characters(min_codepoint=33, max_codepoint=126), max_size=60),
)
def test_unknown_paths_and_methods_are_refused(node: Node, method: str, path: str) -> None:
    assert asked(node.me.port, method, f"/{path}", b"", {}) in {400, 403, 404, 405}


@examples(30)
@given(data=st.binary(max_size=2000))
def test_what_is_no_http_is_answered_or_hung_up_on(node: Node, data: bytes) -> None:
    with socket.create_connection(("127.0.0.1", node.me.port), 20) as raw:
        raw.sendall(data)
        raw.shutdown(socket.SHUT_WR)
        with suppress(ConnectionResetError):
            while raw.recv(65536):
                pass
    assert asked(node.me.port, "GET", "/v1/hello", b"", {}) == 200


def test_a_node_with_a_key_answers_no_stranger_on_any_path(tmp_path: Path) -> None:
    write_key_file(tmp_path / "key", new_key())
    with node_in_thread(tmp_path / "node", key_file=str(tmp_path / "key")) as node:
        for method, path in paths():
            if path != "/v1/session":
                for proof in ({}, {"Hoard-Proof": "0" * 32 + " 0 " + "0" * 64 + " " + "0" * 64}):
                    assert asked(node.me.port, method, path.replace("{id}", "0" * 64), b"{}", proof) == 401
        assert asked(node.me.port, "GET", "/", b"", {}) == 401


def test_no_amount_of_requests_makes_a_node_grow(node: Node) -> None:
    """Bodies that claim much, requests that never end, and thousands that are refused: the memory is given back."""

    def resident() -> int:
        return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")

    def round_of_abuse() -> None:
        half = b"POST /v1/announce HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 8000000\r\n\r\n" + bytes(100_000)
        waiting = [socket.create_connection(("127.0.0.1", node.me.port), 20) for _ in range(50)]
        for raw in waiting:
            raw.sendall(half)
        for _ in range(100):
            asked(node.me.port, "POST", "/v1/session", bytes(57), {})
            assert asked(node.me.port, "POST", "/v1/hello", b"[" * 100_000, {}) == 400
        for raw in waiting:
            raw.close()

    round_of_abuse()
    before = resident()
    for _ in range(3):
        round_of_abuse()
    assert resident() - before < 64 << 20
