"""Membership as a state machine: events in, commands and views out."""

from dataclasses import replace
from itertools import pairwise
from random import Random

from hypothesis import given
from hypothesis import strategies as st

from hoard_p2p.cluster.membership import MAX_BURST, Membership, Probe, State, bounded_weights
from hoard_p2p.peer import NodeId, Peer
from hoard_p2p.testing.network import a_peer

ME = a_peer(0, port=7000)
N1 = a_peer(1, "10.0.0.1", 7000)
N2 = a_peer(2, "10.0.0.2", 7000)


def membership() -> Membership:
    return Membership(ME, sample=Random(1).sample, boot=b"my boot")


def state_of(members: Membership, peer: Peer) -> State | None:
    return next((member.state for member in members.members() if member.peer.node_id == peer.node_id), None)


def others(members: Membership) -> set[NodeId]:
    return {peer.node_id for peer in members.view().others}


def probed(members: Membership, now: float) -> list[Peer]:
    return [command.peer for command in members.tick(now)]


def fail_until_dead(members: Membership, peer: Peer, now: float) -> float:
    """Silence from `now` on, probed once a second. Returns when the peer was declared dead."""
    begin = now
    members.contact_failed(peer.node_id, now)
    while state_of(members, peer) is not State.DEAD:
        now += 1
        assert now < begin + 30
        for asked in probed(members, now):
            if asked.node_id == peer.node_id:
                members.contact_failed(peer.node_id, now, at=asked)
    return now


def test_alone_the_view_holds_me() -> None:
    view = membership().view()
    assert view.me == ME.node_id
    assert view.peers == (ME,)


def test_a_peer_heard_of_is_probed_at_once_and_is_not_in_the_view_before_it_answers() -> None:
    members = membership()
    members.heard(N1, 0.0)
    assert others(members) == set()
    assert members.due(0.0) == [Probe(N1)]
    members.contact_ok(N1, 0.1)
    assert members.view().peers == (ME, N1)


def test_a_peer_that_never_answers_is_probed_ever_less_often_and_then_forgotten() -> None:
    members = membership()
    members.heard(N1, 0.0)
    times = []
    for now in range(200):
        for asked in probed(members, float(now)):
            times.append(now)
            members.contact_failed(asked.node_id, float(now), at=asked)
    gaps = [late - early for early, late in pairwise(times)]
    assert gaps == sorted(gaps)
    assert 30 < gaps[-1] <= 60
    members.tick(3600.0)
    assert members.members() == ()


def test_the_view_is_the_same_object_until_something_changes() -> None:
    members = membership()
    members.contact_ok(N1, 0.0)
    first = members.view()
    members.contact_ok(N1, 1.0)
    members.tick(2.0)
    assert members.view() is first
    members.contact_ok(replace(N1, weight=N1.weight * 2), 3.0)
    assert members.view() is not first
    assert members.view().by_id[N1.node_id].weight == N1.weight * 2


def test_the_view_is_sorted_by_node_id() -> None:
    members = membership()
    for number in (9, 3, 200, 7):
        members.contact_ok(a_peer(number), 0.0)
    ids = [peer.node_id for peer in members.view().peers]
    assert ids == sorted(ids)


def test_a_failed_contact_makes_a_suspect_that_stays_in_the_view() -> None:
    members = membership()
    members.contact_ok(N1, 0.0)
    members.contact_failed(N1.node_id, 1.0)
    assert members.suspects() == {N1.node_id}
    assert others(members) == {N1.node_id}
    assert N1 in probed(members, 1.5)


def test_a_suspect_that_answers_is_alive_again() -> None:
    members = membership()
    members.contact_ok(N1, 0.0)
    members.contact_failed(N1.node_id, 1.0)
    members.contact_ok(N1, 2.0)
    assert members.suspects() == frozenset()
    assert state_of(members, N1) is State.ALIVE


def test_a_silent_peer_is_declared_dead_in_five_to_ten_seconds_and_leaves_the_view() -> None:
    members = membership()
    members.contact_ok(N1, 0.0)
    assert 5 <= fail_until_dead(members, N1, 10.0) - 10.0 <= 10
    assert others(members) == set()


