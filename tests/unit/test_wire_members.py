"""Probes, rumours and standings as they cross between nodes."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hoard_p2p.cluster.outbox import Outbox
from hoard_p2p.errors import BadRequest
from hoard_p2p.ids import SnapshotId
from hoard_p2p.peer import News, NodeId, OriginId, Rumour, Said, Standing
from hoard_p2p.testing.network import a_peer
from hoard_p2p.transfer import wire_members
from hoard_p2p.transfer.wire import Hello, encode
from hoard_p2p.transfer.wire_members import KnownStanding, ProbeMessage

U64 = st.integers(0, (1 << 64) - 1)
NODES = st.binary(min_size=16, max_size=16).map(NodeId)
PEERS = st.integers(0, 255).map(a_peer)
RUMOURS = st.builds(Rumour, PEERS, st.sampled_from(Said), U64, st.lists(NODES, max_size=4).map(tuple))
STANDINGS = st.builds(
    Standing,
    NODES,
    U64,
    U64,
    st.frozensets(st.binary(min_size=32, max_size=32).map(SnapshotId), max_size=5),
    st.frozensets(st.binary(min_size=8, max_size=8).map(OriginId), max_size=5),
)
HELLO = Hello(a_peer(1), "c", boot=b"boot")


@given(
    st.builds(
        ProbeMessage,
        st.just(HELLO),
        st.builds(
            News,
            U64,
            st.binary(max_size=32),
            st.lists(RUMOURS, max_size=5).map(tuple),
            st.lists(STANDINGS, max_size=5).map(tuple),
        ),
    )
)
def test_a_probe_crosses_as_it_is(message: ProbeMessage) -> None:
    assert wire_members.decode_probe(wire_members.encode_probe(message)) == message


@given(st.lists(st.builds(KnownStanding, NODES, U64, U64), max_size=5), st.lists(STANDINGS, max_size=5))
def test_standings_and_what_is_known_of_them_cross_as_they_are(
    known: list[KnownStanding], standings: list[Standing]
) -> None:
    assert wire_members.decode_known(wire_members.encode_known(known)) == tuple(known)
    assert wire_members.decode_standings(wire_members.encode_standings(standings)) == tuple(standings)


def a_probe() -> dict[str, object]:
    rumour = Rumour(a_peer(2), Said.DEAD, 3, (a_peer(1).node_id,))
    standing = Standing(a_peer(2).node_id, 1, 1, frozenset([SnapshotId(bytes(32))]))
    message = ProbeMessage(HELLO, News(1, b"digest", (rumour,), (standing,)))
    record: dict[str, object] = json.loads(wire_members.encode_probe(message))
    return record


@pytest.mark.parametrize(
    "change",
    [
        {"rumours": [1]},
        {"rumours": [{"said": "dead"}]},
        {"rumours": a_probe()["rumours"] * 65},  # type: ignore[operator]
        {"standings": [{"node": "00"}]},
        {"standings": a_probe()["standings"] * 65},  # type: ignore[operator]
        {"digest": "0" * 66},
        {"refutation": -1},
        {"hello": None},
    ],
)
def test_what_is_no_probe_is_refused(change: dict[str, object]) -> None:
    wire_members.decode_probe(json.dumps(a_probe()).encode())
    with pytest.raises(BadRequest):
        wire_members.decode_probe(json.dumps({**a_probe(), **change}).encode())


@pytest.mark.parametrize(
    "change", [{"said": "risen"}, {"accusers": ["0"]}, {"accusers": ["00" * 16] * 9}, {"refutation": 1 << 64}]
)
def test_what_is_no_rumour_is_refused(change: dict[str, object]) -> None:
    probe = a_probe()
    rumours = probe["rumours"]
    assert isinstance(rumours, list)
    with pytest.raises(BadRequest):
        wire_members.decode_probe(json.dumps({**probe, "rumours": [{**rumours[0], **change}]}).encode())


@pytest.mark.parametrize("wants", ["AA==", "A" * 43 + "=" * 2, "!", 3, "A" * 12000])
def test_what_is_no_list_of_snapshots_is_refused(wants: object) -> None:
    record = {"node": "00" * 16, "incarnation": 1, "version": 1, "wants": wants, "reads": ""}
    with pytest.raises(BadRequest):
        wire_members.decode_standings(json.dumps({"standings": [record]}).encode())


def test_known_standings_are_whole_entries() -> None:
    with pytest.raises(BadRequest):
        wire_members.decode_known(encode({"known": "AAAA"}))


def test_a_message_full_of_news_stays_below_sixteen_kilobytes_and_one_item_always_fits() -> None:
    outbox = Outbox()
    for number in range(200):
        outbox.put(Rumour(a_peer(number), Said.SUSPECT, 1 << 40, (a_peer(1).node_id,) * 4))
    items = outbox.take(1000, None)
    rumours = tuple(item for item in items if isinstance(item, Rumour))
    assert len(items) > 20
    assert len(wire_members.encode_probe(ProbeMessage(HELLO, News(rumours=rumours)))) < 16 << 10
    most = frozenset(SnapshotId(number.to_bytes(32, "big")) for number in range(256))
    reads = frozenset(OriginId(number.to_bytes(8, "big")) for number in range(256))
    full = Standing(a_peer(1).node_id, 1, 1, most, reads)
    other = Outbox()
    other.put(full)
    other.put(Standing(a_peer(2).node_id, 1, 1, most, reads))
    taken = other.take(1000, None)
    assert len(taken) == 1
    told = ProbeMessage(HELLO, News(standings=(full,)))
    body = wire_members.encode_probe(told)
    assert len(body) < 17 << 10
    assert wire_members.decode_probe(body) == told
