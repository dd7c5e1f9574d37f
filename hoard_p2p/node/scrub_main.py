"""The scrub process: reads and hashes what the slabs hold, and tells the node what is wrong. Changes nothing.

Exec'ed by `node.scrubbing`. In a process of its own, so that hashing keeps nobody waiting: it is in the idle class of
the I/O scheduler and has the lowest priority for processors. It dies with the node.
"""

import ctypes
import os
import platform
import signal
import socket
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path

from hoard_p2p.errors import HoardError, wire_name
from hoard_p2p.ids import ID_SIZE, ChunkId
from hoard_p2p.node import framing
from hoard_p2p.node.scrub_wire import Order, Progress, encode_verdict
from hoard_p2p.storage.scrub import Scrubber, Verdict, by_slab
from hoard_p2p.storage.survey import Inventory

PR_SET_PDEATHSIG = 1
IOPRIO_SET = {"x86_64": 251, "aarch64": 30}
IOPRIO_IDLE = 3 << 13
TELL_EVERY = 0.5
IDS_AT_ONCE = 1 << 16
BUSY = 8 << 20
"""Bytes a second that others read from the disk, from which on they go first."""
BREATH, LONGEST_WAIT = 0.25, 5.0
"""Seconds: how often a polite scrub looks whether the disk is free, and how long it waits before each piece at most."""


def be_idle() -> None:
    """Lowest priority for disk and processors, of all threads that are made from here on."""
    number = IOPRIO_SET.get(platform.machine())
    if number is not None:
        ctypes.CDLL(None, use_errno=True).syscall(number, 1, 0, IOPRIO_IDLE)
    with suppress(OSError):
        os.nice(19)


class Disk:
    """What others read from the disk of a directory meanwhile, as the kernel counts."""

    def __init__(self, folder: Path) -> None:
        device = folder.stat().st_dev
        self._path = Path(f"/sys/dev/block/{os.major(device)}:{os.minor(device)}/stat")
        self._seen = self._others()
        self._when = time.monotonic()

    def _others(self) -> int:
        try:
            sectors = int(self._path.read_text().split()[2])
            own = next(
                int(line.split()[1]) for line in Path("/proc/self/io").read_text().splitlines() if "read_bytes" in line
            )
        except (OSError, IndexError, ValueError, StopIteration):  # no such file: a device that does not count
            return 0
        return sectors * 512 - own

    def busy(self) -> bool:
        """Whether others read much since the last call."""
        now, seen = time.monotonic(), self._others()
        rate = (seen - self._seen) / max(now - self._when, 0.001)
        self._seen, self._when = seen, now
        return rate > BUSY


class Pace:
    """Called with the bytes that were read: waits as long as it takes."""

    def __init__(self, rate: int, disk: Disk | None) -> None:
        self._rate = rate
        self._disk = disk
        self._begun = time.monotonic()
        self._size = 0

    def __call__(self, size: int) -> None:
        self._size += size
        if self._rate:
            time.sleep(max(0.0, self._begun + self._size / self._rate - time.monotonic()))
        if self._disk is None:
            return
        until = time.monotonic() + LONGEST_WAIT
        while self._disk.busy() and time.monotonic() < until:
            time.sleep(BREATH)


class Work:
    """One order, carried out."""

    def __init__(self, data_dir: Path, sock: socket.socket, order: Order) -> None:
        self._sock = sock
        self._order = order
        self._inventory = Inventory.open(data_dir)
        self._pace = Pace(order.pace, Disk(data_dir) if order.polite else None)
        self._scrubber = Scrubber(self._inventory, self._read)
        self._chunks = self._size = self._total = self._absent = self._now = 0
        self._at = (order.slab, order.offset)
        self._told = 0.0

    def _read(self, size: int) -> None:
        self._now += size
        self._progress()
        self._pace(size)

    def _progress(self, *, last: bool = False) -> None:
        if last or time.monotonic() >= self._told + TELL_EVERY:
            self._told = time.monotonic()
            told = Progress(self._chunks, self._size + self._now, self._total, *self._at, self._absent)
            framing.send(self._sock, {"progress": told.encode()})

    def _settle(self, verdict: Verdict) -> None:
        self._chunks += verdict.chunks
        self._size += verdict.size
        self._now = 0
        if not verdict.fine:
            for body in encode_verdict(verdict):
                framing.send(self._sock, {"verdict": body})

    def everything(self) -> None:
        order = self._order
        extra = self._scrubber.unnamed() if order.survey else {}
        slabs = [slab for slab in self._inventory.slabs() if slab.number >= order.slab or slab.number in extra]
        self._total = sum(slab.path.stat().st_blocks * 512 for slab in slabs if slab.path.exists())
        for number in extra.keys() - {slab.number for slab in slabs}:
            self._settle(self._scrubber.nowhere(number, extra[number]))
        offset = order.offset
        for slab in slabs:
            start = offset if slab.number == order.slab else 0
            verdict = self._scrubber.slab(
                slab, extra.get(slab.number, ()), start=start, most=max(1, order.most - self._size)
            )
            self._at = (slab.number, verdict.rest) if verdict.rest else (slab.number + 1, 0)
            self._settle(verdict)
            self._progress()
            if self._size >= order.most and slab is not slabs[-1]:
                return
        if not slabs or not verdict.rest:
            self._at = (0, 0)  # all of it is done

    def chunks(self, ids: Iterator[Sequence[ChunkId]]) -> None:
        """All places of these chunks; of complete files the whole slab."""
        whole: set[int] = set()
        for batch in ids:
            stored = self._inventory.places_of(batch)
            self._absent += len(batch) - len({one.chunk_id for one in stored})
            for number, places in by_slab(stored):
                slab = self._inventory.slab(number)
                if slab is None or number in whole:
                    continue
                if slab.complete:
                    whole.add(number)
                    self._settle(self._scrubber.slab(slab))
                else:
                    self._settle(self._scrubber.places(slab, places))
                self._progress()

    def end(self) -> None:
        self._progress(last=True)
        self._scrubber.close()
        self._inventory.close()


def _batches(fd: int) -> Iterator[list[ChunkId]]:
    step = IDS_AT_ONCE * ID_SIZE
    for at in range(0, os.fstat(fd).st_size, step):
        raw = os.pread(fd, step, at)
        yield [ChunkId(raw[i : i + ID_SIZE]) for i in range(0, len(raw), ID_SIZE)]


def main(argv: Sequence[str]) -> int:
    """Arguments: the data directory, and the descriptor of the socket to the node, which tells what to scrub."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the node's to handle
    be_idle()
    sock = socket.socket(fileno=int(argv[1]))
    first = framing.receive(sock)
    if first is None:
        return 1
    try:
        order = Order.decode(first.body)
        work = Work(Path(argv[0]), sock, order)
        if order.ids:
            work.chunks(_batches(first.fds[0]))
        else:
            work.everything()
        work.end()
        framing.send(sock, {"end": True})
    except HoardError as error:
        framing.send(sock, {"error": wire_name(error), "message": str(error)})
        return 1
    except BrokenPipeError:
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
