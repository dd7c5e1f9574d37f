"""The one owner of a data directory: its lock, its index, its journal and its slabs. Lives in the node.

Eviction, scrub and the rebuild of a lost index belong here too, over what is laid down already: `sidecar.scan` and
`journal.scan` say what there was, `quarantine` takes a place out of the index, `Table.HOLDS` says what is wanted.
"""

import contextlib
import os
import struct
import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from shlex import quote

from hoard_p2p.config import DEFAULT_FLOOR, Floor, parse_floor
from hoard_p2p.errors import BadRequest, NoNode, StoreFailed
from hoard_p2p.ids import Bytes, ChunkId, SnapshotId
from hoard_p2p.interfaces import Extent, Place, SlabHandle, SlabKind
from hoard_p2p.peer import NODE_ID_SIZE, NodeId
from hoard_p2p.storage import extents as chunks
from hoard_p2p.storage import files, journal, ledger
from hoard_p2p.storage.groups import WriterSettings
from hoard_p2p.storage.healing import Healer
from hoard_p2p.storage.index import Index, Table, Transaction
from hoard_p2p.storage.layout import DataDir
from hoard_p2p.storage.lock import NodeLock
from hoard_p2p.storage.openslab import blocks_of, make_slab, reopen_slab, trim
from hoard_p2p.storage.reader import StoreReader
from hoard_p2p.storage.reclaim import Reclaimer
from hoard_p2p.storage.records import (
    FileSlab,
    LeaseRecord,
    RefRecord,
    SlabRecord,
    SnapshotRecord,
    encode_ref,
    encode_snapshot,
)
from hoard_p2p.storage.room import Room, size_of
from hoard_p2p.storage.sidecar import SidecarHeader
from hoard_p2p.storage.writer import ChunkWriter

MOST_COPIED = 1 << 30
"""Bytes that are copied to complete a file that nobody is writing."""

_NODE_ID = b"node_id"
_START = b"start"
_CAPACITY = b"capacity"
_FLOOR = b"floor"
_U64 = struct.Struct("<Q")


