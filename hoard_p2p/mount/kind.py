"""Which kind of mount suits a snapshot: passthrough, where the kernel reads large files by itself, or no-open, where it
opens files by itself. Pure.

Measured on a 2-core machine with Linux 6.18: opening and closing a file of a passthrough mount costs two requests,
about 90 us; a no-open mount reads what is in the page cache at about half the speed of the disk's own file system,
0.1 ns a byte more.
"""

from collections.abc import Iterable
from typing import NamedTuple

from hoard_p2p.errors import MountFailed
from hoard_p2p.segments import LARGE_FILE

PASSTHROUGH = "passthrough"
NO_OPEN = "no-open"
AUTO = "auto"
OPEN_SECONDS = 90e-6
"""What an open and close of any file costs a passthrough mount."""
BYTE_SECONDS = 0.1e-9
"""What a byte of a large file costs a no-open mount."""
WORTH = round(OPEN_SECONDS / BYTE_SECONDS)
"""Bytes of large files per file from which on passthrough pays."""


class Spread(NamedTuple):
    """How a snapshot's bytes are spread. `size`: of all files; `large`: of those that have slabs of their own."""

    files: int
    size: int
    large: int


class Choice(NamedTuple):
    """`io`: PASSTHROUGH or NO_OPEN; `reason`: one sentence for people, without a full stop."""

    io: str
    reason: str


def spread(files: int, size: int, sizes: Iterable[int]) -> Spread:
    """`sizes`: of all inodes, looked at only if large files can decide (a million of them take 40 ms)."""
    if size <= WORTH * files:
        return Spread(files, size, 0)
    return Spread(files, size, sum(filter(LARGE_FILE.__lt__, sizes)))


def choose(asked: str, verify: str, spread: Spread, obstacle: str) -> Choice:
    """The kind of mount. `asked`: AUTO, PASSTHROUGH or NO_OPEN; `obstacle`: why passthrough cannot be here, empty if it
    can. Raises MountFailed if it was asked for and cannot be."""
    if asked == PASSTHROUGH:
        if obstacle:
            raise MountFailed(f"no passthrough here: {obstacle}; or mount with --io no-open")
        return Choice(PASSTHROUGH, "asked for with --io")
    if asked == NO_OPEN:
        return Choice(NO_OPEN, "asked for with --io")
    if spread.large <= WORTH * spread.files:
        return Choice(NO_OPEN, f"most of its {_files(spread.files)} are small, and opening those is faster so")
    if verify == "always":
        return Choice(NO_OPEN, "--verify always needs to see each read, else passthrough would be faster")
    if obstacle:
        return Choice(NO_OPEN, f"passthrough would be faster, but {obstacle}")
    share = 100 * spread.large // max(spread.size, 1)
    return Choice(
        PASSTHROUGH, f"{min(share, 100)} % of its bytes are in files of over 8 MiB, which the kernel reads alone"
    )


def without() -> Choice:
    """The kind when it turned out that the kernel has no passthrough."""
    return Choice(NO_OPEN, "passthrough would be faster, but this kernel has none (Linux 6.9 does)")


def _files(count: int) -> str:
    return "one file" if count == 1 else f"{count:,} files"
