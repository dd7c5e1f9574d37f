"""What the index's tables about snapshots, refs and holds mean. Each function works inside a given transaction."""

import struct
from collections.abc import Iterable

from hoard_p2p.errors import BadRequest
from hoard_p2p.ids import ID_SIZE, SnapshotId
from hoard_p2p.storage.index import Table, Transaction
from hoard_p2p.storage.records import (
    LeaseRecord,
    RefRecord,
    SnapshotRecord,
    decode_lease,
    decode_ref,
    decode_snapshot,
    encode_lease,
    encode_ref,
    encode_snapshot,
)

MAX_REF_NAME = 511
"""Bytes of UTF-8: the longest key LMDB takes."""
_U32 = struct.Struct(">I")  # keys sort by number


def put_snapshot(txn: Transaction, record: SnapshotRecord) -> None:
    txn.put(Table.SNAPSHOTS, record.id, encode_snapshot(record))


def get_snapshot(txn: Transaction, snapshot: SnapshotId) -> SnapshotRecord | None:
    raw = txn.get(Table.SNAPSHOTS, snapshot)
    return decode_snapshot(raw) if raw else None


def all_snapshots(txn: Transaction) -> list[SnapshotRecord]:
    return [decode_snapshot(raw) for _, raw in txn.scan(Table.SNAPSHOTS)]


def tombstone(known: SnapshotRecord | None, snapshot: SnapshotId, when: int) -> SnapshotRecord:
    """The record of a removed snapshot: never created after it was removed; pure."""
    if known is None:
        return SnapshotRecord(snapshot, when, when, 0, False, 0, False, "", when)
    created = min(known.created, when)
    return SnapshotRecord(
        snapshot, created, known.last_used, known.replicas, False, known.keep, False, known.source, when
    )


def put_ref(txn: Transaction, ref: RefRecord) -> None:
    txn.put(Table.REFS, ref_key(ref), encode_ref(ref))


def ref_key(ref: RefRecord) -> bytes:
    """Raises BadRequest if the name is empty or too long to be a key."""
    key = ref.name.encode()
    if not 1 <= len(key) <= MAX_REF_NAME:
        raise BadRequest(f"the name of a ref has 1 - {MAX_REF_NAME} bytes, not {len(key)}")
    return key


def all_refs(txn: Transaction) -> list[RefRecord]:
    return [decode_ref(raw) for _, raw in txn.scan(Table.REFS)]


def forget_ref(txn: Transaction, name: str) -> None:
    """As if nobody had ever set it."""
    txn.delete(Table.REFS, name.encode())


def add_holds(txn: Transaction, snapshot: SnapshotId, segments: Iterable[int]) -> None:
    for segment in segments:
        txn.put(Table.HOLDS, snapshot + _U32.pack(segment), b"")


def holds(txn: Transaction, snapshot: SnapshotId) -> set[int]:
    return {_U32.unpack_from(key, ID_SIZE)[0] for key, _ in txn.scan(Table.HOLDS, snapshot)}


def drop_holds(txn: Transaction, snapshot: SnapshotId, segments: Iterable[int] | None = None) -> None:
    """`segments` None: all."""
    numbers = holds(txn, snapshot) if segments is None else segments
    for segment in numbers:
        txn.delete(Table.HOLDS, snapshot + _U32.pack(segment))


def held_snapshots(txn: Transaction) -> set[SnapshotId]:
    return {SnapshotId(key[:ID_SIZE]) for key, _ in txn.scan(Table.HOLDS)}


def forget_snapshot(txn: Transaction, snapshot: SnapshotId) -> None:
    """As if nobody had ever told of it."""
    for table in (Table.SNAPSHOTS, Table.ROOTS):
        txn.delete(table, snapshot)
    drop_holds(txn, snapshot)


def put_lease(txn: Transaction, lease: LeaseRecord) -> None:
    txn.put(Table.LEASES, _lease_key(lease.snapshot, lease.device), encode_lease(lease))


def drop_lease(txn: Transaction, snapshot: SnapshotId, device: str) -> None:
    txn.delete(Table.LEASES, _lease_key(snapshot, device))


def all_leases(txn: Transaction) -> list[LeaseRecord]:
    return [decode_lease(key, value) for key, value in txn.scan(Table.LEASES)]


def _lease_key(snapshot: SnapshotId, device: str) -> bytes:
    return snapshot + device.encode("utf-8", "surrogateescape")[:64]
