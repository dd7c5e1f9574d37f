"""READ requests: answered at once if every chunk is here, parked until their chunks arrive if not.

A parked request is freed by the last of its chunks, by an answer that a chunk cannot be had, by a signal to its
reader, or by its deadline (I9); other requests never wait for it.
"""

import errno
import logging
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from hoard_p2p.catalog.reader import Catalog
from hoard_p2p.errors import CatalogCorrupt
from hoard_p2p.ids import short
from hoard_p2p.interfaces import Found, MissChannel, MissFailed
from hoard_p2p.mount.brake import Brake
from hoard_p2p.mount.kernel import RESENT
from hoard_p2p.mount.shared import SharedState
from hoard_p2p.mount.verified import Missing, VerifiedChunks, Wrong
from hoard_p2p.printing import printable

log = logging.getLogger(__name__)

FAILURE_MEMORY = 2.0
"""Seconds for which a run that could not be had fails at once (`SharedState.remember_failure` has the reason)."""


class Replies(Protocol):
    """Where answers go; `Endpoint` is one."""

    @property
    def room(self) -> memoryview:
        """Where the bytes of the next answer are put."""
        ...

    def send_room(self, unique: int, length: int) -> None: ...

    def fail(self, unique: int, number: int) -> None: ...


class Asked(NamedTuple):
    """What was asked of the node: a canonical run, or just the bytes `span` of it."""

    run: int
    span: tuple[int, int] | None


@dataclass(slots=True, eq=False)
class Read:
    """One READ request. `waiting`: what was asked for; `found`: what came, by canonical run; `distrusted`: runs whose
    bytes were wrong once. `unique` has the resent bit if the kernel set it."""

    unique: int
    index: int
    offset: int
    size: int
    deadline: float = 0.0
    waiting: set[Asked] = field(default_factory=set)
    found: dict[int, Found] = field(default_factory=dict)
    distrusted: set[int] = field(default_factory=set)


