"""Sorted records of a listing become the catalog of a lazy snapshot; entries that exclude each other are told apart."""

from collections.abc import Callable, Iterable, Iterator
from struct import Struct
from typing import BinaryIO, NamedTuple

from hoard_p2p.catalog.builder import CatalogBuilder, Meta, Totals
from hoard_p2p.objects import Kind, Listed
from hoard_p2p.publish.listing import ALSO_DIRECTORY, TWICE, Unmappable, decode, key_length
from hoard_p2p.publish.pieces import piece_runs, piece_slots
from hoard_p2p.publish.spill import LinkMap, PathQueue
from hoard_p2p.publish.unmapped import Unmapped

SYMLINK_MODE = 0o777
_LINK = Struct("<QQ")


class TreeOptions(NamedTuple):
    """`skip_unmappable`: build although something cannot be in the snapshot; else only look for more of it."""

    keep_mtimes: bool
    skip_unmappable: bool


class SortedTree:
    """The catalog being built. Used from one thread."""

    def __init__(
        self,
        builder: CatalogBuilder,
        links: LinkMap,
        directories: PathQueue,
        identity: Callable[[bytes], bytes],
        unmapped: Unmapped,
        *,
        options: TreeOptions,
    ) -> None:
        """`directories`: empty, for the paths of those whose entries have not come yet. `identity`: as of `Origin`."""
        self._builder = builder
        self._links = links
        self._directories = directories
        self._identity = identity
        self._unmapped = unmapped
        self._options = options
        self._directory: bytes | None = None  # whose entries are being added
        self.done = 0

    def build(self, records: Iterable[bytes], tick: Callable[[], None]) -> None:
        """All records, in order; `tick` is called for each entry."""
        for entry in self._distinct(records):
            if self._options.skip_unmappable or not self._unmapped.count:
                self._add(entry)
            tick()

    def finish(self, out: BinaryIO) -> Totals:
        """Write the catalog."""
        while self._directories.get() is not None:
            self._builder.next_directory()
        return self._builder.finish(out)

    def _distinct(self, records: Iterable[bytes]) -> Iterator[Listed]:
        """One entry for each path: of several records the first, and all others are told unless they say as much."""
        last: Listed | None = None
        last_key = b""
        for record in records:
            length = key_length(record)
            key = record[:length]
            entry = decode(record, length)
            if last is None or key != last_key:
                last, last_key = entry, key
                yield entry
            elif entry.kind is not Kind.DIRECTORY:
                why = ALSO_DIRECTORY if last.kind is Kind.DIRECTORY else TWICE
                self._unmapped.add(Unmappable(entry.path, why))

    def _add(self, entry: Listed) -> None:
        if not entry.path:
            self._builder.add_root(self._meta(entry))
            self._directories.put(b"")
            return
        parent, _, name = entry.path.rpartition(b"/")
        while parent != self._directory:
            self._directory = self._directories.get()
            self._builder.next_directory()
        if entry.kind is Kind.DIRECTORY:
            self._builder.add_directory(name, self._meta(entry))
            self._directories.put(entry.path)
            return
        if entry.kind is Kind.SYMLINK:
            self._builder.add_symlink(name, self._meta(entry, mode=SYMLINK_MODE), entry.target)
        else:
            self._add_file(name, entry)
        self.done += 1

    def _add_file(self, name: bytes, entry: Listed) -> None:
        link = _LINK.unpack(entry.link) if entry.link else None
        first = self._links.get((link[0], link[1])) if link else None
        if first is not None:
            self._builder.add_hard_link(name, first)
            return
        inode = self._builder.add_file(
            name,
            self._meta(entry),
            entry.size,
            piece_runs(self._identity(entry.path), entry.version, entry.size),
            slots=piece_slots(entry.path, entry.size),
            version=entry.version,
        )
        if link:
            self._links.set((link[0], link[1]), inode)

    def _meta(self, entry: Listed, mode: int | None = None) -> Meta:
        mtime = entry.mtime if self._options.keep_mtimes else 0
        return Meta(entry.mode if mode is None else mode, mtime, entry.uid, entry.gid, entry.xattrs)
