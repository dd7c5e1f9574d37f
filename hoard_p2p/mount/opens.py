"""Which files of a passthrough mount are open, and how: the one keeper of what the kernel insists on.

The kernel lets an inode have one backing file at a time, and either that or its page cache: whoever opens it in another
way meanwhile gets EIO. So all open files of an inode share one mode and one backing id, from its first OPEN to its last
RELEASE. (An `mmap` that outlives its descriptor holds the RELEASE back where the file goes through the page cache. With
a backing file it does not: the kernel maps that file itself, and nobody here learns for how long.)

A handle is the number of its OPEN request, without the resent bit: OPEN and RELEASE may come twice, and nothing is
counted. Everything is mirrored in the mount's shared memory, in an order in which a worker can be killed between any
two steps:

    opening: register the id -> note handle, inode and id -> answer     a kill after the first step leaves an id that
                                                                        nobody lists: `recover` closes it
    closing: note the id as closing -> free the handle -> close the id -> answer     after the second: the same
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Protocol

from hoard_p2p.mount.shared import SharedState

CACHED = 0
"""In place of a backing id: reads go through the page cache and, what it does not have, to the worker."""
SWEEP = 4096
"""Ids that `recover` looks at, at most. A worker that is killed leaves one behind at most."""
_LOW = 0xFFFF_FFFF


class TableFull(Exception):
    """More files are open than the mount's memory has room for."""


class BackingIds(Protocol):
    """What gives backing ids back; `backing.Backings` is one."""

    def close(self, backing_id: int) -> None: ...


@dataclass(slots=True)
class _OpenFile:
    """One inode that is open. `backing_id`: CACHED or the id that all its handles share."""

    backing_id: int
    handles: set[int] = field(default_factory=set)


class OpenFiles:
    """The open files of one mount. Single-threaded, and one process at a time."""

    def __init__(self, shared: SharedState, backings: BackingIds) -> None:
        """Takes up what a predecessor left in `shared`."""
        self._shared = shared
        self._table = shared.opens
        self._backings = backings
        self._files: dict[int, _OpenFile] = {}
        self._entries: dict[int, int] = {}  # entry in the table, by handle
        self._used = shared.opens_used
        self._free = [entry for entry in range(self._used) if not self._take_up(entry)]

    def _take_up(self, entry: int) -> bool:
        """False if the entry is free."""
        handle, where = self._table[2 * entry : 2 * entry + 2]
        if handle:
            self._entries[handle] = entry
            file = self._files.setdefault(where >> 32, _OpenFile(where & _LOW))
            file.handles.add(handle)
        return bool(handle)

    def recover(self, newest: int) -> int:
        """Close the ids that a predecessor registered or was about to close, and that are in no entry; how many were
        tried. `newest`: an id registered just now to learn where the kernel is; it is closed too."""
        listed = {file.backing_id for file in self._files.values()}
        leaked = set(range(max(self._shared.backing_last + 1, newest - SWEEP), newest + 1))
        lost = {*leaked, self._shared.backing_closing} - listed - {0}
        for backing_id in lost:
            self._backings.close(backing_id)
        self._shared.backing_last = newest  # last: a worker that is killed here leaves all to its successor
        return len(lost)

    def __len__(self) -> int:
        """Handles that are open."""
        return len(self._entries)

    def __iter__(self) -> Iterator[int]:
        """The handles that are open."""
        return iter(self._entries)

    def backing_of(self, inode: int) -> int | None:
        """The backing id that every open of this inode has to get now, CACHED for the page cache; None if it is not
        open, so that the next open chooses."""
        file = self._files.get(inode)
        return None if file is None else file.backing_id

    def add(self, handle: int, inode: int, backing_id: int) -> None:
        """Note an open, before it is answered; one that is known already changes nothing. `backing_id`: what
        `backing_of` says, or for the first open of an inode a fresh id or CACHED. Raises TableFull."""
        if handle in self._entries:
            return
        entry = self._entry()
        table = self._table
        table[2 * entry + 1] = inode << 32 | backing_id
        table[2 * entry] = handle
        self._entries[handle] = entry
        self._shared.backing_last = max(self._shared.backing_last, backing_id)
        self._files.setdefault(inode, _OpenFile(backing_id)).handles.add(handle)

    def remove(self, handle: int) -> None:
        """A RELEASE, or an OPEN whose answer the kernel did not take. An unknown handle was removed before."""
        entry = self._entries.pop(handle, None)
        if entry is None:
            return
        where = self._table[2 * entry + 1]
        inode, backing_id = where >> 32, where & _LOW
        file = self._files[inode]
        file.handles.discard(handle)
        last = not file.handles
        if last:
            del self._files[inode]
            self._shared.backing_closing = backing_id
        self._table[2 * entry] = 0
        self._free.append(entry)
        if last and backing_id != CACHED:
            self._backings.close(backing_id)

    def _entry(self) -> int:
        if self._free:
            return self._free.pop()
        if 2 * self._used >= len(self._table):
            raise TableFull
        self._used += 1
        self._shared.opens_used = self._used
        return self._used - 1
