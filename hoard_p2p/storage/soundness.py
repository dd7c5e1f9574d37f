"""Whether an index can be opened at all, found out without being killed by it.

LMDB maps its file: one that was cut short kills whoever looks behind its end (SIGBUS), and damaged pages can do worse.
So the file's own meta pages are read first, and where they do not fit the file, a child process looks.
"""

import os
import struct
import subprocess
import sys
from pathlib import Path
from shlex import quote

from hoard_p2p.errors import IndexLost
from hoard_p2p.storage.layout import DataDir

PROBE_SECONDS = 600.0
_MAGIC = 0xBEEFC0DE
_META = struct.Struct("<16xII16xI92xQQ")
"""Of lmdb 0.9 (mdb.c, MDB_meta behind a page header, 64 bit): magic, version, page size, last page, transaction."""


def refuse_lost(layout: DataDir) -> None:
    """Raises IndexLost if there is a store here whose index is missing, or cannot be read: an empty one in its place
    would forget all that the slabs hold. Changes nothing."""
    data = layout.index / "data.mdb"
    size = data.stat().st_size if data.exists() else 0
    if not size:
        if has_slabs(layout) or layout.check_format():
            raise lost(layout, "is missing" if not data.exists() else "is empty")
    elif is_cut(data) and not is_sound(layout.index):
        raise lost(layout, "is cut short")


def lost(layout: DataDir, what: str) -> IndexLost:
    command = f"hoard doctor --rebuild-index --data-dir {quote(str(layout.path))}"
    return IndexLost(
        f"the index of {layout.path} {what}, and an empty one would forget what the slabs there hold; nothing was "
        f"changed. Make it again from the slabs with: {command}"
    )


def has_slabs(layout: DataDir) -> bool:
    return layout.slabs.exists() and next(layout.slabs.glob("*.slab"), None) is not None


def is_cut(data: Path) -> bool:
    """Whether the file may be shorter than its newest meta page says. (It may be shorter rightfully, by pages that
    were taken and given back at once.)"""
    with data.open("rb") as file:
        raw = file.read(_META.size)
        page = _META.unpack(raw)[2] if len(raw) == _META.size else 0
        if not 512 <= page <= 1 << 16:
            return True
        file.seek(0)
        raw = file.read(2 * page)
    metas = [_META.unpack_from(raw, at) for at in (0, page) if at + _META.size <= len(raw)]
    newest = max((meta for meta in metas if meta[0] == _MAGIC), key=lambda meta: meta[-1], default=None)
    return newest is None or data.stat().st_size < (newest[-2] + 1) * page


def is_sound(index: Path) -> bool:
    """Whether every row can be read, as a child process finds. Goes through the whole index."""
    try:
        done = subprocess.run(
            [sys.executable, "-m", "hoard_p2p.storage.soundness", os.fspath(index)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            timeout=PROBE_SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return False
    return done.returncode == 0


def _walk(index: Path) -> None:
    from hoard_p2p.storage.index import Index, Table
    from hoard_p2p.storage.records import decode_places, decode_slab

    opened = Index.for_reading(index)
    with opened.read() as txn:
        for _, value in txn.scan(Table.CHUNKS):
            decode_places(value)
        for _, value in txn.scan(Table.SLABS):
            decode_slab(value)
        for table in (Table.META, Table.GENERATIONS, Table.FILES):
            for _ in txn.scan(table):
                pass


if __name__ == "__main__":
    _walk(Path(sys.argv[1]))
