"""The data set of `hoard demo` where the user names none: Python's own library in several variants, and a large shard.

Seeded: the same Python gives the same tree.
"""

import os
import shutil
import stat
import sysconfig
from collections.abc import Iterator
from pathlib import Path

from blake3 import blake3

FILES = 10_000
SHARD = 256 << 20
MAX_ORIGINALS = 2_500
MAX_FILE = 256 << 10
_BLOCK = 4 << 20


def originals() -> list[Path]:
    """Files of the standard library, relative to it: up to `MAX_ORIGINALS`, evenly taken from all there are."""
    library = Path(sysconfig.get_paths()["stdlib"])
    found = sorted(path.relative_to(library) for path in _files(library))
    step = max(1, len(found) // MAX_ORIGINALS)
    return found[::step][:MAX_ORIGINALS]


def _files(library: Path) -> Iterator[Path]:
    for directory, names, files in os.walk(library):
        names[:] = [name for name in names if name not in ("site-packages", "dist-packages", "__pycache__")]
        for name in files:
            path = Path(directory, name)
            status = path.lstat()
            if stat.S_ISREG(status.st_mode) and status.st_size <= MAX_FILE and os.access(path, os.R_OK):
                yield path


def make(root: Path, *, files: int = FILES, shard: int = SHARD) -> None:
    """Make the data set in the new directory `root`: `files` files beside one shard of `shard` bytes.

    Variants take turns: a copy, one with every file changed, one with equal copies and hard links. So some of it
    deduplicates and most of it does not.
    """
    library, names = Path(sysconfig.get_paths()["stdlib"]), originals()
    for number in range(files):
        variant, name = divmod(number, len(names))
        target = root / f"library-{variant}" / names[name]
        target.parent.mkdir(parents=True, exist_ok=True)
        if variant % 2 == 1:
            target.write_bytes((library / names[name]).read_bytes() + b"\n# variant %d\n" % variant)
        elif variant > 0 and name % 3 == 0:
            os.link(root / "library-0" / names[name], target)
        else:
            shutil.copy2(library / names[name], target)
    (root / "latest").symlink_to(f"library-{(files - 1) // len(names)}")
    write_shard(root / "shard-000.bin", shard, seed=b"hoard demo")


def write_shard(path: Path, size: int, *, seed: bytes) -> None:
    """A file of seeded bytes that neither compress nor deduplicate."""
    stream = blake3(seed)
    with path.open("wb") as out:
        for offset in range(0, size, _BLOCK):
            out.write(stream.digest(length=min(_BLOCK, size - offset), seek=offset))
