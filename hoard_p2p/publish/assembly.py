"""Outcomes in the order of the walk become the catalog; what is left out is remembered by name."""

import os
import stat
from collections.abc import Callable
from concurrent.futures import Future
from typing import BinaryIO

from hoard_p2p.catalog.builder import CatalogBuilder, Meta, Totals
from hoard_p2p.catalog.layout import MAX_SIZE
from hoard_p2p.errors import SourceUnreadable
from hoard_p2p.publish.attributes import Attributes
from hoard_p2p.publish.entries import Content, FileRead, HardLink, LinkRead, Outcome
from hoard_p2p.publish.outcome import NAMED, Named, NotKept, PublishOptions, Skipped
from hoard_p2p.publish.spill import LinkMap
from hoard_p2p.publish.tally import Tally
from hoard_p2p.publish.walk import Begin, Found, FoundDirectory, LeftOut, Reason, path_text

FAILURES = 10_000
"""Unreadable paths that an error names."""

ATTRIBUTE_NAMES = 100
"""Names of attributes that are told apart when they are not kept."""

_PENDING = -1
_SYMLINK_MODE = stat.S_IFLNK | 0o777


class Assembly:
    """The catalog being built. Used from one thread."""

    def __init__(
        self,
        builder: CatalogBuilder,
        links: LinkMap,
        tally: Tally,
        options: PublishOptions,
        read_now: Callable[[Found], Content],
    ) -> None:
        """`read_now` reads a file in place: for a hard link whose first name could not be read."""
        self._builder = builder
        self._links = links
        self._tally = tally
        self._keep_mtimes = not options.reproducible
        self._skip_unreadable = options.skip_unreadable
        self._read_now = read_now
        self._left_out = {reason: _Names(FAILURES if reason is Reason.UNREADABLE else NAMED) for reason in Reason}
        self._not_kept: dict[str, _Names] = {}
        self._parent = b""
        self.as_told = True
        """Whether everything became what the outcome said; not so for a hard link that was read after all."""

    @property
    def failed(self) -> bool:
        """Whether the publish is bound to fail; then outcomes are only looked through for more failures."""
        return not self._skip_unreadable and self._left_out[Reason.UNREADABLE].count > 0

    def seen(self, found: Found) -> bool:
        """Whether the file was found before under another name (of those with several). Remembers it."""
        status = found.status
        if status.st_nlink == 1 or not stat.S_ISREG(status.st_mode):
            return False
        key = (status.st_dev, status.st_ino)
        if self._links.get(key) is not None:
            return True
        self._links.set(key, _PENDING)
        return False

    def add_root(self, status: os.stat_result, attributes: Attributes) -> None:
        self._count_attributes(attributes, b"")
        self._builder.add_root(self._meta(status, attributes, b""))

    def add(self, outcome: Outcome) -> None:
        """The next outcome."""
        if isinstance(outcome, LeftOut):
            self._leave_out(outcome)
        elif isinstance(outcome, HardLink):
            self._add_hard_link(outcome.found)
        elif not self.failed:
            self._add_kept(outcome)

    def finish(self, out: BinaryIO) -> Totals:
        """Write the catalog. Raises SourceUnreadable if something could not be read and must not be skipped."""
        if self.failed:
            raise SourceUnreadable(self._left_out[Reason.UNREADABLE].lines())
        return self._builder.finish(out)

    def skipped(self) -> Skipped:
        return Skipped(
            special=self._left_out[Reason.SPECIAL].named(),
            vanished=self._left_out[Reason.VANISHED].named(),
            unreadable=self._left_out[Reason.UNREADABLE].named(),
            own_data=self._left_out[Reason.OWN_DATA].named(),
        )

    def not_kept(self) -> tuple[NotKept, ...]:
        return tuple(NotKept(name, names.count, names.first[0]) for name, names in sorted(self._not_kept.items()))

    def _add_kept(self, outcome: "Begin | FoundDirectory | FileRead | LinkRead | Future[Content]") -> None:
        if isinstance(outcome, FileRead):
            self._add_file(outcome)
        elif isinstance(outcome, LinkRead):
            mtime = self._mtime(outcome.status, self._path(outcome.name))
            meta = Meta(_SYMLINK_MODE, mtime, outcome.status.st_uid, outcome.status.st_gid)
            self._builder.add_symlink(outcome.name, meta, outcome.target)
        elif isinstance(outcome, FoundDirectory):
            path = self._path(outcome.name)
            self._count_attributes(outcome.attributes, path)
            self._builder.add_directory(outcome.name, self._meta(outcome.status, outcome.attributes, path))
        elif isinstance(outcome, Begin):
            self._builder.next_directory()
            self._parent = outcome.directory.path if outcome.directory else b""

    def _add_file(self, file: FileRead) -> None:
        path, status = self._path(file.name), file.status
        self._count_attributes(file.attributes, path)
        meta = self._meta(status, file.attributes, path)
        index = self._builder.add_file(file.name, meta, status.st_size, file.runs)
        self._tally.files += 1
        if status.st_nlink > 1:
            self._links.set((status.st_dev, status.st_ino), index)

    def _add_hard_link(self, found: Found) -> None:
        if self.failed:
            return
        index = self._links.get((found.status.st_dev, found.status.st_ino))
        if index is None or index == _PENDING:  # its first name vanished, or was replaced, before it was read
            self.as_told = False
            self.add(self._read_now(found))
            return
        self._builder.add_hard_link(found.name, index)
        self._tally.files += 1
        self._tally.moved(found.status.st_size)

    def _path(self, name: bytes) -> bytes:
        return self._parent + b"/" + name if self._parent else name

    def _mtime(self, status: os.stat_result, path: bytes) -> int:
        """0 if times are not kept. One that a catalog cannot hold is counted; the builder takes the nearest."""
        if not self._keep_mtimes:
            return 0
        if not -MAX_SIZE <= status.st_mtime_ns < MAX_SIZE:
            self._count_not_kept("mtime", path)
        return status.st_mtime_ns

    def _meta(self, status: os.stat_result, attributes: Attributes, path: bytes) -> Meta:
        return Meta(status.st_mode, self._mtime(status, path), status.st_uid, status.st_gid, attributes.kept)

    def _leave_out(self, left_out: LeftOut) -> None:
        why = ""
        if left_out.why:
            why = f": {left_out.why}" if left_out.reason is Reason.UNREADABLE else f" ({left_out.why})"
        self._left_out[left_out.reason].add(lambda: path_text(left_out.path) + why)

    def _count_attributes(self, attributes: Attributes, path: bytes) -> None:
        for name in attributes.others:
            self._count_not_kept(name, path)

    def _count_not_kept(self, name: str, path: bytes) -> None:
        is_new = name not in self._not_kept
        group = "others" if is_new and len(self._not_kept) >= ATTRIBUTE_NAMES else name
        self._not_kept.setdefault(group, _Names(1)).add(lambda: path_text(path))


class _Names:
    """A count, and the first so many lines of what was counted."""

    def __init__(self, limit: int) -> None:
        self.count = 0
        self.first: list[str] = []
        self._limit = limit

    def add(self, line: Callable[[], str]) -> None:
        self.count += 1
        if len(self.first) < self._limit:
            self.first.append(line())

    def lines(self) -> list[str]:
        more = self.count - len(self.first)
        return [*self.first, f"and {more} more"] if more else self.first

    def named(self) -> Named:
        return Named(self.count, tuple(self.first[:NAMED]))
