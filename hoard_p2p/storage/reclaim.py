"""Giving space back: places leave the index, and their blocks the disk as soon as nobody can read there any more.

A freed extent is never given out again: whole blocks are punched, and a slab with nothing left is unlinked. So no
writer that outlived its node can reach bytes of somebody else, and no reader sees other bytes than those of its chunk.
docs/concurrency.md has the order of the steps and what a crash leaves at each.
"""

import threading
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import islice
from typing import NamedTuple, TypeVar

from hoard_p2p.ids import ChunkId
from hoard_p2p.interfaces import Place
from hoard_p2p.storage import extents as chunks
from hoard_p2p.storage.claims import Claims
from hoard_p2p.storage.freeing import Freeing, Held, Slab
from hoard_p2p.storage.healing import Healer
from hoard_p2p.storage.index import Index, Table
from hoard_p2p.storage.layout import DataDir
from hoard_p2p.storage.leftovers import Leftovers
from hoard_p2p.storage.limbo import Gone, Limbo, Waiting
from hoard_p2p.storage.reader import StoreReader
from hoard_p2p.storage.room import Room
from hoard_p2p.storage.writer import ChunkWriter

T = TypeVar("T")

STEP = 1000
"""Chunks that are unlisted in one transaction: a publish waits for the index no longer than that takes."""
PAUSE = 0.001
"""Seconds between two such transactions: a lock goes to who asks first, and that would be us again."""


class Dropped(NamedTuple):
    """Chunks that lost places, and the bytes of those places."""

    chunks: int
    bytes: int

    def plus(self, other: "Dropped") -> "Dropped":
        return Dropped(self.chunks + other.chunks, self.bytes + other.bytes)


class Reclaimed(NamedTuple):
    """Bytes of disk that were returned, and what is not returned yet."""

    bytes: int
    waiting: tuple[Waiting, ...] = ()


