"""Which chunks of a segment are being read from its origin here now, so that none is read twice: a reader overtakes the
fill, and the fill leaves out what came meanwhile. For any thread.
"""

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

from hoard_p2p.ids import SnapshotId

SegmentName = tuple[SnapshotId, int]
"""A segment."""


@dataclass(slots=True)
class _Segment:
    readings: int = 0
    claimed: set[int] = field(default_factory=set)
    landed: set[int] = field(default_factory=set)


class Underway:
    """What is known of a segment is forgotten with the last of its readings. Chunks are named by their runs."""

    def __init__(self) -> None:
        self._segments: dict[SegmentName, _Segment] = {}
        self._changed = threading.Condition()

    @contextmanager
    def reading(self, segment: SegmentName) -> Iterator[None]:
        """Chunks of the segment are read meanwhile."""
        with self._changed:
            found = self._segments.setdefault(segment, _Segment())
            found.readings += 1
        try:
            yield
        finally:
            with self._changed:
                found.readings -= 1
                if not found.readings:
                    del self._segments[segment]

    def claim(self, segment: SegmentName, runs: Sequence[int]) -> set[int]:
        """Those of `runs` that the caller is to read now; the others came, or are being read."""
        with self._changed:
            found = self._segments[segment]
            fresh = set(runs) - found.claimed - found.landed
            found.claimed |= fresh
            return fresh

    def settle(self, segment: SegmentName, runs: Sequence[int], *, landed: bool) -> None:
        """What was claimed is here, or could not be read."""
        with self._changed:
            found = self._segments.get(segment)
            if found is not None:
                found.claimed -= set(runs)
                if landed:
                    found.landed |= set(runs)
                self._changed.notify_all()

    def wait(self, segment: SegmentName, run: int, seconds: float) -> bool:
        """Until who claimed it has read it: whether it is here."""
        found = self._segments[segment]
        with self._changed:
            self._changed.wait_for(lambda: run not in found.claimed, seconds)
            return run in found.landed
