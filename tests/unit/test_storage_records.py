"""The bytes of places, snapshots and refs."""

import random
from dataclasses import replace

from hoard_p2p.ids import SnapshotId
from hoard_p2p.interfaces import Place, SlabKind
from hoard_p2p.peer import NodeId
from hoard_p2p.storage import records
from hoard_p2p.storage.records import FileSlab, PastValue, RefRecord, SlabRecord, SnapshotRecord, Stamp

RNG = random.Random(11)
ONE = SnapshotId(RNG.randbytes(32))
NODE = NodeId(RNG.randbytes(16))


def test_a_place_takes_sixteen_bytes_and_keeps_offsets_beyond_four_gibibytes() -> None:
    places = [Place(2**32 - 1, 2**48 - 1, 2**32 - 1, 255), Place(7, 5 << 32 | 9, 4096, 1)]
    value = records.encode_places(places)
    assert len(value) == 2 * 16
    assert records.decode_places(value) == places
    assert records.decode_place(value) == places[0]


def test_place_bytes_are_as_documented() -> None:
    value = records.encode_places([Place(0x01020304, 0x0A0B0C0D0E0F, 0x11121314, 0x2A)])
    assert value.hex() == "04030201" + "0f0e0d0c" + "0b0a" + "14131211" + "2a" + "00"


def test_a_snapshot_record_keeps_every_field() -> None:
    record = SnapshotRecord(ONE, 2**63, 5, 3, True, 2**40, False, "dir:/data/\udcff set", 17)
    assert records.decode_snapshot(records.encode_snapshot(record)) == record


def test_the_stamp_of_a_pin_is_kept_and_a_record_of_version_1_has_none() -> None:
    stamp = records.Stamp(2**63, 7, NodeId(b"n" * 16))
    record = SnapshotRecord(ONE, 1, 1, 3, True, 5, True, "dir:/x", 0, stamp)
    value = records.encode_snapshot(record)
    assert value[0] == 3
    assert records.decode_snapshot(value) == record
    old = b"\1" + value[1:-28]
    assert records.decode_snapshot(old) == replace(record, pin_stamp=records.NEVER)


def test_the_stamp_of_the_replicas_is_kept_and_a_record_of_version_2_has_none() -> None:
    pin, copies = records.Stamp(9, 7, NodeId(b"n" * 16)), records.Stamp(2**63, 1, NodeId(b"m" * 16))
    record = SnapshotRecord(ONE, 1, 1, 3, True, 5, True, "dir:/x", 0, pin, copies)
    value = records.encode_snapshot(record)
    assert records.decode_snapshot(value) == record
    end = len(records.encode_snapshot(replace(record, source=""))) + len("dir:/x")
    assert end == len(value)
    old = b"\2" + value[1 : value.index(b"n" * 16) + 16]
    assert records.decode_snapshot(old) == replace(record, replicas_stamp=records.NEVER)


def test_the_origin_is_kept_and_a_record_of_version_2_has_none() -> None:
    record = SnapshotRecord(ONE, 1, 1, 3, False, 5, True, "/mnt/set", origin="dir:/mnt/set")
    value = records.encode_snapshot(record)
    assert records.decode_snapshot(value) == record
    assert value.endswith(bytes([len("dir:/mnt/set"), 0]) + b"dir:/mnt/set")
    old = b"\2" + value[1 : -28 - 2 - len("dir:/mnt/set")]
    assert records.decode_snapshot(old) == replace(record, origin="")


def test_a_lease_keeps_every_field() -> None:
    lease = records.LeaseRecord(ONE, "0:53", "/mnt/\udcff x", 4_000_000, 2**40, bytes(range(16)), 5, 2**62)
    assert records.decode_lease(ONE + b"0:53", records.encode_lease(lease)) == lease


def test_a_snapshots_source_is_cut_to_what_fits() -> None:
    record = SnapshotRecord(ONE, 1, 1, 1, False, 0, True, "é" * 40_000)
    assert records.decode_snapshot(records.encode_snapshot(record)).source.startswith("é" * 32_767)


def test_a_ref_keeps_name_stamp_and_its_newest_sixteen_values() -> None:
    history = tuple(PastValue(SnapshotId(RNG.randbytes(32)), Stamp(n, n + 1, NODE)) for n in range(20))
    ref = RefRecord("imagenet:2012-é", ONE, Stamp(2**50, 2**32 - 1, NODE), history)
    found = records.decode_ref(records.encode_ref(ref))
    assert (found.name, found.snapshot, found.stamp) == (ref.name, ref.snapshot, ref.stamp)
    assert found.history == history[:16]


def test_a_ref_tombstone_has_no_snapshot() -> None:
    ref = RefRecord("gone", None, Stamp(1, 0, NODE))
    assert records.decode_ref(records.encode_ref(ref)) == ref


def test_stamps_compare_by_time_then_counter_then_node() -> None:
    assert Stamp(1, 9, NODE) < Stamp(2, 0, NODE)
    assert Stamp(2, 0, NODE) < Stamp(2, 1, NodeId(bytes(16)))


def test_slab_and_file_records_keep_their_fields() -> None:
    for slab in (SlabRecord(SlabKind.FILE, 3, 2**45, 99, b"k" * 16), SlabRecord(SlabKind.SHARED, 1, 0, 1, b"")):
        assert records.decode_slab(records.encode_slab(slab)) == slab
    assert records.decode_file(records.encode_file(FileSlab(12, True))) == FileSlab(12, True)