def test_one_failure_alone_never_kills() -> None:
    members = membership()
    members.contact_ok(N1, 0.0)
    members.contact_failed(N1.node_id, 1.0)
    members.tick(100.0)
    assert state_of(members, N1) is State.SUSPECT


def test_a_dead_peer_is_still_tried_and_is_back_as_soon_as_it_answers() -> None:
    members = membership()
    members.contact_ok(N1, 0.0)
    died = fail_until_dead(members, N1, 1.0)
    later = [now for now in range(int(died), int(died) + 61) if N1 in probed(members, float(now))]
    assert later
    members.contact_ok(N1, died + 61)
    assert others(members) == {N1.node_id}


def test_hearsay_does_not_raise_the_dead() -> None:
    members = membership()
    members.contact_ok(N1, 0.0)
    died = fail_until_dead(members, N1, 1.0)
    members.heard(N1, died)
    assert others(members) == set()


def test_hearsay_changes_nothing_about_a_living_peer() -> None:
    members = membership()
    members.contact_ok(N1, 0.0)
    before = members.view()
    members.heard(replace(N1, host="6.6.6.6", weight=1), 1.0)
    assert members.view() is before
    assert members.due(1.0) == []


def test_hearsay_of_a_restart_elsewhere_is_tried_and_taken_when_the_first_is_gone() -> None:
    members = membership()
    members.contact_ok(N1, 0.0, b"a")
    moved = replace(N1, incarnation=2, port=9000)
    members.heard(moved, 1.0)
    assert members.due(1.0) == [Probe(moved)]
    assert members.view().by_id[N1.node_id].port == 7000
    members.contact_ok(moved, 1.1, b"b")
    assert Probe(N1) in members.due(1.1)
    members.contact_failed(N1.node_id, 1.2, at=N1)
    assert members.due(1.2) == [Probe(moved)]
    members.contact_ok(moved, 1.3, b"b")
    assert members.view().by_id[N1.node_id] == moved


def test_nobody_takes_the_place_of_a_node_that_answers_by_saying_that_it_is_a_later_start_of_it() -> None:
    members = membership()
    members.contact_ok(N1, 0.0, b"a")
    impostor = replace(N1, incarnation=99, host="10.6.6.6", weight=1 << 40)
    for now in range(1, 60):
        members.heard(impostor, float(now))
        members.contact_ok(impostor, float(now), b"b")
        assert Probe(N1) in members.due(float(now))
        members.contact_ok(N1, now + 0.1, b"a")
        assert members.view().by_id[N1.node_id] == N1
    assert members.conflicts()


def test_members_that_are_made_up_leave_room_for_those_that_answer_and_are_not_asked_without_end() -> None:
    members = membership()
    asked = 0
    for now in range(0, 600, 30):
        for number in range(8192):
            host = f"10.9.9.{number % 4}"
            members.heard(replace(N1, node_id=NodeId(number.to_bytes(16, "big")), host=host, port=number), float(now))
        for probe in members.due(float(now)):
            asked += 1
            members.contact_failed(probe.peer.node_id, float(now), at=probe.peer)
    assert asked <= 4 * 128 * 9
    members.heard(N2, 600.0)
    assert Probe(N2) in members.due(600.0)
    members.contact_ok(N2, 600.0)
    assert others(members) == {N2.node_id}


def test_who_answers_as_another_node_each_time_does_not_fill_the_memory() -> None:
    members = membership()
    for number in range(9000):
        members.contact_ok(replace(N1, node_id=NodeId(number.to_bytes(16, "big"))), 0.0)
    assert len(members.known()) == 8192


def test_a_false_address_that_fails_does_not_hurt_the_peer() -> None:
    members = membership()
    members.contact_ok(N1, 0.0)
    elsewhere = replace(N1, incarnation=2, host="6.6.6.6")
    members.heard(elsewhere, 1.0)
    (probe,) = members.due(1.0)
    members.contact_failed(N1.node_id, 3.0, at=probe.peer)
    assert state_of(members, N1) is State.ALIVE