class Reads:
    """The READs of one worker. Single-threaded; never blocks longer than the disk."""

    def __init__(
        self,
        catalog: Catalog,
        chunks: VerifiedChunks,
        misses: MissChannel,
        replies: Replies,
        shared: SharedState,
        *,
        timeout: float,
        failed: Callable[[], None],
        progress: Callable[[int], None] = lambda run: None,
    ) -> None:
        """`timeout`: seconds that a request may be parked. `failed` is called for each one that ends in an error.
        `progress` is told the chunk run that a request begins in (`Progress.at`)."""
        self._catalog = catalog
        self._chunks = chunks
        self._misses = misses
        self._replies = replies
        self._shared = shared
        self._timeout = timeout
        self._brake = Brake(log)
        self._failed = failed
        self._progress = progress
        self._parked: dict[int, Read] = {}  # by number without the resent bit; oldest deadline first
        self._waiters: dict[Asked, list[Read]] = {}
        self._spans: dict[int, set[Asked]] = {}  # of those, the ones for a part of a run, by canonical run
        self._ready: deque[Read] = deque()

    @property
    def parked(self) -> int:
        return len(self._parked)

    @property
    def ready(self) -> bool:
        """Whether a parked request has everything that it waited for."""
        return bool(self._ready)

    def start(self, read: Read, now: float) -> None:
        """Answer a request, or park it. Raises CatalogCorrupt, OSError: then it is unanswered, and to be forgotten."""
        known = self._parked.get(read.unique & ~RESENT)
        if known is not None and known is not read:  # sent again: answered where and as it was read last
            known.unique = read.unique
            return
        troubles = self._attempt(read)
        if troubles:
            self._park(read, troubles, now)
        elif known is not None:
            self._drop(read)

    def take_ready(self) -> Read | None:
        """The next request that has everything it waited for, to `start` again."""
        while self._ready:
            read = self._ready.popleft()
            if self._is_parked(read):
                return read
        return None

    def answered(self, answer: Found | MissFailed, now: float) -> None:
        """The node answered about a run, or the bytes of it that were asked for."""
        asked = Asked(answer.run, answer.span)
        for read in self._waiters.pop(asked, []):
            read.waiting.discard(asked)
            self._take(read, answer, now)
        if answer.span is not None:
            self._forget_span(asked)
            return
        for part in self._spans.pop(answer.run, ()):  # the whole run is here: so is each part of it
            for read in self._waiters.pop(part, []):
                read.waiting.discard(part)
                self._take(read, answer, now)

    def _take(self, read: Read, answer: Found | MissFailed, now: float) -> None:
        if isinstance(answer, MissFailed):
            self._give_up(read, "failed: " + answer.message, [answer.run], now)
            return
        if read.waiting and answer.span is not None:
            answer = self._chunks.copied(answer)  # the node may go, and the part with it, before the rest has come
        read.found[answer.run] = answer
        if not read.waiting:
            self._ready.append(read)

    def expire(self, now: float) -> None:
        """End every parked request whose deadline has passed."""
        for read in list(self._parked.values()):
            if read.deadline > now:
                break
            if read.waiting:
                reason = self._misses.trouble() or "the node has not answered"
                waited = f"gave up after {self._timeout:g} s: {reason}"
                self._give_up(read, waited, sorted({asked.run for asked in read.waiting}), now)

    def interrupt(self, unique: int) -> bool:
        """The reader of a request got a signal. False if it is not parked here."""
        read = self._parked.get(unique & ~RESENT)
        if read is None:
            return False
        self._end(read, errno.EINTR)
        return True

    def hear_interrupts(self) -> None:
        """End the requests whose interrupt another worker received."""
        for unique in [unique for unique in self._parked if self._shared.interrupted(unique)]:
            self.interrupt(unique)

    def forget(self, unique: int) -> None:
        """The caller answered the request itself."""
        read = self._parked.get(unique & ~RESENT)
        if read is not None:
            self._drop(read)

    def _attempt(self, read: Read) -> list[Missing | Wrong]:
        """Answer if every chunk is here and right; otherwise what is in the way."""
        room = self._replies.room
        troubles: list[Missing | Wrong] = []
        end = 0
        spans = self._catalog.span(read.index, read.offset, read.size)
        if spans:
            self._progress(spans[0].run)
        if len(spans) > 1:
            self._chunks.expect(spans)
        for span in spans:
            start, end = end, end + span.length
            found = read.found.get(self._catalog.canonical(span.run)) if read.found else None
            trouble = self._chunks.fill(span, room[start:end], found)
            if trouble is not None:
                troubles.append(trouble)
        if not troubles:
            self._replies.send_room(read.unique, end)
        return troubles

    def _park(self, read: Read, troubles: Sequence[Missing | Wrong], now: float) -> None:
        for trouble in troubles:
            if isinstance(trouble, Wrong) and trouble.run in read.distrusted:
                self._give_up(read, "got wrong bytes twice", [trouble.run], now)
                return
            if self._shared.failed_recently(trouble.run, now):
                self._end(read, errno.EIO)  # said so when it failed
                return
        if not self._is_parked(read):
            read.deadline = now + self._timeout
            self._parked[read.unique & ~RESENT] = read
        for trouble in troubles:
            self._ask(read, trouble)

    def _ask(self, read: Read, trouble: Missing | Wrong) -> None:
        asked = Asked(trouble.run, trouble.part if isinstance(trouble, Missing) else None)
        if asked not in read.waiting:
            read.waiting.add(asked)
            self._waiters.setdefault(asked, []).append(read)
            if asked.span is not None:
                self._spans.setdefault(asked.run, set()).add(asked)
        if isinstance(trouble, Wrong):
            read.distrusted.add(trouble.run)
            read.found.pop(trouble.run, None)
            where = f"in slab {trouble.place.slab}" if trouble.place else "from the node"
            chunk = self._name(trouble.run)
            self._brake.line(logging.WARNING, "chunk %s %s is damaged, fetching it again", chunk, where)
        if isinstance(trouble, Wrong) and trouble.place is not None:
            self._misses.distrust(trouble.run, trouble.place)
        else:
            self._misses.ask(asked.run, asked.span)

    def _give_up(self, read: Read, why: str, runs: Sequence[int], now: float) -> None:
        """EIO for one request, and for those who ask for the same runs in the next moment."""
        for run in runs:
            self._shared.remember_failure(run, now + FAILURE_MEMORY)
        chunk, more = self._name(runs[0]), f" and {len(runs) - 1} more" if len(runs) > 1 else ""
        waited = "" if chunk in why else f"; it waited for chunk {chunk}{more}"
        self._brake.line(
            logging.ERROR,
            "read of %s at %d+%d %s%s",
            self._path(read.index), read.offset, read.size, why, waited,
        )  # fmt: skip
        self._end(read, errno.EIO)

    def _end(self, read: Read, number: int) -> None:
        self._drop(read)
        self._failed()
        self._replies.fail(read.unique, number)

    def _is_parked(self, read: Read) -> bool:
        return self._parked.get(read.unique & ~RESENT) is read

    def _drop(self, read: Read) -> None:
        self._parked.pop(read.unique & ~RESENT, None)
        for asked in read.waiting:
            waiters = self._waiters.get(asked, [])
            if read in waiters:
                waiters.remove(read)
            if not waiters:
                self._waiters.pop(asked, None)
                self._forget_span(asked)
        read.waiting.clear()

    def _forget_span(self, asked: Asked) -> None:
        """Nobody waits for that part of a run any more."""
        parts = self._spans.get(asked.run)
        if parts is not None:
            parts.discard(asked)
            if not parts:
                del self._spans[asked.run]

    def _name(self, run: int) -> str:
        try:
            return short(self._catalog.chunk_id(run))
        except CatalogCorrupt as error:
            return f"of run {run} ({error})"

    def _path(self, index: int) -> str:
        try:
            return printable(self._catalog.path_of(index))
        except CatalogCorrupt as error:
            return f"inode {index + 1} ({error})"
