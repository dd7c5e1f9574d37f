"""What each node has to do with data now, as far as this node was told: who wants a snapshot, who reads an origin.

Pure: no clocks, no I/O. Of two standings of one node the one with the larger (incarnation, version) counts. What is
remembered is bounded, since strangers may tell anything.
"""

from collections import defaultdict
from collections.abc import Collection, Container, Hashable, Iterable
from dataclasses import replace
from typing import TypeVar

from hoard_p2p.ids import SnapshotId
from hoard_p2p.peer import NodeId, OriginId, Peer, Standing

MAX_WANTS = 256
MAX_READS = 256
MAX_NODES = 8192
MAX_ITEMS = 1 << 18
"""Wants and reads remembered of all nodes together."""
MOST_LEAP = 4096
"""Versions that may be missed of a node; who has missed more asks the node itself."""
LAST_VERSION = (1 << 64) - 1

T = TypeVar("T", bound=Hashable)


class Standings:
    """My own standing and those of others. `changes` counts what changed. One owner, the event loop."""

    def __init__(self, me: Peer) -> None:
        self.changes = 0
        self._own = Standing(me.node_id, me.incarnation, 0)
        self._of: dict[NodeId, Standing] = {me.node_id: self._own}
        self._wanting: dict[SnapshotId, set[NodeId]] = defaultdict(set)
        self._reading: dict[OriginId, set[NodeId]] = defaultdict(set)
        self._items = 0

    @property
    def own(self) -> Standing:
        return self._own

    def stand(self, wants: Collection[SnapshotId] | None, reads: Collection[OriginId] | None) -> bool:
        """Set my own; None leaves a part as it is. Returns whether that changed anything. Beyond the bounds the ids
        that sort last are left out."""
        new = replace(
            self._own,
            wants=self._own.wants if wants is None else _bounded(wants, MAX_WANTS),
            reads=self._own.reads if reads is None else _bounded(reads, MAX_READS),
        )
        if new == self._own:
            return False
        self._set_own(replace(new, version=self._own.version + 1))
        return True

    def told(self, standing: Standing, latest_start: int = LAST_VERSION, *, first_hand: bool = False) -> bool:
        """Somebody told this standing. Returns whether it is news to be passed on: what others tell of me and is not
        so is answered by a later version of mine.

        `latest_start`: the incarnation in which the node is known; `first_hand`: it answered this itself. Others could
        give it such a standing that it can never have a later one: so of what they say a leap counts nothing, nor what
        is of a start that nobody saw.
        """
        if standing.node_id == self._own.node_id:
            return self._correct(standing)
        if not first_hand and self._is_leap(standing, latest_start):
            return False
        if not self.is_later(standing) or (standing.node_id not in self._of and len(self._of) >= MAX_NODES):
            return False
        known = self._of.get(standing.node_id)
        added = _size(standing) - (0 if known is None else _size(known))
        if len(standing.wants) > MAX_WANTS or len(standing.reads) > MAX_READS or self._items + added > MAX_ITEMS:
            return False
        self._put(standing)
        return True

    def _is_leap(self, standing: Standing, latest_start: int) -> bool:
        known = self._of.get(standing.node_id)
        version = known.version if known is not None and known.incarnation == standing.incarnation else 0
        return standing.incarnation > latest_start or standing.version - version > MOST_LEAP

    def is_later(self, standing: Standing) -> bool:
        """Whether it is a later one than is known of its node."""
        known = self._of.get(standing.node_id)
        return known is None or _order(standing) > _order(known)

    def keep(self, members: Container[NodeId]) -> None:
        """Forget all others but me."""
        for node_id in [node_id for node_id in self._of if node_id not in members and node_id != self._own.node_id]:
            self._drop(self._of.pop(node_id))

    def but(self, known: Iterable[tuple[NodeId, int, int]]) -> list[Standing]:
        """Those that are later than what the asker knows (node, incarnation, version)."""
        theirs = {node_id: (incarnation, version) for node_id, incarnation, version in known}
        return [each for each in self.all() if each.version and _order(each) > theirs.get(each.node_id, (0, 0))]

    def of(self, node_id: NodeId) -> Standing | None:
        return self._of.get(node_id)

    def all(self) -> tuple[Standing, ...]:
        """Every one known, mine too, by node id."""
        return tuple(standing for _, standing in sorted(self._of.items()))

    def wanting(self, snapshot: SnapshotId) -> Collection[NodeId]:
        return self._wanting.get(snapshot, ())

    def reading(self, origin: OriginId) -> Collection[NodeId]:
        return self._reading.get(origin, ())

    # --- steps

    def _correct(self, heard: Standing) -> bool:
        if _order(heard) < _order(self._own) or heard == self._own or heard.incarnation > self._own.incarnation:
            return False
        if heard.version - self._own.version > MOST_LEAP:
            return False  # nobody believes that
        self._set_own(replace(self._own, version=heard.version + 1))
        return True

    def _set_own(self, standing: Standing) -> None:
        self._own = standing
        self._put(standing)

    def _put(self, standing: Standing) -> None:
        self.changes += 1
        known = self._of.get(standing.node_id)
        if known is not None:
            self._drop(known)
        self._of[standing.node_id] = standing
        self._items += _size(standing)
        for snapshot in standing.wants:
            self._wanting[snapshot].add(standing.node_id)
        for origin in standing.reads:
            self._reading[origin].add(standing.node_id)

    def _drop(self, standing: Standing) -> None:
        self.changes += 1
        self._items -= _size(standing)
        _remove(self._wanting, standing.wants, standing.node_id)
        _remove(self._reading, standing.reads, standing.node_id)


def _remove(index: dict[T, set[NodeId]], items: Iterable[T], node_id: NodeId) -> None:
    for item in items:
        index[item].discard(node_id)
        if not index[item]:
            del index[item]


def _bounded(items: Collection[T], most: int) -> frozenset[T]:
    return frozenset(sorted(items, key=repr)[:most])


def _order(standing: Standing) -> tuple[int, int]:
    return standing.incarnation, standing.version


def _size(standing: Standing) -> int:
    return len(standing.wants) + len(standing.reads)
