"""The engine that reads origins, over origins that are slow, throttle, truncate, refuse, or changed."""

import threading
from collections.abc import Callable
from dataclasses import dataclass, field

import pytest

from hoard_p2p.errors import ObjectChanged, OriginBusy, OriginFailed, OriginRefused
from hoard_p2p.objects import ObjectRange, Origin, Punctual
from hoard_p2p.origin.meter import Meter
from hoard_p2p.origin.streams import STALL_SECONDS, Allowance, Streams
from hoard_p2p.testing.origins import (
    MemoryOrigin,
    RefusingOrigin,
    StallingOrigin,
    ThrottlingOrigin,
    TruncatingOrigin,
)

DATA = {b"%d" % number: bytes([number]) * 1000 for number in range(20)}


@dataclass
class Clock:
    """Runs a little each time that it is read, so that waits end, and by a leap where a test says so."""

    step: float = 0.0
    now: float = 0.0
    lock: threading.Lock = field(default_factory=threading.Lock)

    def __call__(self) -> float:
        with self.lock:
            self.now += self.step
            return self.now


@dataclass
class Ranged:
    """A work of one range; what came of it."""

    where: ObjectRange
    data: bytes | None = None
    error: Exception | None = None

    def ranges(self) -> list[ObjectRange]:
        return [self.where]

    def came(self, wanted: ObjectRange, data: memoryview) -> None:
        assert wanted == self.where
        self.data = bytes(data)

    def failed(self, wanted: ObjectRange, error: Exception) -> None:
        self.error = error


def works(version: bytes = b"v1") -> list[Ranged]:
    return [Ranged(ObjectRange(path, len(data), version, 100, 900)) for path, data in DATA.items()]


class Read:
    """A reading over `origin`."""

    def __init__(self, origin: Origin, clock: Clock | None = None, streams: int = 4, rate: float = 0.0) -> None:
        self.origin = origin
        self.meter = Meter()
        self.paused: list[float] = []
        self.streams = Streams(
            lambda _: Allowance(streams, rate),
            lambda _: self.meter,
            clock=clock or Clock(0.01),
            pause=self.paused.append,
            draw=lambda: 0.5,
        )

    def all(self, version: bytes = b"v1", *, urgent: bool = False) -> list[Ranged]:
        wanted = works(version)
        try:
            self.streams.read(self.origin, wanted, urgent=urgent)
        finally:
            self.streams.close()
        return wanted


def good(read: list[Ranged]) -> bool:
    return all(each.data == DATA[each.where.path][100:900] for each in read)


def test_every_range_comes_once() -> None:
    origin = MemoryOrigin(DATA)
    reading = Read(origin)
    assert good(reading.all())
    assert len(origin.asked) == len(DATA)
    assert reading.meter.reading.read == 800 * len(DATA)


def test_what_is_cut_short_is_asked_for_again_and_never_given() -> None:
    assert good(Read(TruncatingOrigin(MemoryOrigin(DATA), 3)).all())


def test_an_origin_that_is_busy_is_asked_half_as_much_and_gives_all_in_the_end() -> None:
    reading = Read(ThrottlingOrigin(MemoryOrigin(DATA), 8))
    assert good(reading.all())
    assert reading.streams.seen(reading.origin.url)[1] >= 1, "it was halved"


def test_an_origin_that_always_fails_is_given_up() -> None:
    with pytest.raises(OriginFailed, match="bytes came of"):
        Read(TruncatingOrigin(MemoryOrigin(DATA), 10_000)).all()


def test_objects_that_changed_fail_at_once_and_the_others_come() -> None:
    origin = MemoryOrigin(DATA, versions={b"3": b"v2"})
    read = Read(origin).all()
    assert [each.where.path for each in read if each.data is None] == [b"3"]
    assert isinstance(read[3].error, ObjectChanged)
    assert len(origin.asked) == len(DATA), "asking again would not help"


def test_who_may_not_read_is_not_asked_again() -> None:
    read = Read(RefusingOrigin(MemoryOrigin(DATA))).all()
    assert all(isinstance(each.error, OriginRefused) for each in read)


