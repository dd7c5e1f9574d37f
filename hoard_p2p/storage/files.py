"""Which slab holds a large file, by what the index says of its chunks. Decisions about files that were not recorded."""

import errno
import os
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate
from pathlib import Path
from typing import NamedTuple

from hoard_p2p.ids import HOLE, ChunkId
from hoard_p2p.interfaces import Extent, SlabKind
from hoard_p2p.storage.extents import get_file, get_slab, put_file, set_file_key
from hoard_p2p.storage.index import Table, Transaction
from hoard_p2p.storage.records import FileSlab, SlabRecord, decode_places

_PIECE = 1 << 20

Runs = Sequence[tuple[ChunkId, int]]
"""(id, length) of a file's runs in order, holes included."""


class Fit(NamedTuple):
    """A slab that has at least some of a file at the file's own offsets. `missing` of its `data` bytes (those outside
    holes) are not in it; all of them are on this disk."""

    slab: int
    missing: int
    data: int


def best_slab(txn: Transaction, runs: Runs, *, partly: bool = False) -> Fit | None:
    """The file slab that has most of a file; None if there is none, or if a chunk is not on this disk at all, unless
    `partly`: then those count as missing."""
    held: Counter[int] = Counter()
    offset = data = 0
    for chunk_id, length in runs:
        if chunk_id != HOLE:
            raw = txn.get(Table.CHUNKS, chunk_id)
            if raw is None and not partly:
                return None
            places = decode_places(raw) if raw else []
            held.update({place.slab: length for place in places if place[1:3] == (offset, length)})
            data += length
        offset += length
    for slab, count in held.most_common():
        record = get_slab(txn, slab)
        if record is not None and record.kind is SlabKind.FILE and record.size == offset:
            return Fit(slab, data - count, data)
    return None


def unfinished_slab(txn: Transaction, file_key: bytes, runs: Runs) -> tuple[int, SlabRecord] | None:
    """An incomplete slab of another name that has most of a file of which nothing is recorded; None if there is none.

    So it is with a data set from an origin that was sealed: its files get new names, and their bytes are the same."""
    fit = None if get_file(txn, file_key) is not None else best_slab(txn, runs, partly=True)
    record = None if fit is None else get_slab(txn, fit.slab)
    if fit is None or record is None or get_file(txn, record.file_key) != FileSlab(fit.slab, False):
        return None
    return fit.slab, record


def is_part_of(extents: Iterable[Extent], runs: Runs) -> bool:
    """Whether all these extents of a slab are chunks of the file, at its own offsets."""
    starts = accumulate((length for _, length in runs), initial=0)
    own = {(offset, length, chunk_id) for (chunk_id, length), offset in zip(runs, starts)}
    return all(extent[1:] in own for extent in extents)


def rename_slab(txn: Transaction, slab: int, record: SlabRecord, file_key: bytes) -> bool:
    """Let an incomplete slab be the one of another file; false if it, or that file, has changed meanwhile."""
    if get_slab(txn, slab) != record or get_file(txn, file_key) is not None:
        return False
    if get_file(txn, record.file_key) != FileSlab(slab, False):
        return False
    txn.delete(Table.FILES, record.file_key)
    put_file(txn, file_key, FileSlab(slab, False))
    set_file_key(txn, slab, file_key)
    return True


def holes_are_zeros(slab: Path, runs: Runs) -> bool:
    """Whether a slab reads as zeros where the file has holes, and is as long as the file.

    A slab whose file changed while it was published may hold bytes there that no chunk names."""
    try:
        fd = os.open(slab, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        holes = _holes(runs)
        return os.fstat(fd).st_size == sum(length for _, length in runs) and all(_is_zero(fd, hole) for hole in holes)
    except OSError:
        return False
    finally:
        os.close(fd)


def _holes(runs: Runs) -> Iterator[range]:
    offset = 0
    for chunk_id, length in runs:
        if chunk_id == HOLE:
            yield range(offset, offset + length)
        offset += length


def _is_zero(fd: int, hole: range) -> bool:
    at = hole.start
    while (at := _next_data(fd, at, hole.stop)) < hole.stop:
        piece = os.pread(fd, min(_PIECE, hole.stop - at), at)
        if not piece or piece.count(0) != len(piece):
            return False
        at += len(piece)
    return True


def _next_data(fd: int, at: int, stop: int) -> int:
    if at >= stop:
        return stop
    try:
        return min(stop, os.lseek(fd, at, os.SEEK_DATA))
    except OSError as error:
        if error.errno == errno.ENXIO:  # nothing but a hole up to the end
            return stop
        raise
