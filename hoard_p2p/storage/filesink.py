"""The chunks of one large file: a slab of its own, at the file's own offsets, so that a whole one can back a mount."""

import logging
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from hoard_p2p.errors import HoardError, StoreFailed
from hoard_p2p.ids import HOLE, Bytes, ChunkId, chunk_id, short
from hoard_p2p.interfaces import Extent
from hoard_p2p.storage.failures import store_failure
from hoard_p2p.storage.groups import Completion, Groups
from hoard_p2p.storage.openslab import OpenSlab
from hoard_p2p.storage.parts import OpenPart
from hoard_p2p.storage.spots import Spot

log = logging.getLogger(__name__)

ATTEMPTS = 10


class SinkEnded(StoreFailed):
    """A sink was used after its end."""


class SpotTaken(StoreFailed):
    """Where a chunk would go in a file's slab lies another one that is listed."""


class StoredChunks(Protocol):
    """What a sink must know of chunks that are in the store already."""

    def read_whole(self, chunk_id: ChunkId, into: memoryview) -> bool:
        """Fill `into` with a chunk of just that length, committed or pending; False if there is none."""
        ...

    def listed(self, extents: Sequence[Extent]) -> list[Extent]:
        """Those of `extents` that the index lists, or that are on their way to it."""
        ...


class Missing(NamedTuple):
    """A run of the file that its slab does not have."""

    chunk_id: ChunkId
    offset: int
    length: int


def missing_runs(runs: Sequence[tuple[ChunkId, int]], present: dict[int, ChunkId]) -> list[Missing]:
    """The runs, holes left out, that are not at their offset in `present`."""
    found = []
    offset = 0
    for run_id, length in runs:
        if run_id != HOLE and present.get(offset) != run_id:
            found.append(Missing(run_id, offset, length))
        offset += length
    return found


@dataclass(frozen=True, slots=True)
class _Filled:
    """A slab and the chunks it has, by offset."""

    slab: OpenSlab
    present: dict[int, ChunkId]


