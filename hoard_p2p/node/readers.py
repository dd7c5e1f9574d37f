"""Who reads the store through this node at present. For the event loop."""

from collections.abc import Iterator
from contextlib import contextmanager


class ThroughReaders:
    """The processes of mounts that read through the node, and why."""

    def __init__(self) -> None:
        self._why: dict[object, tuple[str, str]] = {}

    @contextmanager
    def listed(self, mountpoint: str, why: str) -> Iterator[None]:
        """One of them is connected as long as this lasts. `mountpoint`: empty for a command."""
        key = object()
        self._why[key] = (mountpoint, why)
        try:
            yield
        finally:
            del self._why[key]

    def why(self, mountpoint: str) -> str:
        """Why a mount reads through the node; empty if it reads the index itself."""
        return next((why for point, why in self._why.values() if point == mountpoint), "")
