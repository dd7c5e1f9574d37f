"""(e) Hit ratio of one data set that is larger than its room, read in shuffled epochs: what Hoard keeps, against LRU.

Hoard keeps what came first (`storage.eviction`: nothing of a set in use goes) and reads the rest through unstored; LRU
replaces the piece that was used longest ago. Also: a cold set beside it goes whole, once, and nothing thrashes.
"""

import argparse
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field
from random import Random

from hoard_p2p.ids import SnapshotId
from hoard_p2p.storage.eviction import CachedSet, Part, order
from simulations.table import Table

PIECES = 2000
EPOCHS = 6
SHARES = (0.1, 0.25, 0.5, 0.75, 0.9, 1.0)
JOB, COLD = SnapshotId(b"j" * 32), SnapshotId(b"c" * 32)


@dataclass
class HoardCache:
    """A node's room, in pieces, that asks the real eviction code what goes when it is full."""

    room: int
    sets: dict[SnapshotId, set[int]] = field(default_factory=dict)
    last_used: dict[SnapshotId, int] = field(default_factory=dict)
    leased: set[SnapshotId] = field(default_factory=set)
    evicted: int = 0
    now: int = 0

    def read(self, snapshot: SnapshotId, piece: int) -> bool:
        """Whether it was here; it is kept if there is room, or room can be made."""
        self.now += 1
        self.last_used[snapshot] = self.now
        kept = self.sets.setdefault(snapshot, set())
        if piece in kept:
            return True
        if self._make_room():
            kept.add(piece)
        return False

    def _make_room(self) -> bool:
        for step in order(self._known()):
            if self._used() < self.room:
                break
            if step.part is Part.ORDINARY:
                self.evicted += len(self.sets[step.snapshot])
                self.sets[step.snapshot] = set()
        return self._used() < self.room

    def _known(self) -> list[CachedSet]:
        return [CachedSet(name, self.last_used[name], needed=name in self.leased, expired=False) for name in self.sets]

    def _used(self) -> int:
        return sum(map(len, self.sets.values()))


@dataclass
class LruCache:
    """The usual: the piece that was used longest ago goes."""

    room: int
    pieces: OrderedDict[tuple[SnapshotId, int], None] = field(default_factory=OrderedDict)
    evicted: int = 0

    def read(self, snapshot: SnapshotId, piece: int) -> bool:
        key = (snapshot, piece)
        if key in self.pieces:
            self.pieces.move_to_end(key)
            return True
        self.pieces[key] = None
        if len(self.pieces) > self.room:
            self.pieces.popitem(last=False)
            self.evicted += 1
        return False


def epochs(cache: HoardCache | LruCache, seed: int, count: int = EPOCHS) -> list[float]:
    """The hit ratio of each epoch, the first one cold."""
    random = Random(seed)
    ratios = []
    for _ in range(count):
        pieces = list(range(PIECES))
        random.shuffle(pieces)
        ratios.append(sum(cache.read(JOB, piece) for piece in pieces) / PIECES)
    return ratios


@dataclass(frozen=True)
class Row:
    """One size of the room, as a share of the set: hit ratios of all epochs but the first; pieces evicted after it."""

    share: float
    hoard: float
    lru: float
    hoard_churn: float
    lru_churn: float


def compare(share: float, seed: int = 1) -> Row:
    """A cold set fills the room; then a job reads its set for some epochs."""
    room = int(share * PIECES)
    ours, theirs = HoardCache(room), LruCache(room)
    for piece in range(room):
        ours.read(COLD, piece)
        theirs.read(COLD, piece)
    ours.leased.add(JOB)
    ratios = [epochs(cache, seed)[1:] for cache in (ours, theirs)]
    hoard, lru = (sum(one) / len(one) for one in ratios)
    return Row(share, hoard, lru, ours.evicted / PIECES, theirs.evicted / PIECES)


def table(seed: int = 1) -> Table:
    rows = tuple(
        (row.share, row.hoard, row.lru, row.hoard_churn, row.lru_churn) for row in (compare(s, seed) for s in SHARES)
    )
    return Table(
        f"A set of {PIECES} pieces that is larger than its room: hit ratio of epochs 2 to {EPOCHS}",
        ("room / set", "Hoard", "LRU", "evicted by Hoard, sets", "by LRU"),
        rows,
        ("epochs are shuffled; a cold set was in the room before",),
        {"seed": seed},
    )


def tables(arguments: argparse.Namespace) -> Sequence[Table]:
    return [table(arguments.seed)]


def options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--seed", type=int, default=1, metavar="SEED", help="default: 1")
