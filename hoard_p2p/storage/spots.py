"""Where chunks go in the slabs of a writer, and writing many of them with few calls."""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from hoard_p2p.ids import Bytes
from hoard_p2p.storage.openslab import BLOCK, OpenSlab, align

MOST_BUFFERS = 1000
"""IOV_MAX is 1024."""

_PADDING = bytes(BLOCK)


class Spot(NamedTuple):
    """A spot for one chunk, given out by a sink: the slab counts the caller as its user already."""

    slab: OpenSlab
    offset: int


class _Run(NamedTuple):
    """Buffers that lie side by side in a slab."""

    slab: OpenSlab
    offset: int
    buffers: list[Bytes]


def write_together(spots: Sequence[Spot], data: Sequence[Bytes]) -> None:
    """Write each of `data` at its spot in a shared slab, reserved before; neighbours by one call. Raises OSError: then
    nothing is known of any."""
    for run in _runs(sorted(zip(spots, data, strict=True), key=lambda pair: (pair[0].slab.slab, pair[0].offset))):
        run.slab.write_all(run.buffers, run.offset)


def _runs(pairs: Sequence[tuple[Spot, Bytes]]) -> Iterator[_Run]:
    """A chunk of a block or more owns its last block to the end: what is behind it there is filled with zeros."""
    run: _Run | None = None
    end = 0
    for (slab, offset), data in pairs:
        if run is None or run.slab is not slab or offset != end or len(run.buffers) >= MOST_BUFFERS:
            if run is not None:
                yield run
            run = _Run(slab, offset, [])
        run.buffers.append(data)
        end = offset + len(data)
        if len(data) >= BLOCK and align(end) != end:
            run.buffers.append(_PADDING[: align(end) - end])
            end = align(end)
    if run is not None:
        yield run
