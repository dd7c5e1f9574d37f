"""What the verifier reads next: files that an OPEN waits for, then what lies ahead of readers, then the rest.

Decides and keeps count; it reads the index, and no slab.
"""

import logging
from collections import deque
from dataclasses import dataclass, field

from hoard_p2p.catalog.reader import Catalog
from hoard_p2p.errors import HoardError
from hoard_p2p.ids import HOLE
from hoard_p2p.interfaces import ListedSlabs, LocalChunks
from hoard_p2p.mount.ahead import Readers, Stream
from hoard_p2p.mount.filecheck import BATCH_BYTES, FileCheck
from hoard_p2p.mount.opening import PATIENCE
from hoard_p2p.mount.pieces import Lying, Piece, Task, assemble
from hoard_p2p.mount.shared import URGENT, SharedState
from hoard_p2p.segments import LARGE_FILE

log = logging.getLogger(__name__)

QUIET = 2.0
"""Seconds without a hint until files that nobody asked for are verified."""
CALM_RATE = 200e6
"""Bytes a second of that."""
BATCH_RUNS = 256
RETRY = 10.0
"""Seconds for which a file whose slab was found wrong is not verified again: it is being repaired, or is past that."""
SCAN = 2000
"""Inodes looked at in a row."""


@dataclass(slots=True, eq=False)
class _Source:
    """Pieces that were planned together. `check`: the file they belong to, None for runs ahead of readers."""

    check: FileCheck | None = None
    since: float = 0.0
    ready: deque[Task] = field(default_factory=deque)


