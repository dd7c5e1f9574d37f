"""The stamp files of a node: one per source and options, a bounded number, each gone when its snapshot is.

A stamp file is made in `tmp` and renamed, without a sync: its digest tells whether all of it arrived. Blocking.
"""

import hashlib
import json
import logging
import os
import shutil
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO

from hoard_p2p.config import Json
from hoard_p2p.ids import SnapshotId, parse_snapshot_id, short
from hoard_p2p.node.names import Names
from hoard_p2p.publish import stampscan
from hoard_p2p.publish.stamps import StampFile

log = logging.getLogger(__name__)

MOST_FILES = 64
MOST_BYTES = 1 << 30
FOLDER = "stamps"
CHOICES = ("chunker", "preserve_owner", "reproducible", "exclude", "skip_unreadable")
"""The options that change what is published. (So does who asks for it: what that user may read.)"""


def lives(names: Names, snapshot: SnapshotId) -> bool:
    """Whether users see the snapshot."""
    record = names.snapshot(snapshot)
    return record is not None and record.shown and not record.removed


class Kept:
    """A stamp file of the shelf, open."""

    def __init__(self, path: Path) -> None:
        """Raises OSError, ValueError."""
        self.file: BinaryIO = path.open("r+b", buffering=0)
        try:
            self.stamps = StampFile(self.file.fileno())
            self.snapshot = parse_snapshot_id(self.stamps.meta.snapshot)
        except BaseException:
            self.file.close()
            raise

    def close(self) -> None:
        self.stamps.close()
        self.file.close()


class Draft:
    """A stamp file being written, in a folder that the next start clears away if this node does not."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.path = self._folder / FOLDER
        self.file: BinaryIO = self.path.open("w+b", buffering=0)

    def close(self) -> None:
        self.file.close()
        shutil.rmtree(self._folder, ignore_errors=True)


class Shelf:
    """Thread-safe: each change is a rename or an unlink."""

    def __init__(self, data_dir: Path) -> None:
        self._folder = data_dir / FOLDER

    def key(self, source: os.stat_result, options: dict[str, Json]) -> str:
        """What a stamp file of this directory and these options is called."""
        told = [source.st_dev, source.st_ino, os.geteuid(), *(options.get(name) or None for name in CHOICES)]
        return hashlib.blake2b(json.dumps(told).encode(), digest_size=16).hexdigest()

    def find(self, key: str) -> Kept | None:
        """The stamp file of that key; the caller closes it."""
        try:
            return Kept(self._folder / key)
        except FileNotFoundError:
            return None
        except (OSError, ValueError) as error:
            log.info("stamp file %s is of no use: %s", key, error)
            return None

    def keep(self, draft: Draft, key: str, drops: int, names: Names) -> None:
        """Put what was written on the shelf, and take away what is too much or of no use. A draft that nothing was
        written to changes nothing, nor does a full disk. `drops`: see `storage.drops`; from before the publish."""
        try:
            self._keep(draft, key, drops)
            self.clear(names)
        except OSError as error:
            log.info("the next publish of this source will read all files: %s", error)

    def _keep(self, draft: Draft, key: str, drops: int) -> None:
        with draft.path.open("r+b", buffering=0) as file:  # its own descriptor: this thread may outlive the draft
            header = stampscan.read_header(file.fileno())
            if header is None:
                return
            os.pwrite(file.fileno(), stampscan.DROPS.pack(drops), stampscan.DROPS_OFFSET)
        self._folder.mkdir(mode=0o700, exist_ok=True)
        draft.path.replace(self._folder / key)

    def used(self, key: str, digest: bytes, drops: int) -> None:
        """The stamp file with this digest served again; all chunks of its snapshot were listed at `drops`."""
        with suppress(OSError), (self._folder / key).open("r+b", buffering=0) as file:
            header = stampscan.read_header(file.fileno())
            if header is not None and header.digest == digest:  # else another publish replaced it
                os.pwrite(file.fileno(), stampscan.DROPS.pack(drops), stampscan.DROPS_OFFSET)
                os.utime(file.fileno())

    def clear(self, names: Names) -> int:
        """Remove the stamp files of snapshots that are gone, and of the others those used longest ago that are too
        many; how many went."""
        removed, left, size = 0, 0, 0
        for path, status in self._by_use():
            size += status.st_size
            left += 1
            if left > MOST_FILES or size > MOST_BYTES or not self._is_of_use(path, names):
                left, size = left - 1, size - status.st_size
                path.unlink(missing_ok=True)
                removed += 1
        return removed

    def _by_use(self) -> list[tuple[Path, os.stat_result]]:
        """Last used first."""
        found = []
        with suppress(FileNotFoundError):
            for path in self._folder.iterdir():
                with suppress(FileNotFoundError):
                    found.append((path, path.stat()))
        return sorted(found, key=lambda each: -each[1].st_mtime_ns)

    def _is_of_use(self, path: Path, names: Names) -> bool:
        kept = self.find(path.name)
        if kept is None:
            return False
        try:
            if not lives(names, kept.snapshot):
                log.info("what was remembered of the source of snapshot %s goes with it", short(kept.snapshot))
                return False
            return True
        finally:
            kept.close()
