"""The index: the one door to LMDB. It knows tables, keys and transactions; what they mean is `extents` and `store`.

py-lmdb facts that bind here: never `buffers=True` (with a map resize it crashes the process); an environment is opened
once per process and never in a child of a process that had it open; `lock=False` would hide a reader from the writer.
"""

import errno
import logging
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from enum import Enum
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import lmdb

from hoard_p2p.errors import StoreFailed, StoreFull
from hoard_p2p.storage import environment
from hoard_p2p.storage.drops import DROPS, following
from hoard_p2p.storage.failures import store_failure
from hoard_p2p.storage.readertable import holders
from hoard_p2p.storage.resizegate import ResizeGate

log = logging.getLogger(__name__)

T = TypeVar("T")

PAGE = 16_384
"""Rows that `Index.pages` reads in one transaction."""
_TICK = b"tick"
NEARLY_FULL = 0.9
"""Part of the map from which on it is enlarged (by a quarter) before the next write."""
LEAST_AHEAD, MOST_AHEAD = 256 << 10, 10 << 20
"""What is set aside on the disk behind the index: two drops of 1,000 chunks change 2,000 leaves, and their parents."""
WRITER_SLOTS, READER_SLOTS = 32, 2
"""Entries of the reader table that the node, and another process, take when they open the index, and keep: those who
come later cannot keep them from reading. The node has about as many threads that read at one time."""
_PAGE = os.sysconf("SC_PAGE_SIZE")


class Table(Enum):
    """The sub-databases."""

    META = b"meta"
    CHUNKS = b"chunks"
    GENERATIONS = b"generations"
    SLABS = b"slabs"
    FILES = b"files"
    ROOTS = b"roots"
    SNAPSHOTS = b"snapshots"
    REFS = b"refs"
    HOLDS = b"holds"
    LEASES = b"leases"
    WOUNDS = b"wounds"
    KEYS = b"keys"


READ_BY_OTHERS = (Table.META, Table.CHUNKS, Table.GENERATIONS, Table.SLABS, Table.FILES, Table.KEYS)
"""What readers in other processes need. A mount may be newer than its node: the first five are in each store."""
ABSENT = frozenset({Table.KEYS})
"""Tables that the store of an older node lacks: they read as empty."""


class Reader(NamedTuple):
    """A read transaction under way, in whatever process: it sees the index as transaction `txn` left it."""

    pid: int
    txn: int


class Transaction:
    """One LMDB transaction; valid inside the `with` that gave it."""

    __slots__ = ("_tables", "_txn", "has_dropped")

    def __init__(self, txn: Any, tables: dict[Table, Any]) -> None:
        self._txn = txn
        self._tables = tables
        self.has_dropped = False
        """Whether some chunk was unlisted; see `drops`."""

    @property
    def number(self) -> int:
        """Of a write transaction: its own. Of a read transaction: that of the last commit that it sees."""
        return int(self._txn.id())

    def get(self, table: Table, key: bytes) -> bytes | None:
        value: bytes | None = self._txn.get(key, db=self._tables[table]) if table in self._tables else None
        return value

    def put(self, table: Table, key: bytes, value: bytes) -> None:
        self._txn.put(key, value, db=self._tables[table])

    def delete(self, table: Table, key: bytes) -> bool:
        self.has_dropped |= table is Table.CHUNKS
        return bool(self._txn.delete(key, db=self._tables[table]))

    def scan(self, table: Table, prefix: bytes = b"") -> Iterator[tuple[bytes, bytes]]:
        """Keys that start with `prefix`, and their values, in key order. Do not change the table meanwhile."""
        cursor = self._txn.cursor(db=self._tables[table])
        if cursor.set_range(prefix) if prefix else cursor.first():
            for key, value in cursor:
                if not key.startswith(prefix):
                    return
                yield key, value

    def page(self, table: Table, after: bytes, limit: int) -> list[tuple[bytes, bytes]]:
        """Up to `limit` rows whose keys are greater than `after`, in key order."""
        return list(islice(self.scan_from(table, after + b"\0" if after else b""), limit))

    def scan_from(self, table: Table, key: bytes) -> Iterator[tuple[bytes, bytes]]:
        """Rows from `key` on, in key order. Do not change the table meanwhile."""
        cursor = self._txn.cursor(db=self._tables[table])
        if cursor.set_range(key) if key else cursor.first():
            yield from cursor

    def count(self, table: Table) -> int:
        return int(self._txn.stat(self._tables[table])["entries"])


