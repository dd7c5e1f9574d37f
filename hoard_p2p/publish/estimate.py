"""Whether a publish can fit, asked before most of it is read: how much of the source is new, judged by a sample.

A sample of the source's files, each byte as likely as any other, is cut, hashed and looked up. Only what clearly does
not fit is refused: the share of new bytes is taken at the lower end of what the sample allows.
"""

import heapq
import os
import random
from collections.abc import Callable, Sequence
from contextlib import suppress
from math import sqrt
from typing import NamedTuple

from hoard_p2p.chunking import MIB, MIN_WINDOW, SMALL_FILE, Chunker, ChunkerKind, Cutter
from hoard_p2p.errors import HoardError, StoreFull
from hoard_p2p.ids import ChunkId, chunk_id

SAMPLES = 32
ENTERED_WITHIN = 3
"""Runs after which content-defined cutting that began in the middle of a file has found the file's own cuts."""

ENDLESS = 1 << 60
"""Of a file of this size every region is one with more behind it."""

SCARCE = 16 << 30
"""With less room than this the source is counted first: a few seconds, before hours are spent on what cannot fit."""

Fits = Callable[[int], None]
"""Could so many new bytes be stored here, if need be after evicting what may go? Raises StoreFull."""

Has = Callable[[Sequence[ChunkId]], Sequence[bool]]


class Picked(NamedTuple):
    """A file of the sample, by its path from the root of the source."""

    path: bytes
    size: int


class Sample:
    """The files of a tree, of which some are kept, large ones rather than small (Efraimidis and Spirakis, 2006)."""

    def __init__(self, most: int = SAMPLES, draw: Callable[[], float] | None = None) -> None:
        self._most = most
        self._draw = draw or random.Random(0).random  # any draw will do; one seed makes it repeatable
        self._kept: list[tuple[float, Picked]] = []

    def add(self, path: bytes, size: int) -> None:
        if size:
            entry = (max(self._draw(), 1e-300) ** (1 / size), Picked(path, size))
            if len(self._kept) < self._most:
                heapq.heappush(self._kept, entry)
            elif entry > self._kept[0]:
                heapq.heapreplace(self._kept, entry)

    @property
    def files(self) -> list[Picked]:
        return [picked for _, picked in self._kept]


def least_new(shares: Sequence[float]) -> float:
    """The lower end of what the share of new bytes may be, given that of each file of a sample; 0 without a sample."""
    if not shares:
        return 0.0
    count = len(shares)
    mean = sum(shares) / count
    return max(0.0, mean - 2 * sqrt(mean * (1 - mean) / count) - 1 / count)


def new_share(fd: int, size: int, chunker: Chunker, has: Has, offset: int) -> float:
    """The share of new bytes in a file, or in a region of it at `offset`. Raises OSError."""
    if size <= SMALL_FILE:
        return float(not all(has([chunk_id(os.pread(fd, SMALL_FILE, 0))])))
    aligned = offset // chunker.max_size * chunker.max_size if chunker.kind is ChunkerKind.FIXED else offset
    window = os.pread(fd, MIN_WINDOW, aligned)
    final = len(window) == size
    runs = Cutter(chunker, size if final else ENDLESS).cut(memoryview(window), final=final)
    known = whole = at = 0
    for number, run in enumerate(runs):
        entered = not aligned or chunker.kind is ChunkerKind.FIXED or number >= ENTERED_WITHIN
        if entered and not run.hole:
            whole += run.length
            known += run.length * all(has([chunk_id(window[at : at + run.length])]))
        at += run.length
    return 1 - known / whole if whole else 0.0


class Estimate:
    """The question, put once the source was counted. `ask` runs in any thread; `check` raises in the publish's own."""

    def __init__(self, chunker: Chunker, has: Has, fits: Fits | None) -> None:
        """`fits` None: nothing is asked."""
        self._chunker = chunker
        self._has = has
        self._fits = fits
        self._refusal: StoreFull | None = None

    def check(self) -> None:
        """Raises StoreFull once it is known that the source cannot fit."""
        if self._refusal is not None:
            raise self._refusal

    def is_scarce(self) -> bool:
        """Whether room is short enough for the answer to come soon. In any thread."""
        with suppress(HoardError):
            return self._fits is not None and self._refused(self._fits, SCARCE) is not None
        return False

    def ask(self, total: int, sample: Sequence[Picked], open_file: Callable[[bytes], int]) -> None:
        """`total` bytes are in the source. The sample is looked at only if they would not fit if all were new."""
        if self._fits is None:
            return
        with suppress(HoardError):  # a publish that failed meanwhile: it says so itself
            if self._refused(self._fits, total):
                self._refusal = self._refused(self._fits, int(total * least_new(self._shares(sample, open_file))))

    @staticmethod
    def _refused(fits: Fits, size: int) -> StoreFull | None:
        try:
            fits(size)
        except StoreFull as refusal:
            return refusal
        return None

    def _shares(self, sample: Sequence[Picked], open_file: Callable[[bytes], int]) -> list[float]:
        draw = random.Random(0)
        shares = []
        for path, size in sample:
            offset = draw.randrange(max(1, size - MIN_WINDOW)) // MIB * MIB
            try:
                fd = open_file(path)
            except OSError:  # the reading names what cannot be read
                continue
            try:
                shares.append(new_share(fd, size, self._chunker, self._has, offset))
            except OSError:
                continue
            finally:
                os.close(fd)
        return shares
