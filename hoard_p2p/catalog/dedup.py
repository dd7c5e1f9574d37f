"""Finding the first run of each chunk id in a table of any length, in bounded memory. Pure."""

import struct
from array import array
from collections.abc import Callable, Iterator
from typing import BinaryIO, NamedTuple, Protocol

from hoard_p2p.catalog.spill import SpilledBytes, SpilledColumn
from hoard_p2p.ids import HOLE, ID_SIZE

TABLE_LIMIT = 250_000
"""Runs whose ids are held in memory at once: about 50 MB."""

MAX_PARTITIONS = 256
_PARTITION_BUFFER = 1 << 16
_RECORD = struct.Struct(f"<{ID_SIZE}sII")  # id, run, length


class Numbers(Protocol):
    """A column as it is read from its beginning to its end."""

    def __len__(self) -> int: ...

    def arrays(self) -> "Iterator[array[int]]":
        """All entries in order."""
        ...


class Row(NamedTuple):
    """One run of the table."""

    chunk_id: bytes
    run: int
    length: int


def fill_canonical(
    column: SpilledColumn,
    ids: SpilledBytes,
    ends: Numbers,
    spill: Callable[[], BinaryIO],
    *,
    limit: int = TABLE_LIMIT,
) -> int:
    """Fill `column` with each run's first run of the same id, itself for holes; returns the bytes of the runs that
    repeat an earlier one. `ends` has one entry more than there are runs. `limit`: runs looked at together."""
    runs = len(ends) - 1
    for run in range(runs):
        column.append(run)
    if runs <= limit:
        return _settle(_rows(ids, ends), column)
    partitions = [SpilledBytes(spill, limit=_PARTITION_BUFFER) for _ in range(min(MAX_PARTITIONS, runs // limit + 1))]
    try:
        for row in _rows(ids, ends):
            partitions[int.from_bytes(row.chunk_id[:4], "little") % len(partitions)].append(_RECORD.pack(*row))
        return sum(_settle(_read(partition), column) for partition in partitions)
    finally:
        for partition in partitions:
            partition.close()


def _settle(rows: Iterator[Row], column: SpilledColumn) -> int:
    """Lower the canonical entries of repeated rows; returns their bytes. `rows` has all rows of the ids in it."""
    first: dict[bytes, int] = {}
    repeated = 0

    def changes() -> Iterator[tuple[int, int]]:
        nonlocal repeated
        for chunk_id, run, length in rows:
            earliest = first.setdefault(chunk_id, run)
            if earliest != run:
                repeated += length
                yield run, earliest - run

    column.add_at(changes())
    return repeated


def _rows(ids: SpilledBytes, ends: Numbers) -> Iterator[Row]:
    """All runs that are not holes."""
    lengths = _lengths(ends)
    run = 0
    for block in ids.blocks(ID_SIZE):
        for start in range(0, len(block), ID_SIZE):
            chunk_id, length = block[start : start + ID_SIZE], next(lengths)
            if chunk_id != HOLE:
                yield Row(chunk_id, run, length)
            run += 1


def _lengths(ends: Numbers) -> Iterator[int]:
    before = 0
    for block in ends.arrays():
        for end in block:
            if end:  # the first entry is zero, no other is
                yield end - before
            before = end


def _read(partition: SpilledBytes) -> Iterator[Row]:
    for block in partition.blocks(_RECORD.size):
        yield from map(Row._make, _RECORD.iter_unpack(block))
