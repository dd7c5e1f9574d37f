"""Probes and standings through the real server and the real client."""

import asyncio
import json
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import TypeVar
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import pytest

from hoard_p2p.errors import PeerUnavailable
from hoard_p2p.ids import SnapshotId
from hoard_p2p.peer import News, NodeId, Peer, Rumour, Said, Standing
from hoard_p2p.testing.network import FileService, a_peer, serving
from hoard_p2p.transfer import wire_members
from hoard_p2p.transfer.control import PeerControl
from hoard_p2p.transfer.guard import Limits
from hoard_p2p.transfer.wire import Hello
from hoard_p2p.transfer.wire_members import KnownStanding, ProbeMessage

T = TypeVar("T")

N1, N2 = a_peer(1), a_peer(2)
STANDING = Standing(N2.node_id, 1, 3, frozenset([SnapshotId(b"s" * 32)]))
RUMOUR = Rumour(a_peer(3, "10.0.0.3", 7000), Said.SUSPECT, 2, (N2.node_id,))
NEWS = News(4, b"digest", (RUMOUR,), (STANDING,))


@pytest.fixture
def service(tmp_path: Path) -> Iterator[FileService]:
    made = FileService(N1, tmp_path / "slab", news=NEWS, stood=[STANDING], reachable=frozenset([N2.node_id]))
    yield made
    made.close()


def ask(port: int, question: Callable[[PeerControl, Peer], Awaitable[T]]) -> T:
    async def main() -> T:
        async with PeerControl() as control:
            return await question(control, a_peer(1, "127.0.0.1", port))

    return asyncio.run(main())


def test_a_probe_and_its_answer_carry_the_news_both_ways(service: FileService) -> None:
    mine = ProbeMessage(Hello(a_peer(2, "0.0.0.0", 99), "test", boot=b"b"), NEWS)
    with serving(service) as port:
        answer = ask(port, lambda control, peer: control.probe(peer, mine, timeout=5.0))
    assert answer.news == NEWS
    assert (answer.hello.peer.host, answer.hello.peer.port) == ("127.0.0.1", port), "as it was reached"
    (heard,) = service.probes
    assert heard == replace(mine, hello=replace(mine.hello, peer=replace(mine.hello.peer, host="127.0.0.1")))


def test_a_node_says_whether_it_reaches_another(service: FileService) -> None:
    with serving(service) as port:
        assert ask(port, lambda control, peer: control.probe_for(peer, N2.node_id, timeout=5.0))
        assert not ask(port, lambda control, peer: control.probe_for(peer, NodeId(bytes(16)), timeout=5.0))


def test_standings_are_told_but_those_that_are_known(service: FileService) -> None:
    known = [KnownStanding(N2.node_id, 1, 3)]
    with serving(service) as port:
        assert ask(port, lambda control, peer: control.standings(peer, [])) == (STANDING,)
        assert ask(port, lambda control, peer: control.standings(peer, known)) == ()


def test_probes_are_answered_by_a_node_that_takes_no_other_request(service: FileService) -> None:
    mine = ProbeMessage(Hello(N2, "test"))
    with serving(service, Limits(requests=0)) as port:
        assert ask(port, lambda control, peer: control.probe(peer, mine, timeout=5.0)).news == NEWS
        assert ask(port, lambda control, peer: control.probe_for(peer, N2.node_id, timeout=5.0))
        with pytest.raises(PeerUnavailable):
            ask(port, lambda control, peer: control.standings(peer, []))


def test_a_public_address_is_not_probed() -> None:
    with pytest.raises(PeerUnavailable, match="public address"):
        ask(0, lambda control, _: control.probe(a_peer(1, "8.8.8.8", 1), ProbeMessage(Hello(N2, "test")), timeout=5.0))


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("probe", b"{}"),
        ("probe", b"[" * 70_000),
        ("probe-for", b'{"node":"00"}'),
        ("standings", b'{"known":"AAAA"}'),
        ("probe", json.dumps({"hello": {}, "rumours": []}).encode()),
    ],
)
def test_what_makes_no_sense_is_refused_before_the_node_sees_it(service: FileService, path: str, body: bytes) -> None:
    with serving(service) as port, pytest.raises(HTTPError) as failure:
        urlopen(Request(f"http://127.0.0.1:{port}/v1/{path}", body), timeout=5)
    assert failure.value.code == 400
    failure.value.close()
    assert service.probes == []


def test_a_list_of_standings_ends_before_it_is_too_long_for_its_reader() -> None:
    wants = frozenset(SnapshotId(number.to_bytes(32, "big")) for number in range(256))
    many = [Standing(NodeId(number.to_bytes(16, "big")), 1, 1, wants) for number in range(1000)]
    body = wire_members.encode_standings(many)
    assert len(body) < wire_members.MAX_LIST
    told = wire_members.decode_standings(body)
    assert list(told) == many[: len(told)]
    assert len(told) > 10
