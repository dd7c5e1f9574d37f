"""Replies to READDIR and READDIRPLUS, made from the catalog's columns by the block.

The same bytes as entry by entry (`operations`), in a fifth of the time: that is what `find` waits for.
"""

from bisect import bisect_right
from collections.abc import Callable, Iterable, Sequence
from enum import Enum
from itertools import accumulate, count
from struct import Struct
from typing import Protocol, TypeAlias

from hoard_p2p.catalog.entries import Block
from hoard_p2p.catalog.reader import Catalog
from hoard_p2p.mount.kernel import DIRENT_HEAD, ENTRY_OUT, FOREVER

Packer: TypeAlias = Callable[..., bytes]

BLOCK = 4096
LISTED_AT_ONCE = 1 << 17
"""Bytes that a reader of directories is told to ask for (as `st_blksize`; the C library takes up to 1 MiB): a quarter
of the requests that its usual 32 KiB take."""
DIRECTORY = 0o04
"""`mode >> 12` of a directory: the entry's type, as a listing has it."""
BARE = bytes(ENTRY_OUT.size)
"""In READDIRPLUS: an entry without attributes, which the kernel lists and does not remember."""
_SECOND = 1_000_000_000
_VALID = Struct("<QQQII").pack(0, FOREVER, FOREVER, 0, 0)
"""The part of `fuse_entry_out` between node id and attributes: generation, validities."""
_OWNED = Struct("<IIIII")
"""The last part of `fuse_attr`: uid, gid, rdev, blksize, flags."""
_PLUS = f"<Q{len(_VALID)}sQQQqqqIIIII{_OWNED.size}s"
"""`fuse_entry_out` with these two packed before: half the values to hand over. Then `fuse_dirent` and the name."""
_PADDED = [(length + 7) & ~7 for length in range(256)]


class Form(Enum):
    """What a listing tells of each entry."""

    NAMES = 0
    """READDIR: number, type and name."""
    FOLDERS = 1
    """READDIRPLUS with the attributes of directories alone: whoever lists them is likely to go into them."""
    ATTRIBUTES = 2
    """READDIRPLUS."""


class Habits(Protocol):
    """What is known of how a mount is used."""

    stats: bool
    """Whether its readers ask for files, beyond listing them."""


class Listings:
    """Makes replies for one mount."""

    def __init__(self, catalog: Catalog, owner: tuple[int, int], entry: Callable[[int], bytes]) -> None:
        """`owner`: uid and gid of everything, where the catalog kept none. `entry`: makes one `fuse_entry_out`."""
        self._catalog = catalog
        self._owner = owner
        self._entry = entry
        dirent = DIRENT_HEAD.format.removeprefix("<")
        self._names = _by_length(f"<{dirent}")
        self._bare = _by_length(f"<{len(BARE)}x{dirent}")
        self._folders = _by_length(f"<{len(BARE)}s{dirent}")
        self._attributes = _by_length(f"{_PLUS}{dirent}")

    def answer(self, directory: int, first: int, entries: range, room: int, form: Form) -> bytes:
        """`entries` of a directory whose children begin at inode `first`, as many as go into `room` bytes.

        Raises NotPlain, and CatalogCorrupt for wrong holes and folders."""
        head = DIRENT_HEAD.size + (0 if form is Form.NAMES else ENTRY_OUT.size)
        # A name has a byte at least. One more than fit: the one that does not is looked at when asked one by one.
        block = self._catalog.entries.block(directory, entries[: room // (head + 8) + 1])
        lengths = list(map(len, block.names))
        ends = list(accumulate(map(_PADDED.__getitem__, lengths)))
        fitting = bisect_right(range(len(ends)), room, key=lambda at: ends[at] + head * (at + 1))
        ordinals = count(entries.start - first + 3)
        del lengths[fitting:]
        if form is Form.ATTRIBUTES:
            return b"".join(self._with_attributes(block, ordinals, lengths))
        if form is Form.NAMES:
            return b"".join(self._with_names(block, ordinals, lengths, self._names))
        if DIRECTORY not in block.kinds:
            return b"".join(self._with_names(block, ordinals, lengths, self._bare))
        return b"".join(self._with_folders(block, ordinals, lengths))

    def _with_names(
        self, block: Block, ordinals: Iterable[int], lengths: list[int], packers: Sequence[Packer]
    ) -> list[bytes]:
        nodes = count(block.inodes.start + 1)
        return [
            packers[length](node, ordinal, length, kind, name)
            for length, node, ordinal, kind, name in zip(lengths, nodes, ordinals, block.kinds, block.names)
        ]

    def _with_folders(self, block: Block, ordinals: Iterable[int], lengths: list[int]) -> list[bytes]:
        packers, nodes, entry = self._folders, count(block.inodes.start + 1), self._entry
        return [
            packers[length](BARE if kind != DIRECTORY else entry(node - 1), node, ordinal, length, kind, name)
            for length, node, ordinal, kind, name in zip(lengths, nodes, ordinals, block.kinds, block.names)
        ]

    def _with_attributes(self, block: Block, ordinals: Iterable[int], lengths: list[int]) -> list[bytes]:
        catalog, inodes = self._catalog, block.inodes[: len(lengths) + 1]
        sizes, mtimes, nlinks = catalog.entries.attributes(inodes)
        data = [catalog.data_size(inode) for inode in inodes] if catalog.has_holes else sizes
        packers, valid = self._attributes, _VALID
        values = zip(
            lengths, count(inodes.start + 1), ordinals, block.kinds, block.names, block.modes, sizes, data, nlinks,
            (divmod(mtime, _SECOND) for mtime in mtimes), self._owned(inodes, block.kinds),
        )  # fmt: skip
        return [
            packers[length](
                node, valid, node, size, (used + 511) >> 9, sec, sec, sec, nsec, nsec, nsec, mode, nlink, owned,
                node, ordinal, length, kind, name,
            )
            for length, node, ordinal, kind, name, mode, size, used, nlink, (sec, nsec), owned in values
        ]  # fmt: skip

    def _owned(self, inodes: range, kinds: list[int]) -> Iterable[bytes]:
        if not self._catalog.has_owner:
            plain = [_OWNED.pack(*self._owner, 0, block_size(kind), 0) for kind in range(16)]
            return map(plain.__getitem__, kinds)
        owners = (self._catalog.uid_gid(inode) or self._owner for inode in inodes)
        return (_OWNED.pack(*owner, 0, block_size(kind), 0) for owner, kind in zip(owners, kinds))


def block_size(kind: int) -> int:
    """`st_blksize` of an inode of that `mode >> 12`."""
    return LISTED_AT_ONCE if kind == DIRECTORY else BLOCK


def _by_length(head: str) -> list[Packer]:
    """Packers of `head` and a name, by the name's length: zeros pad it to 8 bytes."""
    packers = [Struct(f"{head}{size}s").pack for size in range(0, 257, 8)]
    return [packers[size >> 3] for size in _PADDED]
