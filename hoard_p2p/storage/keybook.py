"""What origin keys were found to be, and what a large file of theirs is called once its chunks are known.

A row of the index's table KEYS never changes: a key names an object's version, so its bytes cannot. The rows are also
in a journal of their own, `keys`, from which a rebuilt index has them. That one is not synced: what a power cut takes
of it, and of the index, is read again from the origin.
"""

import logging
import mmap
import threading
from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path

from hoard_p2p.errors import StoreFailed
from hoard_p2p.ids import ID_SIZE, ChunkId, short
from hoard_p2p.storage import extents as chunks
from hoard_p2p.storage import journal
from hoard_p2p.storage.index import Index, Table, Transaction
from hoard_p2p.storage.layout import DataDir

log = logging.getLogger(__name__)

STEP = 1000
"""Rows that are looked at in one transaction, and told in one record."""
_PAIR = 2 * ID_SIZE
_ROOM = 1 << 20
"""Bytes up to which the journal is left as it is."""

Pair = tuple[bytes, bytes]
"""An origin key and the id of its bytes; or, 16 bytes each, two keys of one large file: over origin keys, over ids."""


class KeyBook:
    """The writing side; `extents.content_of` and `get_file` read. Thread-safe."""

    def __init__(self, index: Index, layout: DataDir) -> None:
        self._index = index
        self._path = layout.keys
        self._lock = threading.Lock()
        self._journal: journal.Journal | None = None
        self._next_look = _ROOM
        self._incomplete = False
        self.conflicts = 0
        """How often a key was told to be other bytes than before: some peer lies, or an origin does not keep versions
        apart."""

    def close(self) -> None:
        if self._journal is not None:
            self._journal.close()

    def learn(self, txn: Transaction, pairs: Sequence[Pair]) -> list[Pair]:
        """The first word on a key counts. Those that were not known, for `note`."""
        fresh = []
        forgotten = bool(pairs) and txn.count(Table.GENERATIONS) > 0
        for key, found in pairs:
            known = txn.get(Table.KEYS, key)
            if known is None:
                txn.put(Table.KEYS, key, found)
                fresh.append((key, found))
                if len(key) != ID_SIZE:
                    chunks.rename_file(txn, key, found)
                elif forgotten:
                    chunks.avoid_forgotten(txn, key, found)
            elif known != found:
                self._contradicted(key, known, found)
        return fresh

    def _contradicted(self, key: bytes, known: bytes, found: bytes) -> None:
        self.conflicts += 1
        log.log(
            logging.WARNING if self.conflicts == 1 else logging.INFO,
            "piece %s was %s when it was first read and is said to be %s now: the first is kept",
            short(key), short(known), short(found),
        )  # fmt: skip

    def forget(self, keys: Iterable[ChunkId]) -> None:
        """What these keys were found to be was wrong. Raises StoreFailed."""
        with self._index.write() as txn:
            for key in keys:
                chunks.mark_forgotten(txn, key)
                txn.delete(Table.KEYS, key)
        with self._lock:
            self._rewrite()  # the journal still had them

    def sweep_steps(self, damaged: Callable[[], Iterable[ChunkId]]) -> Iterator[int]:
        """Forget the keys whose chunks are gone, a page at a time, so that there are never more than chunks were found
        under since; how many rows went. `damaged` chunks come back."""
        for page in self._index.pages(Table.KEYS, STEP):
            waited = set(damaged())
            gone = [(key, found) for key, found in page if found not in waited]
            with self._index.read() as txn:
                gone = [(key, found) for key, found in gone if _is_gone(txn, key, found)]
            if gone:
                with self._index.write() as txn:
                    for key, found in gone:
                        if _is_gone(txn, key, found):  # nobody listed it meanwhile
                            txn.delete(Table.KEYS, key)
            yield len(gone)

    def keys_of(self, contents: Container[bytes]) -> dict[ChunkId, ChunkId]:
        """The keys that were found to be one of these chunks, each with it. Looks through all of them."""
        return {
            ChunkId(key): ChunkId(found)
            for page in self._index.pages(Table.KEYS)
            for key, found in page
            if found in contents
        }

    # --- its journal

    def note(self, pairs: Sequence[Pair]) -> None:
        """Tell the journal what the index has learned, once it has: then a journal that is written anew has it too."""
        entry = _encoded(pairs)
        if not entry.payload:
            return
        with self._lock:
            try:
                self._opened().append([entry], sync=False)
                self._shorten()
            except (OSError, StoreFailed) as error:
                self._incomplete = True
                log.info("%s: it lacks what some origin keys are until the next scrub", error)

    def _opened(self) -> journal.Journal:
        if self._journal is None:
            self._journal = journal.Journal(self._path)
        return self._journal

    def _shorten(self) -> None:
        """Once it is large, and four times as long as what it says."""
        if self._opened().size > self._next_look:
            with self._index.read() as txn:
                size = txn.count(Table.KEYS) * _PAIR
            self._next_look = max(_ROOM, 4 * size)
            if self._opened().size > self._next_look:
                self._rewrite()

    def mend(self) -> bool:
        """Write the journal anew if it is damaged, or is not there though keys are known; whether it was. Raises
        StoreFailed."""
        with self._index.read() as txn:
            count = txn.count(Table.KEYS)
        with self._lock:
            if self._is_good() if self._path.exists() else not count:
                return False
            self._rewrite()
            return True

    def _is_good(self) -> bool:
        is_lost = self._journal is not None and self._journal.is_lost()
        return not is_lost and not self._incomplete and _is_whole(self._path)

    def _rewrite(self) -> None:
        """Lock held."""
        rows = self._index.pages(Table.KEYS, STEP)
        self._opened().rewrite(entry for page in rows if (entry := _encoded(page)).payload)
        self._incomplete = False


def _is_gone(txn: Transaction, key: bytes, found: bytes) -> bool:
    return txn.get(Table.CHUNKS if len(key) == ID_SIZE else Table.FILES, found) is None


def _encoded(pairs: Sequence[Pair]) -> journal.Entry:
    """Without the names of files: they are found again with the files."""
    return journal.Entry(journal.Kind.KEYS, b"".join(a + b for a, b in pairs if len(a) == ID_SIZE))


def told(path: Path) -> Iterator[list[Pair]]:
    """What the journal at `path` has, oldest first, in parts; nothing if it is not there. Raises OSError."""
    with suppress(FileNotFoundError), path.open("rb") as file:
        if not path.stat().st_size:
            return
        with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as raw:
            for kind, payload in journal.decode(raw):
                if kind == journal.Kind.KEYS:
                    starts = range(0, len(payload) - _PAIR + 1, _PAIR)
                    yield [(payload[at : at + ID_SIZE], payload[at + ID_SIZE : at + _PAIR]) for at in starts]


def _is_whole(path: Path) -> bool:
    with path.open("rb") as file:
        if not path.stat().st_size:
            return True
        with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as raw:
            return journal.is_whole(raw)


def restore(txn: Transaction, pairs: Sequence[Pair]) -> None:
    """Into a rebuilt index: keys whose bytes are here; the first word counts."""
    for key, found in pairs:
        if txn.get(Table.CHUNKS, found) is not None and txn.get(Table.KEYS, key) is None:
            txn.put(Table.KEYS, key, found)
