"""Where the chunks of a snapshot lie in the objects of its origin. Pure.

Chunk runs ascend with the inodes of the files that they belong to (docs/formats.md, Catalog), so the file of a run is
found by bisection, and nothing is kept per file.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from hoard_p2p.catalog.reader import Catalog
from hoard_p2p.errors import CatalogCorrupt
from hoard_p2p.objects import ObjectRange

READ_AT_ONCE = 8 << 20
"""Bytes of neighbouring pieces that are read in one go."""


class Piece(NamedTuple):
    """One chunk in a file: its number in what was asked for, and where it lies."""

    number: int
    offset: int
    length: int


@dataclass(frozen=True, slots=True)
class FileRead:
    """What to read of one file, in the order of offsets. `path` is relative to the origin; `size`: the file's length
    when it was published; `version`: the one that was listed, empty unless the snapshot is lazy."""

    path: bytes
    size: int
    pieces: tuple[Piece, ...]
    version: bytes = b""

    def range_of(self, piece: Piece) -> ObjectRange:
        return ObjectRange(self.path, self.size, self.version, piece.offset, piece.offset + piece.length)

    def spans(self) -> list[tuple[Piece, ...]]:
        """Neighbouring pieces together, at most `READ_AT_ONCE` bytes (but always one piece)."""
        spans: list[list[Piece]] = []
        for piece in self.pieces:
            last = spans[-1][-1] if spans else None
            if (
                last is not None
                and last.offset + last.length == piece.offset
                and piece.offset + piece.length - spans[-1][0].offset <= READ_AT_ONCE
            ):
                spans[-1].append(piece)
            else:
                spans.append([piece])
        return [tuple(span) for span in spans]


def file_of(catalog: Catalog, run: int) -> int:
    """The inode of the file that the run lies in. Raises CatalogCorrupt if there is none."""
    low, high, best = 0, catalog.inodes, -1
    while low < high:
        middle = (low + high) // 2
        inode = _file_from(catalog, middle, high)
        if inode == high:
            high = middle
        elif catalog.runs(inode).start <= run:
            best, low = inode, inode + 1
        else:
            high = middle
    if best < 0 or run not in catalog.runs(best):
        raise CatalogCorrupt(f"catalog is damaged: chunk run {run} is in no file")
    return best


def _file_from(catalog: Catalog, inode: int, stop: int) -> int:
    """The first inode from `inode` on that is a file with bytes and no hard link; `stop` if there is none before it."""
    sizes = catalog.sizes()
    while inode < stop and not (sizes[inode] and catalog.is_file(inode) and catalog.resolve(inode) == inode):
        inode += 1
    return inode


def reads(catalog: Catalog, runs: Sequence[int]) -> list[FileRead]:
    """What to read, file by file in the order of the catalog, to have these runs, none of which is a hole; a `Piece`
    has the number in `runs`. Raises CatalogCorrupt."""
    plan: list[FileRead] = []
    inode, pieces = -1, list[Piece]()
    for index in sorted(range(len(runs)), key=runs.__getitem__):
        run = runs[index]
        if inode < 0 or run not in catalog.runs(inode):
            if pieces:
                plan.append(_file_read(catalog, inode, pieces))
            inode, pieces = file_of(catalog, run), []
        pieces.append(Piece(index, catalog.run_offset(inode, run), catalog.length(run)))
    if pieces:
        plan.append(_file_read(catalog, inode, pieces))
    return plan


def _file_read(catalog: Catalog, inode: int, pieces: Sequence[Piece]) -> FileRead:
    return FileRead(catalog.path_of(inode), catalog.size(inode), tuple(pieces), catalog.version(inode))
