"""The engine that reads origins: streams side by side, what readers wait for first, asked again where that helps.

One for a node. It knows of ranges of objects, and nothing of chunks, snapshots or peers: whoever reads hands in `Work`,
and waits in its own thread. How many streams an origin bears is `origin.throttle`'s to decide, how fast it may be read
`origin.limit`'s. A thread that hangs in an origin is left behind: nobody waits for it, or hears of it again.
"""

import logging
import random
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from hoard_p2p.errors import HoardError, ObjectChanged, OriginBusy, OriginFailed, OriginRefused
from hoard_p2p.objects import ObjectRange, Origin, Punctual
from hoard_p2p.origin.limit import Limit
from hoard_p2p.origin.meter import Meter
from hoard_p2p.origin.throttle import Throttle, backoff, for_fill
from hoard_p2p.origin.work import Work

log = logging.getLogger(__name__)

MOST_THREADS = 64
IDLE_SECONDS = 10.0
"""A thread with nothing to do ends."""

MOST_LOST = 16
"""Threads that hang in one origin; then nobody reads there until one comes back."""

STALL_SECONDS = 20.0
"""Without a byte; then the origin counts as away."""

_STALLED = f"sent nothing for {STALL_SECONDS:.0f} s"

MOST_TRIES = 5
BUSY_SECONDS = 30.0
"""For so long it is tried again where the origin asks to be asked less."""

TEND_SECONDS = 0.5
URGENT_SECONDS = 2.0
"""For so long after a reader's question some streams are kept free for the next."""

LONGEST_PAUSE = 0.25


class Allowance(NamedTuple):
    """What this node may ask of an origin: questions at a time, and bytes a second (0: no limit)."""

    streams: int
    rate: float = 0.0


class _LeftBehind(Exception):
    """Nobody waits for this any more."""


@dataclass(slots=True, eq=False)
class _Batch:
    """One `read`."""

    origin: Origin
    open: int
    stirred: threading.Event = field(default_factory=threading.Event)
    later: "list[_Job]" = field(default_factory=list)
    running: "set[_Job]" = field(default_factory=set)
    error: Exception | None = None
    left: bool = False


@dataclass(slots=True, eq=False)
class _Job:
    work: Work
    batch: _Batch
    source: "_Source"
    urgent: bool
    rest: deque[ObjectRange] | None = None
    tries: int = 0
    began: float = 0.0
    due: float = 0.0
    moved: float = 0.0
    again: bool = False
    lost: bool = False

    def begin(self, now: float) -> None:
        """It takes a stream, the engine's lock held."""
        self.source.running += 1
        self.batch.running.add(self)
        self.moved, self.began = now, self.began or now


@dataclass(slots=True, eq=False)
class _Source:
    """One origin, as long as the node runs. Its fields are for who holds the engine's lock."""

    meter: Meter
    throttle: Throttle = field(default_factory=lambda: Throttle(1))
    limit: Limit = field(default_factory=Limit)
    urgent: deque[_Job] = field(default_factory=deque)
    fill: deque[_Job] = field(default_factory=deque)
    running: int = 0
    lost: int = 0
    readers_at: float = float("-inf")
    good_at: float = float("-inf")

    def free(self, now: float) -> int:
        """Streams that something waits for."""
        return max(0, min(self.throttle.allowed(now) - self.running, len(self.urgent) + len(self.fill)))

    def take(self, now: float) -> _Job | None:
        """What to do next, if a stream is free for it."""
        allowed = self.throttle.allowed(now)
        while self.urgent and self.running < allowed:
            job = self.urgent.popleft()
            if not job.batch.left:
                return job
        while self.fill and self.running < for_fill(allowed, now - self.readers_at < URGENT_SECONDS):
            job = self.fill.popleft()
            if not job.batch.left:
                return job
        return None


