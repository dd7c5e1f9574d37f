"""What a node tells of its snapshots or refs, in 256 parts, so that two nodes find the few records that differ. Pure.

Each record has a *mark*, 8 bytes of the blake3 of what digests cover of it (docs/wire.md); the digest of a part is 8
bytes of the blake3 of its marks in order. Two nodes compare digests, then one tells its marks of the parts that differ
and gets the records that have others.
"""

from collections.abc import Iterable
from typing import Generic, NamedTuple, TypeVar

from blake3 import blake3

PARTS = 256
MARK = 8

T = TypeVar("T")


class Told(NamedTuple, Generic[T]):
    """One record: the part it is in, the bytes of it that digests cover, and itself."""

    part: int
    covered: bytes
    record: T


class Buckets(Generic[T]):
    """Records by part and mark. Never changes."""

    def __init__(self, told: Iterable[Told[T]]) -> None:
        parts: list[dict[bytes, T]] = [{} for _ in range(PARTS)]
        for part, covered, record in told:
            parts[part][blake3(covered).digest(MARK)] = record
        self._parts = [dict(sorted(part.items())) for part in parts]
        self.digests = b"".join(blake3(b"".join(part)).digest(MARK) for part in self._parts)
        """Of all parts, `MARK` bytes each."""

    def marks(self, part: int) -> bytes:
        """Of the records of one part, one after the other."""
        return b"".join(self._parts[part])

    def differing(self, digests: bytes) -> list[int]:
        """The parts that have other digests."""
        ours = self.digests
        return [
            part
            for part in range(PARTS)
            if ours[part * MARK : (part + 1) * MARK] != digests[part * MARK : (part + 1) * MARK]
        ]

    def missing(self, part: int, marks: bytes) -> list[T]:
        """The records of a part whose marks are not among `marks`."""
        known = {marks[at : at + MARK] for at in range(0, len(marks), MARK)}
        return [record for mark, record in self._parts[part].items() if mark not in known]
