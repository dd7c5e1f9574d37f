"""Members by lease: what a listing and changes of keys come to."""

from hoard_p2p.cluster.addresses import Address, Advert
from hoard_p2p.cluster.leases import MAX_RECORD, Roll, decode_leased, encode_leased
from hoard_p2p.cluster.membership import Membership, State
from hoard_p2p.peer import NodeId
from hoard_p2p.registry import Change, Entry
from hoard_p2p.testing.network import a_peer

A, B = NodeId(b"a" * 16), NodeId(b"b" * 16)


def record(node: NodeId, port: int = 7440) -> bytes:
    return encode_leased(Advert(node, "c", "r", "0.0.0.0", port), ["10.0.0.1", "fd00::1"])


def entry(node: NodeId) -> Entry:
    return Entry(node.hex(), record(node), 1)


def test_a_record_tells_where_a_node_may_be_reached() -> None:
    leased = decode_leased(record(A))
    assert leased is not None and leased.node_id == A
    assert leased.addresses == (Address("10.0.0.1", 7440), Address("fd00::1", 7440))


def test_what_no_node_has_written_is_left_out() -> None:
    bad = [b"", b"[]", b"{}", b"x" * (MAX_RECORD + 1), b'{"id":"zz","port":1,"hosts":[]}', record(A, 0), b"[" * 4000]
    assert [decode_leased(value) for value in bad] == [None] * len(bad)


def test_who_has_a_key_is_a_member_until_it_goes() -> None:
    roll = Roll(15)
    assert len(roll.listed([entry(A)], 0)) == 2
    assert roll.members(0) == {A}
    assert len(roll.changed([Change(B.hex(), record(B), 2)])) == 2
    assert roll.members(0) == {A, B}
    assert roll.changed([Change(A.hex(), None, 3)]) == []
    assert roll.members(0) == {B}


def test_who_is_missing_after_an_interruption_stays_for_the_grace_time_only() -> None:
    roll = Roll(15)
    roll.listed([entry(A), entry(B)], 0)
    roll.listed([], 100)
    roll.listed([entry(A)], 110)
    assert roll.members(114) == {A, B}
    assert roll.members(115) == {A}


def test_who_enters_itself_again_after_an_interruption_is_a_member_as_before() -> None:
    roll = Roll(15)
    roll.listed([entry(A)], 0)
    roll.listed([], 100)
    roll.changed([Change(A.hex(), record(A), 2)])
    assert roll.members(1000) == {A}
    roll.changed([Change(A.hex(), None, 3)])
    assert roll.members(1000) == set()


def alive(*numbers: int) -> Membership:
    membership = Membership(a_peer(0), sample=lambda items, count: items[:count])
    for number in numbers:
        membership.contact_ok(a_peer(number, port=number), 0.0)
    return membership


def seen(membership: Membership) -> set[int]:
    return {peer.node_id[0] for peer in membership.view().peers}


def test_who_has_no_lease_leaves_the_view_though_it_answers() -> None:
    membership = alive(1, 2)
    membership.by_lease(frozenset({a_peer(1).node_id}))
    assert seen(membership) == {0, 1}


def test_who_has_a_lease_and_died_stays_in_the_view_and_is_asked_last() -> None:
    membership = alive(1)
    membership.by_lease(frozenset({a_peer(1).node_id}))
    for second in range(200):
        membership.contact_failed(a_peer(1).node_id, float(second))
        membership.tick(float(second))
    assert membership.members()[0].state is State.DEAD
    assert seen(membership) == {0, 1} and membership.suspects() == {a_peer(1).node_id}


def test_who_has_a_lease_and_never_answered_is_not_in_the_view() -> None:
    membership = alive(1)
    membership.heard(a_peer(2, port=2), 0.0)
    membership.by_lease(frozenset({a_peer(1).node_id, a_peer(2).node_id}))
    assert seen(membership) == {0, 1}
    membership.contact_ok(a_peer(2, port=2), 1.0)
    assert seen(membership) == {0, 1, 2}


def test_while_the_registry_cannot_be_asked_the_last_view_stays_and_others_may_join() -> None:
    membership = alive(1, 2)
    membership.by_lease(None)
    assert seen(membership) == {0, 1, 2}, "never asked: as without a registry"
    membership.by_lease(frozenset({a_peer(1).node_id}))
    membership.by_lease(None)
    for second in range(200):
        membership.contact_failed(a_peer(1).node_id, float(second))
        membership.tick(float(second))
    assert seen(membership) == {0, 1, 2}