def test_an_origin_that_hangs_is_given_up_and_its_thread_left_behind() -> None:
    origin, clock = StallingOrigin(MemoryOrigin(DATA)), Clock()
    reading = Read(origin, clock)

    def leap() -> None:
        origin.stalled.wait()
        clock.now += STALL_SECONDS + 1

    leaper = threading.Thread(target=leap)
    leaper.start()
    try:
        with pytest.raises(OriginFailed, match="sent nothing for"):
            reading.all()
    finally:
        origin.go_on.set()
        leaper.join()


def test_a_limit_makes_who_reads_pause() -> None:
    reading = Read(MemoryOrigin(DATA), Clock(), rate=1000.0)
    assert good(reading.all())
    assert sum(reading.paused) > 10, "16,000 bytes at 1,000 a second"


def test_what_a_reader_waits_for_comes_before_what_nobody_waits_for() -> None:
    origin = StallingOrigin(memory := MemoryOrigin(DATA))
    reading = Read(origin, Clock(), streams=1)
    fill, urgent = works(), works()[-1:]
    threads = [threading.Thread(target=lambda: reading.streams.read(origin, fill, urgent=False))]
    threads[0].start()
    assert origin.stalled.wait(10)
    threads.append(threading.Thread(target=lambda: reading.streams.read(origin, urgent, urgent=True)))
    threads[1].start()
    while len(reading.streams.waiting()) < 1:
        threads[1].join(0.001)
    origin.go_on.set()
    for thread in threads:
        thread.join(20)
    reading.streams.close()
    assert good(fill) and good(urgent)
    assert memory.asked[1].path == urgent[0].where.path


@dataclass
class PunctualOrigin(Punctual, MemoryOrigin):
    """Tells which threads read it; fails once with `error`; `leap` goes on as long as a stall takes."""

    threads: list[threading.Thread] = field(default_factory=list)
    error: Exception | None = None
    leap: Clock | None = None

    def read(self, wanted: ObjectRange, into: memoryview, moved: Callable[[int], None]) -> None:
        self.threads.append(threading.current_thread())
        error, self.error = self.error, None
        if self.leap is not None:
            self.leap.now += STALL_SECONDS
        if error is not None:
            raise error
        super().read(wanted, into, moved)


def one(reading: Read, *, urgent: bool = True) -> Ranged:
    wanted = works()[3]
    try:
        reading.streams.read(reading.origin, [wanted], urgent=urgent)
    finally:
        reading.streams.close()
    return wanted


def test_what_one_reader_waits_for_is_read_in_its_own_thread_if_the_origin_ends_by_itself() -> None:
    origin = PunctualOrigin(DATA)
    assert good([one(Read(origin))])
    assert origin.threads == [threading.current_thread()]


def test_what_nobody_waits_for_is_read_by_the_engine() -> None:
    origin = PunctualOrigin(DATA)
    assert good([one(Read(origin), urgent=False)])
    assert threading.current_thread() not in origin.threads


def test_what_failed_in_the_readers_thread_is_asked_for_again() -> None:
    origin = PunctualOrigin(DATA)
    origin.error = OriginFailed("cut short")
    assert good([one(Read(origin))])
    assert len(origin.threads) == 2


def test_an_object_that_changed_fails_in_the_readers_thread_too() -> None:
    origin = PunctualOrigin(DATA)
    origin.error = ObjectChanged("another version")
    assert isinstance(one(Read(origin)).error, ObjectChanged)


def test_a_silent_origin_is_given_up_in_the_readers_thread_and_not_asked_again() -> None:
    clock = Clock(0.01)
    origin = PunctualOrigin(DATA)
    origin.leap, origin.error = clock, OriginBusy("nothing came")
    with pytest.raises(OriginFailed, match="sent nothing"):
        one(Read(origin, clock))
    assert len(origin.threads) == 1


def test_readers_that_read_for_themselves_are_never_more_than_the_streams() -> None:
    inside, most, lock = 0, 0, threading.Lock()

    class Counting(PunctualOrigin):
        def read(self, wanted: ObjectRange, into: memoryview, moved: Callable[[int], None]) -> None:
            nonlocal inside, most
            with lock:
                inside += 1
                most = max(most, inside)
            try:
                super().read(wanted, into, moved)
            finally:
                with lock:
                    inside -= 1

    reading, wanted = Read(Counting(DATA), streams=2), works()
    threads = [
        threading.Thread(target=reading.streams.read, args=(reading.origin, [work]), kwargs={"urgent": True})
        for work in wanted
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    reading.streams.close()
    assert good(wanted)
    assert most <= 2
