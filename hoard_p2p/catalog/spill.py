"""Append-only columns that stay in memory while they are small and go to a temporary file when they grow. Pure:
the files are given by the caller."""

from array import array
from collections.abc import Callable, Iterable, Iterator
from typing import BinaryIO

BLOCK = 1 << 19
"""Bytes that a column keeps in memory at most, and the size of the blocks in which its file is read."""


class SpilledBytes:
    """Bytes that are only ever added."""

    def __init__(self, spill: Callable[[], BinaryIO], *, limit: int = BLOCK) -> None:
        self._spill = spill
        self._limit = limit  # bytes kept in memory
        self._buffer = bytearray()
        self._file: BinaryIO | None = None
        self._flushed = 0

    def __len__(self) -> int:
        return self._flushed + len(self._buffer)

    def append(self, data: bytes) -> None:
        self._buffer += data
        if len(self._buffer) >= self._limit:
            self._file = self._file or self._spill()
            self._file.seek(self._flushed)
            self._file.write(self._buffer)
            self._flushed += len(self._buffer)
            self._buffer.clear()

    def blocks(self, unit: int = 1) -> Iterator[bytes]:
        """All of it in order, in pieces of whole units if every addition was made of whole units."""
        here, step = 0, BLOCK // unit * unit
        while self._file and here < self._flushed:
            self._file.seek(here)
            block = self._file.read(min(step, self._flushed - here))
            here += len(block)
            yield block
        yield bytes(self._buffer)

    def close(self) -> None:
        if self._file:
            self._file.close()


class SpilledColumn:
    """Numbers of one `array` type code that are added, read by index, and may be raised afterwards."""

    def __init__(self, code: str, spill: Callable[[], BinaryIO]) -> None:
        self._spill = spill
        self._buffer = array(code)
        self._limit = BLOCK // self._buffer.itemsize
        self._file: BinaryIO | None = None
        self._flushed = 0  # entries in the file, a multiple of the limit
        self._cached = -1  # number of the file's block that is held
        self._cache = array(code)

    def __len__(self) -> int:
        return self._flushed + len(self._buffer)

    def append(self, value: int) -> None:
        """Raises OverflowError if the type cannot hold it."""
        self._buffer.append(value)
        if len(self._buffer) == self._limit:
            self._file = self._file or self._spill()
            self._write_block(self._flushed // self._limit, self._buffer)
            self._flushed += self._limit
            self._buffer = array(self._buffer.typecode)

    def __getitem__(self, index: int) -> int:
        """Fast for indexes that grow slowly: one block of the file is held."""
        if index >= self._flushed:
            return self._buffer[index - self._flushed]
        number, place = divmod(index, self._limit)
        if number != self._cached:
            self._cached, self._cache = number, self._read_block(number)
        return self._cache[place]

    def add_at(self, changes: Iterable[tuple[int, int]]) -> None:
        """Add amounts to entries, given as (index, amount); each block is rewritten once if the indexes ascend."""
        number, block = self._flushed // self._limit, self._buffer
        for index, amount in changes:
            wanted, place = divmod(index, self._limit)
            if wanted != number:
                self._put_back(number, block)
                number, block = wanted, self._block(wanted)
            block[place] += amount
        self._put_back(number, block)
        self._cached = -1

    def arrays(self) -> "Iterator[array[int]]":
        """All entries in order, in blocks of equal length but the last."""
        for number in range(self._flushed // self._limit):
            yield self._read_block(number)
        yield self._buffer

    def blocks(self) -> Iterator[bytes]:
        """The column's bytes."""
        return (block.tobytes() for block in self.arrays())

    def close(self) -> None:
        if self._file:
            self._file.close()

    def _block(self, number: int) -> "array[int]":
        return self._buffer if number == self._flushed // self._limit else self._read_block(number)

    def _put_back(self, number: int, block: "array[int]") -> None:
        if block is not self._buffer:
            self._write_block(number, block)

    def _read_block(self, number: int) -> "array[int]":
        assert self._file
        self._file.seek(number * self._limit * self._buffer.itemsize)
        block = array(self._buffer.typecode)
        block.frombytes(self._file.read(self._limit * self._buffer.itemsize))
        return block

    def _write_block(self, number: int, block: "array[int]") -> None:
        assert self._file
        self._file.seek(number * self._limit * self._buffer.itemsize)
        self._file.write(block.tobytes())
