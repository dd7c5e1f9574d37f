"""What is read of one object in one go: neighbouring ranges together. Pure."""

from collections.abc import Sequence

from hoard_p2p.objects import ObjectRange

AT_ONCE_LEAST, AT_ONCE_MOST = 4 << 20, 8 << 20
"""Bytes of one question: large enough that its latency matters little, small enough that a piece need not wait long."""


def at_once(size: int, streams: int) -> int:
    """Bytes to ask for at once where `size` bytes are to be read over `streams` streams."""
    return min(AT_ONCE_MOST, max(AT_ONCE_LEAST, size // max(1, streams)))


def grouped(ranges: Sequence[ObjectRange], most: int) -> list[range]:
    """Indexes of `ranges` that can be read in one go: neighbours of one object, up to `most` bytes (but always one)."""
    found: list[range] = []
    for index, each in enumerate(ranges):
        first = ranges[found[-1].start] if found else None
        if (
            first is not None
            and (first.path, ranges[index - 1].stop) == (each.path, each.start)
            and each.stop - first.start <= most
        ):
            found[-1] = range(found[-1].start, index + 1)
        else:
            found.append(range(index, index + 1))
    return found


def joined(ranges: Sequence[ObjectRange], most: int) -> list[ObjectRange]:
    """The same bytes in as few ranges as `grouped` makes."""
    return [ranges[group.start]._replace(stop=ranges[group[-1]].stop) for group in grouped(ranges, most)]
