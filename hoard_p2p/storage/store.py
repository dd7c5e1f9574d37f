"""The one owner of a data directory: its lock, its index, its journal and its slabs. Lives in the node.

What a scrub finds is mended by `mender`; a lost index is made again by `rebuild`, from sidecars and journal.
"""

import contextlib
import struct
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from shlex import quote

from hoard_p2p.config import Floor
from hoard_p2p.errors import BadRequest, NoNode
from hoard_p2p.ids import Bytes, ChunkId, SnapshotId
from hoard_p2p.interfaces import Extent, Place, SlabHandle, SlabKind
from hoard_p2p.storage import extents as chunks
from hoard_p2p.storage import files, journal, ledger, limits
from hoard_p2p.storage.chronicle import SETTINGS, held, setting
from hoard_p2p.storage.condition import Condition
from hoard_p2p.storage.drops import DROPS, number_of
from hoard_p2p.storage.failures import store_failure
from hoard_p2p.storage.groups import WriterSettings
from hoard_p2p.storage.healing import Healer
from hoard_p2p.storage.index import Index, Table
from hoard_p2p.storage.keybook import KeyBook, Pair
from hoard_p2p.storage.layout import DataDir
from hoard_p2p.storage.lifetables import LifeTables
from hoard_p2p.storage.lock import NodeLock
from hoard_p2p.storage.mending import Mender
from hoard_p2p.storage.openslab import blocks_of, make_slab, reopen_slab, trim
from hoard_p2p.storage.reader import StoreReader
from hoard_p2p.storage.reclaim import Reclaimer
from hoard_p2p.storage.recording import Recorder
from hoard_p2p.storage.records import FileSlab, RefRecord, SlabRecord, SnapshotRecord, encode_ref, encode_snapshot
from hoard_p2p.storage.room import Room, size_of
from hoard_p2p.storage.sidecar import SidecarHeader
from hoard_p2p.storage.soundness import refuse_lost
from hoard_p2p.storage.takeover import take_over
from hoard_p2p.storage.writer import ChunkWriter

