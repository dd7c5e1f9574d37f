"""Hashing what slabs hold as the disk has it, in the order in which it lies there.

The disk, not the page cache: slabs are read with O_DIRECT, which looks at what is written, evicts nothing and leaves
nothing behind, so the pages that readers live on stay. Where a file system cannot do that, pages are dropped before
and after the read (POSIX_FADV_DONTNEED). One read runs ahead of the hashing.
"""

import errno
import mmap
import os
from collections import deque
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import closing
from itertools import groupby
from pathlib import Path
from typing import NamedTuple

from hoard_p2p.errors import StoreFailed
from hoard_p2p.ids import chunk_id
from hoard_p2p.interfaces import Extent, Place, SlabKind
from hoard_p2p.storage.survey import Contents, Inventory, Slab, Stored, contents

BLOCK = 4096
PIECE = 8 << 20
"""Bytes of one read: [measured] 4 MiB and more read the disk at its full rate."""
GAP = 256 << 10
"""Bytes between two chunks that are read over rather than skipped."""
_ZEROS = bytes(1 << 20)
_UNREADABLE = (errno.EIO, errno.EBADMSG, errno.EUCLEAN, errno.EREMOTEIO)


class Piece(NamedTuple):
    """Chunks that one read brings: bytes `start` to `stop` of a slab, on block boundaries."""

    start: int
    stop: int
    stored: Sequence[Stored]


class Verdict(NamedTuple):
    """What is wrong with one slab. `wrong`: places that do not hold their chunk. `gone`: there is no file. `cut`: a
    complete file's slab is shorter than the file; `long`: longer. `dirty`: it has bytes where the file has a hole.
    `unlisted`: its sidecar is damaged or lacks something. `chunks`, `size`: what was looked at. `rest`: where to go on
    in the slab, 0 if it was looked through to its end."""

    slab: int
    wrong: Sequence[Stored] = ()
    gone: bool = False
    cut: bool = False
    long: bool = False
    dirty: bool = False
    unlisted: bool = False
    chunks: int = 0
    size: int = 0
    rest: int = 0

    @property
    def fine(self) -> bool:
        return not (self.wrong or self.gone or self.cut or self.long or self.dirty or self.unlisted)


def pieces(stored: Sequence[Stored]) -> Iterator[Piece]:
    """Reads that bring all of `stored`, which are of one slab and sorted by offset. Pure."""
    group: list[Stored] = []
    start = end = 0
    for one in stored:
        offset, stop = one.place.offset, one.place.offset + one.place.length
        if group and (offset > end + GAP or max(end, stop) - start > PIECE):
            yield Piece(start, _up(end), group)
            group = []
        if not group:
            start, end = offset // BLOCK * BLOCK, stop
        group.append(one)
        end = max(end, stop)
    if group:
        yield Piece(start, _up(end), group)


def gaps(stored: Sequence[Stored], size: int) -> Iterator[range]:
    """What of a slab of `size` bytes none of `stored`, sorted by offset, covers. Pure."""
    end = 0
    for one in stored:
        if one.place.offset > end:
            yield range(end, min(one.place.offset, size))
        end = max(end, one.place.offset + one.place.length)
    if end < size:
        yield range(end, size)


