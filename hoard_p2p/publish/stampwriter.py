"""Writing down the stamps of a publish, as its outcomes come."""

import os
import struct
from collections.abc import Iterator
from contextlib import ExitStack, closing
from itertools import chain

from hoard_p2p.catalog.spill import SpilledBytes
from hoard_p2p.publish.entries import FileRead, HardLink, LinkRead, Outcome
from hoard_p2p.publish.outcome import PublishResult
from hoard_p2p.publish.spill import Spill
from hoard_p2p.publish.stampfs import FileSystems, Trust
from hoard_p2p.publish.stamps import Meta, Moment, Remembering, is_racy
from hoard_p2p.publish.stampscan import (
    FLAG_LISTED,
    FLAG_QUICK,
    HEADER,
    LOOSE,
    RECORD,
    ROW,
    Header,
    digest_of,
    pack,
)
from hoard_p2p.publish.walk import SPECIAL, Begin, Directory, FoundDirectory, LeftOut, Reason

MOST_QUICK = 2_000_000
"""Entries of one directory beyond which there is no quick look, which holds the names of a directory in memory."""

MOST_BYTES = 1 << 30
"""A longer stamp file (of about 15 million files) is not kept."""

_NEVER = RECORD.pack(LOOSE - 1, *[0] * 8)
"""The record of an entry whose times no record can hold: equal to none."""

_SPECIAL_MODES = {text: kind for kind, text in SPECIAL.items()}


class StampWriter:
    """Takes every outcome of a publish, in order. Used from one thread.

    The time of the publish's begin stands for the time at which each file was read, which was later: so a stamp is
    taken for racy rather too often."""

    def __init__(
        self, remembering: Remembering, file_systems: FileSystems, spill: Spill, stack: ExitStack, *, listed: bool
    ) -> None:
        """`listed`: no rule leaves anything out. What is held on the way ends with `stack`."""
        self._remembering = remembering
        self._wall = remembering.wall
        self._begin = self._wall()
        self._file_systems = file_systems
        self._rows, self._paths, self._names, self._records = (
            stack.enter_context(closing(SpilledBytes(spill))) for _ in range(4)
        )
        self._path = b""
        self._first = self._inode = 1  # of the row's entries; of the next entry
        self._names_at = self._entries = self._row_entries = self._row_loose = 0
        self._begun = False
        self._root = _NEVER
        self._listed = listed
        self._quick = True

    def add_root(self, status: os.stat_result) -> None:
        self._root = self._record(status)

    def add(self, outcome: Outcome) -> None:
        """The next outcome."""
        if isinstance(outcome, FileRead | LinkRead | FoundDirectory):
            self._add_kept(outcome.name, outcome.status)
        elif isinstance(outcome, HardLink):
            self._add_kept(outcome.found.name, outcome.found.status)
        elif isinstance(outcome, Begin):
            self._begin_row(outcome.directory)
        elif isinstance(outcome, LeftOut):
            self._leave_out(outcome)

    def write(self, result: PublishResult) -> None:
        """Write the file. Raises OSError."""
        self._end_row()
        told = self._remembering.describe(result)
        meta = Meta(result.snapshot.hex(), self._begin, Moment.now(self._wall), told).encode()
        header = Header(
            flags=FLAG_QUICK * self._quick | FLAG_LISTED * self._listed,
            drops=0,
            meta=len(meta),
            rows=len(self._rows) // ROW.size,
            entries=self._entries,
            paths=len(self._paths),
            names=len(self._names),
            digest=bytes(16),
            root=self._root,
        )
        if header.length > MOST_BYTES:
            return
        out = self._remembering.out
        out.seek(HEADER.size)
        for block in self._blocks(meta):
            out.write(block)
        digest = digest_of(header, self._blocks(meta))
        out.seek(0)
        out.write(header.pack(drops=0, digest=digest))
        out.flush()

    def _blocks(self, meta: bytes) -> Iterator[bytes]:
        parts = (self._rows, self._paths, self._names, self._records)
        return chain((meta,), *(part.blocks() for part in parts))

    def _begin_row(self, directory: Directory | None) -> None:
        self._end_row()
        self._begun = True
        self._first = self._inode
        self._names_at = len(self._names)
        self._row_entries = self._row_loose = 0
        self._path = b"" if directory is None else directory.path
        if directory is None:
            self._quick = False

    def _end_row(self) -> None:
        if not self._begun:
            return
        self._begun = False
        names = len(self._names) - self._names_at
        self._rows.append(ROW.pack(self._first, names, self._row_entries, self._row_loose, len(self._path)))
        self._paths.append(self._path)
        self._quick &= self._row_entries <= MOST_QUICK

    def _add_kept(self, name: bytes, status: os.stat_result) -> None:
        self._inode += 1
        self._add(name, self._record(status))

    def _add(self, name: bytes, record: bytes) -> None:
        self._names.append(b"\0" + name if self._row_entries else name)
        self._records.append(record)
        self._row_entries += 1
        self._entries += 1

    def _leave_out(self, outcome: LeftOut) -> None:
        kind = _SPECIAL_MODES.get(outcome.why)
        if outcome.reason is Reason.SPECIAL and kind is not None:
            self._row_loose += 1
            self._add(outcome.path.rpartition(b"/")[2], RECORD.pack(LOOSE | kind, *[0] * 8))
        else:
            self._quick = False

    def _record(self, status: os.stat_result) -> bytes:
        try:
            record = pack(status)
        except struct.error:
            self._quick = False
            return _NEVER
        if self._quick:
            self._quick = self._tells(status)
        return record

    def _tells(self, status: os.stat_result) -> bool:
        """Whether an equal stamp will mean that the entry is the same."""
        trust = self._file_systems.trust(status.st_dev)
        return trust is Trust.LOCAL and not is_racy(
            status.st_mtime_ns, status.st_ctime_ns, self._begin, self._wall(), trust
        )
