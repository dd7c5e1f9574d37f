"""What to fetch before it is asked for: reading in order is recognised, and the window grows with it. Pure.

Event in, instructions out: no clock, no tasks. A reader is at a segment (`at`); a segment that was asked for ended
(`ended`); a reader left (`left`). The answer is a list of segments to fetch now. Several readers of one snapshot, each
in its own part (the workers of a data loader), are told apart by where they are: each stream has its own window.
"""

from collections import OrderedDict
from collections.abc import Callable, Hashable
from dataclasses import dataclass

STREAM_BYTES = 64 << 20
TOTAL_BYTES = 256 << 20
LONGEST_WINDOW = 8
STREAMS = 32
"""Streams remembered for each reader; the one that was heard of longest ago is forgotten."""

READERS = 256
"""Readers remembered; of those that leave without a word the oldest is forgotten."""

STEPS_WITHIN = 3
"""Runs in ascending order inside one segment after which the next one is fetched."""


@dataclass(frozen=True, slots=True)
class Span:
    """The segments of a snapshot: how many there are, and how many bytes one has."""

    count: int
    size_of: Callable[[int], int]


@dataclass(slots=True)
class _Stream:
    segment: int
    run: int
    window: int = 0
    steps: int = 0
    told: int = -1
    """The last segment that was given out."""


class Ahead:
    """The windows of all readers. A reader is a hashable name: a mount, or a snapshot."""

    def __init__(self, *, stream_bytes: int = STREAM_BYTES, total_bytes: int = TOTAL_BYTES) -> None:
        self._stream_bytes = stream_bytes
        self._total_bytes = total_bytes
        self._streams: OrderedDict[Hashable, OrderedDict[int, _Stream]] = OrderedDict()
        self._under_way: dict[tuple[Hashable, int], int] = {}
        self._bytes = 0
        self._next = 0

    @property
    def bytes(self) -> int:
        """Bytes of the segments that were given out and have not ended."""
        return self._bytes

    def at(self, reader: Hashable, segment: int, run: int, span: Span) -> list[int]:
        """A reader wants, or just read, chunk run `run` of `segment`: segments to fetch now, nearest first.

        The segment after the stream's last one, or after its window, doubles the window (1, 2, 4, 8); one inside the
        window leaves it; anything else begins a stream, which fetches nothing yet."""
        stream = self._follow(reader, segment, run)
        if not stream.window:
            return []
        return self._give_out(reader, stream, span)

    def ended(self, reader: Hashable, segment: int) -> None:
        """A segment that was given out is here, or is not coming."""
        self._bytes -= self._under_way.pop((reader, segment), 0)

    def left(self, reader: Hashable) -> None:
        """The reader is gone: its streams are forgotten, and what is under way for it counts no more."""
        self._streams.pop(reader, None)
        for key in [key for key in self._under_way if key[0] == reader]:
            self.ended(*key)

    def _follow(self, reader: Hashable, segment: int, run: int) -> _Stream:
        streams = self._streams_of(reader)
        name = next((name for name in reversed(streams) if _continues(streams[name], segment)), None)
        if name is None:
            self._next += 1
            name, stream = self._next, _Stream(segment, run)
            streams[name] = stream
            if len(streams) > STREAMS:
                streams.popitem(last=False)
            return stream
        streams.move_to_end(name)
        stream = streams[name]
        if segment > stream.segment:
            if segment in (stream.segment + 1, stream.told + 1):
                stream.window = min(LONGEST_WINDOW, 2 * stream.window or 1)
            stream.steps = 0
        elif run != stream.run:
            stream.steps = stream.steps + 1 if run > stream.run else 0
            if stream.steps >= STEPS_WITHIN:
                stream.window = max(stream.window, 1)
        stream.segment, stream.run = segment, run
        return stream

    def _streams_of(self, reader: Hashable) -> "OrderedDict[int, _Stream]":
        streams = self._streams.setdefault(reader, OrderedDict())
        self._streams.move_to_end(reader)
        if len(self._streams) > READERS:
            self._streams.popitem(last=False)
        return streams

    def _give_out(self, reader: Hashable, stream: _Stream, span: Span) -> list[int]:
        given: list[int] = []
        ahead = 0
        for segment in range(stream.segment + 1, min(stream.segment + 1 + stream.window, span.count)):
            size = span.size_of(segment)
            ahead += size
            if ahead > self._stream_bytes or self._bytes + size > self._total_bytes:
                break
            if segment > stream.told and (reader, segment) not in self._under_way:
                self._under_way[reader, segment] = size
                self._bytes += size
                given.append(segment)
            stream.told = max(stream.told, segment)
        return given


def _continues(stream: _Stream, segment: int) -> bool:
    """Whether a reader at `segment` may be this stream's: it is where it was, or goes on into what lies ahead."""
    return stream.segment <= segment <= max(stream.segment, stream.told) + 1
