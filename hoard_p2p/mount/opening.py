"""OPEN and RELEASE of a passthrough mount: with a backing file where the whole file is here and was verified under this
mount, through the page cache where not.

An OPEN whose file is being verified is parked for a moment. What is parked is in no table: a worker's successor gets
the request again.
"""

import errno
import logging
import os
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from hoard_p2p.catalog.reader import Catalog, file_key
from hoard_p2p.errors import HoardError
from hoard_p2p.interfaces import FileSlabs
from hoard_p2p.mount.kernel import OPEN_OUT, RELEASE_IN, RESENT, Fopen
from hoard_p2p.mount.opens import CACHED, BackingIds, OpenFiles, TableFull
from hoard_p2p.mount.shared import URGENT, SharedState
from hoard_p2p.segments import LARGE_FILE

log = logging.getLogger(__name__)

PATIENCE = 1.0
"""Seconds that an OPEN waits for its file to be verified, before it is answered without a backing file."""
SOON = 4 << 30
"""Bytes of a file that may be unverified yet for an OPEN to wait; more certainly take longer than `PATIENCE`. A bound
of 128 MiB made a first pass over hot files of 256 MiB 10 % slower: to hash without copying beats verifying READs."""
KEYS = 16_384
"""Files whose key is remembered: to make one takes 2 us per chunk."""
_KEEPING = int(Fopen.KEEP_CACHE | Fopen.NOFLUSH)
_PASSING = int(Fopen.PASSTHROUGH | Fopen.NOFLUSH)
"""Never with KEEP_CACHE: the kernel refuses that with EIO."""
_IMPOSSIBLE = (errno.EPERM, errno.ELOOP, errno.EOPNOTSUPP, errno.ENOTTY)


class OpenReplies(Protocol):
    """Where answers go; `Endpoint` is one."""

    def send(self, unique: int, body: bytes) -> bool: ...

    def fail(self, unique: int, number: int) -> None: ...


class Registrar(BackingIds, Protocol):
    """What makes backing ids; `backing.Backings` is one."""

    def register(self, fd: int) -> int: ...


@dataclass(slots=True)
class _Parked:
    """An OPEN that waits. `unique` has the resent bit if the kernel set it."""

    unique: int
    inode: int
    deadline: float


