"""What a node tells of its snapshots or refs, in 256 parts, so that two nodes find the few records that differ. Pure.

Each record has a *mark*, 8 bytes of the blake3 of what digests cover of it (docs/wire.md); the digest of a part is 8
bytes of the blake3 of its marks in order. Two nodes compare digests, then one tells its marks of the parts that differ
and gets the records that have others.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from operator import itemgetter
from typing import Generic, TypeVar

from blake3 import blake3

PARTS = 256
MARK = 8

T = TypeVar("T")


@dataclass(frozen=True, eq=False)
class Part(Generic[T]):
    """Some records, and of each the bytes that digests cover. Never changes."""

    records: Sequence[T]
    covered: Sequence[bytes]

    @cached_property
    def joined(self) -> bytes:
        """What digests cover, one record after the other."""
        return b"".join(self.covered)

    @cached_property
    def by_mark(self) -> dict[bytes, T]:
        """In the order of marks."""
        marks = (blake3(covered).digest(MARK) for covered in self.covered)
        return dict(sorted(zip(marks, self.records), key=itemgetter(0)))

    @cached_property
    def digest(self) -> bytes:
        """Of the marks."""
        return blake3(b"".join(self.by_mark)).digest(MARK)


class Buckets(Generic[T]):
    """All parts. Never changes."""

    def __init__(self, parts: Sequence[Part[T]]) -> None:
        self._parts = parts
        self.digests = b"".join(part.digest for part in parts)
        """Of all parts, `MARK` bytes each."""

    def marks(self, part: int) -> bytes:
        """Of the records of one part, one after the other."""
        return b"".join(self._parts[part].by_mark)

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
        return [record for mark, record in self._parts[part].by_mark.items() if mark not in known]


def parted(
    told: Iterable[tuple[int, T]], cover: Callable[[T], bytes], known: Mapping[int, Part[T]]
) -> tuple[Part[T], ...]:
    """Records with the number of their part, in parts; `known`: parts that are as they were."""
    fresh: dict[int, list[T]] = {}
    for part, record in told:
        if part not in known:
            fresh.setdefault(part, []).append(record)
    return tuple(known.get(part) or _part(fresh.get(part, []), cover) for part in range(PARTS))


def _part(records: list[T], cover: Callable[[T], bytes]) -> Part[T]:
    return Part(records, [cover(record) for record in records])
