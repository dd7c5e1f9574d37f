"""Two nodes with one id: noticed by the random bytes that each process drew at its start. Pure."""

from hoard_p2p.cluster.states import Entry, IdConflict, address_of
from hoard_p2p.peer import NodeId, Peer

MAX_FORMER = 8


class Clones:
    """The conflicts seen lately."""

    def __init__(self) -> None:
        self._conflicts: dict[NodeId, tuple[IdConflict, float]] = {}

    def note_boot(self, entry: Entry, peer: Peer, boot: bytes, now: float) -> None:
        """A process that was replaced cannot answer again: if it does, two of them run. When one takes over at another
        address, the former address is tried once more to find out."""
        if not boot:
            return
        if boot != entry.boot:
            if entry.former is not None and boot in entry.former:
                self.note(entry.answered, peer, now)
            elif entry.boot and address_of(peer) != address_of(entry.answered):
                entry.candidate = entry.answered
            if entry.boot:
                _keep_former(entry)
            entry.boot = boot
        entry.answered = peer

    def note(self, first: Peer, second: Peer, now: float) -> None:
        self._conflicts[first.node_id] = (IdConflict(first, second), now)

    def expire(self, before: float) -> None:
        """Forget those that were last seen before then."""
        self._conflicts = {node: found for node, found in self._conflicts.items() if found[1] > before}

    def seen(self) -> tuple[IdConflict, ...]:
        return tuple(conflict for conflict, _ in self._conflicts.values())


def _keep_former(entry: Entry) -> None:
    former = entry.former = entry.former or {}
    former[entry.boot] = entry.answered
    if len(former) > MAX_FORMER:
        del former[next(iter(former))]
