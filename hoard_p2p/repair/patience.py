"""Who counts as a home while it is away for a moment, and how fast repair goes. Pure: time is handed in."""

from dataclasses import dataclass, field, replace

from hoard_p2p.peer import ClusterView, NodeId, Peer


@dataclass(slots=True)
class Patience:
    """A node that restarts, or is cut off for a moment, keeps its shares for `grace` seconds: it has them on its disk.

    So a view that changes often does not put repair off, as waiting for an unchanged one would. One that drains
    (weight 0) has no shares to wait for, and a node that joins counts at once.
    """

    grace: float
    _view: ClusterView | None = None
    _away: dict[NodeId, tuple[Peer, float]] = field(default_factory=dict)

    def see(self, view: ClusterView, now: float) -> None:
        """To be called with each new view, as it comes about."""
        before = () if self._view is None else self._view.peers
        for peer in before:
            if peer.node_id not in view.by_id and peer.weight > 0:
                self._away[peer.node_id] = (peer, now)
        for node in view.by_id:
            self._away.pop(node, None)
        self._view = view

    def view(self, now: float) -> ClusterView | None:
        """The last view with those that have not been away for long; None before the first."""
        if self._view is None:
            return None
        self._away = {node: (peer, since) for node, (peer, since) in self._away.items() if now - since < self.grace}
        if not self._away:
            return self._view
        peers = (*self._view.peers, *(peer for peer, _ in self._away.values()))
        return replace(self._view, peers=tuple(sorted(peers, key=lambda peer: peer.node_id)))


@dataclass(slots=True)
class Pace:
    """Spreads work over time: `rate` bytes a second on average, 0: no limit."""

    rate: float
    _free: float = 0.0

    def wait(self, size: int, now: float) -> float:
        """Seconds to wait before `size` bytes more are moved."""
        if not self.rate:
            return 0.0
        begin = max(self._free, now)
        self._free = begin + size / self.rate
        return begin - now
