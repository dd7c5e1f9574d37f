"""Sessions without a network: what is proven, what is refused, and what the table of the server keeps."""

from dataclasses import replace

import pytest
from blake3 import blake3

from hoard_p2p.errors import BadRequest
from hoard_p2p.peer import NodeId
from hoard_p2p.transfer.keys import ClusterKey, KeyRing
from hoard_p2p.transfer.sessions import Admitted, Grant, Offer, Session, Unproven
from hoard_p2p.transfer.sessions_server import IDLE_TIME, MOST_OFFERED, MOST_SESSIONS, OFFERED_TIME, SessionTable

KEY, OTHER = ClusterKey(bytes(range(32))), ClusterKey(bytes(range(1, 33)))
A, B = NodeId(b"a" * 16), NodeId(b"b" * 16)
JSON = "application/json"


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def pair(mine: KeyRing, table: SessionTable, expected: NodeId = B) -> Session:
    """A session of `mine` with the node that has `table`."""
    offer = Offer.draw(mine)
    grant = table.grant(Offer.decode(offer.encode()))
    assert grant is not None
    return Session(mine, offer, Grant.decode(grant), expected)


@pytest.fixture
def table() -> SessionTable:
    return SessionTable(KeyRing(B, (KEY,)), Clock())


RING = KeyRing(A, (KEY,))


def admitted(table: SessionTable, header: str, method: str = "POST", path: str = "/v1/announce") -> Admitted:
    found = table.admit(header, method, path)
    assert found is not None
    return found


def test_requests_and_answers_are_proven_one_after_the_other(table: SessionTable) -> None:
    session = pair(RING, table)
    for number in range(5):
        body = b"body %d" % number
        found = admitted(table, session.sign("POST", "/v1/announce", body))
        assert found.node == A
        found.check_body(body)
        session.check_whole(found.answer(200, JSON, blake3(b"{}").hexdigest()), 200, JSON, b"{}")


def test_requests_may_be_sent_ahead_of_answers(table: SessionTable) -> None:
    session = pair(RING, table)
    first, second = session.sign("POST", "/x", b"1"), session.sign("POST", "/x", b"2")
    one, two = admitted(table, first, path="/x"), admitted(table, second, path="/x")
    assert session.check(one.answer(200, JSON, "-"), 200, JSON) == "-"
    assert session.check(two.answer(200, JSON, "-"), 200, JSON) == "-"


def test_a_request_is_taken_once_and_only_in_its_turn(table: SessionTable) -> None:
    session = pair(RING, table)
    first, second = session.sign("POST", "/v1/announce", b""), session.sign("POST", "/v1/announce", b"")
    assert table.admit(second, "POST", "/v1/announce") is None
    admitted(table, first)
    assert table.admit(first, "POST", "/v1/announce") is None
    admitted(table, second)


def test_a_request_with_another_method_path_or_body_is_refused(table: SessionTable) -> None:
    session = pair(RING, table)
    header = session.sign("POST", "/v1/announce", b"body")
    assert table.admit(header, "GET", "/v1/announce") is None
    assert table.admit(header, "POST", "/v1/leave") is None
    with pytest.raises(BadRequest, match="changed on the way"):
        admitted(table, header).check_body(b"bodx")


def test_every_changed_character_of_a_proof_is_noticed(table: SessionTable) -> None:
    session = pair(RING, table)
    header = session.sign("POST", "/v1/announce", b"body")
    for at, character in enumerate(header):
        changed = header[:at] + ("1" if character != "1" else "2") + header[at + 1 :]
        assert table.admit(changed, "POST", "/v1/announce") is None
    admitted(table, header)


def test_a_request_is_of_no_use_at_another_node_with_the_key(table: SessionTable) -> None:
    elsewhere = SessionTable(KeyRing(NodeId(b"c" * 16), (KEY,)), Clock())
    session = pair(RING, table)
    pair(RING, elsewhere, NodeId(b"c" * 16))
    assert elsewhere.admit(session.sign("GET", "/v1/refs", b""), "GET", "/v1/refs") is None