class Streams:
    """See the module. For any thread."""

    def __init__(
        self,
        allowance: Callable[[str], Allowance],
        meter: Callable[[str], Meter],
        *,
        clock: Callable[[], float] = time.monotonic,
        pause: Callable[[float], None] = time.sleep,
        draw: Callable[[], float] = random.random,
    ) -> None:
        """`allowance`: of an origin by its URL, asked about twice a second; `meter` counts what comes
        of it."""
        self._allowance = allowance
        self._meter = meter
        self._clock = clock
        self._pause = pause
        self._draw = draw
        self._sources: dict[str, _Source] = {}
        self._lock = threading.Lock()
        self._changed = threading.Condition(self._lock)
        self._threads = self._idle = 0
        self._closed = False
        self._buffers = threading.local()

    def close(self) -> None:
        """What is being read ends in OriginFailed. Waits for no thread."""
        with self._lock:
            self._closed = True
            self._changed.notify_all()

    def seen(self, url: str) -> tuple[int, int]:
        """Streams that this node uses at most now, and how often they were halved since the origin was throttled."""
        with self._lock:
            throttle = self._source(url).throttle
            return throttle.allowed(self._clock()), throttle.times

    def waiting(self) -> list[str]:
        """The origins of which readers wait for something that was not begun yet."""
        with self._lock:
            return [url for url, source in self._sources.items() if source.urgent]

    def read(self, origin: Origin, works: Sequence[Work], *, urgent: bool) -> None:
        """Until all ranges of all works came or failed. Raises OriginFailed if the origin cannot be read at all now;
        what came stays good, and of some works nothing is heard."""
        batch, source = _Batch(origin, len(works)), self._allowed(origin.url)
        jobs = [_Job(work, batch, source, urgent) for work in works]
        try:
            if not (urgent and len(jobs) == 1 and isinstance(origin, Punctual) and self._read_here(jobs[0])):
                self._offer(jobs)
            while batch.open and batch.error is None:
                batch.stirred.wait(self._tend(batch, origin.url))
                batch.stirred.clear()
        finally:
            batch.left = True
        if batch.error is not None:
            raise batch.error

    def _source(self, url: str) -> _Source:
        if url not in self._sources:
            self._sources[url] = _Source(self._meter(url))
        return self._sources[url]

    # --- in the thread of who reads

    def _allowed(self, url: str) -> _Source:
        allowance = self._allowance(url)
        with self._lock:
            source = self._source(url)
            source.throttle.most, source.limit.rate = allowance.streams, allowance.rate
            return source

    def _read_here(self, job: _Job) -> bool:
        """In this thread: handing it over and waking up take as long as reading 100 KB. False if no stream is free."""
        source, now = job.source, self._clock()
        with self._lock:
            source.readers_at = now
            if self._closed or source.urgent or source.running >= source.throttle.allowed(now):
                return False
            job.begin(now)
        try:
            self._carry_out(job)
            if job.again and self._clock() - job.moved >= STALL_SECONDS:
                job.batch.error = OriginFailed(f"the origin {job.batch.origin.url} {_STALLED}")
        finally:
            self._finished(job)
            with self._lock:
                self._call(source.free(self._clock()))
        return True

    def _tend(self, batch: _Batch, url: str) -> float:
        """Try again what is due, give up what hangs. Seconds until that is to be done again."""
        source, now = self._allowed(url), self._clock()
        with self._lock:
            due = [job for job in batch.later if job.due <= now]
            batch.later = [job for job in batch.later if job.due > now]
            hanging = [job for job in batch.running if now - job.moved > STALL_SECONDS]
            for job in hanging:
                job.lost = True
                source.lost += 1
                self._ended(job)
            if hanging:
                source.throttle.busy(now)
                batch.error = OriginFailed(f"the origin {url} {_STALLED}")
            elif self._closed or source.lost >= MOST_LOST:
                batch.error = OriginFailed(f"the origin {url} is not read now: it does not answer")
            self._call(source.free(now))
        self._offer(due)
        soonest = min((job.due - now for job in batch.later), default=TEND_SECONDS)
        return min(TEND_SECONDS, max(0.001, soonest))

    def _offer(self, jobs: Sequence[_Job]) -> None:
        with self._lock:
            for job in jobs:
                (job.source.urgent if job.urgent else job.source.fill).append(job)
                if job.urgent:
                    job.source.readers_at = self._clock()
            self._call(min(len(jobs), max((job.source.free(self._clock()) for job in jobs[:1]), default=0)))

    def _call(self, works: int) -> None:
        """Threads for so many works, the lock held."""
        woken = min(works, self._idle)
        if woken:
            self._changed.notify(woken)
        for _ in range(min(works - woken, MOST_THREADS - self._threads)):
            self._threads += 1
            threading.Thread(target=self._run, name="origin", daemon=True).start()

    # --- in threads of ours

    def _run(self) -> None:
        while (job := self._next()) is not None:
            try:
                self._carry_out(job)
            except Exception as error:  # the door of this thread: a bug must not end it
                log.exception("reading an origin failed")
                job.batch.error = error
            finally:
                self._finished(job)

    def _next(self) -> _Job | None:
        with self._lock:
            self._idle += 1
            try:
                while not self._closed:
                    job = self._take()
                    if job is not None:
                        return job
                    if not self._changed.wait(IDLE_SECONDS):
                        break
                self._threads -= 1
                return None
            finally:
                self._idle -= 1

    def _take(self) -> _Job | None:
        now = self._clock()
        for source in self._sources.values():
            job = source.take(now)
            if job is not None:
                job.begin(now)
                if self._idle > 1 and (source.urgent or source.fill):
                    self._changed.notify()
                return job
        return None

    def _finished(self, job: _Job) -> None:
        with self._lock:
            if job.lost:
                job.source.lost -= 1
            else:
                self._ended(job)

    def _ended(self, job: _Job) -> None:
        """It takes no stream any more, the lock held."""
        batch = job.batch
        job.source.running -= 1
        batch.running.discard(job)
        if job.again:
            job.again = False
            batch.later.append(job)
        elif not job.rest:
            batch.open -= 1
        if batch.later or not batch.open or batch.error is not None:
            batch.stirred.set()

    def _carry_out(self, job: _Job) -> None:
        if job.rest is None:
            job.rest = deque(job.work.ranges())
        while job.rest and not job.lost:
            wanted = job.rest[0]
            data = self._buffer(wanted.stop - wanted.start)
            try:
                self._read(job, wanted, data)
            except _LeftBehind:
                return
            except HoardError as error:
                if not self._again(job, wanted, error):
                    return
                continue
            if job.lost:
                return
            job.tries, job.began = 0, self._clock()
            job.source.good_at = job.began
            job.work.came(wanted, data)
            job.rest.popleft()

    def _buffer(self, size: int) -> memoryview:
        held: bytearray | None = getattr(self._buffers, "held", None)
        if held is None or len(held) < size:
            held = self._buffers.held = bytearray(size)
        return memoryview(held)[:size]

    def _read(self, job: _Job, wanted: ObjectRange, data: memoryview) -> None:
        began, first = self._clock(), True

        def moved(size: int) -> None:
            nonlocal first
            job.moved = now = self._clock()
            if first:
                first = False
                job.source.meter.first_byte(now - began)
            job.source.meter.read(size)
            with self._lock:
                wait = job.source.limit.take(size, now, urgent=job.urgent)
            while wait > 0 and not job.batch.left:
                self._pause(min(wait, LONGEST_PAUSE))
                wait -= LONGEST_PAUSE
                job.moved = self._clock()
            if job.batch.left or job.lost or self._closed:
                raise _LeftBehind

        job.batch.origin.read(wanted, data, moved)

    def _again(self, job: _Job, wanted: ObjectRange, error: HoardError) -> bool:
        """A range could not be read. Whether to go on with the next one now."""
        now, busy = self._clock(), isinstance(error, OriginBusy)
        if isinstance(error, ObjectChanged | OriginRefused):  # refused: perhaps this object alone
            return self._give_up(job, wanted, error)
        if not isinstance(error, OriginFailed):
            job.batch.error = error
            return False
        job.tries += 1
        with self._lock:
            if busy:
                job.source.throttle.busy(now)
            patient = now - job.began < BUSY_SECONDS if busy else job.tries < MOST_TRIES
            if patient:
                job.due = now + backoff(job.tries, busy, self._draw())
                job.again = True
                return False
            if job.source.good_at < job.began:  # not one answer meanwhile: it is not about this object
                job.batch.error = error
                return False
        return self._give_up(job, wanted, error)

    @staticmethod
    def _give_up(job: _Job, wanted: ObjectRange, error: HoardError) -> bool:
        assert job.rest
        job.work.failed(wanted, error)
        job.rest.popleft()
        job.tries = 0
        return True
