"""Who uses which snapshot on this node now: what is leased is never evicted, nor removed without force."""

import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

from hoard_p2p.ids import SnapshotId


class Leases:
    """Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._users: dict[SnapshotId, Counter[str]] = {}

    @contextmanager
    def held(self, snapshot: SnapshotId, user: str) -> Iterator[None]:
        """`user`, in words for people ("mounted on /mnt/x", "being published"), uses the snapshot meanwhile."""
        with self._lock:
            self._users.setdefault(snapshot, Counter())[user] += 1
        try:
            yield
        finally:
            with self._lock:
                users = self._users[snapshot]
                users[user] -= 1
                if not users[user]:
                    del users[user]
                if not users:
                    del self._users[snapshot]

    def leased(self) -> set[SnapshotId]:
        """All that somebody uses."""
        with self._lock:
            return set(self._users)

    def users(self, snapshot: SnapshotId) -> list[str]:
        """Sorted; empty if nobody uses it."""
        with self._lock:
            return sorted(self._users.get(snapshot, ()))
