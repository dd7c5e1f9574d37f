"""The peers that a membership knows, and the view made of them. Pure; only `membership` changes entries."""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import TypeAlias

from hoard_p2p.cluster.states import GONE, OUTSIDE, Entry, Member, State
from hoard_p2p.cluster.weights import bounded_weights
from hoard_p2p.peer import ClusterView, NodeId, Peer

Sample: TypeAlias = Callable[[Sequence[NodeId], int], Sequence[NodeId]]
"""Draws k distinct items of a sequence in random order: `random.Random(seed).sample`."""

MAX_KNOWN = 8192
"""Peers remembered at most, so that a stranger cannot fill the memory."""
MAX_UNMET = 4096
"""Of these, such as are known by hearsay only: what is made up leaves room for those that answer."""
MAX_UNMET_AT = 128
"""The same at one host: nobody can make nodes knock at a third's door without end."""


class Roster:
    """Entries by node id. `watched` are those that are not calm; `inside` counts the view, me included."""

    def __init__(self, me: Peer, sample: Sample, accusers_needed: int) -> None:
        self.me = me
        self.entries: dict[NodeId, Entry] = {}
        self.watched: dict[NodeId, Entry] = {}
        self.inside = 1
        self._sample = sample
        self._accusers_needed = accusers_needed
        self._view: ClusterView | None = None
        self._leased: frozenset[NodeId] | None = None
        self._leases_known = False
        self._alive: list[NodeId] | None = None
        self._round: list[NodeId] = []
        self._unmet = Counter[str]()

    # --- changes

    def takes(self, peer: Peer) -> bool:
        """Whether there is room for one more that is known by hearsay only."""
        has_room = len(self.entries) < MAX_KNOWN and self._unmet.total() < MAX_UNMET
        return has_room and self._unmet[peer.host] < MAX_UNMET_AT

    def met(self, peer: Peer, now: float) -> Entry | None:
        """The entry of a peer that answered; None if there is no room for one more."""
        entry = self.entries.get(peer.node_id)
        if entry is None and len(self.entries) < MAX_KNOWN:
            entry = self.add(Entry(peer, State.HEARD, now, spread=True))
        return entry

    def add(self, entry: Entry) -> Entry:
        self._unmet[entry.heard_at] += 1
        self.entries[entry.peer.node_id] = entry
        self.watch(entry)
        return entry

    def meet(self, peers: Sequence[Peer], now: float) -> None:
        """Add peers that answered."""
        self.entries.update((peer.node_id, Entry(peer, State.ALIVE, now, now)) for peer in peers)
        self.inside = 1 + len(self.entries)
        self._view = self._alive = None

    def drop(self, entry: Entry) -> None:
        self._count_met(entry)
        del self.entries[entry.peer.node_id]
        self.watched.pop(entry.peer.node_id, None)

    def watch(self, entry: Entry) -> None:
        self.watched[entry.peer.node_id] = entry

    def unwatch_calm(self) -> None:
        for entry in [entry for entry in self.watched.values() if entry.is_calm]:
            del self.watched[entry.peer.node_id]

    def change(self, entry: Entry, state: State, now: float) -> None:
        """Put a peer into a state."""
        self._count_met(entry)
        self.inside += (state not in OUTSIDE) - (entry.state not in OUTSIDE)
        entry.state, entry.since = state, now
        self._view = self._alive = None
        self.watch(entry)

    def by_lease(self, leased: frozenset[NodeId] | None) -> None:
        """See `Membership.by_lease`."""
        known = leased is not None
        if known != self._leases_known or (known and leased != self._leased):
            self._leased, self._leases_known = leased if known else self._leased, known
            self._view = None

    def renew_view(self) -> None:
        """A record of the view, or who may be in it, changed."""
        self._view = None

    # --- what is known

    def view(self) -> ClusterView:
        """Me and the peers that are ALIVE or SUSPECT, with bounded weights. The same object until something changes."""
        if self._view is None:
            peers = [entry.peer for entry in self.entries.values() if self._is_member(entry)]
            ordered = sorted([self.me, *peers], key=lambda peer: peer.node_id)
            self._view = ClusterView(self.me.node_id, bounded_weights(ordered))
        return self._view

    def suspects(self) -> frozenset[NodeId]:
        """Those that should be asked last. Who does not answer and has a lease is one, however long."""
        return frozenset(node_id for node_id, entry in self.watched.items() if self._is_suspected(entry))

    def members(self) -> tuple[Member, ...]:
        """Every peer known (not me), by node id."""
        return tuple(self._member(entry) for _, entry in sorted(self.entries.items(), key=lambda each: each[0]))

    def state_of(self, node_id: NodeId) -> State | None:
        entry = self.entries.get(node_id)
        return None if entry is None else entry.state

    def incarnation_of(self, node_id: NodeId) -> int:
        """The latest start of a peer; -1: it is not known."""
        entry = self.entries.get(node_id)
        return -1 if entry is None else entry.peer.incarnation

    def some(self, count: int, *, without: NodeId | None = None) -> list[Peer]:
        """Random peers that are alive and not suspected, at most `count`."""
        alive = self._living()
        drawn = self._sample(alive, min(len(alive), count + 1))
        suspects = self.suspects()
        able = [node_id for node_id in drawn if node_id != without and node_id not in suspects]
        return [self.entries[node_id].peer for node_id in able[:count]]

    def next_of_round(self, count: int) -> list[Peer]:
        """The living peers that are next: in random order, but each once in a round, so that a death is found in
        bounded time (as in SWIM, section 4.3)."""
        chosen: list[NodeId] = []
        for _ in range(2):
            while self._round and len(chosen) < count:
                node_id = self._round.pop()
                if node_id not in chosen and self._is_alive(node_id):
                    chosen.append(node_id)
            if len(chosen) == count:
                break
            alive = self._living()
            self._round = list(self._sample(alive, len(alive)))
        return [self.entries[node_id].peer for node_id in chosen]

    def candidates(self) -> Iterator[Peer]:
        """Other addresses to try, each handed out once."""
        for entry in self.watched.values():
            if entry.candidate is not None:
                yield entry.candidate
                entry.candidate = None

    def to_ask_now(self) -> Iterator[Peer]:
        """Peers that are to be asked out of turn, each handed out once."""
        for entry in self.watched.values():
            if entry.ask_now:
                entry.ask_now = False
                yield entry.peer

    # --- steps

    def _count_met(self, entry: Entry) -> None:
        """Called before an entry leaves its state: only new ones are HEARD."""
        if entry.state is State.HEARD:
            self._unmet[entry.heard_at] -= 1
            if not self._unmet[entry.heard_at]:
                del self._unmet[entry.heard_at]

    def _living(self) -> list[NodeId]:
        if self._alive is None:
            self._alive = [node_id for node_id, entry in self.entries.items() if entry.state is State.ALIVE]
        return self._alive

    def _is_alive(self, node_id: NodeId) -> bool:
        entry = self.entries.get(node_id)
        return entry is not None and entry.state is State.ALIVE

    def _is_suspected(self, entry: Entry) -> bool:
        is_accused = len(entry.accusers - {self.me.node_id}) >= self._accusers_needed
        is_silent = entry.state is State.SUSPECT or (self._leased is not None and entry.state in GONE)
        return is_silent or (entry.state is State.ALIVE and is_accused)

    def _is_member(self, entry: Entry) -> bool:
        """Whether it is in the view: by its lease, once it answered here, where a registry keeps leases."""
        leased = self._leased is not None and entry.peer.node_id in self._leased and entry.last_contact is not None
        return leased if self._leases_known else leased or entry.state not in OUTSIDE

    def _member(self, entry: Entry) -> Member:
        is_suspect = entry.state is State.ALIVE and self._is_suspected(entry)
        state = State.SUSPECT if is_suspect else entry.state
        return Member(entry.peer, state, entry.last_contact, entry.failures)
