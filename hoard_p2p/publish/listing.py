"""What of an origin's listing can be an entry of a snapshot, and how it is written down to be sorted. Pure.

A record begins with the depth of the path and with its parts, so that the byte order of records is the order of a
catalog: breadth first, names sorted in each directory.
"""

from struct import Struct
from typing import NamedTuple

from blake3 import blake3

from hoard_p2p.catalog.layout import MAX_NAME, MAX_SIZE, MAX_TARGET, MAX_VERSION
from hoard_p2p.catalog.xattrs import decode_xattrs, encode_xattrs
from hoard_p2p.objects import Kind, Listed
from hoard_p2p.printing import printable

MAX_LISTED_PATH = 4095
"""Bytes of a path that one system call takes."""

MAX_OBJECT = 64 << 40
"""Bytes of one object: no store or file system in use has larger ones."""

DIRECTORY_MODE = 0o755
"""Of directories that an object store has no word about."""

SLASH_WITH_DATA = "ends in a slash, but has data"
ALSO_DIRECTORY = "there are entries below a directory of this name"
TWICE = "is listed more than once, and not the same each time"

_FIXED = Struct(">BHIIQqBHB")
"""Rank, mode, uid, gid, size, mtime, lengths of version, target and link; these follow, then the attributes."""

_END = b"\0\0"
_EXPLICIT, _IMPLIED, _FILE, _SYMLINK = range(4)
"""Ranks: of the records of one path the first counts."""
_RANKS = {Kind.DIRECTORY: _EXPLICIT, Kind.FILE: _FILE, Kind.SYMLINK: _SYMLINK}
_KINDS = (Kind.DIRECTORY, Kind.DIRECTORY, Kind.FILE, Kind.SYMLINK)


class Unmappable(NamedTuple):
    """An entry that cannot be in a snapshot."""

    path: bytes
    why: str


def mapped(entry: Listed) -> Listed | Unmappable:
    """The entry as a snapshot has it: an object that only marks a directory (`dir/` without data) is that directory.
    Whether others have the same path, or one below it, shows when all are sorted."""
    path = entry.path
    if entry.kind is Kind.UNREADABLE:
        return Unmappable(path, printable(entry.target))
    if path.endswith(b"/") or not path:
        if entry.size and entry.kind is not Kind.DIRECTORY:
            return Unmappable(path, SLASH_WITH_DATA if path else "has no name")
        mode = entry.mode if entry.kind is Kind.DIRECTORY else DIRECTORY_MODE
        entry = Listed(path[:-1], Kind.DIRECTORY, 0, entry.mtime, mode, b"", entry.uid, entry.gid, xattrs=entry.xattrs)
    why = (_path_fault(entry.path) if entry.path or path else "") or _content_fault(entry)
    return Unmappable(path, why) if why else entry


def implied_directory(path: bytes) -> bytes:
    """The record of a directory that something lies in."""
    fixed = _FIXED.pack(_IMPLIED, DIRECTORY_MODE, 0, 0, 0, 0, 0, 0, 0)
    return _key(path) + _END + fixed


def encode(entry: Listed) -> bytes:
    """The record of a mapped entry. Raises ValueError for attributes that no catalog holds."""
    link = blake3(entry.link).digest(16) if entry.link else b""
    version, target = entry.version, entry.target
    fixed = _FIXED.pack(
        _RANKS[entry.kind],
        entry.mode & 0o7777,
        entry.uid,
        entry.gid,
        entry.size,
        min(max(entry.mtime, -MAX_SIZE), MAX_SIZE - 1),
        len(version),
        len(target),
        len(link),
    )
    rest = version + target + link
    if entry.xattrs:
        rest += encode_xattrs(entry.xattrs)
    return _key(entry.path) + _END + fixed + rest


def key_length(record: bytes) -> int:
    """Records whose first so many bytes are the same have the same path."""
    return record.index(_END, 4)


def decode(record: bytes, key: int) -> Listed:
    """The entry of a record; `link` is a digest of 16 bytes. `key`: its `key_length`."""
    at = key + len(_END)
    rank, mode, uid, gid, size, mtime, version, target, link = _FIXED.unpack_from(record, at)
    at += _FIXED.size
    version_end = at + version
    target_end = version_end + target
    end = target_end + link
    return Listed(
        record[4:key].replace(b"\0", b"/"),
        _KINDS[rank],
        size,
        mtime,
        mode,
        record[at:version_end],
        uid,
        gid,
        record[version_end:target_end],
        record[target_end:end],
        tuple(decode_xattrs(memoryview(record), end, len(record)).items()) if end < len(record) else (),
    )


def _key(path: bytes) -> bytes:
    """The depth, then the parts with a zero byte between them, which is lower than any byte of a name."""
    depth = path.count(b"/") + 1 if path else 0
    return depth.to_bytes(4, "big") + path.replace(b"/", b"\0")


def _path_fault(path: bytes) -> str:
    """Why it is no path of a snapshot; empty if it is one."""
    parts = path.split(b"/")
    if b"" in parts:
        return "has an empty name between slashes"
    if b"." in parts or b".." in parts:
        return "has the name . or .. in it"
    if b"\0" in path:
        return "has a zero byte in it"
    if len(path) > MAX_NAME and max(map(len, parts)) > MAX_NAME:
        return f"has a name of more than {MAX_NAME} bytes in it"
    return f"is longer than {MAX_LISTED_PATH} bytes" if len(path) > MAX_LISTED_PATH else ""


def _content_fault(entry: Listed) -> str:
    if entry.kind is Kind.SYMLINK:
        allowed = 1 <= len(entry.target) <= MAX_TARGET and b"\0" not in entry.target
        return "" if allowed else "is a symbolic link that points nowhere"
    if entry.kind is Kind.DIRECTORY:
        return ""
    if not 0 <= entry.size <= MAX_OBJECT:
        return f"has {entry.size} bytes, more than {MAX_OBJECT}"
    return "" if 1 <= len(entry.version) <= MAX_VERSION else "has no version, so a change would go unnoticed"
