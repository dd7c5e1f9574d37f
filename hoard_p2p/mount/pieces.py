"""Pieces of slabs that are read in one go to verify what lies in them. Pure."""

from collections.abc import Iterable
from typing import NamedTuple, Protocol

from hoard_p2p.ids import ChunkId

PIECE = 1 << 20
"""Bytes read at a time: hashed while they are in the processor's cache (measured 2.7 GB/s, 2.2 with 4 MiB)."""
GAP = 64 << 10
"""Bytes between two chunks that are rather read than skipped."""


class Check(NamedTuple):
    """One chunk run of a piece: `length` bytes from `start` of the piece must have that id (HOLE: must be zeros).
    `generation`: what to remember for the run if they have, 0 for nothing."""

    run: int
    chunk_id: ChunkId
    start: int
    length: int
    generation: int


class Piece(NamedTuple):
    """Bytes of a slab with the runs that lie in them, back to back or nearly: at most `PIECE`, or a single run."""

    slab: int
    offset: int
    length: int
    checks: tuple[Check, ...]


class Owner(Protocol):
    """Who has to know what became of a piece; `filecheck.FileCheck` is one."""

    @property
    def left(self) -> int:
        """Bytes that are to follow: with none, somebody may wait for the outcome."""
        ...

    def settled(self, wrong: bool) -> None: ...


class Task(NamedTuple):
    """A piece to check, and whose it is (None: nobody keeps count)."""

    piece: Piece
    owner: Owner | None


class Lying(NamedTuple):
    """A run to verify: where it lies, and what to remember if it is right."""

    slab: int
    offset: int
    run: int
    chunk_id: ChunkId
    length: int
    generation: int


def assemble(lying: Iterable[Lying]) -> list[Piece]:
    """The fewest pieces, in the order in which they lie in their slabs."""
    pieces: list[Piece] = []
    group: list[Lying] = []
    for one in sorted(lying):
        if group and not _joins(group, one):
            pieces.append(_piece(group))
            group = []
        group.append(one)
    if group:
        pieces.append(_piece(group))
    return pieces


def _joins(group: list[Lying], one: Lying) -> bool:
    first, last = group[0], group[-1]
    between = one.offset - last.offset - last.length
    return one.slab == first.slab and 0 <= between <= GAP and one.offset + one.length - first.offset <= PIECE


def _piece(group: list[Lying]) -> Piece:
    slab, start, last = group[0].slab, group[0].offset, group[-1]
    checks = tuple(Check(one.run, one.chunk_id, one.offset - start, one.length, one.generation) for one in group)
    return Piece(slab, start, last.offset + last.length - start, checks)
