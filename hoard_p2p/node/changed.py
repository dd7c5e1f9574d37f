"""Pieces of lazy snapshots whose objects changed since they were listed: nobody can have them, so nobody looks for them
again and again. For any thread; nothing is asked here.
"""

import threading
from collections.abc import Callable, Container, Sequence
from dataclasses import replace

from hoard_p2p.errors import ObjectChanged
from hoard_p2p.fetch.segment import Segment, Wanted
from hoard_p2p.ids import SnapshotId, is_origin_key
from hoard_p2p.origin.files import FileRead

CHANGED_SECONDS = 5.0
"""For so long the origin is not asked again: an object may be put back as it was."""

KEPT_CHANGED = 4096


class Changed:
    """What was found to have changed lately, by piece; the last ones are kept."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._found: dict[tuple[SnapshotId, int], tuple[float, ObjectChanged]] = {}

    def note(self, segment: Segment, chunk: Wanted, error: Exception) -> None:
        """A piece could not be read. What its id is known of may be right elsewhere; of a lazy one that is settled."""
        if not isinstance(error, ObjectChanged) or not is_origin_key(chunk.chunk_id):
            return
        with self._lock:
            self._found.pop((segment.snapshot, chunk.run), None)
            self._found[segment.snapshot, chunk.run] = (self._clock() + CHANGED_SECONDS, error)
            if len(self._found) > KEPT_CHANGED:
                del self._found[next(iter(self._found))]

    def of(self, segment: Segment, chunk: Wanted) -> ObjectChanged | None:
        """Why a piece cannot be had; None: it is to be asked for."""
        with self._lock:
            until, error = self._found.get((segment.snapshot, chunk.run), (0.0, None))
            return error if self._clock() < until else None

    def among(self, segment: Segment, wanted: Sequence[Wanted]) -> dict[int, ObjectChanged]:
        """Those of `wanted`, by their indexes."""
        found = {number: self.of(segment, chunk) for number, chunk in enumerate(wanted)} if self._found else {}
        return {number: error for number, error in found.items() if error is not None}


def without(plan: Sequence[FileRead], numbers: Container[int]) -> list[FileRead]:
    """What to read but for these pieces."""
    left = [replace(file, pieces=tuple(piece for piece in file.pieces if piece.number not in numbers)) for file in plan]
    return [file for file in left if file.pieces]
