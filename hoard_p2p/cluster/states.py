"""The values of membership: states, what is remembered of a peer, commands, and the times of failure detection."""

from dataclasses import dataclass, field
from enum import Enum
from typing import TypeAlias

from hoard_p2p.peer import NodeId, Peer, Said


class State(Enum):
    HEARD = "heard"
    ALIVE = "alive"
    SUSPECT = "suspect"
    DEAD = "dead"
    LEFT = "left"


OUTSIDE = (State.HEARD, State.DEAD, State.LEFT)
"""States of peers that are not in the view."""
GONE = (State.DEAD, State.LEFT)


@dataclass(frozen=True, slots=True)
class Member:
    """One peer for status: its record, state, and when it last answered (None: never)."""

    peer: Peer
    state: State
    last_contact: float | None
    failures: int


@dataclass(frozen=True, slots=True)
class Probe:
    """Command: ask `peer` at its host and port whether it is there; report `contact_ok`, or `missed` and what follows
    from it."""

    peer: Peer


Command: TypeAlias = Probe


@dataclass(frozen=True, slots=True)
class IdConflict:
    """Two running nodes have one node id, as after cloning a disk image. The one that started later is to stop."""

    first: Peer
    second: Peer


@dataclass(frozen=True, slots=True)
class Timing:
    """Seconds and counts of failure detection. Nothing here grows with the number of nodes but `suspicion_decade`, for
    each power of ten of them: a rumour needs so much longer to reach all.

    A peer that is thought to be well is to answer in `probe_time`, any other in `doubt_time`: a busy one is late.
    A suspect is declared dead after `suspicion` (+ decades) if `confirmations` others got no answer either, after
    `suspicion_most` times as long if nobody did; longer if this node misses answers of many. One that is known by
    hearsay only and never answered is tried `unmet_tries` times, and once more when it calls.
    """

    probe_every: float = 1.0
    probes: int = 2
    probe_time: float = 0.7
    doubt_time: float = 2.0
    relay_time: float = 0.8
    helpers: int = 3
    suspicion: float = 4.0
    suspicion_decade: float = 0.25
    suspicion_most: float = 2.0
    confirmations: int = 3
    dead_failures: int = 2
    retry_first: float = 1.0
    retry_most: float = 60.0
    retry_called: float = 5.0
    refute_every: float = 2.0
    forget_after: float = 3600.0
    unmet_tries: int = 8
    forget_unmet: float = 600.0
    conflict_shown: float = 60.0
    leave_believed: float = 10.0
    fresh: float = 1.0
    spread_every: float = 0.25
    spread: int = 2

    def backoff(self, state: State, failures: int) -> float:
        """Seconds until a peer outside of the view is tried again."""
        if state is State.HEARD and failures >= self.unmet_tries:
            return self.forget_unmet
        return min(self.retry_most, self.retry_first * 2.0 ** min(failures, 10))

    def forgotten_after(self, state: State) -> float:
        """Seconds that a peer outside of the view is remembered for."""
        return self.forget_unmet if state is State.HEARD else self.forget_after


@dataclass(slots=True)
class Entry:
    """One known peer.

    `candidate` is the same node at another address, to be tried once; `other_way` one where it answered too, to be
    tried when it does not answer where it is used. `answered` is the record that the process of
    `boot` gave last; `former` has the same of processes that answered under this id before (None: none did).
    `leaving`: since when it is said to be gone, None if it is not; `verdict`: what it is when the next probe fails;
    `ask_now`: to be probed with the next `due`. `refutation` is the highest known of its incarnation, `accusers` are
    those that suspect it since then (`accused`: when the last of them did), `worst` is how ill it was called since
    then. `heard_at`: the host where it was first said to be. `spread`: others are to be told of it when it answers for
    the first time.
    """

    peer: Peer
    state: State
    since: float
    last_contact: float | None = None
    failures: int = 0
    next_try: float = 0.0
    candidate: Peer | None = None
    other_way: Peer | None = None
    leaving: float | None = None
    verdict: Said = Said.LEFT
    ask_now: bool = False
    answered: Peer = field(init=False)
    heard_at: str = field(init=False)
    boot: bytes = b""
    former: dict[bytes, Peer] | None = None
    refutation: int = 0
    accusers: frozenset[NodeId] = frozenset()
    accused: float = 0.0
    worst: int = 0
    spread: bool = False

    def __post_init__(self) -> None:
        self.answered, self.heard_at = self.peer, self.peer.host

    @property
    def is_calm(self) -> bool:
        """Whether nothing needs to be done about it before its turn in the round."""
        return (
            self.state is State.ALIVE
            and self.candidate is None
            and self.leaving is None
            and not self.ask_now
            and not self.accusers
        )

    @property
    def is_doubted(self) -> bool:
        """Whether it is in the view and is to be asked again and again until that is settled."""
        return self.state is State.SUSPECT or (self.leaving is not None and self.state is State.ALIVE)

    def is_at(self, peer: Peer) -> bool:
        """Whether that record has the address where this peer is used."""
        return address_of(peer) == address_of(self.peer)


def address_of(peer: Peer) -> tuple[str, int]:
    return peer.host, peer.port
