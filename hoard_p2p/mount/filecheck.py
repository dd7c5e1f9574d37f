"""Verifying the slab of one large file as a whole, so that the kernel may read it without us."""

from collections import deque
from collections.abc import Set

from hoard_p2p.catalog.reader import Catalog, file_key
from hoard_p2p.ids import HOLE
from hoard_p2p.interfaces import ListedSlabs, LocalChunks
from hoard_p2p.mount.pieces import Lying, Piece, assemble

BATCH_RUNS = 64
BATCH_BYTES = 16 << 20


class FileCheck:
    """Gives out the pieces of one file's slab, and hears what became of them. Single-threaded.

    A run whose place in this very slab was verified already is not read again, so a check that was broken off by the
    end of its process goes on where it was.
    """

    def __init__(
        self, inode: int, catalog: Catalog, chunks: LocalChunks, slabs: ListedSlabs, verified: memoryview
    ) -> None:
        """`inode`: a regular file, resolved. `verified`: the mount's byte per run. Raises CatalogCorrupt."""
        self.inode = inode
        self._catalog = catalog
        self._chunks = chunks
        self._slabs = slabs
        self._verified = verified
        self._runs = catalog.runs(inode)
        self._key = file_key((catalog.chunk_id(run), catalog.length(run)) for run in self._runs)
        self._found = slabs.file_slab(self._key)
        self._next = self._runs.start
        self._late: deque[int] = deque()
        self._outstanding = 0
        self.failed = not self._is_whole()

    @property
    def slab(self) -> int:
        """The file's slab, 0 if it has none."""
        return 0 if self._found is None else self._found[0]

    @property
    def over(self) -> bool:
        """Whether there is nothing left to wait for."""
        return self.failed or (self._next == self._runs.stop and not self._late and not self._outstanding)

    @property
    def left(self) -> int:
        """Bytes not yet given out."""
        return self._catalog.position(self._runs.stop) - self._catalog.position(self._next)

    def passes(self) -> bool:
        """Once it is over: whether every byte of the slab is right, and the slab still is the one of the file."""
        return not self.failed and self._slabs.file_slab(self._key) == self._found and self._is_whole()

    def pieces(self, in_flight: Set[int]) -> list[Piece]:
        """What to read next; empty if nothing now. `in_flight`: runs that others are verifying at this moment."""
        while not self.failed:
            batch = self._batch(in_flight)
            if not batch:
                break
            lying = self._lying(batch, in_flight)
            if lying:
                pieces = assemble(lying)
                self._outstanding += len(pieces)
                return pieces
        return []

    def settled(self, wrong: bool) -> None:
        """One of the pieces was checked."""
        self._outstanding -= 1
        self.failed = self.failed or wrong

    def _is_whole(self) -> bool:
        return self._found is not None and self._found[1]

    def _batch(self, in_flight: Set[int]) -> list[int]:
        if self._next < self._runs.stop:
            first, stop = self._next, min(self._next + BATCH_RUNS, self._runs.stop)
            end = self._catalog.position(first) + BATCH_BYTES
            while stop > first + 1 and self._catalog.position(stop) > end:
                stop -= 1
            self._next = stop
            return list(range(first, stop))
        ready = [run for run in self._late if self._catalog.canonical(run) not in in_flight]
        self._late = deque(run for run in self._late if run not in ready)
        return ready

    def _lying(self, batch: list[int], in_flight: Set[int]) -> list[Lying]:
        """Where the batch's runs lie in the slab, those left out that need not be read (now)."""
        catalog, base = self._catalog, self._catalog.position(self._runs.start)
        slab = self.slab
        ids = [catalog.chunk_id(run) for run in batch]
        contents = [content or identifier for content, identifier in zip(self._chunks.contents(ids), ids)]
        lying = []
        for run, identifier, place in zip(batch, contents, self._chunks.places(ids)):
            offset, length, canonical = catalog.position(run) - base, catalog.length(run), catalog.canonical(run)
            if identifier == HOLE or place is None or place[:3] != (slab, offset, length):
                lying.append(Lying(slab, offset, run, identifier, length, 0))
            elif canonical in in_flight:
                self._late.append(run)
            elif self._verified[canonical] != place.generation:
                lying.append(Lying(slab, offset, canonical, identifier, length, place.generation))
        return lying
