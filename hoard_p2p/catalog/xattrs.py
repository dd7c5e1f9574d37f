"""The encoding of one inode's extended attributes (docs/formats.md, "Extended attributes"). Pure."""

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from itertools import pairwise

from hoard_p2p.catalog.layout import MAX_XATTR_BYTES, MAX_XATTR_NAME, XATTR, Column
from hoard_p2p.errors import CatalogCorrupt


def encode_xattrs(xattrs: Sequence[tuple[bytes, bytes]]) -> bytes:
    """The (name, value) sorted by name. Raises ValueError for what `decode_xattrs` would refuse."""
    ordered = sorted(xattrs)
    names = [name for name, _ in ordered]
    if not all(1 <= len(name) <= MAX_XATTR_NAME and b"\0" not in name for name in names):
        raise ValueError(f"attribute names {names!r}: empty, too long, or with a zero byte")
    if any(name == following for name, following in pairwise(names)):
        raise ValueError(f"attribute names {names!r}: one is repeated")
    encoded = b"".join(XATTR.pack(len(name), len(value)) + name + value for name, value in ordered)
    if len(encoded) > MAX_XATTR_BYTES:
        raise ValueError(f"{len(encoded)} bytes of attributes, at most {MAX_XATTR_BYTES}")
    return encoded


def decode_xattrs(heap: memoryview, start: int, stop: int) -> dict[bytes, bytes]:
    """The attributes encoded in `heap[start:stop]`. Raises CatalogCorrupt."""
    if not start < stop <= len(heap) or stop - start > MAX_XATTR_BYTES:
        raise CatalogCorrupt(f"catalog is damaged: attributes from {start} to {stop} of {len(heap)}")
    found: dict[bytes, bytes] = {}
    last = b""
    while start < stop:
        name, value, start = _decode_one(heap, start, stop)
        if name <= last:
            raise CatalogCorrupt(f"catalog is damaged: attribute {name!r} after {last!r}")
        found[name] = value
        last = name
    return found


def find_xattrs(columns: Mapping[Column, memoryview], inode: int) -> dict[bytes, bytes]:
    """The attributes of one inode, in a catalog that has some. Raises CatalogCorrupt."""
    inodes, offsets = columns[Column.XATTR_INODE], columns[Column.XATTR_OFFSET]
    place = bisect_left(inodes, inode)
    if place == len(inodes) or inodes[place] != inode:
        return {}
    return decode_xattrs(columns[Column.XATTR_HEAP], offsets[place], offsets[place + 1])


def _decode_one(heap: memoryview, start: int, stop: int) -> tuple[bytes, bytes, int]:
    """Name, value, and where the next one starts."""
    body = start + XATTR.size
    if body <= stop:
        name_length, value_length = XATTR.unpack_from(heap, start)
        middle, end = body + name_length, body + name_length + value_length
        if 1 <= name_length <= MAX_XATTR_NAME and end <= stop:
            name = heap[body:middle].tobytes()
            if b"\0" not in name:
                return name, heap[middle:end].tobytes(), end
    raise CatalogCorrupt(f"catalog is damaged: attribute at {start} is not one, or does not end before {stop}")
