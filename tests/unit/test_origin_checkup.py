"""A look at an origin for people."""

import os
from contextlib import closing
from pathlib import Path

import pytest

from hoard_p2p.errors import BadRequest
from hoard_p2p.node.app import Node
from hoard_p2p.node.local import Body, LocalReply, LocalRequest
from hoard_p2p.node.operations import handle
from hoard_p2p.objects import Kind, Listed
from hoard_p2p.origin.checkup import Checkup, check_up
from hoard_p2p.origin.directory import DirectoryOrigin
from hoard_p2p.origin.urls import parse_address
from hoard_p2p.origin.web import WebOrigin
from tests.unit.node_cluster import run, running
from tests.webserver import Handler, web_server

OLD = 10**18


def a_tree(path: Path) -> Path:
    (path / "sub").mkdir(parents=True)
    for number in range(20):
        (path / f"sub/{number}").write_bytes(bytes(1000 * number))
        os.utime(path / f"sub/{number}", ns=(OLD, OLD))
    return path


def checked(origin: DirectoryOrigin | WebOrigin) -> Checkup:
    with closing(origin):
        return check_up(origin, lambda entry: "odd" if entry.path == b"sub/7" else "", lambda _: None)


def test_a_directory_is_listed_sampled_and_what_cannot_be_published_is_named(tmp_path: Path) -> None:
    origin = DirectoryOrigin.open(a_tree(tmp_path / "set"))
    origin.check()
    seen = checked(origin)
    assert (seen.reachable, seen.why, seen.complete) == (True, "", True)
    assert (seen.entries, seen.files, seen.size) == (22, 19, 1000 * (190 - 7))
    assert (seen.skipped, seen.skipped_names) == (1, ["sub/7: odd"])
    assert seen.samples == 16
    assert seen.read_rate > 0
    assert "owner" not in seen.credentials


def test_a_web_server_tells_how_far_its_clock_is_off(tmp_path: Path) -> None:
    with web_server(a_tree(tmp_path / "set")) as server:

        def fault(handler: Handler) -> bool:
            if handler.command == "HEAD" and handler.path == "/":
                handler.send_response_only(200)
                handler.send_header("Date", "Fri, 01 Jan 2100 00:00:00 GMT")
                handler.send_header("Content-Length", "0")
                handler.end_headers()
                return True
            return False

        server.fault = fault
        seen = checked(WebOrigin(parse_address(server.url), frozenset([server.host])))
        assert seen.why == ""
        assert seen.files == 19
        assert seen.skew is not None
        assert seen.skew > 10**9


def test_what_cannot_be_reached_says_why(tmp_path: Path) -> None:
    with web_server(a_tree(tmp_path / "set")) as server:
        url, host = server.url, server.host
    seen = checked(WebOrigin(parse_address(url), frozenset([host])))
    assert not seen.reachable
    assert "refused" in seen.why
    seen = checked(WebOrigin(parse_address(url)))
    assert seen.refused


class Conflicting(DirectoryOrigin):
    def listing(self):  # type: ignore[no-untyped-def]
        for path in (b"out/x/y", b"out", b"outer"):
            yield Listed(path, Kind.FILE, 0, 0, 0, b"v")


def test_a_name_that_is_also_a_directory_is_named(tmp_path: Path) -> None:
    seen = checked(Conflicting.open(tmp_path))
    assert seen.skipped_names == ["out: there are entries below a directory of this name"]


async def asked(node: Node, source: str, fds: list[int]) -> Body:
    async def report(body: Body) -> None:
        return

    reply: LocalReply = await handle(node, LocalRequest("origin_check", {"source": source}, fds, 1, report))
    return reply.body


def test_a_node_looks_for_its_user_and_allows_nothing_by_that(tmp_path: Path) -> None:
    async def main() -> None:
        source = a_tree(tmp_path / "set")
        os.mkfifo(source / "fifo")
        async with running(tmp_path / "n") as node:
            fd = os.open(source, os.O_RDONLY | os.O_DIRECTORY)
            try:
                body = await asked(node, os.fspath(source), [fd])
            finally:
                os.close(fd)
            assert (body["reachable"], body["allowed"], body["nodes"]) == (True, False, 0)
            assert body["allow_command"] == f"hoard up --allow-origin {source}"
            assert (body["special"], body["skipped"]) == (1, 0)
            assert node.known_origins.named() == []
            gone = await asked(node, os.fspath(tmp_path / "gone"), [])
            assert (gone["reachable"], gone["entries"]) == (False, 0)

    run(main)


def test_a_node_that_may_read_an_origin_says_so(tmp_path: Path) -> None:
    async def main() -> None:
        source = a_tree(tmp_path / "set")
        async with running(tmp_path / "n", allow=[tmp_path]) as node:
            assert (await asked(node, os.fspath(source), []))["allowed"] is True

    run(main)


@pytest.mark.parametrize("source", ["memory://x", "https://user:secret@host/", "relative"])
def test_what_is_no_origin_is_refused(tmp_path: Path, source: str) -> None:
    async def main() -> None:
        async with running(tmp_path / "n") as node:
            with pytest.raises(BadRequest, match="origin"):
                await asked(node, source, [])

    run(main)
