"""The pieces of one origin object as a catalog lists them, made when asked for: an object may have millions. Pure."""

from collections.abc import Callable, Sequence
from typing import Generic, TypeVar, overload

from hoard_p2p.chunking import SMALL_FILE
from hoard_p2p.ids import ChunkId, origin_key, slot_id
from hoard_p2p.limits import MAX_CHUNK

Item = TypeVar("Item")


class _Computed(Sequence[Item], Generic[Item]):
    """A sequence whose items are made by `item(position)`."""

    def __init__(self, length: int, item: Callable[[int], Item]) -> None:
        self._length = length
        self._item = item

    def __len__(self) -> int:
        return self._length

    @overload
    def __getitem__(self, position: int) -> Item: ...
    @overload
    def __getitem__(self, position: slice) -> Sequence[Item]: ...
    def __getitem__(self, position: int | slice) -> Item | Sequence[Item]:
        if isinstance(position, slice):
            return [self._item(place) for place in range(*position.indices(self._length))]
        if not 0 <= position < self._length:
            raise IndexError(position)
        return self._item(position)


def piece_runs(name: bytes, version: bytes, size: int) -> Sequence[tuple[ChunkId, int]]:
    """(origin key, length) of the pieces (`chunking.piece_lengths`) of an object; `name`: its `Origin.identity`."""
    if size <= SMALL_FILE:
        return [(origin_key(name, version, 0, size), size)] if size else []

    def run(position: int) -> tuple[ChunkId, int]:
        offset = position * MAX_CHUNK
        length = min(MAX_CHUNK, size - offset)
        return origin_key(name, version, offset, length), length

    return _Computed(-(-size // MAX_CHUNK), run)


def piece_slots(path: bytes, size: int) -> Sequence[ChunkId]:
    """The slots of the same pieces; `path`: in the data set."""
    if size <= SMALL_FILE:
        return [slot_id(path, 0)] if size else []
    return _Computed(-(-size // MAX_CHUNK), lambda position: slot_id(path, position * MAX_CHUNK))
