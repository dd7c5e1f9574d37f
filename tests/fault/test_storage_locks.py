"""The locks of a store are always taken in one order (docs/concurrency.md, Lock order), so that no two threads can wait
for each other. Seen in the acting: each lock knows where it was made, and which ones its thread held when it was taken.
"""

import json
import random
import sys
import threading
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from graphlib import TopologicalSorter
from pathlib import Path
from typing import Any

from hoard_p2p.ids import ChunkId, chunk_id
from hoard_p2p.storage.groups import WriterSettings
from hoard_p2p.storage.store import Store
from tests.fault.power_work import Promises, Work, check

PACKAGE = str(Path(__file__).parents[2] / "hoard_p2p")
LOCK = threading.Lock
MIB = 1 << 20


class Order:
    """Which lock was taken while which other was held, by the places where they are made."""

    def __init__(self) -> None:
        self.after: dict[str, set[str]] = defaultdict(set)
        self._held: dict[int, list[tuple[str, int]]] = defaultdict(list)

    def lock(self) -> Any:
        frame = sys._getframe(1)
        if not frame.f_code.co_filename.startswith(PACKAGE):
            return LOCK()
        name = type(frame.f_locals.get("self")).__name__
        return Traced(self, f"{Path(frame.f_code.co_filename).stem}.{name}:{frame.f_lineno}")

    def taking(self, name: str, lock: int) -> None:
        for held, other in self._held[threading.get_ident()]:
            if other != lock:
                self.after[held].add(name)

    def took(self, name: str, lock: int) -> None:
        self._held[threading.get_ident()].append((name, lock))

    def left(self, name: str, lock: int) -> None:
        self._held[threading.get_ident()].remove((name, lock))


class Traced:
    """A lock that tells."""

    def __init__(self, order: Order, name: str) -> None:
        self._order = order
        self._name = name
        self._lock = LOCK()

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        if blocking:  # who does not wait is in nobody's way
            self._order.taking(self._name, id(self))
        got = self._lock.acquire(blocking, timeout)
        if got:
            self._order.took(self._name, id(self))
        return got

    def release(self) -> None:
        self._order.left(self._name, id(self))
        self._lock.release()

    def locked(self) -> bool:
        return self._lock.locked()

    def __enter__(self) -> bool:
        return self.acquire()

    def __exit__(self, *exc: object) -> None:
        self.release()


@contextmanager
def traced() -> Iterator[Order]:
    order = Order()
    threading.Lock = order.lock  # type: ignore[assignment]  # seen by whoever makes one inside
    try:
        yield order
    finally:
        threading.Lock = LOCK


def busy(store: Store, draw: random.Random, failed: list[BaseException]) -> Callable[[], None]:
    """A thread's work: everything that can happen at one time with everything else."""

    def run() -> None:
        try:
            with store.writer(WriterSettings(group_chunks=4, group_seconds=0.001)) as writer:
                for _ in range(12):
                    data = [draw.randbytes(5000) for _ in range(6)]
                    for each in data:
                        writer.put(chunk_id(each), each)
                    writer.flush()
                    store.reclaimer.drop([chunk_id(each) for each in data[:3]])
                    place = store.reader().place(chunk_id(data[4]))
                    if place is not None:
                        store.quarantine(chunk_id(data[4]), place)
                        store.heal(chunk_id(data[4]), data[4])
                    store.reclaimer.reclaim()
                    store.reclaimer.leftovers()
                    store.room.measure()
        except BaseException as error:
            failed.append(error)
            raise

    return run


def test_room_is_made_while_a_put_waits_for_it(tmp_path: Path) -> None:
    """By another thread, which must get past the one that waits: it gives back blocks of the slab that one writes."""
    draw = random.Random(6)
    stored: list[ChunkId] = []
    made: list[bool] = []

    def evict() -> None:
        store.reclaimer.drop([stored.pop(0) for _ in range(8)])
        if any(store.reclaimer.reclaim().bytes for _ in range(5)):  # it takes a commit more
            made.append(True)

    def relief(size: int) -> bool:
        before = len(made)
        helper = threading.Thread(target=evict)
        helper.start()
        helper.join(20)
        return len(made) > before

    with Store.open(tmp_path / "data") as store, store.writer(WriterSettings(group_seconds=0.001)) as writer:
        store.set_capacity(48 * MIB)
        store.room.relief = relief
        for _ in range(80):
            data = draw.randbytes(MIB)
            writer.put(chunk_id(data), data)
            stored.append(chunk_id(data))
        writer.flush()
        assert made
        assert all(writer.has(stored))


def test_locks_are_taken_in_one_order(tmp_path: Path) -> None:
    marks: list[bytes] = []
    failed: list[BaseException] = []
    with traced() as order:
        work = Work(tmp_path / "data", 5, lambda word: marks.append(json.dumps(word).encode()))
        work.go(30)
        work.close()
        with Store.open(tmp_path / "data") as store:
            threads = [threading.Thread(target=busy(store, random.Random(n), failed)) for n in range(3)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join(60)
            assert not failed
            check(store, Promises(marks))
    assert len(order.after) > 5
    tuple(TopologicalSorter(order.after).static_order())  # raises CycleError, which names them