class Opening:
    """The OPENs and RELEASEs of one mount, in its one worker. Single-threaded; never blocks longer than the disk."""

    def __init__(
        self,
        catalog: Catalog,
        slabs: FileSlabs,
        replies: OpenReplies,
        shared: SharedState,
        backings: Registrar,
        *,
        verify: str,
        ring: Callable[[], None],
    ) -> None:
        """`verify`: as the mount was told; `ring`: wakes the verifier after a hint. Takes up what a predecessor left:
        the open files in `shared`, and ids that it had no time to list."""
        self._catalog = catalog
        self._slabs = slabs
        self._replies = replies
        self._shared = shared
        self._backings = backings
        self._trusting = verify == "arrival"
        self._never = verify == "always"
        self._ring = ring
        self._keys: OrderedDict[int, bytes] = OrderedDict()
        self._parked: dict[int, _Parked] = {}  # by handle
        self._waited: set[int] = set()
        self._files = OpenFiles(shared, backings)
        self._recover()

    def _recover(self) -> None:
        try:
            newest = self._backings.register(self._shared.fd)
        except OSError as error:
            self._refused(error)
            return
        self._files.recover(newest)

    @property
    def parked(self) -> int:
        return len(self._parked)

    # --- requests

    def open(self, unique: int, index: int, now: float) -> None:
        """Answer an OPEN of inode `index`, or park it. Raises CatalogCorrupt: then it is unanswered."""
        handle = unique & ~RESENT
        known = self._parked.get(handle)
        if known is not None:  # sent again: answered as it was read last
            known.unique = unique
            return
        inode = self._catalog.resolve(index)
        backing_id = self._choose(inode)
        if backing_id is None:
            backing_id = self._ask(inode)
        if backing_id is None:
            self._parked[handle] = _Parked(unique, inode, now + PATIENCE)
        else:
            self._answer(unique, inode, backing_id)

    def release(self, unique: int, body: memoryview) -> None:
        handle, *_ = RELEASE_IN.unpack_from(body)
        self._files.remove(handle)
        self._replies.send(unique, b"")

    def interrupt(self, unique: int) -> bool:
        """The opener of a request got a signal. False if it is not parked here."""
        parked = self._parked.pop(unique & ~RESENT, None)
        if parked is not None:
            self._replies.fail(parked.unique, errno.EINTR)
        return parked is not None

    def forget(self, unique: int) -> None:
        """The caller answered the request itself."""
        self._parked.pop(unique & ~RESENT, None)

    def heard(self) -> None:
        """The verifier is done with a file, for good or ill: answer those whose file need not be waited for."""
        for parked in list(self._parked.values()):
            backing_id = self._choose(parked.inode)
            if backing_id is not None:
                self._unpark(parked, backing_id)

    def expire(self, now: float) -> None:
        """Answer every parked OPEN whose patience has ended."""
        for parked in list(self._parked.values()):
            if parked.deadline <= now:
                self._waited.add(parked.inode)
                self._unpark(parked, self._files.backing_of(parked.inode) or CACHED)

    def _unpark(self, parked: _Parked, backing_id: int) -> None:
        del self._parked[parked.unique & ~RESENT]
        self._answer(parked.unique, parked.inode, backing_id)

    def _answer(self, unique: int, inode: int, backing_id: int) -> None:
        handle = unique & ~RESENT
        try:
            self._files.add(handle, inode, backing_id)
        except TableFull:
            if self._files.backing_of(inode) is None and backing_id != CACHED:
                self._backings.close(backing_id)
            self._replies.fail(unique, errno.ENFILE)
            return
        flags = _KEEPING if backing_id == CACHED else _PASSING
        if not self._replies.send(unique, OPEN_OUT.pack(handle, flags, backing_id)):
            self._files.remove(handle)

    # --- the first open of a file decides

    def _choose(self, inode: int) -> int | None:
        """What an OPEN of this inode gets now: a backing id or CACHED; None if its slab has to be verified first."""
        backing_id = self._files.backing_of(inode)
        if backing_id is not None or self._never:
            return backing_id or CACHED
        try:
            size = self._catalog.size(inode)
            if size <= LARGE_FILE:  # has no slab of its own
                return CACHED
            found = self._slabs.file_slab(self._key(inode))
            if found is None or not found[1]:
                return CACHED
            slab = found[0]
            if self._trusting:
                return self._register(slab, size)
            if self._shared.checked[inode] == slab:
                self._tell(inode)  # so that the files behind it are verified
                return self._register(slab, size)
            self._shared.checked[inode] = 0  # what was verified is another slab (I1)
        except (HoardError, OSError) as error:
            log.info("inode %d is opened without a backing file: %s", inode + 1, error)
            return CACHED
        return None

    def _tell(self, inode: int) -> None:
        self._shared.hint(inode | URGENT)
        self._ring()

    def _ask(self, inode: int) -> int | None:
        """Have a file verified. CACHED if there is no waiting for it; else it is waited for once: the next open finds
        it done, or goes without."""
        self._tell(inode)
        nobody = self._shared.slot(self._shared.verifier).beat == 0
        in_vain = nobody or inode in self._waited or self._unverified(inode) > SOON
        return CACHED if in_vain else None

    def _unverified(self, inode: int) -> int:
        """Bytes of a file that the verifier has not seen, about: chunks that occur twice count at their first place."""
        runs = self._catalog.runs(inode)
        share = bytes(self._shared.verified[runs.start : runs.stop]).count(0) / max(len(runs), 1)
        return int(share * self._catalog.size(inode))

    def _register(self, slab: int, size: int) -> int:
        """A backing id for a slab, CACHED if it is not exactly as long as the file (the kernel would show its end) or
        the kernel will not have it. Raises HoardError, OSError."""
        fd = self._slabs.open_slab(slab)
        try:
            return self._backings.register(fd) if os.fstat(fd).st_size == size else CACHED
        except OSError as error:
            self._refused(error)
            return CACHED
        finally:
            os.close(fd)

    def _refused(self, error: OSError) -> None:
        """Count it, say so once per mount, and try no more where it cannot be."""
        self._never = self._never or error.errno in _IMPOSSIBLE
        if self._shared.count_refused() == 0:
            log.warning(
                "the kernel takes no backing file (%s), files are opened without; it needs CAP_SYS_ADMIN, and a store "
                "that is on no stacked file system", error.strerror,
            )  # fmt: skip

    def _key(self, inode: int) -> bytes:
        key = self._keys.get(inode)
        if key is None:
            catalog = self._catalog
            key = file_key((catalog.chunk_id(run), catalog.length(run)) for run in catalog.runs(inode))
            self._keys[inode] = key
            if len(self._keys) > KEYS:
                self._keys.popitem(last=False)
        return key