class FileSlabSink:
    """FileSink with a slab that is asked for when the first chunk comes, and again if that slab fails."""

    def __init__(
        self, size: int, groups: Groups, stored: StoredChunks, make_slab: Callable[[], OpenSlab], copy_share: float
    ) -> None:
        self._size = size
        self._groups = groups
        self._stored = stored
        self._make_slab = make_slab
        self._copy_share = copy_share
        self._lock = threading.Lock()
        self._filled: _Filled | None = None
        self._parts: list[OpenPart] = []
        self.ended = False

    def put(self, chunk_id: ChunkId, data: Bytes, offset: int) -> None:
        if offset + len(data) > self._size:
            raise StoreFailed(f"chunk at {offset} of {len(data)} bytes lies beyond a file of {self._size} bytes")
        entered: list[_Filled] = []

        def spot(_: int) -> Spot:
            entered.append(self._enter(offset, chunk_id, len(data)))
            return Spot(entered[0].slab, offset)

        if self._groups.keep(chunk_id, data, spot):
            entered[0].present[offset] = chunk_id

    def part(self, offset: int, length: int) -> OpenPart:
        """Room for a piece that arrives in parts, which the caller closes. Raises StoreFailed, and SpotTaken."""
        filled = self._enter(offset, None, length)
        try:
            filled.slab.reserve(offset, length)
        except (OSError, StoreFailed) as error:
            filled.slab.leave()
            if isinstance(error, StoreFailed):
                raise
            raise store_failure(f"no room for a piece in slab {filled.slab.slab}", error) from error
        part = OpenPart(filled.slab, offset, length)
        with self._lock:
            self._parts = [*(known for known in self._parts if known.is_open), part]
        return part

    def close_parts(self) -> None:
        """Give up what has not become whole."""
        with self._lock:
            parts, self._parts = self._parts, []
        for part in parts:
            part.close()

    def finish(self, file_key: bytes, runs: Sequence[tuple[ChunkId, int]]) -> None:
        """See FileSink. Returns before the record is durable; `flush` of the writer waits for it."""
        if sum(length for _, length in runs) != self._size:
            raise StoreFailed(f"the runs of file {file_key.hex()} do not add up to {self._size} bytes")
        filled = self._filled
        if filled is not None and filled.slab.enter():
            self._record(filled, file_key, runs)
        self.abandon()

    def complete(self, file_key: bytes, runs: Sequence[tuple[ChunkId, int]]) -> bool:
        """`finish` for a file of which nothing need have been put here; whether its slab has all of it then."""
        try:
            return self._record(self._entered(), file_key, runs)
        finally:
            self.abandon()

    def _record(self, filled: _Filled, file_key: bytes, runs: Sequence[tuple[ChunkId, int]]) -> bool:
        complete = self._complete(filled, runs)
        self._groups.complete(Completion(filled.slab, file_key, complete))
        return complete

    def abandon(self) -> None:
        with self._lock:
            self.ended = True
            if self._filled is not None:
                self._filled.slab.retire()

    def revive(self) -> bool:
        """Go on after `finish` or `abandon`, if the slab is still open; what was put is known then without a look at
        the sidecar, and nobody finds the slab locked that he is about to leave."""
        with self._lock:
            if self._filled is not None and self._filled.slab.revive():
                self.ended = False
            return not self.ended

    @property
    def slab(self) -> int | None:
        """The slab that it writes now."""
        filled = self._filled
        return None if filled is None else filled.slab.slab

    @property
    def closed(self) -> bool:
        """Whether it has ended and holds no descriptor any more."""
        with self._lock:
            return self.ended and (self._filled is None or self._filled.slab.closed)

    def _enter(self, offset: int, identifier: ChunkId | None, length: int) -> _Filled:
        """The slab, entered once more to write at `offset`. Raises StoreFailed, and SpotTaken if another chunk, or for
        a piece that is not known yet any chunk, is listed there."""
        filled = self._entered()
        there = filled.present.get(offset)
        if there is None or there == identifier:
            return filled
        if self._stored.listed([Extent(filled.slab.slab, offset, length, there)]):
            filled.slab.leave()
            raise SpotTaken(f"at {offset} of slab {filled.slab.slab} lies another chunk")
        return filled

    def _entered(self) -> _Filled:
        """The slab, entered once more. Raises StoreFailed."""
        with self._lock:
            if self.ended:
                raise SinkEnded("the file was finished or abandoned; open it again")
            if self._filled is None or not self._filled.slab.enter():
                if self._filled is not None:
                    self._filled.slab.retire()
                slab = self._make_slab()
                slab.enter()
                present = {extent.offset: extent.chunk_id for extent in self._stored.listed(slab.listed())}
                self._filled = _Filled(slab, present)
            return self._filled

    def _complete(self, filled: _Filled, runs: Sequence[tuple[ChunkId, int]]) -> bool:
        """Copy what the slab lacks if that is worth it; whether the slab has all of the file then."""
        missing = missing_runs(runs, self._still_present(filled, runs))
        absent = sum(run.length for run in missing)
        if absent > self._copy_share * sum(length for run_id, length in runs if run_id != HOLE):
            return False
        try:
            buffer = memoryview(bytearray(max((run.length for run in missing), default=0)))
            return all(self._copy(filled, run, buffer[: run.length]) for run in missing)
        except HoardError as error:  # a complete slab is a faster one, no more: its chunks are stored all the same
            log.info("slab %d stays incomplete: %s", filled.slab.slab, error)
            return False

    def _still_present(self, filled: _Filled, runs: Sequence[tuple[ChunkId, int]]) -> dict[int, ChunkId]:
        """What the slab has by now: a place may have been quarantined since it was written."""
        extents, offset = [], 0
        for run_id, length in runs:
            if run_id != HOLE and filled.present.get(offset) == run_id:
                extents.append(Extent(filled.slab.slab, offset, length, run_id))
            offset += length
        return {extent.offset: extent.chunk_id for extent in self._stored.listed(extents)}

    def _copy(self, filled: _Filled, run: Missing, view: memoryview) -> bool:
        if not self._stored.read_whole(run.chunk_id, view) or chunk_id(view) != run.chunk_id:
            log.info("slab %d stays incomplete: no good copy of %s", filled.slab.slab, short(run.chunk_id))
            return False
        if not filled.slab.enter():
            return False
        self._groups.keep_copy(run.chunk_id, view, Spot(filled.slab, run.offset))
        filled.present[run.offset] = run.chunk_id
        return True


class LingeringSink:
    """FileSink of one user of a large file; the FileSlabSink behind it stays open for the next user."""

    def __init__(self, current: Callable[[], FileSlabSink]) -> None:
        self._current = current

    def put(self, chunk_id: ChunkId, data: Bytes, offset: int) -> None:
        for _ in range(ATTEMPTS):
            try:
                return self._current().put(chunk_id, data, offset)
            except SinkEnded:  # put aside by another thread just now
                continue
        raise StoreFailed(f"the slab for chunk {short(chunk_id)} does not stay open")

    def part(self, offset: int, length: int) -> OpenPart:
        """See FileSlabSink."""
        for _ in range(ATTEMPTS):
            with suppress(SinkEnded):
                return self._current().part(offset, length)
        raise StoreFailed("the slab of a file does not stay open")

    def finish(self, file_key: bytes, runs: Sequence[tuple[ChunkId, int]]) -> None:
        self._current().finish(file_key, runs)

    def abandon(self) -> None:
        """Nothing: the writer closes the slab when it needs the descriptors, or ends."""