def test_a_suspect_is_tried_at_another_address_and_used_there_when_it_answers() -> None:
    members = membership()
    members.contact_ok(N1, 0.0)
    members.contact_failed(N1.node_id, 1.0)
    moved = replace(N1, host="10.0.0.77")
    members.heard(moved, 2.0)
    assert members.due(2.0) == [Probe(moved)]
    members.contact_ok(moved, 2.1)
    assert members.view().by_id[N1.node_id].host == "10.0.0.77"


def test_a_living_peer_that_answers_at_a_second_address_keeps_the_first() -> None:
    members = membership()
    members.contact_ok(N1, 0.0, b"a")
    members.contact_ok(replace(N1, host="192.168.0.1"), 1.0, b"a")
    assert members.view().by_id[N1.node_id].host == N1.host
    assert members.conflicts() == ()


def test_a_higher_incarnation_wins_and_a_lower_one_is_ignored() -> None:
    members = membership()
    members.contact_ok(replace(N1, incarnation=5, name="new"), 0.0)
    members.contact_ok(replace(N1, incarnation=4, name="old"), 1.0)
    assert members.view().by_id[N1.node_id].name == "new"


def test_a_peer_that_said_goodbye_is_gone_with_the_first_failure_though_it_answers_a_moment_longer() -> None:
    members = membership()
    members.contact_ok(N1, 0.0, b"a")
    members.left(N1.node_id, N1.incarnation, 1.0)
    assert members.due(1.0) == [Probe(N1)]
    assert members.due(1.0) == []
    members.contact_ok(N1, 1.1, b"a")
    assert N1 in probed(members, 2.0)
    members.contact_failed(N1.node_id, 2.0, at=N1)
    assert state_of(members, N1) is State.LEFT
    assert others(members) == set()


def test_a_goodbye_that_somebody_else_said_evicts_nobody_who_answers() -> None:
    members = membership()
    members.contact_ok(N1, 0.0, b"a")
    members.left(N1.node_id, 2**63, 1.0)
    assert members.suspects() == {N1.node_id}
    for second in range(1, 60):
        assert others(members) == {N1.node_id}
        if N1 in probed(members, float(second)):
            members.contact_ok(N1, float(second), b"a")
    members.contact_failed(N1.node_id, 60.0, at=N1)
    assert state_of(members, N1) is State.SUSPECT, "the goodbye is forgotten by now"


def test_who_was_taken_for_gone_is_tried_again_and_is_back_when_it_answers() -> None:
    members = membership()
    members.contact_ok(N1, 0.0, b"a")
    members.left(N1.node_id, N1.incarnation, 1.0)
    members.contact_failed(N1.node_id, 2.0, at=N1)
    assert any(N1 in probed(members, float(second)) for second in range(3, 10))
    members.contact_ok(N1, 10.0, b"a")
    assert others(members) == {N1.node_id}


def test_a_failed_request_alone_does_not_confirm_a_goodbye() -> None:
    members = membership()
    members.contact_ok(N1, 0.0, b"a")
    members.left(N1.node_id, N1.incarnation, 1.0)
    members.contact_failed(N1.node_id, 1.1)
    assert state_of(members, N1) is State.SUSPECT


def test_no_claimed_weight_counts_for_more_than_four_times_the_median() -> None:
    peers = [replace(a_peer(number), weight=weight) for number, weight in enumerate([0, 10, 10, 12, 2**64 - 1])]
    assert [peer.weight for peer in bounded_weights(peers)] == [0, 10, 10, 12, 40]
    assert bounded_weights(peers[:1]) == (peers[0],)
    members = membership()
    for number in (1, 2, 3):
        members.contact_ok(a_peer(number), 0.0)
    members.contact_ok(replace(a_peer(4), weight=2**60), 0.0)
    assert max(peer.weight for peer in members.view().peers) == 4 * ME.weight


def test_a_peer_that_said_goodbye_returns_with_its_next_start() -> None:
    members = membership()
    members.contact_ok(N1, 0.0, b"a")
    members.left(N1.node_id, N1.incarnation, 1.0)
    members.contact_failed(N1.node_id, 1.5, at=N1)
    restarted = replace(N1, incarnation=2)
    members.heard(restarted, 5.0)
    assert Probe(restarted) in members.due(5.0)
    members.contact_ok(restarted, 5.1, b"b")
    assert others(members) == {N1.node_id}


