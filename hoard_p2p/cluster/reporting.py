"""Tells of changes of the view and of conflicts: in the log, and to whom it was given."""

import logging
from collections.abc import Callable

from hoard_p2p.cluster.membership import IdConflict, Membership
from hoard_p2p.peer import ClusterView, NodeId

log = logging.getLogger(__name__)


class Reporting:
    """Compares what a membership shows with what was told last."""

    def __init__(
        self,
        membership: Membership,
        on_view: Callable[[ClusterView], None] | None,
        on_conflict: Callable[[IdConflict], None] | None,
    ) -> None:
        self._membership = membership
        self._on_view = on_view
        self._on_conflict = on_conflict
        self._shown = membership.view()
        self._conflicts: frozenset[NodeId] = frozenset()

    def show(self) -> None:
        """Tell what is new since the last time."""
        view = self._membership.view()
        if view is not self._shown:
            for node_id in view.by_id.keys() - self._shown.by_id.keys():
                log.info("%s joined (%s)", view.by_id[node_id].name, view.by_id[node_id].url)
            for node_id in self._shown.by_id.keys() - view.by_id.keys():
                log.info("%s is gone (%s)", self._shown.by_id[node_id].name, self._shown.by_id[node_id].url)
            self._shown = view
            if self._on_view is not None:
                self._on_view(view)
        self._show_conflicts()

    def _show_conflicts(self) -> None:
        conflicts = self._membership.conflicts()
        for conflict in conflicts:
            if conflict.first.node_id not in self._conflicts:
                log.warning(
                    "two nodes have the id %s: %s and %s; stop one and give it an empty data directory",
                    conflict.first.node_id.hex(),
                    conflict.first.url,
                    conflict.second.url,
                )
                if self._on_conflict is not None:
                    self._on_conflict(conflict)
        self._conflicts = frozenset(conflict.first.node_id for conflict in conflicts)
