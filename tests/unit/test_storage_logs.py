"""Sidecars and the journal: what is read back after tears and damage."""

import os
import random
import zlib
from collections.abc import Iterator
from pathlib import Path

import pytest

from hoard_p2p.errors import Corrupt
from hoard_p2p.ids import ChunkId
from hoard_p2p.interfaces import Extent, SlabKind
from hoard_p2p.storage import journal, sidecar
from hoard_p2p.storage.journal import Entry, Journal, Kind
from hoard_p2p.storage.sidecar import HEADER_SIZE, RECORD_SIZE, SidecarHeader

RNG = random.Random(12)
HEADER = SidecarHeader(9, 4, 2**40, SlabKind.FILE)
EXTENTS = [Extent(9, n * 4096, 4096 + n, ChunkId(RNG.randbytes(32))) for n in range(50)]


@pytest.fixture
def side(tmp_path: Path) -> Iterator[int]:
    """A sidecar with EXTENTS, open for reading and writing."""
    path = tmp_path / "a.side"
    path.write_bytes(sidecar.encode_header(HEADER) + sidecar.encode_records(EXTENTS))
    fd = os.open(path, os.O_RDWR)
    yield fd
    os.close(fd)


def test_a_sidecar_gives_back_its_header_and_records_in_order(side: int) -> None:
    assert sidecar.read_header(side) == HEADER
    assert list(sidecar.scan(side)) == EXTENTS
    assert (HEADER_SIZE, RECORD_SIZE) == (32, 48)


@pytest.mark.parametrize("torn", [1, 20, 47])
def test_a_torn_last_record_costs_only_itself(side: int, torn: int) -> None:
    os.ftruncate(side, HEADER_SIZE + RECORD_SIZE * 49 + torn)
    assert list(sidecar.scan(side)) == EXTENTS[:49]


def test_a_damaged_record_costs_only_itself(side: int) -> None:
    os.pwrite(side, b"\xff", HEADER_SIZE + RECORD_SIZE * 10 + 3)
    assert list(sidecar.scan(side)) == EXTENTS[:10] + EXTENTS[11:]


def test_a_record_of_another_slab_does_not_count(side: int) -> None:
    strange = sidecar.encode_records([EXTENTS[0]._replace(slab=8)])
    os.pwrite(side, strange, HEADER_SIZE)
    assert list(sidecar.scan(side)) == EXTENTS[1:]


def test_a_file_that_is_no_sidecar_is_corrupt(side: int) -> None:
    os.pwrite(side, b"X", 0)
    with pytest.raises(Corrupt):
        list(sidecar.scan(side))


def test_a_sidecar_longer_than_one_read_is_read_whole(side: int) -> None:
    many = EXTENTS * 1000
    os.pwrite(side, sidecar.encode_records(many), HEADER_SIZE)
    assert list(sidecar.scan(side)) == many


def written(path: Path, entries: list[Entry]) -> None:
    log = Journal(path)
    log.append(entries)
    log.close()


ENTRIES = [Entry(Kind.ROOT, RNG.randbytes(200)), Entry(Kind.REF, b""), Entry(Kind.SNAPSHOT, journal.MARKER * 3)]


def test_the_journal_gives_back_what_was_appended_over_several_openings(tmp_path: Path) -> None:
    for entry in ENTRIES:
        written(tmp_path / "journal", [entry])
    assert list(journal.scan(tmp_path / "journal")) == ENTRIES


def test_every_torn_tail_of_the_journal_costs_only_the_torn_record_and_appending_goes_on(tmp_path: Path) -> None:
    path = tmp_path / "journal"
    written(path, ENTRIES)
    whole = path.read_bytes()
    two = sum(len(journal.encode(entry)) for entry in ENTRIES[:2])
    for cut in range(two, len(whole)):
        path.write_bytes(whole[:cut])
        written(path, [ENTRIES[0]])
        assert list(journal.scan(path)) == [*ENTRIES[:2], ENTRIES[0]]


def test_every_damaged_byte_of_the_journal_costs_only_its_record() -> None:
    raw = bytearray(b"".join(map(journal.encode, ENTRIES)))
    first = len(journal.encode(ENTRIES[0]))
    for at in range(first):
        raw[at] ^= 0x10
        assert list(journal.decode(bytes(raw))) == ENTRIES[1:]
        raw[at] ^= 0x10


def test_sidecar_bytes_are_as_documented() -> None:
    header = b"HOARDSC1" + bytes.fromhex("09000000" + "04000000" + "0000000000010000" + "01" + "000000")
    assert sidecar.encode_header(HEADER) == header + zlib.crc32(header).to_bytes(4, "little")
    record = bytes.fromhex("0100000002000000" + "03000000") + bytes(range(32))
    crc = zlib.crc32(record, 9).to_bytes(4, "little")
    assert sidecar.encode_records([Extent(9, 2 << 32 | 1, 3, ChunkId(bytes(range(32))))]) == record + crc


def test_journal_bytes_are_as_documented() -> None:
    record = bytes.fromhex("f5484a31" + "03000000" + "04") + b"abc"
    assert journal.encode(Entry(Kind.REF, b"abc")) == record + zlib.crc32(record).to_bytes(4, "little")
