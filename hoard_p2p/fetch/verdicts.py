"""What nobody had when it was looked for: a storm of readers asks in vain, and need not ask everybody again. Pure: time
is handed in.
"""

from typing import NamedTuple

from hoard_p2p.errors import ChunkUnavailable
from hoard_p2p.ids import ChunkId, SnapshotId, short

NOWHERE_SECONDS = 1.0
"""For so long a chunk that every member lacks is not looked for again: readers in a storm of errors ask in vain."""

KEPT_VERDICTS = 256

Key = tuple[SnapshotId, int]


class _Verdict(NamedTuple):
    until: float
    nowhere: frozenset[ChunkId]
    tried: str


class Verdicts:
    """By segment; the last ones are kept."""

    def __init__(self) -> None:
        self._verdicts: dict[Key, _Verdict] = {}

    def note(self, key: Key, nowhere: frozenset[ChunkId], tried: str, now: float) -> None:
        """These chunks of a segment are nowhere. `tried`: who was asked, for people."""
        self._verdicts.pop(key, None)
        self._verdicts[key] = _Verdict(now + NOWHERE_SECONDS, nowhere, tried)
        if len(self._verdicts) > KEPT_VERDICTS:
            del self._verdicts[next(iter(self._verdicts))]

    def check(self, key: Key, chunk_id: ChunkId, now: float) -> None:
        """Raises ChunkUnavailable if the chunk was nowhere just now."""
        verdict = self._verdicts.get(key)
        if verdict is not None and chunk_id in verdict.nowhere:
            if now < verdict.until:
                raise ChunkUnavailable(in_vain(chunk_id, "anywhere", verdict.tried))
            del self._verdicts[key]

    def last_tried(self, key: Key) -> str:
        """Who was asked in vain for a segment lately, for people; empty if nobody was."""
        verdict = self._verdicts.get(key)
        return "" if verdict is None else verdict.tried


def in_vain(chunk_id: ChunkId, how: str, tried: str) -> str:
    """Why somebody waited for a chunk in vain."""
    return f"chunk {short(chunk_id)} could not be had {how}" + (f" ({tried})" if tried else "")