class Agenda:
    """The work of one verifier. Single-threaded."""

    def __init__(
        self, catalog: Catalog, chunks: LocalChunks, slabs: ListedSlabs, shared: SharedState, now: float
    ) -> None:
        """`now`: seconds of the clock that every call is told."""
        self._catalog = catalog
        self._chunks = chunks
        self._slabs = slabs
        self._shared = shared
        self._readers = Readers(catalog.position, catalog.chunks)
        self._openers = Readers(catalog.position, catalog.chunks)
        self._inode_at: dict[int, int] = {}  # by the run at which an opener's next file starts
        self._runs = _Source()
        self._again: deque[int] = deque()
        self._urgent: list[_Source] = []
        self._ahead: deque[_Source] = deque()
        self._calm = _Source()
        self._calm_inode = 0 if len(shared.opens) else catalog.inodes
        self._calm_next = 0.0
        self._heard = now
        self._in_flight: set[int] = set()
        self._hopeless: dict[int, float] = {}  # files whose slab is wrong for good, until when
        self.finished = False
        """Whether a file is done that an OPEN may wait for; the caller resets it."""

    # --- what happens

    def hear(self, hint: int, now: float) -> None:
        """Take a reader's hint, whatever number it is."""
        self._heard = now
        self._give_way()
        try:
            if hint & URGENT:
                self._opened(hint & ~URGENT, now)
            elif hint < self._catalog.chunks:
                self._readers.hint(hint, hint + 1)
        except HoardError as error:
            log.info("nothing is verified for hint %d: %s", hint, error)
            self.finished = True

    def _give_way(self) -> None:
        """Leave the file that nobody asked for, and what was planned of it: it may be the very one that is wanted."""
        check = self._calm.check
        if check is not None:
            self._drop(self._calm)
            self._calm, self._calm_inode = _Source(), check.inode

    def verify(self, run: int) -> None:
        """Verify one run: it was repaired."""
        self._again.append(run)

    def settle(self, task: Task, wrong: bool) -> None:
        """A task from `next` was checked."""
        self._in_flight.difference_update(check.run for check in task.piece.checks if check.generation)
        if task.owner is not None:
            task.owner.settled(wrong)

    def _opened(self, inode: int, now: float) -> None:
        if inode >= self._catalog.inodes:
            return
        inode = self._catalog.resolve(inode)
        runs = self._catalog.runs(inode)
        stream = self._openers.hint(runs.start, runs.stop)
        self._inode_at.setdefault(stream.next, inode + 1)
        if self._hopeless.get(inode, now) > now:
            self.finished = True
        elif not self._shared.checked[inode]:
            self._urge(inode, now)

    def _urge(self, inode: int, now: float) -> None:
        known = next((source for source in self._ahead if source.check and source.check.inode == inode), None)
        if known is not None:
            self._ahead.remove(known)
        elif self._calm.check is not None and self._calm.check.inode == inode:
            known, self._calm = self._calm, _Source()
        elif not any(source.check and source.check.inode == inode for source in self._urgent):
            known = self._source(inode)
        if known is not None:
            known.since = now
            self._urgent.append(known)

    def _source(self, inode: int) -> _Source:
        check = FileCheck(inode, self._catalog, self._chunks, self._slabs, self._shared.verified)
        return _Source(check)

    # --- what is next

    def next(self, now: float) -> Task | None:
        """A piece that somebody waits for, or will soon."""
        self._calm_urgent(now)
        for source in sorted(self._urgent, key=lambda source: source.check.left if source.check else 0):
            task = self._from_file(source)
            if task is not None:
                return task
        task = self._from_runs() or self._from_ahead(now)
        if task is None and self._calm.ready:  # what was planned is not held back: others may wait for these very runs
            task = self._calm.ready.popleft()
        return task

    def next_calm(self, now: float) -> Task | None:
        """A piece that nobody asked for; None while there are readers, and so as not to disturb anybody."""
        if now < max(self._heard + QUIET, self._calm_next):
            return None
        while (check := self._calm.check) is None or check.over:
            if check is not None:
                self._finish(check, now)
            self._calm.check = self._next_unverified()
            if self._calm.check is None:
                return None
        task = self._from_file(self._calm)
        if task is not None:
            self._calm_next = max(now, self._calm_next) + task.piece.length / CALM_RATE
        return task

    def calm_wait(self, now: float) -> float | None:
        """Seconds until `next_calm` may have something, None if it never will."""
        if self._calm_inode >= self._catalog.inodes and self._calm.check is None:
            return None
        return max(0.0, max(self._heard + QUIET, self._calm_next) - now)

    def _calm_urgent(self, now: float) -> None:
        """End what is over, and let what nobody waits for any more take turns."""
        for source in list(self._urgent):
            if self._is_over(source, now):
                self._urgent.remove(source)
            elif now - source.since > PATIENCE:
                self._urgent.remove(source)
                self._ahead.appendleft(source)

    def _from_file(self, source: _Source) -> Task | None:
        check = source.check
        if check is None:
            return None
        try:
            if not source.ready:
                self._plan(source, check.pieces(self._in_flight))
        except HoardError as error:
            log.info("the slab of inode %d is not verified: %s", check.inode + 1, error)
            check.failed = True
        if check.failed:
            self._drop(source)
        return source.ready.popleft() if source.ready else None

    def _from_runs(self) -> Task | None:
        source = self._runs
        while not source.ready and (runs := self._next_runs()):
            try:
                self._plan(source, assemble(self._lying(runs)))
            except HoardError as error:
                log.info("runs %d to %d are not verified ahead: %s", runs[0], runs[-1], error)
        return source.ready.popleft() if source.ready else None

    def _next_runs(self) -> list[int] | range:
        if self._again:
            return [self._again.popleft()]
        stream = self._readers.due()
        return [] if stream is None else self._readers.take(stream, BATCH_BYTES, BATCH_RUNS)

    def _from_ahead(self, now: float) -> Task | None:
        while True:
            stream = self._openers.due()
            if len(self._ahead) < 2 and stream is not None:
                self._follow(stream)
            elif not self._ahead:
                return None
            for source in list(self._ahead):
                if self._is_over(source, now):
                    self._ahead.remove(source)
                    continue
                task = self._from_file(source)
                if task is not None:
                    return task
            if stream is None:
                return None

    def _follow(self, stream: Stream) -> None:
        """Take up the large file behind the ones that a stream of opens has reached, if there is one near."""
        start = self._inode_at.pop(stream.next, self._catalog.inodes)
        for inode in range(start, min(start + SCAN, self._catalog.inodes)):
            if self._is_large(inode):
                stream.next = self._catalog.runs(inode).stop
                self._inode_at[stream.next] = inode + 1
                if not self._shared.checked[inode]:
                    self._ahead.append(self._source(inode))
                return
        stream.next = self._catalog.chunks

    def _next_unverified(self) -> FileCheck | None:
        for _ in range(SCAN):
            inode = self._calm_inode
            if inode >= self._catalog.inodes:
                return None
            self._calm_inode += 1
            if self._is_large(inode) and not self._shared.checked[inode]:
                return self._source(inode).check
        return None

    def _is_large(self, inode: int) -> bool:
        catalog = self._catalog
        return catalog.is_file(inode) and catalog.size(inode) > LARGE_FILE and catalog.resolve(inode) == inode

    # --- keeping count

    def _lying(self, runs: list[int] | range) -> list[Lying]:
        """Where those of `runs` lie that are here and not verified."""
        catalog, verified = self._catalog, self._shared.verified
        wanted = {canonical: catalog.chunk_id(canonical) for canonical in map(catalog.canonical, runs)}
        ids = list(wanted.values())
        found = zip(wanted, self._chunks.contents(ids), self._chunks.places(ids))
        return [
            Lying(place.slab, place.offset, run, identifier, place.length, place.generation)
            for run, identifier, place in found
            if place is not None
            and identifier is not None
            and identifier != HOLE
            and run not in self._in_flight
            and verified[run] != place.generation
            and place.length == catalog.length(run)
        ]

    def _plan(self, source: _Source, pieces: list[Piece]) -> None:
        source.ready.extend(Task(piece, source.check) for piece in pieces)
        for piece in pieces:
            self._in_flight.update(check.run for check in piece.checks if check.generation)

    def _drop(self, source: _Source) -> None:
        """A file is not checked any further: what was planned for it is not read."""
        if source.check is not None:
            source.check.failed = True
        while source.ready:
            self.settle(source.ready.popleft(), False)

    def _is_over(self, source: _Source, now: float) -> bool:
        if source.check is not None:
            if not source.check.over:
                return False
            self._finish(source.check, now)
        self._drop(source)
        return True

    def _finish(self, check: FileCheck, now: float) -> None:
        if check.passes():
            self._shared.checked[check.inode] = check.slab
        else:
            self._hopeless[check.inode] = now + RETRY
        self.finished = True