def test_a_goodbye_of_an_earlier_start_is_ignored() -> None:
    members = membership()
    members.contact_ok(replace(N1, incarnation=3), 0.0)
    members.left(N1.node_id, 2, 1.0)
    assert others(members) == {N1.node_id}


def test_a_restart_is_no_conflict() -> None:
    members = membership()
    members.contact_ok(N1, 0.0, b"a")
    members.contact_ok(replace(N1, incarnation=2, port=7001), 5.0, b"b")
    for probe in members.due(5.0):  # the former address is tried once more; nobody answers there
        members.contact_failed(N1.node_id, 6.0, at=probe.peer)
    members.contact_ok(replace(N1, incarnation=2, port=7001), 7.0, b"b")
    assert members.conflicts() == ()
    assert state_of(members, N1) is State.ALIVE


def test_two_running_nodes_with_one_id_are_a_conflict_that_names_both() -> None:
    for clone_incarnation in (1, 2):  # of the clone: the same as, or later than, the other's
        members = membership()
        clone = replace(N1, host="10.0.0.9", incarnation=clone_incarnation)
        members.contact_ok(N1, 0.0, b"a")
        members.contact_ok(clone, 1.0, b"b")
        assert members.conflicts() == ()
        for probe in members.due(1.0):
            assert probe.peer == N1
            members.contact_ok(N1, 1.1, b"a")
        (conflict,) = members.conflicts()
        assert {conflict.first, conflict.second} == {N1, clone}
        members.tick(100.0)
        assert members.conflicts() == ()


def test_a_node_with_my_id_is_a_conflict_but_my_own_answer_is_not() -> None:
    members = membership()
    members.contact_ok(replace(ME, host="10.0.0.5"), 0.0, b"my boot")
    assert members.conflicts() == ()
    clone = replace(ME, host="10.0.0.6")
    members.contact_ok(clone, 1.0, b"another")
    (conflict,) = members.conflicts()
    assert (conflict.first, conflict.second) == (ME, clone)
    assert members.view().peers == (ME,)


def test_every_living_peer_is_probed_once_in_a_round_and_a_tick_costs_the_same_however_many_there_are() -> None:
    members = membership()
    peers = [a_peer(number % 256, f"10.0.{number // 256}.{number % 256}") for number in range(1, 201)]
    for peer in peers:
        members.contact_ok(peer, 0.0)
    rounds = [peer.node_id for second in range(100) for peer in probed(members, float(second))]
    assert len(rounds) == 200
    assert set(rounds) == {peer.node_id for peer in peers}


def test_a_flood_of_hearsay_is_bounded() -> None:
    members = membership()
    for number in range(20_000):
        members.heard(replace(N1, node_id=NodeId(number.to_bytes(16, "big"))), 0.0)
    assert len(members.members()) <= 8192
    assert len(members.due(0.0)) == MAX_BURST


EVENTS = st.tuples(
    st.sampled_from(["heard", "ok", "failed", "left", "tick"]),
    st.integers(0, 3),
    st.integers(1, 3),
    st.sampled_from(["10.0.0.1", "10.0.0.2"]),
    st.sampled_from([b"", b"a", b"b"]),
)


@given(st.lists(EVENTS, max_size=40))
def test_whatever_happens_the_view_holds_me_and_exactly_the_living_and_suspected(
    events: list[tuple[str, int, int, str, bytes]],
) -> None:
    members = membership()
    for now, (event, number, incarnation, host, boot) in enumerate(events):
        peer = a_peer(number, host, 7000, incarnation=incarnation)
        if event == "heard":
            members.heard(peer, float(now))
        elif event == "ok":
            members.contact_ok(peer, float(now), boot)
        elif event == "failed":
            members.contact_failed(peer.node_id, float(now))
        elif event == "left":
            members.left(peer.node_id, incarnation, float(now))
        else:
            members.tick(float(now * 7))
        view = members.view()
        shown = {m.peer.node_id for m in members.members() if m.state in (State.ALIVE, State.SUSPECT)}
        assert {peer.node_id for peer in view.peers} == shown | {ME.node_id}
        assert view.by_id[ME.node_id] == ME
        assert members.suspects() <= shown