def _up(offset: int) -> int:
    return -(-offset // BLOCK) * BLOCK


class DiskFile:
    """A slab open for reading what the disk has."""

    def __init__(self, path: Path) -> None:
        """Raises OSError."""
        flags = os.O_RDONLY | os.O_CLOEXEC
        try:
            self._fd = os.open(path, flags | os.O_DIRECT)
            self._direct = True
        except OSError as error:
            if error.errno != errno.EINVAL:
                raise
            self._fd = os.open(path, flags)
            self._direct = False

    @property
    def size(self) -> int:
        return os.fstat(self._fd).st_size

    def read(self, start: int, into: memoryview) -> int:
        """Fill `into`, whose address, length and `start` are on block boundaries; how much there was.

        Raises OSError."""
        if not self._direct:
            os.posix_fadvise(self._fd, start, len(into), os.POSIX_FADV_DONTNEED)
        done = 0
        while done < len(into):
            more = os.preadv(self._fd, [into[done:]], start + done)
            done += more
            if not more or done % BLOCK:  # the end of the file
                break
        if not self._direct:
            os.posix_fadvise(self._fd, start, len(into), os.POSIX_FADV_DONTNEED)
        return done

    def data(self, hole: range) -> Iterator[int]:
        """Offsets in `hole` at which a stretch of data begins, as the file system tells."""
        at = hole.start
        while at < hole.stop:
            try:
                at = os.lseek(self._fd, at, os.SEEK_DATA)
            except OSError as error:
                if error.errno == errno.ENXIO:
                    return
                raise
            if at >= hole.stop:
                return
            yield at
            at = os.lseek(self._fd, at, os.SEEK_HOLE)

    def close(self) -> None:
        os.close(self._fd)


class Scrubber:
    """Checks slabs, one after the other. `pace` is called with the bytes that were just read, and may wait or raise."""

    def __init__(self, inventory: Inventory, pace: Callable[[int], None]) -> None:
        self._inventory = inventory
        self._pace = pace
        self._buffers = [mmap.mmap(-1, PIECE + 2 * BLOCK) for _ in range(2)]
        self._ahead = ThreadPoolExecutor(1, "scrub-read")

    def close(self) -> None:
        self._ahead.shutdown()

    def slab(self, slab: Slab, extra: Sequence[Stored] = (), *, start: int = 0, most: int = 1 << 62) -> Verdict:
        """Check all that a slab should hold: what its sidecar names and the index lists, and `extra`, which the index
        lists and the sidecar does not name. From offset `start` on, and about `most` bytes."""
        named = contents(slab.path, slab.number)
        stored = self._inventory.listed(named.extents, unlisted=slab.complete)
        everything = sorted({*stored, *extra}, key=lambda one: one.place.offset)
        part, rest = _part(everything, start, most)
        found = self.places(slab, part)._replace(unlisted=bool(extra) or _lacks(slab, named), rest=rest)
        return found if rest else self._shape(slab, everything, named, found)

    def unnamed(self) -> dict[int, list[Stored]]:
        """Places that the index lists and their slab's sidecar does not name, those of slabs too that the index does
        not list any more. Goes through the index and all sidecars, and once more through the index if there are any."""
        counts = self._inventory.counts()
        slabs = self._inventory.slabs()
        lacking = counts.keys() - {slab.number for slab in slabs}
        for slab in slabs:
            if len(self._inventory.listed(contents(slab.path, slab.number).extents)) < counts[slab.number]:
                lacking.add(slab.number)
        found: dict[int, list[Stored]] = {}
        for number, stored in by_slab(self._inventory.stored_in(lacking) if lacking else ()):
            known = self._inventory.slab(number)
            # Only now its sidecar: that is written before the index, so it is not behind it.
            named = set(contents(known.path, number).extents) if known else set()
            found[number] = [one for one in stored if Extent(*one.place[:3], one.chunk_id) not in named]
        return {number: stored for number, stored in found.items() if stored}

    def nowhere(self, slab: int, stored: Sequence[Stored]) -> Verdict:
        """Places in a slab that the index does not list: no reader finds it."""
        there = tuple(filter(self._inventory.still, stored)) if self._inventory.slab(slab) is None else ()
        return Verdict(slab, there, gone=bool(there), chunks=len(there))

    def places(self, slab: Slab, stored: Sequence[Stored]) -> Verdict:
        """Check some places of a slab, sorted by offset."""
        size = sum(one.place.length for one in stored)
        try:
            file = DiskFile(slab.path)
        except FileNotFoundError:
            there = tuple(filter(self._inventory.still, stored))
            return Verdict(slab.number, there, gone=bool(there) or self._is_listed(slab), chunks=len(stored), size=size)
        except OSError as error:
            raise StoreFailed(f"slab {slab.path} cannot be opened: {error}") from error
        try:
            wrong = [
                one for one in self._suspects(file, stored) if not _right(file, one) and self._inventory.still(one)
            ]
        finally:
            file.close()
        return Verdict(slab.number, tuple(wrong), chunks=len(stored), size=size)

    def _is_listed(self, slab: Slab) -> bool:
        return self._inventory.slab(slab.number) is not None and not slab.path.exists()

    def _suspects(self, file: DiskFile, stored: Sequence[Stored]) -> Iterator[Stored]:
        with closing(self._read(file, stored)) as reads:
            for piece, view in reads:
                if view is None:
                    yield from piece.stored
                else:
                    yield from (one for one in piece.stored if not _matches(view, piece.start, one))
                self._pace(piece.stop - piece.start)

    def _read(self, file: DiskFile, stored: Sequence[Stored]) -> Generator[tuple[Piece, memoryview | None], None, None]:
        """The pieces and their bytes (None: the disk cannot read it), one read ahead; a view is good until the next."""
        waiting: deque[tuple[Piece, Future[memoryview | None]]] = deque()
        try:
            for number, piece in enumerate(pieces(stored)):
                buffer = self._buffers[number % 2]
                if piece.stop - piece.start > len(buffer):
                    buffer = mmap.mmap(-1, piece.stop - piece.start)
                waiting.append((piece, self._ahead.submit(_fill, file, piece, buffer)))
                if len(waiting) == 2:
                    yield waiting[0][0], waiting.popleft()[1].result()
            while waiting:
                yield waiting[0][0], waiting.popleft()[1].result()
        finally:
            wait([reading for _, reading in waiting])  # else the descriptor could be closed under it

    def _shape(self, slab: Slab, stored: Sequence[Stored], named: Contents, found: Verdict) -> Verdict:
        """Look at what a passed through file must be besides its chunks: of exact length, with zeros in its holes."""
        if found.gone or slab.record.kind is not SlabKind.FILE or not slab.complete:
            return found
        file = DiskFile(slab.path)
        try:
            size = file.size
            holes = gaps(stored, min(size, slab.record.size)) if named.whole else ()
            dirty = not all(_is_zero(file, hole) for hole in holes)
        finally:
            file.close()
        now = self._inventory.slab(slab.number)
        if now is None or not now.complete:
            return found
        return found._replace(cut=size < slab.record.size, long=size > slab.record.size, dirty=dirty)


def verified(file: DiskFile, stored: Sequence[Stored], add: Callable[[int], None]) -> Iterator[Stored]:
    """Those of `stored`, sorted by offset, that hold their chunk. `add` hears of the bytes that were hashed. For a
    thread of several: nothing is read ahead."""
    with closing(mmap.mmap(-1, PIECE + 2 * BLOCK)) as buffer:
        for piece in pieces(stored):
            if piece.stop - piece.start > len(buffer):
                yield from (one for one in piece.stored if _right(file, one))
                continue
            view = _fill(file, piece, buffer)
            right = [
                one for one in piece.stored if (_right(file, one) if view is None else _matches(view, piece.start, one))
            ]
            if view is not None:
                view.release()
            yield from right
            add(sum(one.place.length for one in piece.stored))


def by_slab(stored: Sequence[Stored]) -> Iterator[tuple[int, list[Stored]]]:
    """Places in the order in which they lie on the disk."""
    ordered = sorted(stored, key=lambda one: (one.place.slab, one.place.offset))
    for slab, group in groupby(ordered, key=lambda one: one.place.slab):
        yield slab, list(group)


def _part(stored: Sequence[Stored], start: int, most: int) -> tuple[list[Stored], int]:
    """About `most` bytes of places from offset `start` on, and the offset of the next; 0 if there is none."""
    size = 0
    part: list[Stored] = []
    for one in stored:
        if one.place.offset < start:
            continue
        if part and size >= most:
            return part, one.place.offset
        part.append(one)
        size += one.place.length
    return part, 0


def _lacks(slab: Slab, named: Contents) -> bool:
    return not named.whole and slab.path.exists()


def _fill(file: DiskFile, piece: Piece, buffer: mmap.mmap) -> memoryview | None:
    view = memoryview(buffer)[: piece.stop - piece.start]
    try:
        return view[: file.read(piece.start, view)]
    except OSError as error:
        if error.errno in _UNREADABLE:
            return None
        raise StoreFailed(f"a slab cannot be read at {piece.start}: {error}") from error


def _matches(view: memoryview, start: int, one: Stored) -> bool:
    at = one.place.offset - start
    with view[at : at + one.place.length] as part:
        return len(part) == one.place.length and chunk_id(part) == one.chunk_id


def _right(file: DiskFile, one: Stored) -> bool:
    """A second look, alone: a read that failed may have been about another chunk, and one may have raced a healer."""
    piece = next(pieces([one]))
    with mmap.mmap(-1, piece.stop - piece.start) as buffer:
        view = _fill(file, piece, buffer)
        right = view is not None and _matches(view, piece.start, one)
        if view is not None:
            view.release()
    return right


def _is_zero(file: DiskFile, gap: range) -> bool:
    """Whether a gap reads as zeros. What lies outside whole blocks is read with its block."""
    for begin in file.data(gap):
        at = begin
        while at < gap.stop:
            stop = min(gap.stop, at + PIECE)
            place = Place(0, at, stop - at, 1)
            piece = Piece(at // BLOCK * BLOCK, _up(stop), ())
            with mmap.mmap(-1, piece.stop - piece.start) as buffer:
                view = _fill(file, piece, buffer)
                clean = view is not None and not any(_nonzero(view, place.offset - piece.start, place.length))
                if view is not None:
                    view.release()
            if not clean:
                return False
            at = stop
    return True


def _nonzero(view: memoryview, at: int, length: int) -> Iterator[bool]:
    for start in range(at, min(at + length, len(view)), len(_ZEROS)):
        part = bytes(view[start : min(start + len(_ZEROS), at + length)])
        yield part != _ZEROS[: len(part)]