MOST_COPIED = 1 << 30
"""Bytes that are copied to complete a file that nobody is writing."""

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
        self.recorder = Recorder(self._index, data_dir)
        undo.callback(self.recorder.close)
        self._recorded = self.recorder.recorded
        self.node_id, self.start_number = self.recorder.begin()
        self._reader = StoreReader(self._index, data_dir, owns_index=False)
        undo.callback(self._reader.close)
        self.healer = self._healer = Healer(self._index, self._reader)
        self.keybook = KeyBook(self._index, data_dir)
        undo.callback(self.keybook.close)
        self.mender = Mender(self._index, data_dir, self.healer)
        trim(data_dir)
        self.room = Room(data_dir, self.capacity(), self.floor())
        self.condition = Condition(data_dir, self.room)
        self.life = LifeTables(self._index, self.recorder)
        self._writers: list[ChunkWriter] = []
        self.reclaimer = Reclaimer(
            self._index,
            self._reader,
            data_dir,
            healer=self._healer,
            room=self.room,
            writers=self._writers,
            new_writer=self.writer,
        )
        undo.callback(self.reclaimer.close)
        self._continued: set[int] = set()
        """File slabs of earlier starts whose lock this one had: their former writers are gone."""
        self._undo = undo

    @classmethod
    def open(cls, data_dir: Path, *, create: bool = True) -> "Store":
        """Take the data directory, making it if `create`. Raises NodeRunning, StoreFormatUnknown, StoreFailed,
        IndexLost (nothing is changed then), Refused if it holds files of somebody else, and NoNode if there is none and
        `create` is false."""
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
                if not exists:
                    layout.discard_half_made()
                refuse_lost(layout)
                store = cls(layout, undo)
                if not exists:
                    layout.write_format()
            except OSError as error:
                raise store_failure(
                    f"the data directory {data_dir} cannot be used (another can be chosen with --data-dir)", error
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
        with self.reclaimer.making:
            return self._make_slab_alone(kind, size, file_key)

    def _make_slab_alone(self, kind: SlabKind, size: int, file_key: bytes) -> SlabHandle:
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
                chunks.forget_slab(txn, slab)
            raise store_failure(f"no new slab in {self._layout.slabs}", error) from error

    def grant(self, size: int) -> None:
        self.room.grant(size)

    def give_back(self, size: int, taken: int = 0) -> None:
        self.room.turn(size, taken)

    def commit(self, extents: Sequence[Extent], known: Sequence[Pair] = ()) -> None:
        """See SlabBroker. Also raises BadRequest or Refused if a slab is neither made nor continued in this start."""
        self.reclaimer.committed(extent.chunk_id for extent in extents)
        with self._index.write() as txn:
            for slab in {extent.slab for extent in extents} - self._continued:
                chunks.own_slab(txn, slab, self.start_number)
            chunks.add_extents(txn, extents)
            learned = self.keybook.learn(txn, known)
        self.keybook.note(learned)
        self._healer.committed(extents)

    def complete_file(self, file_key: bytes, slab: int, complete: bool) -> None:
        with self._index.write() as txn:
            if slab not in self._continued:
                chunks.own_slab(txn, slab, self.start_number)
            complete = complete and self._healer.may_complete(slab) and self.reclaimer.may_complete(slab)
            chunks.put_file(txn, file_key, FileSlab(slab, complete))
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
        losses = self.reclaimer.losses
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
            if not fit.missing and losses != self.reclaimer.losses:
                return False
            complete = not fit.missing and self._healer.may_complete(fit.slab)
            chunks.put_file(txn, file_key, FileSlab(fit.slab, complete))
            chunks.set_file_key(txn, fit.slab, file_key)
        return complete if handle is None else writer.complete_file(handle, file_key, runs)

    def take_over(self, file_key: bytes, runs: files.Runs) -> int | None:
        """See `takeover`."""
        return take_over(self._index, self._reader, file_key, runs)

    def file_slab(self, file_key: bytes) -> FileSlab | None:
        """The slab of a large file and whether it is complete; None if none is known."""
        return self._reader.file_slab(file_key)

    def contents(self, ids: Sequence[ChunkId]) -> list[ChunkId | None]:
        """What origin keys were found to be, None where that is not known here; other ids stay. One transaction."""
        return self._reader.contents(ids)

    def unknow(self, keys: Sequence[ChunkId]) -> None:
        """Forget what these origin keys were found to be: it was wrong. Their chunks stay, as what they are."""
        self.keybook.forget(keys)

    def mend(self) -> int:
        """Write anew what is damaged of the files that are neither slabs nor index; how many that were. Raises
        StoreFailed."""
        return self.recorder.mend() + self.keybook.mend()

    def quarantine(self, chunk_id: ChunkId, place: Place) -> bool:
        """Forget one place whose bytes are wrong; False if the index does not list it (any more). The chunk's next
        place has a generation that differs from this one's. A file slab that loses a place is incomplete from then,
        until the place is healed."""
        content = self._reader.content(chunk_id)
        return content is not None and self._healer.quarantine(content, place)

    def distrust(self, chunk_id: ChunkId, place: Place) -> bool:
        """Look at a place whose bytes somebody found wrong: whether it is wrong indeed, and was listed until now.

        It is quarantined then, and healed at once if another place of this disk has the chunk. The id of a piece from
        an origin may be its key, here and for `quarantine`."""
        content = self._reader.content(chunk_id)
        return content is not None and self._healer.distrust(content, place)

    def heal(self, chunk_id: ChunkId, data: Bytes) -> Place | None:
        """Write `data`, which the caller has hashed, over every quarantined place of the chunk, in the same file, and
        list them again; the first of them. None if there is none, or no slab allows it (cut short, gone, read-only):
        then the chunk is to be stored like any other."""
        return self._healer.heal(chunk_id, data)

    # --- reading and writing chunks in this process

    def writer(self, settings: WriterSettings | None = None) -> ChunkWriter:
        """A new writer, closed by its user, or by `close` at the latest."""
        writer = ChunkWriter(self, self._reader, settings)
        self._writers[:] = [known for known in self._writers if not known.closed] + [writer]
        return writer

    def reader(self) -> StoreReader:
        """The reader of this process; always the same one. It ends with the store."""
        return self._reader

    # --- figures

    def capacity(self) -> int | None:
        """Bytes that the operator allowed, None if never set."""
        with self._index.read() as txn:
            return limits.capacity(txn)

    def set_capacity(self, size: int) -> None:
        self.choose(limits.CAPACITY, limits.encode_capacity(size))
        self.room.limit(capacity=size)

    def meta(self, name: bytes) -> bytes | None:
        """A value of the index's table META."""
        with self._index.read() as txn:
            return txn.get(Table.META, name)

    def note(self, values: Mapping[bytes, bytes]) -> None:
        """Keep values in META that a rebuilt index may lack."""
        with self._index.write() as txn:
            for name, value in values.items():
                txn.put(Table.META, name, value)

    def choose(self, name: bytes, value: bytes) -> None:
        """Keep an operator's choice in META, and in the journal. `name` is one of `chronicle.SETTINGS`."""
        assert name in SETTINGS
        with self._recorded([setting(name, value)]) as txn:
            txn.put(Table.META, name, value)

    def floor(self) -> Floor:
        """What stays free of the file system."""
        with self._index.read() as txn:
            return limits.floor(txn)

    def set_floor(self, floor: Floor) -> None:
        self.choose(limits.FLOOR, limits.encode_floor(floor))
        self.room.limit(floor=floor)

    def extents_count(self) -> int:
        """Number of chunks that have a place."""
        with self._index.read() as txn:
            return txn.count(Table.CHUNKS)

    def used_bytes(self) -> int:
        """What slabs and sidecars take on the disk. Looks at every slab."""
        return size_of(self._layout.slabs)

    def drops(self) -> int:
        """See `storage.drops`."""
        with self._index.read() as txn:
            known = txn.get(Table.META, DROPS)
        if known is not None:
            return number_of(known)
        with self._index.write() as begun:
            begun.has_dropped = True
        return self.drops()

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
        numbers = list(segments)
        if numbers:
            with self._recorded([held(journal.Kind.HELD, snapshot, numbers)]) as txn:
                ledger.add_holds(txn, snapshot, numbers)

    def holds(self, snapshot: SnapshotId) -> set[int]:
        with self._index.read() as txn:
            return ledger.holds(txn, snapshot)


def _snapshot_entry(snapshot: SnapshotId, record: SnapshotRecord) -> journal.Entry:
    if record.id != snapshot:
        raise BadRequest(f"record of {record.id.hex()} given for snapshot {snapshot.hex()}")
    return journal.Entry(journal.Kind.SNAPSHOT, encode_snapshot(record))
