"""Origins on web servers: what is listed, what is read, and whom this machine does not ask."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from hoard_p2p.errors import ObjectChanged, OriginBusy, OriginFailed, OriginRefused
from hoard_p2p.objects import Kind, Listed, ObjectRange
from hoard_p2p.origin.urls import parse_address
from hoard_p2p.origin.web import WebOrigin
from hoard_p2p.origin.webdoor import is_local, may_ask
from hoard_p2p.origin.webindex import IndexPage
from tests.webserver import Handler, WebServer, web_server


@pytest.fixture
def root(tmp_path: Path) -> Path:
    root = tmp_path / "root"
    (root / "set/sub").mkdir(parents=True)
    (root / "set/a").write_bytes(bytes(range(256)) * 100)
    (root / "set/empty").write_bytes(b"")
    (root / "set/sub/ä b#?%.bin").write_bytes(b"odd")
    (root / "setting").write_bytes(b"no part of it")
    return root


@pytest.fixture
def server(root: Path) -> Iterator[WebServer]:
    with web_server(root) as server:
        yield server


@pytest.fixture
def origin(server: WebServer) -> Iterator[WebOrigin]:
    origin = WebOrigin(parse_address(server.url + "set"), frozenset([server.host]))
    yield origin
    origin.close()


def files(origin: WebOrigin) -> dict[bytes, Listed]:
    return {entry.path: entry for entry in origin.listing() if entry.kind is Kind.FILE}


def read(origin: WebOrigin, entry: Listed, start: int = 0, stop: int | None = None) -> bytes:
    wanted = ObjectRange(entry.path, entry.size, entry.version, start, entry.size if stop is None else stop)
    into, moved = bytearray(wanted.stop - wanted.start), list[int]()
    origin.read(wanted, memoryview(into), moved.append)
    assert sum(moved) == len(into)
    return bytes(into)


def test_a_folder_is_listed_with_what_is_below_it_and_nothing_beside_it(origin: WebOrigin) -> None:
    entries = {entry.path: entry for entry in origin.listing()}
    assert sorted(entries) == [b"a", b"empty", b"sub", "sub/ä b#?%.bin".encode()]
    assert entries[b"sub"].kind is Kind.DIRECTORY
    assert entries[b"a"].size == 25600
    assert entries[b"a"].version.startswith(b'"')


def test_exact_ranges_are_read_over_one_connection(origin: WebOrigin, server: WebServer, root: Path) -> None:
    entries, data = files(origin), (root / "set/a").read_bytes()
    assert read(origin, entries[b"a"]) == data
    assert read(origin, entries[b"a"], 100, 101) == data[100:101]
    assert read(origin, entries[b"empty"]) == b""
    assert read(origin, entries["sub/ä b#?%.bin".encode()]) == b"odd"


def test_a_changed_file_is_told_and_not_read(origin: WebOrigin, root: Path) -> None:
    entry = files(origin)[b"a"]
    (root / "set/a").write_bytes(bytes(25600))
    with pytest.raises(ObjectChanged, match=r"set/a: .*publish again"):
        read(origin, entry)
    (root / "set/a").unlink()
    with pytest.raises(ObjectChanged, match="gone"):
        read(origin, entry)


@pytest.mark.parametrize(
    ("status", "kind"),
    [(403, OriginRefused), (401, OriginRefused), (503, OriginBusy), (429, OriginBusy), (500, OriginFailed)],
)
def test_what_the_server_answers_says_what_is_worth_a_retry(
    origin: WebOrigin, server: WebServer, status: int, kind: type[OriginFailed]
) -> None:
    entry = files(origin)[b"a"]

    def fault(handler: Handler) -> bool:
        handler.reply(status, b"no")
        return True

    server.fault = fault
    with pytest.raises(kind, match=str(status)):
        read(origin, entry)


HTML = {"Content-Type": "text/html"}


@pytest.mark.parametrize(
    ("status", "length", "headers"),
    [
        (200, 10, HTML),
        (200, 25600, {}),
        (206, 10, {"Content-Range": "bytes 0-9/25600"}),
        (206, 9, {"Content-Range": "bytes 0-8/25600"}),
        (206, 10, {"Content-Range": "bytes 1-10/25600"}),
        (206, 10, {"Content-Range": "bytes 0-9/25600", "Content-Encoding": "gzip"}),
        (206, 10, {"Content-Range": "bytes 0-9/25600", "Content-Length": "100"}),
        (206, 10, {}),
    ],
)
def test_an_answer_of_another_kind_length_or_part_is_a_failure(
    origin: WebOrigin, server: WebServer, status: int, length: int, headers: dict[str, str]
) -> None:
    entry = files(origin)[b"a"]
    version = {"ETag": entry.version.decode()} if "1-10" in str(headers) or "gzip" in str(headers) else {}

    def fault(handler: Handler) -> bool:
        handler.reply(status, bytes(length), {**version, **headers})
        handler.close_connection = True
        return True

    server.fault = fault
    with pytest.raises(OriginFailed) as caught:
        read(origin, entry, 0, 10)
    assert not isinstance(caught.value, ObjectChanged)


def test_a_body_that_ends_early_is_a_failure(origin: WebOrigin, server: WebServer) -> None:
    entry = files(origin)[b"a"]

    def fault(handler: Handler) -> bool:
        told = {"ETag": entry.version.decode(), "Content-Range": "bytes 0-25599/25600", "Content-Length": "25600"}
        handler.reply(206, bytes(100), told)
        handler.close_connection = True
        return True

    server.fault = fault
    with pytest.raises(OriginFailed, match="ended after 100 of 25,600"):
        read(origin, entry)


def test_a_file_without_a_version_or_a_length_is_no_part_of_a_data_set(origin: WebOrigin, server: WebServer) -> None:
    def fault(handler: Handler) -> bool:
        if handler.command == "HEAD":
            handler.reply(200, b"12", send=False)
        return handler.command == "HEAD"

    server.fault = fault
    (entry,) = [entry for entry in origin.listing() if entry.path == b"a"]
    assert entry.kind is Kind.UNREADABLE
    assert b"ETag" in entry.target


def test_a_url_of_a_file_is_no_folder(server: WebServer) -> None:
    origin = WebOrigin(parse_address(server.url + "setting"), frozenset([server.host]))
    with pytest.raises(OriginFailed):
        origin.check()


def test_this_machine_is_not_asked_unless_it_was_named(server: WebServer) -> None:
    origin = WebOrigin(parse_address(server.url + "set"))
    with pytest.raises(OriginRefused, match="this machine or its link"):
        origin.check()
    assert server.asked == []


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "169.254.169.254", "[::1]"])
def test_no_redirect_leads_to_this_machine(origin: WebOrigin, server: WebServer, root: Path, host: str) -> None:
    with web_server(root) as other:

        def fault(handler: Handler) -> bool:
            handler.reply(302, b"", {"Location": f"http://{host}:{other.server_address[1]}/set/"})
            return True

        server.fault = fault
        with pytest.raises(OriginFailed, match=r"this machine or its link|refused|unreachable|address"):
            origin.check()
        assert other.asked == []


def test_a_named_host_may_be_this_machine_but_no_link_or_metadata_unless_its_address_was_named() -> None:
    for host, address, asked in [
        ("localhost", "127.0.0.1", True),
        ("data.example", "127.0.1.1", True),
        ("data.example", "169.254.169.254", False),
        ("data.example", "fe80::1%eth0", False),
        ("169.254.1.1", "169.254.1.1", True),
        ("::1", "::1", True),
        ("data.example", "10.0.0.1", True),
    ]:
        assert may_ask(address, host, trusted=True) is asked
        assert may_ask(address, host, trusted=False) is (address == "10.0.0.1")


def test_redirects_are_followed_a_few_times(origin: WebOrigin, server: WebServer) -> None:
    entry, hops = files(origin)[b"a"], 0

    def fault(handler: Handler) -> bool:
        nonlocal hops
        hops += 1
        if hops > 3:
            return False
        handler.reply(307, b"", {"Location": handler.path})
        return True

    server.fault = fault
    assert len(read(origin, entry)) == 25600
    hops = -100
    with pytest.raises(OriginFailed, match="more than 5"):
        read(origin, entry)


@pytest.mark.parametrize(
    ("address", "local"),
    [
        ("127.0.0.1", True), ("127.9.9.9", True), ("::1", True), ("169.254.169.254", True), ("fe80::1%eth0", True),
        ("0.0.0.0", True), ("0.1.2.3", True), ("::", True), ("::ffff:127.0.0.1", True), ("64:ff9b::7f00:1", True),
        ("2002:7f00:1::", True), ("fd00:ec2::254", True), ("100.100.100.200", True), ("224.0.0.1", True),
        ("255.255.255.255", True), ("10.0.0.1", False), ("192.168.1.1", False), ("93.184.216.34", False),
        ("2606:2800:220:1::1", False), ("fd00::1", False), ("::ffff:10.0.0.1", False),
    ],
)  # fmt: skip
def test_which_addresses_are_this_machine_or_its_link(address: str, local: bool) -> None:
    assert is_local(address) is local


def test_a_page_is_read_for_names_in_the_folder_alone_each_once_in_whatever_pieces_it_comes() -> None:
    page = (
        '<a href="?C=N">sort</a><a href="../">up</a><a href="/x/set/">self</a><a href="one">1</a><A HREF=\'one\'>1</a>'
        '<a href="sub/">s</a><a href="deep/er">no</a><a href="//other/x/set/two">no</a><a href="/x/set/three&amp;x">'
        '<a href="%2e%2e">no</a><a href="a%2fb">no</a><a href="caf%C3%A9">c</a><a href="http://[bad/">no</a><a>'
    )
    index = IndexPage("http://host/x/set/")
    found = [name for at in range(0, len(page), 7) for name in index.names(page[at : at + 7])]
    assert found == [b"one", b"sub/", b"three&x", "café".encode()]
