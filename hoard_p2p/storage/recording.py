"""Changes of names, holds and settings: first in the journal, then in the index. Blocking, thread-safe."""

import logging
import os
import struct
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress

from hoard_p2p.errors import StoreFailed, StoreFormatUnknown
from hoard_p2p.peer import NODE_ID_SIZE, NodeId
from hoard_p2p.storage import journal
from hoard_p2p.storage.chronicle import NODE_ID, START, Chronicle
from hoard_p2p.storage.index import Index, Table, Transaction
from hoard_p2p.storage.layout import DataDir
from hoard_p2p.storage.soundness import has_slabs, lost

log = logging.getLogger(__name__)

JOURNAL_ROOM = 1 << 20
"""Bytes up to which a journal is left as it is."""

_U64 = struct.Struct("<Q")


class Recorder:
    """Keeps the journal in the order of the index, and short."""

    def __init__(self, index: Index, layout: DataDir, *, room: int = JOURNAL_ROOM) -> None:
        """Raises StoreFailed."""
        self._index = index
        self._layout = layout
        self._journal = journal.Journal(layout.journal)
        self._turn = threading.Lock()
        self._room = self._next_look = room

    def close(self) -> None:
        self._journal.close()

    @contextmanager
    def recorded(self, entries: Sequence[journal.Entry]) -> Iterator[Transaction]:
        """The transaction in which the change that `entries` tell is to be made. Raises StoreFailed."""
        with self._turn:
            self._journal.append(entries)
            try:
                with self._index.write() as txn:
                    yield txn
            except BaseException:  # the journal told of a change that was not made: a rebuilt index would have it
                with suppress(StoreFailed):  # else the next mending finds it
                    self._journal.rewrite(self._told())
                raise
            if self._journal.size > self._next_look:
                try:
                    self._shorten()
                except StoreFailed as error:  # the change was made all the same
                    log.warning("%s", error)

    def begin(self) -> tuple[NodeId, int]:
        """Count this start, and tell the node's id, which the first one draws. Raises IndexLost if there are slabs and
        the index has never heard of a start."""
        with self._index.write() as txn:
            raw = txn.get(Table.META, NODE_ID)
            if raw is None and has_slabs(self._layout):
                raise lost(self._layout, "was made anew")
            node_id = NodeId(raw or os.urandom(NODE_ID_SIZE))
            start = _U64.unpack(txn.get(Table.META, START) or bytes(8))[0] + 1
            first = [journal.Entry(journal.Kind.NODE, node_id)] if raw is None else []
            self._journal.append([*first, journal.Entry(journal.Kind.START, _U64.pack(start))])
            txn.put(Table.META, NODE_ID, node_id)
            txn.put(Table.META, START, _U64.pack(start))
            return node_id, start

    def mend(self) -> int:
        """Write anew what is damaged of the files that are neither slabs nor index; how many that were: the format,
        and the journal if it does not say what the index says. Raises StoreFailed."""
        return self._mend_format() + self._mend_journal()

    def _mend_format(self) -> bool:
        with suppress(StoreFormatUnknown):
            if self._layout.check_format():
                return False
        self._layout.write_format()  # it was right when this store was opened
        return True

    def _mend_journal(self) -> bool:
        with self._turn:
            with self._index.read() as txn:
                known = Chronicle.of_index(txn)
            with suppress(OSError):
                raw = self._journal.path.read_bytes()
                told = Chronicle.of_journal(journal.decode(raw))
                if not self._journal.is_lost() and journal.is_whole(raw) and told.agrees(known):
                    return False
            self._journal.rewrite(known.entries())
            return True

    def _shorten(self) -> None:
        """Once it is large, and four times as long as what it says. The index is not behind it here."""
        entries = self._told()
        size = sum(len(journal.encode(entry)) for entry in entries)
        if self._journal.size > max(self._room, 4 * size):
            self._journal.rewrite(entries)
        self._next_look = max(self._room, 4 * size)

    def _told(self) -> list[journal.Entry]:
        """What the index says."""
        with self._index.read() as txn:
            return Chronicle.of_index(txn).entries()