def test_answers_cannot_be_swapped_repeated_or_turned_into_requests(table: SessionTable) -> None:
    session = pair(RING, table)
    headers = [session.sign("GET", "/v1/refs", b"") for _ in range(2)]
    first, second = (admitted(table, header, "GET", "/v1/refs") for header in headers)
    with pytest.raises(Unproven):
        session.check(second.answer(200, JSON, "-"), 200, JSON)
    session.check(first.answer(200, JSON, "-"), 200, JSON)
    with pytest.raises(Unproven):
        session.check(first.answer(200, JSON, "-"), 200, JSON)
    for told in (("404", JSON), ("200", "text/plain")):
        with pytest.raises(Unproven):
            session.check(second.answer(200, JSON, "-"), int(told[0]), told[1])
    for header in ("", "0", headers[1], "x" * 200):
        with pytest.raises(Unproven):
            session.check(header, 200, JSON)


def test_an_answer_whose_body_was_changed_is_not_believed(table: SessionTable) -> None:
    session = pair(RING, table)
    found = admitted(table, session.sign("GET", "/v1/refs", b""), "GET", "/v1/refs")
    with pytest.raises(Unproven, match="body was changed"):
        session.check_whole(found.answer(200, JSON, "0" * 64), 200, JSON, b"{}")


def test_another_key_is_granted_nothing(table: SessionTable) -> None:
    assert table.grant(Offer.draw(KeyRing(A, (OTHER, KEY)))) is None


def test_during_rotation_either_key_signs_and_both_are_accepted() -> None:
    old, both, new = KeyRing(A, (KEY,)), KeyRing(B, (OTHER, KEY)), KeyRing(A, (OTHER,))
    for ring in (old, new):
        table = SessionTable(both)
        admitted(table, pair(ring, table).sign("POST", "/v1/announce", b""))
    table = SessionTable(new)
    admitted(table, pair(both, table, A).sign("POST", "/v1/announce", b""))
    assert SessionTable(old).grant(Offer.draw(both)) is None


def test_a_grant_by_somebody_without_the_key_is_noticed() -> None:
    liar = SessionTable(KeyRing(B, (OTHER,)))
    offer = Offer.draw(RING)
    forged = liar.grant(replace(offer, fingerprint=OTHER.fingerprint))
    assert forged is not None
    with pytest.raises(Unproven, match="does not have our key"):
        Session(RING, offer, Grant.decode(forged), B)


def test_a_grant_for_another_offer_or_by_another_node_is_noticed(table: SessionTable) -> None:
    offer, other = Offer.draw(RING), Offer.draw(RING)
    grant = table.grant(other)
    assert grant is not None
    with pytest.raises(Unproven):
        Session(RING, offer, Grant.decode(grant), B)
    with pytest.raises(Unproven, match="instead of"):
        pair(RING, table, NodeId(b"c" * 16))
    changed = replace(Grant.decode(grant), node=NodeId(b"c" * 16))
    with pytest.raises(Unproven):
        Session(RING, other, changed, NodeId(b"c" * 16))


@pytest.mark.parametrize("size", [0, 1, 56, 58, 4096])
def test_offers_and_grants_have_exactly_their_length(size: int) -> None:
    with pytest.raises(BadRequest):
        Offer.decode(bytes(size))
    with pytest.raises(Unproven):
        Grant.decode(bytes(size))


def test_an_offer_of_a_later_version_is_refused() -> None:
    with pytest.raises(BadRequest):
        Offer.decode(b"\2" + Offer.draw(RING).encode()[1:])


def test_strangers_offers_are_bounded_and_push_out_no_session_that_was_used(table: SessionTable) -> None:
    session = pair(RING, table)
    admitted(table, session.sign("POST", "/v1/announce", b""))
    for _ in range(MOST_OFFERED + 10):
        table.grant(Offer.draw(RING))
    assert len(table) == MOST_OFFERED + 1
    admitted(table, session.sign("POST", "/v1/announce", b""))


def test_sessions_end_when_they_are_not_used() -> None:
    clock = Clock()
    table = SessionTable(KeyRing(B, (KEY,)), clock)
    session, unused = pair(RING, table), pair(RING, table)
    admitted(table, session.sign("POST", "/v1/announce", b""))
    clock.now += max(OFFERED_TIME, IDLE_TIME) + 1
    fresh = pair(RING, table)
    admitted(table, fresh.sign("POST", "/v1/announce", b""))
    assert len(table) == 1
    for old in (session, unused):
        assert table.admit(old.sign("POST", "/v1/announce", b""), "POST", "/v1/announce") is None
    assert MOST_SESSIONS > 1000