class Store:
    """SlabBroker, and everything else that changes the index. Blocking: call it from an executor, from any thread.

    `start_number` counts how often this data directory was opened: the node's incarnation, and the fence of slabs."""

    def __init__(self, data_dir: DataDir, undo: contextlib.ExitStack) -> None:
        """Use `open`. `undo` holds the lock; it is closed when this fails, and else by `close`."""
        self.data_dir = data_dir.path
        self._layout = data_dir
        self._index = Index.for_writing(data_dir.index)
        undo.callback(self._index.close)
        self._journal = journal.Journal(data_dir.journal)
        undo.callback(self._journal.close)
        self._names = threading.Lock()  # keeps the journal in the order of the index
        self.node_id, self.start_number = self._begin()
        self._reader = StoreReader(self._index, data_dir, owns_index=False)
        undo.callback(self._reader.close)
        self._healer = Healer(self._index, self._reader)
        trim(data_dir)
        self.room = Room(data_dir, self.capacity(), self.floor())
        self._writers: list[ChunkWriter] = []
        self.reclaimer = Reclaimer(self._index, self._reader, data_dir, self._healer, self._writers)
        undo.callback(self.reclaimer.close)
        self._continued: set[int] = set()
        """File slabs of earlier starts whose lock this one had: their former writers are gone."""
        self._undo = undo

    @classmethod
    def open(cls, data_dir: Path, *, create: bool = True) -> "Store":
        """Take the data directory, making it if `create`. Raises NodeRunning, StoreFormatUnknown, StoreFailed,
        Refused if it holds files of somebody else, and NoNode if there is none and `create` is false."""
        layout = DataDir(data_dir)
        with contextlib.ExitStack() as undo:
            try:
                exists = layout.check_format()
                if not exists and not create:
                    raise NoNode(
                        f"there is no store in {data_dir}; make one with: hoard up --data-dir {quote(str(data_dir))}"
                    )
                layout.refuse_foreign()
                layout.make()
                undo.callback(NodeLock(layout.lock).release)
                store = cls(layout, undo)
                if not exists:
                    layout.write_format()
            except OSError as error:
                raise StoreFailed(
                    f"the data directory {data_dir} cannot be used: {error}; choose another with --data-dir"
                ) from error
            store._undo = undo.pop_all()
            return store

    def close(self) -> None:
        """Close the writers made here, the index, the lock. Raises StoreFailed as `ChunkWriter.close` does."""
        with self._undo:
            while self._writers:
                self._undo.callback(self._writers.pop().close)

    def __enter__(self) -> "Store":
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    # --- slabs (SlabBroker)

    def new_slab(self, kind: SlabKind, size: int) -> SlabHandle:
        return self._make_slab(kind, size if kind is SlabKind.FILE else 0, b"")

    def resume_slab(self, file_key: bytes, size: int) -> SlabHandle:
        """See SlabBroker. A slab of an earlier start is continued if its lock can be had: then whoever wrote it is
        gone. There is no room to give out in a file slab, as there is in a shared one: each chunk has its offset."""
        known = self.file_slab(file_key)
        handle = None if known is None or known.complete else self._continue_slab(known.slab, size)
        return handle or self._make_slab(SlabKind.FILE, size, file_key)

    def _continue_slab(self, slab: int, size: int) -> SlabHandle | None:
        """A file slab to go on writing, None if somebody writes it or it is damaged."""
        with self._index.read() as txn:
            record = chunks.get_slab(txn, slab)
        if record is None or record.kind is not SlabKind.FILE or record.size != size:
            return None
        handle = reopen_slab(self._layout.slab(record.kind, record.start, slab), slab, record.kind, size)
        if handle is not None:
            self._continued.add(slab)
        return handle

    def _make_slab(self, kind: SlabKind, size: int, file_key: bytes) -> SlabHandle:
        record = SlabRecord(kind, self.start_number, size, time.time_ns(), file_key)
        with self._index.write() as txn:  # before the file: a number that was used once is never used again
            slab = chunks.add_slab(txn, record)
        try:
            path = self._layout.slab(kind, self.start_number, slab)
            handle = make_slab(path, SidecarHeader(slab, self.start_number, size, kind))
            self.room.turn(0, blocks_of(handle.data_fd, handle.sidecar_fd))
            return handle
        except OSError as error:
            with self._index.write() as txn:
                chunks.drop_slab(txn, slab)
            raise StoreFailed(f"no new slab in {self._layout.slabs}: {error}") from error

    def grant(self, size: int) -> None:
        self.room.grant(size)

    def give_back(self, size: int, taken: int = 0) -> None:
        self.room.turn(size, taken)

    def commit(self, extents: Sequence[Extent]) -> None:
        """See SlabBroker. Also raises BadRequest or Refused if a slab is neither made nor continued in this start."""
        self.reclaimer.committed(extent.chunk_id for extent in extents)
        with self._index.write() as txn:
            for slab in {extent.slab for extent in extents} - self._continued:
                chunks.own_slab(txn, slab, self.start_number)
            chunks.add_extents(txn, extents)
        self._healer.committed(extents)

    def complete_file(self, file_key: bytes, slab: int, complete: bool) -> None:
        with self._index.write() as txn:
            if slab not in self._continued:
                chunks.own_slab(txn, slab, self.start_number)
            chunks.put_file(txn, file_key, FileSlab(slab, complete and self._healer.may_complete(slab)))
            chunks.set_file_key(txn, slab, file_key)

    def settle_file(self, file_key: bytes, runs: Sequence[tuple[ChunkId, int]], writer: ChunkWriter) -> bool:
        """Look at a large file whose slab is not recorded complete, though perhaps it is, or nearly: after a crash
        between its last chunk and the record, or when the last chunk came with another file. Whether it is complete
        then, or will be with the writer's next flush.

        `writer` copies what is missing, if that is little. Slow for long files: reads a row of the index for each run.
        """
        known = self.file_slab(file_key)
        if known is not None and known.complete:
            return True
        with self._index.read() as txn:
            fit = files.best_slab(txn, runs)
        if fit is None or fit.missing > min(writer.copy_share * fit.data, MOST_COPIED):
            return False
        if not files.holes_are_zeros(self._reader.slab_path(fit.slab), runs):
            return False
        handle = self._continue_slab(fit.slab, sum(length for _, length in runs)) if fit.missing else None
        if fit.missing and handle is None:
            return False
        with self._index.write() as txn:
            complete = not fit.missing and self._healer.may_complete(fit.slab)
            chunks.put_file(txn, file_key, FileSlab(fit.slab, complete))
            chunks.set_file_key(txn, fit.slab, file_key)
        return complete if handle is None else writer.complete_file(handle, file_key, runs)

    def file_slab(self, file_key: bytes) -> FileSlab | None:
        """The slab of a large file and whether it is complete; None if none is known."""
        return self._reader.file_slab(file_key)

    def quarantine(self, chunk_id: ChunkId, place: Place) -> bool:
        """Forget one place whose bytes are wrong; False if the index does not list it (any more). The chunk's next
        place has a generation that differs from this one's. A file slab that loses a place is incomplete from then,
        until the place is healed."""
        return self._healer.quarantine(chunk_id, place)

    def distrust(self, chunk_id: ChunkId, place: Place) -> bool:
        """Look at a place whose bytes somebody found wrong: whether it is wrong indeed, and was listed until now.

        It is quarantined then, and healed at once if another place of this disk has the chunk."""
        return self._healer.distrust(chunk_id, place)

    def heal(self, chunk_id: ChunkId, data: Bytes) -> Place | None:
        """Write `data`, which the caller has hashed, over every quarantined place of the chunk, in the same file, and
        list them again; the first of them. None if there is none, or no slab allows it (cut short, gone, read-only):
        then the chunk is to be stored like any other."""
        return self._healer.heal(chunk_id, data)

    # --- reading and writing chunks in this process

    def writer(self, settings: WriterSettings | None = None) -> ChunkWriter:
        """A new writer, closed by its user, or by `close` at the latest."""
        writer = ChunkWriter(self, self._reader, settings)
        self._writers.append(writer)
        return writer

    def reader(self) -> StoreReader:
        """The reader of this process; always the same one. It ends with the store."""
        return self._reader

    # --- figures

    def capacity(self) -> int | None:
        """Bytes that the operator allowed, None if never set."""
        with self._index.read() as txn:
            raw = txn.get(Table.META, _CAPACITY)
        return int(_U64.unpack(raw)[0]) if raw else None

    def set_capacity(self, size: int) -> None:
        with self._index.write() as txn:
            txn.put(Table.META, _CAPACITY, _U64.pack(size))
        self.room.limit(capacity=size)

    def floor(self) -> Floor:
        """What stays free of the file system; the default if none was ever set."""
        with self._index.read() as txn:
            raw = txn.get(Table.META, _FLOOR)
        return parse_floor(raw.decode()) if raw else DEFAULT_FLOOR

    def set_floor(self, floor: Floor) -> None:
        with self._index.write() as txn:
            txn.put(Table.META, _FLOOR, str(floor).encode())
        self.room.limit(floor=floor)

    def extents_count(self) -> int:
        """Number of chunks that have a place."""
        with self._index.read() as txn:
            return txn.count(Table.CHUNKS)

    def used_bytes(self) -> int:
        """What slabs and sidecars take on the disk, reserved space included. Looks at every slab."""
        return size_of(self._layout.slabs)

    # --- snapshots

    def put_root(self, snapshot: SnapshotId, root: bytes, record: SnapshotRecord) -> None:
        """Keep a root and its record, in one step. Raises BadRequest if `record.id` is not `snapshot`."""
        entries = [journal.Entry(journal.Kind.ROOT, snapshot + root), _snapshot_entry(snapshot, record)]
        with self._recorded(entries) as txn:
            txn.put(Table.ROOTS, snapshot, root)
            ledger.put_snapshot(txn, record)

    def show_snapshot(self, snapshot: SnapshotId, record: SnapshotRecord) -> None:
        """Replace the record of a snapshot (shown, pinned, last used ...); its root stays as it is."""
        with self._recorded([_snapshot_entry(snapshot, record)]) as txn:
            ledger.put_snapshot(txn, record)

    def snapshots(self) -> list[SnapshotRecord]:
        """All records, tombstones too, sorted by id."""
        with self._index.read() as txn:
            return ledger.all_snapshots(txn)

    def snapshot(self, snapshot: SnapshotId) -> SnapshotRecord | None:
        with self._index.read() as txn:
            return ledger.get_snapshot(txn, snapshot)

    def root(self, snapshot: SnapshotId) -> bytes | None:
        with self._index.read() as txn:
            return txn.get(Table.ROOTS, snapshot)

    def remove_snapshot(self, snapshot: SnapshotId, tombstone_time: int) -> None:
        """Leave a tombstone (nanoseconds) and drop root and holds. An unknown snapshot gets a tombstone too."""
        record = ledger.tombstone(self.snapshot(snapshot), snapshot, tombstone_time)
        with self._recorded([_snapshot_entry(snapshot, record)]) as txn:
            ledger.put_snapshot(txn, record)
            txn.delete(Table.ROOTS, snapshot)
            ledger.drop_holds(txn, snapshot)

    def forget_snapshot(self, snapshot: SnapshotId) -> None:
        """Drop record, root and holds of a snapshot that nobody was told of, without a tombstone. A rebuild from the
        journal may bring it back, hidden as it was."""
        with self._index.write() as txn:
            ledger.forget_snapshot(txn, snapshot)

    # --- refs and holds

    def put_ref(self, ref: RefRecord) -> None:
        """Replace a ref; the caller decided that this value wins."""
        ledger.ref_key(ref)
        with self._recorded([journal.Entry(journal.Kind.REF, encode_ref(ref))]) as txn:
            ledger.put_ref(txn, ref)

    def refs(self) -> list[RefRecord]:
        """All refs, tombstones too, sorted by name."""
        with self._index.read() as txn:
            return ledger.all_refs(txn)

    def add_holds(self, snapshot: SnapshotId, segments: Iterable[int]) -> None:
        """This node keeps these segments of the snapshot."""
        with self._index.write() as txn:
            ledger.add_holds(txn, snapshot, segments)

    def drop_holds(self, snapshot: SnapshotId, segments: Iterable[int]) -> None:
        """This node need not keep these segments any more; their chunks are left to eviction."""
        with self._index.write() as txn:
            ledger.drop_holds(txn, snapshot, segments)

    def holds(self, snapshot: SnapshotId) -> set[int]:
        with self._index.read() as txn:
            return ledger.holds(txn, snapshot)

    def held_snapshots(self) -> set[SnapshotId]:
        """Those that this node keeps segments of."""
        with self._index.read() as txn:
            return ledger.held_snapshots(txn)

    # --- leases of mounts

    def put_lease(self, lease: LeaseRecord) -> None:
        with self._index.write() as txn:
            ledger.put_lease(txn, lease)

    def drop_lease(self, snapshot: SnapshotId, device: str) -> None:
        with self._index.write() as txn:
            ledger.drop_lease(txn, snapshot, device)

    def leases(self) -> list[LeaseRecord]:
        with self._index.read() as txn:
            return ledger.all_leases(txn)

    def note_forced_end(self) -> None:
        """A mount ended by force or lazily: until the machine restarts, somebody may still read its backing files."""
        with self._index.write() as txn:
            ledger.note_forced_end(txn, boot_id())

    def had_forced_end(self) -> bool:
        """Whether one did since the machine started."""
        with self._index.read() as txn:
            return ledger.had_forced_end(txn, boot_id())

    def listed(self, after: bytes, count: int) -> list[tuple[ChunkId, int]]:
        """The next `count` chunks of the index behind the id `after`, and the bytes of all their places."""
        with self._index.read() as txn:
            return chunks.listed(txn, after, count)

    # --- inside

    @contextlib.contextmanager
    def _recorded(self, entries: Sequence[journal.Entry]) -> Iterator[Transaction]:
        """A change of names: first in the journal, then in the index."""
        with self._names:
            self._journal.append(entries)
            with self._index.write() as txn:
                yield txn

    def _begin(self) -> tuple[NodeId, int]:
        """Count this start; the first one draws the node's id."""
        with self._index.write() as txn:
            raw = txn.get(Table.META, _NODE_ID)
            node_id = NodeId(raw or os.urandom(NODE_ID_SIZE))
            if raw is None:
                self._journal.append([journal.Entry(journal.Kind.NODE, node_id)])
                txn.put(Table.META, _NODE_ID, node_id)
            start = _U64.unpack(txn.get(Table.META, _START) or bytes(8))[0] + 1
            txn.put(Table.META, _START, _U64.pack(start))
            return node_id, start


def boot_id() -> bytes:
    """16 bytes that change when the machine restarts."""
    return bytes.fromhex(Path("/proc/sys/kernel/random/boot_id").read_text().strip().replace("-", ""))


def _snapshot_entry(snapshot: SnapshotId, record: SnapshotRecord) -> journal.Entry:
    if record.id != snapshot:
        raise BadRequest(f"record of {record.id.hex()} given for snapshot {snapshot.hex()}")
    return journal.Entry(journal.Kind.SNAPSHOT, encode_snapshot(record))
