"""Which copies a node should make and which it need not keep, from its own view alone (I7). Pure (CLUSTER 3).

A node plans only for itself, and only copies that it should hold itself: so two nodes with one view never plan the same
copy, and once everybody has carried out its plan nobody has one (tests/property/test_repair_property.py).
"""

from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass

from hoard_p2p.ids import ChunkId
from hoard_p2p.interfaces import Residency
from hoard_p2p.peer import ClusterView, NodeId, Peer
from hoard_p2p.placement import homes

SPARE_HOMES = 2
"""Nodes that are kept per segment behind its homes: they stand in for homes without room."""

Orders = Mapping[int, Sequence[NodeId]]
"""Segment -> the first nodes in its order, homes first (`placement.homes`), at least as many as it has replicas."""


@dataclass(frozen=True, slots=True)
class Here:
    """What the planning node has of a snapshot. `whole`: segments of which every chunk is here; `held`: those that it
    keeps as one of their homes (holds), not as an ordinary copy; `full`: whether it can store nothing more."""

    whole: Container[int]
    held: frozenset[int]
    full: bool = False


@dataclass(frozen=True, slots=True)
class Pull:
    """Copy a segment from one of `sources`, best first, each of which has it whole: as many copies as there are."""

    segment: int
    sources: tuple[NodeId, ...]


@dataclass(frozen=True, slots=True)
class Plan:
    """What one node does about one snapshot.

    `pulls`: the most endangered first. `hold`: here already, and from now on kept as home. `release`: kept so far and
    due at others now, all of whom have it; it stays as an ordinary copy until its room is needed (and then goes by the
    rule of `repair.lastcopy`). `nowhere`: should be here, and no node that was asked has it whole.
    """

    pulls: tuple[Pull, ...] = ()
    hold: tuple[int, ...] = ()
    release: tuple[int, ...] = ()
    nowhere: tuple[int, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.pulls or self.hold or self.release)


def orders(view: ClusterView, keys: Mapping[int, ChunkId], replicas: int) -> dict[int, tuple[NodeId, ...]]:
    """The orders of segments with these placement keys: about 1 us for each pair of segment and node."""
    return {
        segment: tuple(peer.node_id for peer in homes(view.peers, key, replicas + SPARE_HOMES))
        for segment, key in keys.items()
    }


def plan(
    me: NodeId,
    orders: Orders,
    replicas: int,
    here: Here,
    others: Mapping[NodeId, Residency],
    *,
    full: Container[NodeId] = frozenset(),
) -> Plan:
    """What node `me` should do about the segments of `orders`, which must be all that it is a home of or holds.

    `others`: what peers in the view hold whole, as they told; who told nothing holds nothing. `full`: peers that can
    store nothing more: what they have not yet is due at the next in order.
    """
    pulls: list[Pull] = []
    hold: list[int] = []
    release: list[int] = []
    nowhere: list[int] = []
    for segment, order in orders.items():
        holders = [node for node, told in others.items() if node != me and told.holds(segment)]
        whole = segment in here.whole
        has = [*holders, me] if whole else holders
        due = [node for node in order if node in has or not (here.full if node == me else node in full)][:replicas]
        if me in due:
            if whole:
                if segment not in here.held:
                    hold.append(segment)
            elif holders:
                pulls.append(Pull(segment, sources(order, holders, segment)))
            else:
                nowhere.append(segment)
        elif segment in here.held and due and len(due) == min(replicas, len(order)) and set(due) <= set(holders):
            release.append(segment)
    pulls.sort(key=lambda pull: (len(pull.sources), pull.segment))
    return Plan(tuple(pulls), tuple(hold), tuple(release), tuple(nowhere))


def keeps_its_share(me: NodeId, orders: Orders, replicas: int, here: Here) -> bool:
    """Whether `me` has whole, and holds, all that it is home of, and holds nothing else: then it has nothing to do as
    long as homes have room."""
    return all(
        (segment in here.whole and segment in here.held) if me in order[:replicas] else segment not in here.held
        for segment, order in orders.items()
    )


def sources(order: Sequence[NodeId], holders: Iterable[NodeId], segment: int) -> tuple[NodeId, ...]:
    """Holders in the segment's order; the others behind them, each first for some segments."""
    has = set(holders)
    first = [node for node in order if node in has]
    rest = sorted(has.difference(first))
    turn = segment % len(rest) if rest else 0
    return (*first, *rest[turn:], *rest[:turn])


def copies(held: Iterable[Residency | bytes], at_least: int, segments: int) -> int:
    """The segments of which there are `at_least` whole copies, as an integer in which bit i is segment i."""
    enough = [(1 << segments) - 1] + [0] * at_least  # [n]: of which there are n
    for record in held:
        bits = int.from_bytes(record if isinstance(record, bytes) else record.bits, "little")
        for count in range(at_least, 0, -1):
            enough[count] |= enough[count - 1] & bits
    return enough[at_least]


def lacking(held: Iterable[Residency | bytes], replicas: int, segments: int) -> list[int]:
    """The segments of which there are fewer than `replicas` whole copies."""
    left = ((1 << segments) - 1) & ~copies(held, replicas, segments)
    found = []
    while left:
        low = left & -left
        found.append(low.bit_length() - 1)
        left ^= low
    return found


def draining(peer: Peer) -> bool:
    """Whether a node gives up its shares: it is no home of anything, and keeps what it has until others have it."""
    return peer.weight == 0