class Index:
    """An open environment. Reading is safe from several threads; writing takes turns.

    Only the store's process opens it with `for_writing`; others with `for_reading`."""

    def __init__(self, env: Any, path: Path, *, create: bool) -> None:
        self._path = path
        self._write_lock = threading.Lock()
        self._gate = ResizeGate()
        self._named = tuple(Table) if create else READ_BY_OTHERS
        self._slots = WRITER_SLOTS if create else READER_SLOTS
        self._spare: list[Any] = []
        self._ill = False
        """Whether the environment is closed, or open for reading alone, after an error of the disk."""
        self._size = self._ahead_end = 0
        self._use(env, create=create)

    def _use(self, env: Any, *, create: bool) -> None:
        self._env = env
        self._size = max(self._size, self.map_size)
        self._tables = {}
        for table in self._named:
            with suppress(lmdb.NotFoundError) if table in ABSENT else nullcontext():
                self._tables[table] = env.open_db(table.value, create=create)
        self._chunks = self._tables[Table.CHUNKS]
        self._reserve()

    def _reserve(self) -> None:
        """Take the slots. A transaction that was aborted keeps its entry as long as the object lives."""
        taken = [self._env.begin() for _ in range(self._slots)]
        for txn in taken:
            txn.abort()
        self._spare = taken

    @classmethod
    def for_writing(cls, path: Path, size: int | None = None) -> "Index":
        """Make it if needed, with a map of `size` bytes (None: `map_size`). Raises StoreFailed."""
        env = environment.open_for_writing(path, size or environment.map_size(path))
        try:
            return cls(env, path, create=True)
        except lmdb.Error as error:
            env.close()
            raise environment.unopened(path, error) from error

    @classmethod
    def for_reading(cls, path: Path) -> "Index":
        """Raises Refused, with the reason, where this process cannot: readers write to the index's lock file."""
        env = environment.open_for_reading(path)
        try:
            return cls(env, path, create=False)
        except lmdb.Error as error:
            env.close()
            raise environment.unreadable(path, error) from error

    def close(self) -> None:
        self._spare.clear()
        self._env.close()

    def get_chunk(self, chunk_id: bytes) -> bytes | None:
        """The chunk's value in CHUNKS. A hot path: 0.4 us for begin, get and abort, 0.15 us for the gate."""
        txn = self._begin_read(self._chunks)
        try:
            value: bytes | None = txn.get(chunk_id)
            return value
        finally:
            self._end_read(txn)

    def look_up(self, chunk_id: bytes, use: Callable[[bytes], T]) -> T | None:
        """`use` of the chunk's value, called while the transaction is held; None if there is no such chunk."""
        txn = self._begin_read(self._chunks)
        try:
            value = txn.get(chunk_id)
            return None if value is None else use(value)
        finally:
            self._end_read(txn)

    @contextmanager
    def read(self) -> Iterator[Transaction]:
        """A consistent view; hold it briefly (it keeps old pages alive), and do not nest it."""
        txn = self._begin_read(None)
        try:
            yield Transaction(txn, self._tables)
        finally:
            self._end_read(txn)

    def _begin_read(self, table: Any) -> Any:
        """A read transaction, begun inside the gate, which the caller leaves."""
        while True:
            self._gate.enter()
            try:
                return self._env.begin(table)
            except lmdb.ReadersFullError:
                self._gate.leave()
                self._give_slot()
            except lmdb.MapResizedError:
                self._gate.leave()
                self._gate.resize(lambda: self._env.set_mapsize(0))
            except lmdb.Error as error:
                env = self._env
                self._gate.leave()
                if not self._ill and not isinstance(error, lmdb.PanicError):
                    raise
                self._reopen(env)
            except BaseException:
                self._gate.leave()
                raise

    def _end_read(self, txn: Any) -> None:
        txn.abort()
        if len(self._spare) < self._slots:  # in the place of one that was given away
            self._spare.append(txn)
        self._gate.leave()

    def forget_dead(self) -> None:
        """Clear the entries of processes that have ended; only the writer can where the table is full."""
        with self._still():
            self._env.reader_check()

    def _give_slot(self) -> None:
        """The reader table is full: one of the entries that were kept goes to the caller. Raises StoreFailed."""
        try:
            self._spare.pop()
        except IndexError:
            raise StoreFailed(f"the index {self._path} cannot be read: {holders(self._pids())}") from None

    def _pids(self) -> list[int]:
        """Whose the entries of the reader table are."""
        with self._still():
            words = [line.split() for line in str(self._env.readers()).splitlines()]
        return [int(word[0]) for word in words if word and word[0].isdigit()]

    @contextmanager
    def _still(self) -> Iterator[None]:
        """The environment is not exchanged meanwhile. Not inside a transaction. Raises StoreFailed if it is closed."""
        self._gate.enter()
        try:
            yield
        except lmdb.Error as error:
            raise StoreFailed(f"the index {self._path} cannot be looked at: {error}") from error
        finally:
            self._gate.leave()

    @contextmanager
    def write(self) -> Iterator[Transaction]:
        """All or nothing, durable at the end of the block; an exception in the block undoes it. Raises StoreFailed,
        and StoreFull if the map is full."""
        with self._write_lock:
            if self._ill:
                self._reopen_alone()
            self._enlarge(NEARLY_FULL)
            try:
                with self._env.begin(write=True) as txn:
                    yield (transaction := Transaction(txn, self._tables))
                    if transaction.has_dropped:
                        transaction.put(Table.META, DROPS, following(transaction.get(Table.META, DROPS)))
            except lmdb.Error as error:
                raise self._failure(error) from error
            self._keep_ahead()

    def _failure(self, error: lmdb.Error) -> StoreFailed:
        """What it means that a write failed."""
        if isinstance(error, lmdb.MapFullError):
            self._enlarge(0.0)
            return StoreFull(
                f"index map full: {self._path} may take {self.map_size >> 20:,} MiB of address space; nothing "
                "was changed, try again; if it stays so: raise ulimit -v and restart the node, or remove snapshots"
            )
        what = f"the index {self._path} could not be written"
        if self._is_dead():
            self._reopen_alone()
            return StoreFailed(f"{what}: {error}; it is not known whether this was changed; it was opened again")
        number = errno.ENOSPC if isinstance(error, lmdb.DiskError) else environment.errno_of(error)
        if number:
            return store_failure(f"nothing was changed, {what}", OSError(number, str(error)))
        return StoreFailed(f"{what}: {error}; nothing was changed")

    def _is_dead(self) -> bool:
        """Whether LMDB gave the environment up: after an error of the disk while it wrote its root, it refuses all
        transactions, reading ones too, until it is opened anew. For the holder of the write lock."""
        try:
            self._env.begin(write=True).abort()
        except lmdb.PanicError:
            return True
        except lmdb.Error:
            return False
        return False

    def _reopen(self, dead: Any) -> None:
        """Unless another thread did so meanwhile. Raises StoreFailed if the disk is still ill."""
        with self._write_lock:
            if self._env is dead:
                self._reopen_alone()

    def _reopen_alone(self) -> None:
        self._ill = True
        self._gate.resize(self._exchange)

    def _exchange(self) -> None:
        """Processes that read notice nothing: the file, its lock file and their entries stay."""
        self._spare.clear()
        self._env.close()
        try:
            self._use(environment.open_for_writing(self._path, self._size), create=True)
        except (lmdb.Error, StoreFailed) as error:
            self._env.close()
            with suppress(lmdb.Error):  # what is stored can be read for as long as the disk cannot be written
                self._use(environment.open_unlocked(self._path), create=False)
            raise StoreFailed(f"the index {self._path} cannot be opened again after an error: {error}") from error
        self._ill = False
        self._ahead_end = 0
        log.warning("the index %s was opened again after an error of the disk", self._path)

    def _keep_ahead(self) -> None:
        """Have the disk set room aside for pages to come: what is given up can be noted although others have filled it.

        A transaction may copy every page, and those of the one before are not free yet: so twice what there is."""
        end = self._end()
        ahead = min(MOST_AHEAD, max(LEAST_AHEAD, 2 * end))
        if end + ahead - ahead // 4 > self._ahead_end and environment.keep_ahead(self._path, end, ahead):
            self._ahead_end = end + ahead

    def _end(self) -> int:
        return (int(self._env.info()["last_pgno"]) + 1) * _PAGE

    def _enlarge(self, full: float) -> None:
        """Where more than that part of the map is used, make it a quarter larger: that costs address space alone. If
        there is none, the present one goes on."""
        size = self.map_size
        if self._end() <= full * size:
            return
        larger = (size + size // 4) // _PAGE * _PAGE
        try:
            self._gate.resize(lambda: self._env.set_mapsize(larger))
        except (lmdb.Error, MemoryError, StoreFailed) as error:
            log.info("the map of the index %s stays at %d bytes: %s", self._path, size, error)
        else:
            self._size = larger
            log.info("the map of the index %s was enlarged to %d bytes", self._path, larger)

    def pages(self, table: Table, size: int = PAGE) -> Iterator[list[tuple[bytes, bytes]]]:
        """All rows in key order, each page in a transaction of its own, which is over when the page is handed out."""
        after = b""
        while True:
            with self.read() as txn:
                rows = txn.page(table, after, size)
            if not rows:
                return
            yield rows
            after = rows[-1][0]

    # --- for whoever gives space back

    @property
    def map_size(self) -> int:
        """Bytes that the index may take."""
        return int(self._env.info()["map_size"])

    @property
    def last_transaction(self) -> int:
        """The number of the last commit."""
        with self._still():
            return int(self._env.info()["last_txnid"])

    def readers(self) -> list[Reader]:
        """The read transactions under way in all processes; those of dead processes are cleared first.

        One that begins just now may be missing if it began before the last commit: its entry is written, but perhaps
        not seen by this processor yet. Nobody is missing who began before the commit before that."""
        with self._still():
            self._env.reader_check()
            lines = [line.split() for line in self._env.readers().splitlines()[1:]]
        return [Reader(int(pid), int(txn)) for pid, _, txn in lines if txn != "-"]

    def tick(self) -> None:
        """Commit, so that `last_transaction` moves on. Raises StoreFailed."""
        with self.write() as txn:
            txn.put(Table.META, _TICK, txn.number.to_bytes(8, "little"))
