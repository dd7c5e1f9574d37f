"""Who is alive, as this node sees it: a state machine without I/O, clocks or randomness.

Events go in (with the time, in seconds of any monotonic clock), commands and immutable views come out. It must not know
how peers are discovered or asked.

States: HEARD (somebody named the node; nobody here reached it yet) -> ALIVE (it answered) -> SUSPECT (a contact failed;
still in the view, so that placement does not move for a hiccup, but asked last) -> DEAD (it stayed silent; out of the
view). An answer makes any of them ALIVE at once. LEFT: somebody said that it leaves, and then it did not answer; as
DEAD otherwise. A goodbye alone proves nothing, since anybody can say it in another's name.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import TypeAlias

from hoard_p2p.peer import ClusterView, NodeId, Peer

Sample: TypeAlias = Callable[[Sequence[NodeId], int], Sequence[NodeId]]
"""Draws k distinct items of a sequence in random order: `random.Random(seed).sample`."""


class State(Enum):
    HEARD = "heard"
    ALIVE = "alive"
    SUSPECT = "suspect"
    DEAD = "dead"
    LEFT = "left"


OUTSIDE = (State.HEARD, State.DEAD, State.LEFT)
"""States of peers that are not in the view."""


@dataclass(frozen=True, slots=True)
class Member:
    """One peer for status: its record, state, and when it last answered (None: never)."""

    peer: Peer
    state: State
    last_contact: float | None
    failures: int


@dataclass(frozen=True, slots=True)
class Probe:
    """Command: say hello to `peer` at its host and port, and report `contact_ok` or `contact_failed`."""

    peer: Peer


Command: TypeAlias = Probe


@dataclass(frozen=True, slots=True)
class IdConflict:
    """Two running nodes have one node id, as after cloning a disk image. The one that started later is to stop."""

    first: Peer
    second: Peer


@dataclass(frozen=True, slots=True)
class Timing:
    """Seconds and counts of failure detection. A death is declared 6 - 8 s after the first failed contact. Each peer is
    probed at least once in `round_time`, however many there are, because suspicion does not travel yet."""

    probe_every: float = 1.0
    probes: int = 3
    round_time: float = 20.0
    dead_after: float = 6.0
    dead_failures: int = 3
    retry_first: float = 1.0
    retry_most: float = 60.0
    forget_after: float = 3600.0
    conflict_shown: float = 60.0
    leave_believed: float = 10.0


_TIMING = Timing()
MAX_KNOWN = 8192
"""Peers remembered at most; hearsay beyond it is dropped, so that a stranger cannot fill the memory."""
MOST_WEIGHT = 4
MAX_FORMER = 8
MAX_BURST = 64
"""Probes of peers not in the view, in one tick."""


@dataclass(slots=True)
class _Entry:
    """One known peer. `candidate` is the same node at another address, to be tried once. `answered` is the record that
    the process of `boot` gave last; `former` has the same of processes that answered under this id before. `leaving`:
    when it said goodbye, None if it did not lately; `ask_now`: to be probed with the next `due`."""

    peer: Peer
    state: State
    since: float
    last_contact: float | None = None
    failures: int = 0
    next_try: float = 0.0
    candidate: Peer | None = None
    leaving: float | None = None
    ask_now: bool = False
    answered: Peer = field(init=False)
    boot: bytes = b""
    former: dict[bytes, Peer] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.answered = self.peer


class Membership:
    """The state machine. Not thread-safe: one owner, the event loop."""

    def __init__(self, me: Peer, *, sample: Sample, boot: bytes = b"", timing: Timing = _TIMING) -> None:
        """`boot`: the random bytes of this start, to tell a clone from an address of my own."""
        self._me = me
        self._boot = boot
        self._sample = sample
        self.timing = timing
        self._entries: dict[NodeId, _Entry] = {}
        self._round: list[NodeId] = []
        self._conflicts: dict[NodeId, tuple[IdConflict, float]] = {}
        self._view: ClusterView | None = None
        self._leased: frozenset[NodeId] | None = None
        self._leases_known = False

    # --- events

    def heard(self, peer: Peer, now: float) -> None:
        """Hearsay: discovery or another node named `peer`. Adds it as HEARD, or as another address to try; never
        changes what is known of a peer by own contact."""
        if peer.node_id == self._me.node_id:
            return
        entry = self._entries.get(peer.node_id)
        if entry is None:
            if len(self._entries) < MAX_KNOWN:
                self._entries[peer.node_id] = _Entry(peer, State.HEARD, now, next_try=now)
        elif peer.incarnation > entry.peer.incarnation or self._is_other_way(entry, peer):
            entry.candidate = peer

    def contact_ok(self, peer: Peer, now: float, boot: bytes = b"") -> None:
        """`peer` answered at its host and port, with this record and the boot of its process. It is ALIVE from now on;
        an ALIVE peer that answers at a second address keeps the first."""
        if peer.node_id == self._me.node_id:
            if boot and self._boot and boot != self._boot:
                self._note_conflict(self._me, peer, now)
            return
        entry = self._entries.get(peer.node_id)
        if entry is None:
            entry = self._entries[peer.node_id] = _Entry(peer, State.HEARD, now)
        if peer.incarnation > entry.peer.incarnation or boot != entry.boot:
            entry.leaving = None  # that was another start
        self._note_boot(entry, peer, boot, now)
        if entry.state is State.ALIVE and peer.incarnation < entry.peer.incarnation:
            return  # another process with its id; the record of the later start stands
        self._adopt(entry, peer)
        if entry.state is not State.ALIVE:
            self._change(entry, State.ALIVE, now)
        entry.last_contact, entry.failures = now, 0

    def contact_failed(self, node_id: NodeId, now: float, at: Peer | None = None) -> None:
        """A request to the node failed. `at`: the record of the probe that failed, whose address may be another one
        than the peer's: then only that address is given up."""
        entry = self._entries.get(node_id)
        if entry is None:
            return
        if at is not None and _address(at) != _address(entry.peer):
            if entry.candidate is not None and _address(entry.candidate) == _address(at):
                entry.candidate = None
            return
        entry.failures += 1
        if at is not None and entry.leaving is not None:
            entry.leaving = None
            self._change(entry, State.LEFT, now)
            entry.next_try = now + self._backoff(entry)
        elif entry.state is State.ALIVE:
            self._change(entry, State.SUSPECT, now)

    def left(self, node_id: NodeId, incarnation: int, now: float) -> None:
        """Somebody said that the node leaves: it is probed at once and in every tick for some seconds, in which the
        first failure is enough. It may answer for a moment longer. Ignored if a later incarnation is known."""
        entry = self._entries.get(node_id)
        if entry is None or incarnation < entry.peer.incarnation or entry.state in OUTSIDE or entry.leaving is not None:
            return
        entry.leaving, entry.ask_now = now, True
        if entry.state is State.ALIVE:
            self._change(entry, State.SUSPECT, now)

    def tick(self, now: float) -> list[Command]:
        """Let time pass: declares deaths, forgets the long dead, and returns what to probe now."""
        for entry in list(self._entries.values()):
            self._age(entry, now)
        self._conflicts = {
            node_id: (conflict, seen)
            for node_id, (conflict, seen) in self._conflicts.items()
            if now - seen < self.timing.conflict_shown
        }
        probes = self.due(now)
        doubted = (
            entry for entry in self._entries.values() if entry.state is State.SUSPECT or entry.leaving is not None
        )
        probes += [Probe(entry.peer) for entry in doubted]
        probes += [Probe(self._entries[node_id].peer) for node_id in self._next_of_round()]
        return probes

    def due(self, now: float) -> list[Command]:
        """The part of `tick` that need not wait for it: probes of peers just heard of or said to leave, and of other
        addresses."""
        return [Probe(peer) for peer in (*self._candidates(), *self._said_to_leave(), *self._due(now))]

    def renew(self, me: Peer) -> None:
        """My own record is another from now on (another weight); others learn it with the next answer."""
        self._me, self._view = me, None

    def by_lease(self, leased: frozenset[NodeId] | None) -> None:
        """A registry says who is a member; from now on nobody else is. None: it cannot be asked now, so those that it
        named last stay, and others may join."""
        known = leased is not None
        if known != self._leases_known or (known and leased != self._leased):
            self._leased, self._leases_known = leased if known else self._leased, known
            self._view = None

    # --- what is known

    @property
    def me(self) -> Peer:
        """My own record."""
        return self._me

    def view(self) -> ClusterView:
        """Me and the peers that are ALIVE or SUSPECT, with bounded weights. The same object until something changes."""
        if self._view is None:
            peers = [entry.peer for entry in self._entries.values() if self._is_member(entry)]
            ordered = sorted([self._me, *peers], key=lambda peer: peer.node_id)
            self._view = ClusterView(self._me.node_id, bounded_weights(ordered))
        return self._view

    def suspects(self) -> frozenset[NodeId]:
        """Those of the view that should be asked last."""
        silent = (State.SUSPECT,) if self._leased is None else (State.SUSPECT, State.DEAD, State.LEFT)
        return frozenset(node_id for node_id, entry in self._entries.items() if entry.state in silent)

    def members(self) -> tuple[Member, ...]:
        """Every peer known (not me), by node id."""
        return tuple(
            Member(entry.peer, entry.state, entry.last_contact, entry.failures)
            for _, entry in sorted(self._entries.items())
        )

    def conflicts(self) -> tuple[IdConflict, ...]:
        """Node ids that two running nodes use, as far as seen in the last minute."""
        return tuple(conflict for conflict, _ in self._conflicts.values())

    # --- steps

    def _is_member(self, entry: _Entry) -> bool:
        """Whether it is in the view: by its lease, once it answered here, where a registry keeps leases."""
        leased = self._leased is not None and entry.peer.node_id in self._leased and entry.last_contact is not None
        return leased if self._leases_known else leased or entry.state not in OUTSIDE

    def _is_other_way(self, entry: _Entry, peer: Peer) -> bool:
        return entry.state is not State.ALIVE and _address(peer) != _address(entry.peer)

    def _note_boot(self, entry: _Entry, peer: Peer, boot: bytes, now: float) -> None:
        """A process that was replaced cannot answer again: if it does, two of them run. When one takes over at another
        address, the former address is tried once more to find out."""
        if not boot:
            return
        if boot != entry.boot:
            if boot in entry.former:
                self._note_conflict(entry.answered, peer, now)
            elif entry.boot and _address(peer) != _address(entry.answered):
                entry.candidate = entry.answered
            if entry.boot:
                self._keep_former(entry)
            entry.boot = boot
        entry.answered = peer

    def _keep_former(self, entry: _Entry) -> None:
        entry.former[entry.boot] = entry.answered
        if len(entry.former) > MAX_FORMER:
            del entry.former[next(iter(entry.former))]

    def _note_conflict(self, first: Peer, second: Peer, now: float) -> None:
        self._conflicts[first.node_id] = (IdConflict(first, second), now)

    def _adopt(self, entry: _Entry, peer: Peer) -> None:
        keeps_address = entry.state is State.ALIVE and peer.incarnation == entry.peer.incarnation
        record = replace(peer, host=entry.peer.host, port=entry.peer.port) if keeps_address else peer
        if entry.candidate is not None and _address(entry.candidate) == _address(peer):
            entry.candidate = None
        if record != entry.peer:
            entry.peer = record
            self._view = None

    def _change(self, entry: _Entry, state: State, now: float) -> None:
        entry.state, entry.since = state, now
        self._view = None

    def _age(self, entry: _Entry, now: float) -> None:
        timing, age = self.timing, now - entry.since
        if entry.leaving is not None and now - entry.leaving >= timing.leave_believed:
            entry.leaving = None
        if entry.state is State.SUSPECT and age >= timing.dead_after and entry.failures >= timing.dead_failures:
            self._change(entry, State.DEAD, now)
            entry.next_try = now + self._backoff(entry)
        elif entry.state in OUTSIDE and age >= timing.forget_after:
            del self._entries[entry.peer.node_id]

    def _backoff(self, entry: _Entry) -> float:
        return min(self.timing.retry_most, self.timing.retry_first * 2.0 ** min(entry.failures, 10))

    def _candidates(self) -> Iterator[Peer]:
        """Other addresses to try, each handed out once."""
        for entry in self._entries.values():
            if entry.candidate is not None:
                yield entry.candidate
                entry.candidate = None

    def _said_to_leave(self) -> Iterator[Peer]:
        for entry in self._entries.values():
            if entry.ask_now:
                entry.ask_now = False
                yield entry.peer

    def _due(self, now: float) -> Iterator[Peer]:
        """Peers outside the view whose time to be tried again has come."""
        outside = (entry for entry in self._entries.values() if entry.state in OUTSIDE)
        due = [entry for entry in outside if entry.next_try <= now]
        for entry in due[:MAX_BURST]:
            entry.next_try = now + self._backoff(entry)
            yield entry.peer

    def _next_of_round(self) -> list[NodeId]:
        """The peers that are next: in random order, but each once in a round, so that a death is found in bounded time
        (as in SWIM, section 4.3)."""
        alive = [node_id for node_id, entry in self._entries.items() if entry.state is State.ALIVE]
        share = -(-len(alive) * self.timing.probe_every // self.timing.round_time)
        count = min(len(alive), max(self.timing.probes, int(share)))
        self._round = [node_id for node_id in self._round if self._is_alive(node_id)]
        if len(self._round) < count:
            rest = [node_id for node_id in alive if node_id not in set(self._round)]
            self._round += self._sample(rest, len(rest))
        chosen, self._round = self._round[:count], self._round[count:]
        return chosen

    def _is_alive(self, node_id: NodeId) -> bool:
        entry = self._entries.get(node_id)
        return entry is not None and entry.state is State.ALIVE


def bounded_weights(peers: Sequence[Peer]) -> tuple[Peer, ...]:
    """The peers as plans are to see them: none weighs more than `MOST_WEIGHT` times the (lower) median. Without a key
    a weight is only a claim, and one that is high enough would make its node the home of everything. The same on all
    nodes that see the same peers, so that they plan alike (I7)."""
    weights = sorted(peer.weight for peer in peers if peer.weight > 0) or [0]
    most = MOST_WEIGHT * weights[(len(weights) - 1) // 2]
    return tuple(replace(peer, weight=most) if peer.weight > most else peer for peer in peers)


def _address(peer: Peer) -> tuple[str, int]:
    return peer.host, peer.port