class Reclaimer:
    """See the module. Blocking; safe from several threads."""

    def __init__(
        self,
        index: Index,
        reader: StoreReader,
        layout: DataDir,
        *,
        healer: Healer,
        room: Room,
        writers: Sequence[ChunkWriter],
        new_writer: Callable[[], ChunkWriter],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`writers`: those of this process; the list changes as they come and go."""
        self._index = index
        self._healer = healer
        self._writers = writers
        self._limbo = Limbo(index, clock)
        self._new_writer = new_writer
        self._freeing = Freeing(index, reader, layout, healer=healer, limbo=self._limbo, room=room)
        self._leftovers = Leftovers(
            index, reader, layout, freeing=self._freeing, healer=healer, room=room, unlist=self._unlist_all
        )
        self._lock = threading.Lock()
        self._turn = threading.Lock()  # who gives space back does it alone
        self.making = threading.Lock()
        """Held while a slab is made, so that nobody takes a half made one for garbage."""
        self._claims: tuple[Claims, ...] = ()
        self.losses = 0
        """Grows inside each transaction that unlists something: who looked through the index before, and finds the same
        number inside a write transaction, knows that nothing went meanwhile."""
        self._fresh: Claims | None = None
        self._marking = 0

    # --- unlisting

    def drop(self, ids: Iterable[ChunkId]) -> Dropped:
        """Unlist every place of these chunks; those that are pending or claimed are left. In several transactions. Call
        it inside `marking` if it was found out before that nobody needs them."""
        with self.marking():
            return self._forget(sorted(set(ids)))

    def sweep(self, live: Callable[[ChunkId], bool]) -> Dropped:
        """Go through the whole index and unlist the chunks that are not `live`. Chunks that are committed meanwhile
        stay; call it inside `marking` if `live` was made before. `live` is asked outside of any transaction."""
        total = Dropped(0, 0)
        for dropped in self.sweep_steps(live):
            total = total.plus(dropped)
        return total

    def sweep_steps(self, live: Callable[[ChunkId], bool]) -> Iterator[Dropped]:
        """The same, page by page, for those who may end it in between."""
        with self.marking():
            for page in self._index.pages(Table.CHUNKS, 2 * STEP):
                yield self._forget([ChunkId(key) for key, _ in page if not live(ChunkId(key))])
            self._healer.give_up([chunk_id for chunk_id in self._healer.damaged() if not live(chunk_id)])

    @contextmanager
    def marking(self) -> Iterator[None]:
        """Whatever is committed, or was claimed by a publish that has not ended when this begins, is not dropped inside
        this block: what is live may be found out meanwhile."""
        if self._turn.acquire(blocking=False):
            try:
                self._free_claims(merge=False)  # that takes some ms, and this may be the event loop
            finally:
                self._turn.release()
        with self._lock:
            self._marking += 1
            self._fresh = self._fresh or Claims()
        try:
            yield
        finally:
            with self._lock:
                self._marking -= 1
                if not self._marking:
                    self._fresh.close()
                    self._fresh = None

    def committed(self, ids: Iterable[ChunkId]) -> None:
        """The store tells, before the index does, which chunks it is about to list."""
        if self._marking:
            with self._lock:
                if self._fresh is not None:
                    self._fresh.mark(ids)

    def _forget(self, ids: Sequence[ChunkId]) -> Dropped:
        dropped = self._unlist_all(ids, lambda places: places)
        self._healer.give_up(ids)
        return dropped

    def _unlist_all(self, ids: Iterable[ChunkId], unwanted: chunks.Unwanted) -> Dropped:
        total = Dropped(0, 0)
        for part in batched(ids, STEP):
            total = total.plus(self._unlist(part, unwanted))
            if len(part) == STEP:
                time.sleep(PAUSE)
        return total

    def _unlist(self, ids: Sequence[ChunkId], unwanted: chunks.Unwanted) -> Dropped:
        count = 0
        with self._limbo.entering() as batch:
            with self._index.write() as txn:
                for chunk_id in ids:
                    if self._needed(chunk_id):
                        continue
                    gone = chunks.unlist(txn, chunk_id, unwanted)
                    count += bool(gone)
                    for place in gone:
                        batch.extents.add(Gone(chunk_id, place))
                for slab in batch.extents.slabs():
                    chunks.demote(txn, slab)
                    self._healer.demoted(slab)
                self.losses += count
                number = txn.number
            batch.txn = number
        return Dropped(count, batch.extents.size)

    def _needed(self, chunk_id: ChunkId) -> bool:
        return (
            (self._fresh is not None and self._fresh.has(chunk_id))
            or any(claims.has(chunk_id) for claims in self._claims)
            or any(writer.pending(chunk_id) for writer in tuple(self._writers))
        )

    def may_complete(self, slab: int) -> bool:
        """Whether no place of a slab that somebody writes was unlisted: those stay in limbo until its lock is free.
        Called inside the transaction that records it complete."""
        return not self._limbo.has(slab)

    # --- giving back

    def reclaim(self) -> Reclaimed:
        """Give back what nobody can read any more. Never waits for readers; says what they hold up. Raises StoreFailed
        if the index cannot be written."""
        with self._turn:
            for batch in self._limbo.settle():
                self._limbo.free(self._unclaimed(list(batch.extents.all())))
            self._free_claims(merge=True)
            size = sum(self._give_back(slab) for slab in self._limbo.free_slabs())
            self._freeing.ghosts.look()
        return Reclaimed(size, self._limbo.waiting())

    def _unclaimed(self, gone: list[Gone]) -> list[Gone]:
        """List those again that a publish relies on; the others. Who looked before they were unlisted marked them
        before that, and is done looking; who looks later does not find them."""
        claimed = [each for each in gone if any(claims.has(each.chunk_id) for claims in self._claims)]
        for part in batched(claimed, STEP):
            with self._index.write() as txn:
                for chunk_id, place in part:
                    chunks.relist(txn, chunk_id, place)
        taken = set(claimed)
        return [each for each in gone if each not in taken] if taken else gone

    def _give_back(self, number: int) -> int:
        """Free what is free in one slab; how many bytes of disk that returned."""
        sent = self._sent_of(number)
        try:
            size = self._free(number, {each.place for each in sent})
        except FileNotFoundError:  # somebody deleted it: its row is removed with the leftovers
            size = 0
        except (OSError, Held) as error:
            self._limbo.held(number, str(error))
            return 0
        self._limbo.punched(number, sent)
        self._limbo.held(number, f"extents of slab {number} are being sent")
        return size

    def _sent_of(self, number: int) -> list[Gone]:
        if not any(slab == number for slab, _, _ in list(self._freeing.sends)):
            return []
        return [each for each in self._limbo.free_in(number) if each.place[:3] in self._freeing.sends]

    def _free(self, number: int, sent: Collection[Place]) -> int:
        """Raises OSError, Held."""
        with self._freeing.opened(number) as slab:
            if slab is None:
                return 0
            if slab.locked or not self._freeing.is_worth_asking(slab):
                return self._free_opened(slab, sent)
        for writer in tuple(self._writers):  # it may be one of ours, that can go on elsewhere
            writer.put_aside(number)
        with self._freeing.opened(number) as slab:
            return self._free_opened(slab, sent) if slab else 0

    def _free_opened(self, slab: Slab, sent: Collection[Place]) -> int:
        size = self._freeing.free(slab, (gone for gone in self._limbo.free_in(slab.number) if gone.place not in sent))
        if not slab.locked:
            for writer in tuple(self._writers):
                writer.note_space()
        return size

    def leftovers(self) -> Reclaimed:
        """Garbage that the index never listed, or forgot in a crash; sidecars, empty slabs, rows without files, and
        slabs that are nearly empty. Slow: use `leftover_steps` in the background. Raises StoreFailed."""
        size = sum(self.leftover_steps())
        return Reclaimed(size, self._limbo.waiting())

    def leftover_steps(self) -> Iterator[int]:
        """The same in steps of a slab each (10 us an extent), between which others get their turn; bytes that each one
        freed."""
        copies: list[ChunkWriter] = []

        def writer() -> ChunkWriter:
            copies[:] = copies or [self._new_writer()]
            return copies[0]

        with self.making:
            steps = list(self._leftovers.steps(writer))
        try:
            for step in steps:
                with self._turn:
                    size = step()
                yield size
        finally:
            for each in copies:
                each.close()

    def drop_redundant(self, slabs: Iterable[int]) -> Dropped:
        """Unlist the places in these file slabs whose chunk has another place, so that the slabs need less room. No
        leased snapshot may have a file in one of them: it could be read by a mount's kernel itself."""
        total = Dropped(0, 0)
        for number in slabs:
            with self._freeing.opened(number) as slab:
                pieces = [] if slab is None else [extents for _, extents in self._freeing.listed(slab)]
            for extents in pieces:
                ids = [extent.chunk_id for extent in extents]
                total = total.plus(self._unlist_all(ids, partial(chunks.redundant_in, number)))
        return total

    @property
    def ghost_bytes(self) -> int:
        """Disk space of slabs that were unlinked and that others still have open or mapped."""
        return self._freeing.ghosts.bytes

    def mounts_ended_hard(self) -> None:
        """A mount was ended under its users (`umount --force`, a lazy unmount, all of its processes killed)."""
        self._freeing.note_hard_end()

    def close(self) -> None:
        """Ask about no ghosts any more; what is in limbo is found again at the next start."""
        self._freeing.ghosts.close()
        for claims in self._claims:
            claims.free()

    # --- who may not be disturbed

    @contextmanager
    def sending(self, place: Place) -> Iterator[None]:
        """The bytes at `place` stay where they are inside this block, if the chunk is listed there when it begins: look
        the place up before, and once more inside."""
        self.send(place)
        try:
            yield
        finally:
            self.sent(place)

    def send(self, *places: Place) -> None:
        """The begin of `sending`, for those who cannot use a block."""
        sends = self._freeing.sends
        with self._lock:
            for place in places:
                sends[place[:3]] += 1

    def sent(self, *places: Place) -> None:
        """The end of one `send` of each place; its generation does not matter."""
        sends = self._freeing.sends
        with self._lock:
            for place in places:
                sends[place[:3]] -= 1
                if sends[place[:3]] <= 0:
                    del sends[place[:3]]

    def new_claims(self) -> Claims:
        """A table of marks for a publish, which closes it when it has told what it relies on: then its snapshot is
        known. What is marked there is not lost until that, nor to a sweep that began before."""
        claims = Claims(lingers=True)
        with self._lock:
            self._claims = (*self._claims, claims)
        return claims

    def _free_claims(self, *, merge: bool) -> None:
        """Free the tables that are closed, once nobody acts on what he found out before, and no dropped place waits to
        be compared with them; until then `merge` them into one. Turn held."""
        with self._lock:  # in this order: who decides later knows the snapshots of those that have ended by now
            ended, deciding = [claims for claims in self._claims if claims.closed], self._marking > 0
        kept = ended[:1] if deciding or self._limbo.unsettled else []
        if kept and not merge:
            return
        for claims in ended[len(kept) :]:
            if kept:
                kept[0].absorb(claims)
        with self._lock:
            self._claims = (*kept, *(claims for claims in self._claims if claims not in ended))
        for claims in ended[len(kept) :]:
            claims.free()


def batched(rows: Iterable[T], size: int) -> Iterator[list[T]]:
    """`rows` in lists of `size`."""
    rest = iter(rows)
    while part := list(islice(rest, size)):
        yield part
