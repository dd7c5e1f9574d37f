"""Putting chunks into the sink from several threads, each chunk once, and counting what that did."""

from collections.abc import Callable, Sequence
from threading import Lock
from typing import NamedTuple

from hoard_p2p.ids import ChunkId
from hoard_p2p.interfaces import ChunkSink, FileSink


class Piece(NamedTuple):
    """A chunk in a buffer. `offset`: where it lies in its file; only read for large files."""

    chunk_id: ChunkId
    data: memoryview
    offset: int


class Deposit:
    """The one way into the sink. Safe from several threads."""

    def __init__(self, sink: ChunkSink, first_sight: Callable[[ChunkId], bool] = lambda _: True) -> None:
        """`first_sight`: false for a chunk that this process or another of the same publish has undertaken to store."""
        self._sink = sink
        self._first_sight = first_sight
        self._lock = Lock()
        self._under_way: set[ChunkId] = set()
        self._stored = 0
        self._deduplicated = 0

    @property
    def stored(self) -> int:
        """Bytes put that the sink did not have."""
        return self._stored

    @property
    def deduplicated(self) -> int:
        """Bytes given to `keep` that the sink had, or that were given before."""
        return self._deduplicated

    def keep(self, pieces: Sequence[Piece], file: FileSink | None = None) -> None:
        """Put the chunks that are not stored: into `file`, or among the others. The buffers may be reused on return,
        which does not mean that every chunk is stored: another thread may be about to put an equal one. Raises
        StoreFailed."""
        fresh, repeated = self._claim(pieces)
        stored = 0
        try:
            if file is None:
                news = self._sink.put_many([(piece.chunk_id, piece.data) for piece in fresh])
            else:
                news = self._put_in(fresh, file)
            stored = sum(len(piece.data) for piece, new in zip(fresh, news, strict=True) if new)
            repeated += sum(len(piece.data) for piece in fresh) - stored
        finally:
            self._release(fresh, stored, repeated)

    def count_known(self, size: int) -> None:
        """`size` bytes of a file did not have to be given, since all its chunks are in the sink."""
        with self._lock:
            self._deduplicated += size

    def _put_in(self, pieces: Sequence[Piece], file: FileSink) -> list[bool]:
        """Put those that are not stored into `file`; for each whether it was new."""
        news = [not known for known in self._sink.has([piece.chunk_id for piece in pieces])]
        for piece, new in zip(pieces, news, strict=True):
            if new:
                file.put(piece.chunk_id, piece.data, piece.offset)
        return news

    def _claim(self, pieces: Sequence[Piece]) -> tuple[list[Piece], int]:
        """The pieces that no thread is putting, now claimed for this one, and the bytes of the others."""
        fresh = []
        repeated = 0
        with self._lock:
            for piece in pieces:
                if piece.chunk_id in self._under_way or not self._first_sight(piece.chunk_id):
                    repeated += len(piece.data)
                else:
                    self._under_way.add(piece.chunk_id)
                    fresh.append(piece)
        return fresh, repeated

    def _release(self, fresh: Sequence[Piece], stored: int, repeated: int) -> None:
        with self._lock:
            self._under_way.difference_update([piece.chunk_id for piece in fresh])
            self._stored += stored
            self._deduplicated += repeated
