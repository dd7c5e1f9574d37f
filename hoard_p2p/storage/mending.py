"""What is done about the damage that a scrub found: places quarantined and healed, slabs recorded as what they are,
sidecars and the journal written anew. In the node, which alone changes the store. Blocking, thread-safe.
"""

import fcntl
import logging
import os
import time
from collections.abc import Iterable, Sequence
from contextlib import suppress
from typing import NamedTuple

from hoard_p2p.errors import StoreFailed
from hoard_p2p.ids import ChunkId
from hoard_p2p.interfaces import Extent, SlabKind
from hoard_p2p.storage import extents as chunks
from hoard_p2p.storage import sidecar
from hoard_p2p.storage.healing import Healer
from hoard_p2p.storage.index import Index
from hoard_p2p.storage.layout import DataDir, sidecar_path
from hoard_p2p.storage.records import FileSlab
from hoard_p2p.storage.scrub import Verdict
from hoard_p2p.storage.survey import UNLISTED, Inventory, Slab, Stored, contents

log = logging.getLogger(__name__)

YOUNG_NS = 60 * 1_000_000_000
"""A slab whose row is younger may not have its file yet."""


class Mended(NamedTuple):
    """What became of one verdict. `chunks`: those of which a place was wrong; `missing`: those that no place of this
    disk has right, out of the index by now; `others`: how much else was wrong; `left`: what of that stays, in words."""

    chunks: frozenset[ChunkId] = frozenset()
    missing: frozenset[ChunkId] = frozenset()
    others: int = 0
    left: tuple[str, ...] = ()


class Mender:
    """See the module."""

    def __init__(self, index: Index, layout: DataDir, healer: Healer) -> None:
        self._index = index
        self._layout = layout
        self._healer = healer
        self.inventory = Inventory(index, layout)

    def mend(self, verdict: Verdict) -> Mended:
        """Raises StoreFailed."""
        listed = [one for one in verdict.wrong if one.place.generation != UNLISTED]
        wrong = self._healer.quarantine_all([(one.chunk_id, one.place) for one in listed])
        missing = self.heal_from_disk(dict.fromkeys(identifier for identifier, _ in wrong))
        apart = [one for one in verdict.wrong if one.place.generation == UNLISTED]
        slab = self.inventory.slab(verdict.slab)
        if slab is None:  # it went, or it was deleted and is forgotten
            return Mended(frozenset(identifier for identifier, _ in wrong), frozenset(missing))
        mended = [self._mend_unlisted(one) for one in apart]
        if not all(mended):
            self._demote(slab)
        left = tuple(self._mend_shape(slab, verdict))
        others = sum((verdict.cut, verdict.long, verdict.dirty, verdict.unlisted))
        damaged = frozenset((*(identifier for identifier, _ in wrong), *(one.chunk_id for one in apart)))
        return Mended(damaged, frozenset(missing), others, left)

    def heal_from_disk(self, ids: Iterable[ChunkId]) -> list[ChunkId]:
        """Heal what another place of this disk has; those chunks that none has. Raises StoreFailed."""
        return [identifier for identifier in ids if not self._healer.heal_from_disk(identifier)]

    def _mend_unlisted(self, one: Stored) -> bool:
        """A place that the index has no room for, in a complete file's slab: bytes of another place are copied in."""
        for other in self._healer.places(one.chunk_id):
            data = self._healer.good(one.chunk_id, other)
            if data is not None:
                with suppress(OSError, StoreFailed):
                    self._healer.overwrite(one.place, data)
                    return True
                return False
        return False

    def _mend_shape(self, slab: Slab, verdict: Verdict) -> Iterable[str]:
        if verdict.gone:
            self._drop(slab)
        if verdict.cut or verdict.dirty:
            self._demote(slab)
        if verdict.long:
            os.truncate(slab.path, slab.record.size)  # nobody writes behind the end: a file slab is as long as its file
        if verdict.unlisted and not self._mend_sidecar(slab):
            yield f"the sidecar of slab {slab.number} is damaged, and its slab is being written: scrub again later"

    def _demote(self, slab: Slab) -> None:
        """A complete file's slab is one no longer: its chunks are read one by one from now on."""
        with self._index.write() as txn:
            if chunks.is_complete(txn, slab.number):
                chunks.put_file(txn, slab.record.file_key, FileSlab(slab.number, False))

    def _drop(self, slab: Slab) -> None:
        """Unlist a slab that has neither a file nor a listed place."""
        if time.time_ns() - slab.record.created > YOUNG_NS and not slab.path.exists():
            with self._index.write() as txn:
                chunks.forget_slab(txn, slab.number)
            with suppress(OSError):
                sidecar_path(slab.path).unlink()

    def _mend_sidecar(self, slab: Slab) -> bool:
        """Write it anew: what could be read of it, and what the index lists. False while somebody writes the slab."""
        try:
            data = os.open(slab.path, os.O_RDWR | os.O_CLOEXEC)
        except FileNotFoundError:
            return True
        except OSError as error:
            raise StoreFailed(f"slab {slab.path} cannot be opened: {error}") from error
        try:
            fcntl.flock(data, fcntl.LOCK_EX | fcntl.LOCK_NB)
            with self._healer.still() as wounds:  # those will be listed again, and what is not recorded is garbage
                known = contents(slab.path, slab.number)
                listed = {_extent(one) for one in self.inventory.stored_in({slab.number})}
                listed |= {_extent(Stored(*wound)) for wound in wounds(slab.number)}
                if not known.whole or not listed <= set(known.extents):
                    self._write_sidecar(slab, sorted({*known.extents, *listed}))
        except BlockingIOError:
            return False
        except OSError as error:
            raise StoreFailed(f"the sidecar of slab {slab.path} could not be written: {error}") from error
        finally:
            os.close(data)
        return True

    def _write_sidecar(self, slab: Slab, extents: Sequence[Extent]) -> None:
        path = sidecar_path(slab.path)
        size = slab.record.size if slab.record.kind is SlabKind.FILE else 0
        header = sidecar.SidecarHeader(slab.number, slab.record.start, size, slab.record.kind)
        sidecar.draft(path, header, [extents])
        sidecar.settle(path)
        log.info("the sidecar of slab %d was written anew, %d records", slab.number, len(extents))


def _extent(one: Stored) -> Extent:
    return Extent(one.place.slab, one.place.offset, one.place.length, one.chunk_id)
