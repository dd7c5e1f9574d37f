"""Making a lost index again, from the sidecars, the journal, and the bytes themselves.

Nothing is believed that was not read: every extent that a sidecar lists is hashed, and only what is right is listed.
The new index is made beside the old one, which is kept, and takes its place in one step at the end; a crash before
that leaves what was there. For the holder of the node lock.
"""

import os
import shutil
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from hoard_p2p.errors import StoreFailed
from hoard_p2p.interfaces import Extent, Place, SlabKind
from hoard_p2p.storage import extents as chunks
from hoard_p2p.storage import journal, keybook
from hoard_p2p.storage.chronicle import Chronicle
from hoard_p2p.storage.index import Index, Table
from hoard_p2p.storage.layout import DataDir, sync_path
from hoard_p2p.storage.records import SlabRecord, encode_slab
from hoard_p2p.storage.scrub import DiskFile, verified
from hoard_p2p.storage.survey import SlabName, Stored, contents, parse_name, slab_files

FRESH = "index.new"
AT_ONCE = 20_000
"""Extents that are listed in one transaction."""


class Found(NamedTuple):
    """A slab's file."""

    name: SlabName
    path: Path
    size: int


class Checked(NamedTuple):
    """What a slab turned out to hold. `named`: its sidecar says at least something of it. `torn`: not all. `right`, in
    the order of the sidecar, and `listed` of it in all."""

    slab: Found
    named: bool
    torn: bool
    right: Sequence[Extent]
    listed: int
    listed_size: int


@dataclass(slots=True)
class Rebuilt:
    """What came of it. `wrong`: extents that sidecars list and that do not hold their chunk: never written, given back,
    or damaged. `nameless`: slabs without a sidecar that could be read: their bytes cannot be used. `torn`: sidecars of
    which a part could not be read. `aside`: where the old index is now."""

    slabs: int = 0
    chunks: int = 0
    size: int = 0
    wrong: int = 0
    wrong_size: int = 0
    snapshots: int = 0
    refs: int = 0
    journal_whole: bool = True
    new_id: bool = False
    nameless: list[str] = field(default_factory=list)
    torn: list[str] = field(default_factory=list)
    aside: str = ""


Report = Callable[[int, int], None]
"""Bytes that were hashed, of how many."""


def rebuild(layout: DataDir, report: Report, *, threads: int | None = None) -> Rebuilt:
    """Raises StoreFailed, which leaves the old index where it was. Interrupted, it does so too."""
    done = Rebuilt()
    fresh = layout.path / FRESH
    shutil.rmtree(fresh, ignore_errors=True)
    fresh.mkdir(mode=0o770)
    index = Index.for_writing(fresh)
    try:
        found = [Found(name, path, path.stat().st_size) for path in slab_files(layout) if (name := parse_name(path))]
        _restore_names(index, layout, found, done)
        _restore_slabs(index, found, done, report, threads or os.cpu_count() or 1)
        _restore_keys(index, layout)
        with index.read() as txn:
            done.chunks = txn.count(Table.CHUNKS)
    except OSError as error:
        raise StoreFailed(f"the index was not made again: {error}") from error
    finally:
        index.close()
    _put_in_place(layout, fresh, done)
    return done


def _restore_names(index: Index, layout: DataDir, found: Sequence[Found], done: Rebuilt) -> None:
    """Roots, snapshots, refs, holds and settings as the journal has them; numbers that were never used."""
    try:
        raw = layout.journal.read_bytes()
    except FileNotFoundError:
        raw = b""
    told = Chronicle.of_journal(journal.decode(raw))
    done.journal_whole = bool(raw) and journal.is_whole(raw)
    told.start = max([told.start, *(slab.name.start for slab in found)])
    done.new_id = not told.node_id
    told.node_id = told.node_id or os.urandom(16)
    done.snapshots, done.refs = len(told.roots), len(told.refs)
    with index.write() as txn:
        told.write(txn)
        chunks.never_before(txn, max((slab.name.number for slab in found), default=0))


def _restore_slabs(index: Index, found: Sequence[Found], done: Rebuilt, report: Report, threads: int) -> None:
    total = sum(min(slab.size, slab.path.stat().st_blocks * 512) for slab in found)
    meter = _Meter(total, report)
    with ThreadPoolExecutor(threads, "rebuild") as pool:
        for checked in pool.map(lambda slab: _check(slab, meter.add), found):
            _restore_slab(index, checked, done)
    report(total, total)


def _restore_keys(index: Index, layout: DataDir) -> None:
    """What origin keys were found to be, where the bytes are here."""
    for pairs in keybook.told(layout.keys):
        with index.write() as txn:
            keybook.restore(txn, pairs)


def _check(slab: Found, add: Callable[[int], None]) -> Checked:
    """In one of several threads."""
    told = contents(slab.path, slab.name.number)
    stored = sorted((Stored(e.chunk_id, Place(e.slab, e.offset, e.length, 1)) for e in told.extents), key=_offset)
    file = DiskFile(slab.path)
    try:
        right = {(one.chunk_id, one.place.offset) for one in verified(file, stored, add)}
    finally:
        file.close()
    kept = [extent for extent in told.extents if (extent.chunk_id, extent.offset) in right]
    listed_size = sum(extent.length for extent in told.extents)
    named = bool(told.extents) or told.whole
    return Checked(slab, named, named and not told.whole, kept, len(told.extents), listed_size)


def _restore_slab(index: Index, checked: Checked, done: Rebuilt) -> None:
    """A row, if anything is known of it, and its extents. A file slab's length is its file's."""
    slab, right = checked.slab, checked.right
    if not checked.named:
        done.nameless.append(slab.path.name)
        return
    if checked.torn:
        done.torn.append(slab.path.name)
    size = slab.size if slab.name.kind is SlabKind.FILE else 0
    record = SlabRecord(slab.name.kind, slab.name.start, size, time.time_ns(), b"")
    with index.write() as txn:
        txn.put(Table.SLABS, chunks.slab_key(slab.name.number), encode_slab(record))
    for at in range(0, len(right), AT_ONCE):
        with index.write() as txn:
            chunks.add_extents(txn, right[at : at + AT_ONCE])
    held = sum(extent.length for extent in right)
    done.slabs += 1
    done.size += held
    done.wrong += checked.listed - len(right)
    done.wrong_size += checked.listed_size - held


def _offset(one: Stored) -> int:
    return one.place.offset


class _Meter:
    """Adds up what several threads hash."""

    def __init__(self, total: int, report: Report) -> None:
        self._total = total
        self._report = report
        self._size = 0
        self._lock = threading.Lock()

    def add(self, size: int) -> None:
        with self._lock:
            self._size += size
            self._report(min(self._size, self._total), self._total)


def _put_in_place(layout: DataDir, fresh: Path, done: Rebuilt) -> None:
    """The old index, if there is one, keeps its bytes under another name."""
    try:
        if not (layout.index / "data.mdb").exists():
            shutil.rmtree(layout.index, ignore_errors=True)
        else:
            names = (layout.path / f"index.old-{number}" for number in _count())
            aside = next(name for name in names if not name.exists())
            layout.index.rename(aside)
            done.aside = str(aside)
        sync_path(fresh)  # LMDB does not sync the names of its files
        fresh.rename(layout.index)
        sync_path(layout.path)
        if not layout.format.exists():
            layout.write_format()
    except OSError as error:
        raise StoreFailed(f"the new index could not be put in place: {error}; {fresh} has it") from error


def _count() -> Iterator[int]:
    number = 1
    while True:
        yield number
        number += 1
