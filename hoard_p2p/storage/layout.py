"""Names inside a data directory, and the format version that guards it. Nothing of a store lies elsewhere."""

import os
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from shlex import quote

from hoard_p2p.errors import NoNode, Refused, StoreFormatUnknown
from hoard_p2p.interfaces import SlabKind

FORMAT = "hoard store 1\n"
_OWN = frozenset({"index", "slabs", "journal", "node-lock", "format.new", "log", "tmp", "hoard.sock", "lost+found"})
"""What may be there before a store is: left by a start that was interrupted, or by mkfs."""
_LETTERS = {SlabKind.SHARED: "S", SlabKind.FILE: "F"}


@dataclass(frozen=True, slots=True)
class DataDir:
    """The paths of one data directory."""

    path: Path

    @property
    def index(self) -> Path:
        return self.path / "index"

    @property
    def slabs(self) -> Path:
        return self.path / "slabs"

    @property
    def journal(self) -> Path:
        return self.path / "journal"

    @property
    def keys(self) -> Path:
        """The journal of what origin keys were found to be."""
        return self.path / "keys"

    @property
    def lock(self) -> Path:
        return self.path / "node-lock"

    @property
    def probe(self) -> Path:
        """A byte that is written to see whether the disk takes it."""
        return self.path / "probe"

    @property
    def format(self) -> Path:
        return self.path / "format"

    def slab(self, kind: SlabKind, start: int, slab: int) -> Path:
        return self.slabs / f"{_LETTERS[kind]}-{start}-{slab}.slab"

    def refuse_foreign(self) -> None:
        """Raises Refused if a store would be made among files of somebody else: there is no store and something that
        an interrupted first start does not leave. Writes nothing."""
        try:
            names = {path.name for path in self.path.iterdir()} if not self.check_format() else set()
        except FileNotFoundError:
            return
        if foreign := sorted(names - _OWN):
            shown = ", ".join(map(repr, foreign[:3])) + (f" and {len(foreign) - 3} more" if len(foreign) > 3 else "")
            raise Refused(
                f"{self.path} is no data directory of hoard, and it holds other files ({shown}); "
                "choose a new or empty directory with --data-dir"
            )

    def make(self) -> None:
        """Make the directories; they and the index are open to the group as far as the umask allows."""
        for path in reversed(self.path.absolute().parents):
            _make(path, 0o777)
        for path in (self.path, self.index, self.slabs):
            _make(path, 0o770)

    def discard_half_made(self) -> None:
        """Remove the index of a first start that a power cut interrupted: LMDB may not be able to open it. For the
        holder of the lock, where there is no format yet; an index that may know a slab stays."""
        if not any(self.slabs.iterdir()):
            for path in self.index.iterdir():
                path.unlink()

    def check_format(self) -> bool:
        """True if this is a store that we can read, False if there is none. Raises StoreFormatUnknown."""
        try:
            found = self.format.read_text(errors="replace")
        except FileNotFoundError:
            return False
        if found != FORMAT:
            raise StoreFormatUnknown(
                f"{self.path} holds {found.strip()[:80]!r}, this version reads {FORMAT.strip()!r}; "
                "use the version that wrote it, or another --data-dir"
            )
        return True

    def require_format(self) -> None:
        """Raises NoNode if there is no store, StoreFormatUnknown if it is not ours to read."""
        if not self.check_format():
            raise NoNode(
                f"there is no store in {self.path}; start a node with: hoard up --data-dir {quote(str(self.path))}"
            )

    def write_format(self) -> None:
        """The last step of making a store: readers that see the file find everything else in place, also after a
        power cut (LMDB does not sync the names of its files)."""
        sync_path(self.index)
        fresh = self.format.with_suffix(".new")
        fresh.write_text(FORMAT)
        sync_path(fresh)
        fresh.replace(self.format)
        sync_path(self.path)


def _make(path: Path, mode: int) -> None:
    """Make a directory if there is none, and its name durable if one may open the directory above."""
    if not path.exists():
        path.mkdir(mode=mode, exist_ok=True)
        with suppress(PermissionError):
            sync_path(path.parent)


def sidecar_path(slab: Path) -> Path:
    return slab.with_suffix(".side")


def sync_path(path: Path) -> None:
    """fsync a file, or a directory (so that names made in it survive a power cut)."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
