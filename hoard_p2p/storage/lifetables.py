"""What the index keeps about the life of snapshots on this node: holds, leases of mounts, what is to be forgotten."""

from collections.abc import Iterable, Sequence
from pathlib import Path

from hoard_p2p.ids import ChunkId, SnapshotId
from hoard_p2p.storage import extents as chunks
from hoard_p2p.storage import journal, ledger
from hoard_p2p.storage.chronicle import held
from hoard_p2p.storage.index import Index, Table
from hoard_p2p.storage.recording import Recorder
from hoard_p2p.storage.records import LeaseRecord, decode_file


class LifeTables:
    """A part of the store. Blocking; thread-safe."""

    def __init__(self, index: Index, recorder: Recorder) -> None:
        self._index = index
        self._recorded = recorder.recorded

    def drop_holds(self, snapshot: SnapshotId, segments: Iterable[int]) -> None:
        """This node need not keep these segments any more; their chunks are left to eviction."""
        numbers = list(segments)
        if numbers:
            with self._recorded([held(journal.Kind.UNHELD, snapshot, numbers)]) as txn:
                ledger.drop_holds(txn, snapshot, numbers)

    def held_snapshots(self) -> set[SnapshotId]:
        """Those that this node keeps segments of."""
        with self._index.read() as txn:
            return ledger.held_snapshots(txn)

    def forget_snapshot(self, snapshot: SnapshotId) -> None:
        """Drop record, root and holds of a snapshot that nobody was told of, without a tombstone."""
        self.forget_snapshots([snapshot])

    def forget_snapshots(self, snapshots: Sequence[SnapshotId]) -> None:
        """The same of several, or of what was removed so long ago that all know."""
        with self._recorded([journal.Entry(journal.Kind.FORGOTTEN, snapshot) for snapshot in snapshots]) as txn:
            for snapshot in snapshots:
                ledger.forget_snapshot(txn, snapshot)

    def forget_refs(self, names: Sequence[str]) -> None:
        """Drop refs, without a tombstone."""
        with self._recorded([journal.Entry(journal.Kind.UNNAMED, name.encode()) for name in names]) as txn:
            for name in names:
                ledger.forget_ref(txn, name)

    def put_lease(self, lease: LeaseRecord) -> None:
        with self._index.write() as txn:
            ledger.put_lease(txn, lease)

    def drop_lease(self, snapshot: SnapshotId, device: str) -> None:
        with self._index.write() as txn:
            ledger.drop_lease(txn, snapshot, device)

    def leases(self) -> list[LeaseRecord]:
        with self._index.read() as txn:
            return ledger.all_leases(txn)

    def file_slabs(self) -> list[tuple[bytes, int]]:
        """The key and the slab of every large file that has one."""
        with self._index.read() as txn:
            return [(key, decode_file(value).slab) for key, value in txn.scan(Table.FILES)]

    def listed(self, after: bytes, count: int) -> list[tuple[ChunkId, int]]:
        """The next `count` chunks of the index behind the id `after`, and the bytes of all their places."""
        with self._index.read() as txn:
            return chunks.listed(txn, after, count)


def boot_id() -> bytes:
    """16 bytes that change when the machine restarts."""
    return bytes.fromhex(Path("/proc/sys/kernel/random/boot_id").read_text().strip().replace("-", ""))
