"""Full disks, damaged slabs, other users, other processes."""

import os
import random
import resource
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO

import pytest

from hoard_p2p.errors import ChunkCorrupt, StoreFailed, StoreFull
from hoard_p2p.ids import ChunkId, chunk_id
from hoard_p2p.interfaces import SlabKind
from hoard_p2p.storage.groups import WriterSettings
from hoard_p2p.storage.index import Index, Table
from hoard_p2p.storage.store import Store
from hoard_p2p.storage.writer import ChunkWriter
from tests.smalldisks import fill, loop_disk, memory_disk

RNG = random.Random(31)
MIB = 1 << 20
FORGETFUL = WriterSettings(refused_seconds=0)
READER = """
import os, sys
from pathlib import Path
from hoard_p2p.errors import HoardError
from hoard_p2p.storage.reader import StoreReader
if len(sys.argv) > 2:
    os.setuid(int(sys.argv[2]))  # only now: the interpreter itself may lie where that user cannot go
try:
    with StoreReader.open(Path(sys.argv[1])) as reader:
        print("open", flush=True)
        for line in sys.stdin:
            into = bytearray(8)
            place = reader.read_into(bytes.fromhex(line), 0, memoryview(into))
            print(into.hex() if place else None, flush=True)
except HoardError as error:
    print(type(error).__name__, flush=True)
"""


@contextmanager
def reading_process(data_dir: Path, user: int | None = None) -> Iterator[tuple[IO[str], IO[str]]]:
    """A StoreReader in a process of its own: its input takes ids, its output gives the first 8 bytes of each."""
    argv = [sys.executable, "-c", READER, os.fspath(data_dir), *([str(user)] if user else [])]
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            yield process.stdin, process.stdout
            process.stdin.close()
            assert process.wait(20) == 0
        finally:
            process.kill()


def ask(pipes: tuple[IO[str], IO[str]], identifier: ChunkId) -> str:
    pipes[0].write(identifier.hex() + "\n")
    pipes[0].flush()
    return pipes[1].readline().strip()


def put(writer: ChunkWriter, data: bytes) -> ChunkId:
    writer.put(chunk_id(data), data)
    return chunk_id(data)


def test_a_reader_in_another_process_sees_each_commit_and_each_quarantine(tmp_path: Path) -> None:
    with Store.open(tmp_path) as store, store.writer() as writer, reading_process(tmp_path) as pipes:
        assert pipes[1].readline() == "open\n"
        for _ in range(5):
            data = RNG.randbytes(5000)
            assert ask(pipes, chunk_id(data)) == "None"
            put(writer, data)
            writer.flush()
            assert ask(pipes, chunk_id(data)) == data[:8].hex()
        place = store.reader().place(chunk_id(data))
        assert place is not None
        store.quarantine(chunk_id(data), place)
        assert ask(pipes, chunk_id(data)) == "None"


def test_a_reader_outlives_the_store_and_sees_what_the_next_one_commits(tmp_path: Path) -> None:
    with Store.open(tmp_path) as store, store.writer() as writer:
        first = put(writer, b"12345678 first")
    with reading_process(tmp_path) as pipes:
        assert pipes[1].readline() == "open\n"
        assert ask(pipes, first) == b"12345678".hex()
        with Store.open(tmp_path) as store, store.writer() as writer:
            second = put(writer, b"abcdefgh second")
            writer.flush()
            assert ask(pipes, second) == b"abcdefgh".hex()
            assert ask(pipes, first) == b"12345678".hex()


@pytest.mark.root
def test_a_user_who_may_not_read_the_index_is_refused(new_directory: Callable[[str], Path]) -> None:
    directory = new_directory("store")
    directory.chmod(0o755)
    Store.open(directory / "data").close()
    for mode in (0o700, 0o755):
        (directory / "data").chmod(mode)
        with reading_process(directory / "data", user=65534) as pipes:
            assert pipes[1].readline() == "Refused\n"


GROW = """
import sys
from pathlib import Path
from hoard_p2p.storage.index import Index, Table
index = Index.for_writing(Path(sys.argv[1]), int(sys.argv[2]))
with index.write() as txn:
    for n in range(int(sys.argv[3])):
        txn.put(Table.FILES, b"%032d" % n, bytes(4000))
    txn.put(Table.CHUNKS, b"k" * 32, b"%d" % int(sys.argv[3]))
index.close()
"""


def test_a_reader_follows_when_the_map_grows(tmp_path: Path) -> None:
    def grow(size: int, rows: int) -> None:
        argv = [sys.executable, "-c", GROW, os.fspath(tmp_path), str(size), str(rows)]
        subprocess.run(argv, check=True, timeout=30)

    grow(MIB, 10)
    index = Index.for_reading(tmp_path)
    assert index.get_chunk(b"k" * 32) == b"10"
    grow(64 * MIB, 5000)
    assert index.get_chunk(b"k" * 32) == b"5000"
    grow(512 * MIB, 30_000)
    with index.read() as txn:
        assert txn.count(Table.FILES) == 30_000
    assert index.look_up(b"k" * 32, bytes.decode) == "30000"
    index.close()


def test_a_full_index_is_a_failed_store_and_changes_nothing(tmp_path: Path) -> None:
    index = Index.for_writing(tmp_path, MIB)
    with pytest.raises(StoreFailed), index.write() as txn:
        for n in range(1000):
            txn.put(Table.ROOTS, b"%032d" % n, bytes(4000))
    with index.write() as txn:
        assert txn.count(Table.ROOTS) == 0
        txn.put(Table.ROOTS, b"k", b"v")
    index.close()


def test_a_full_index_is_enlarged_and_takes_the_same_write_the_next_time(tmp_path: Path) -> None:
    index = Index.for_writing(tmp_path, MIB)

    def add() -> int:
        with index.write() as txn:
            for n in range(300):
                txn.put(Table.CHUNKS, b"%032d" % n, bytes(4000))
            return txn.count(Table.CHUNKS)

    with pytest.raises(StoreFull, match="index map full"):
        add()
    assert index.get_chunk(b"%032d" % 0) is None
    tries = [attempt(add) for _ in range(8)]
    assert tries[-1] == 300
    index.close()


def attempt(work: Callable[[], int]) -> int:
    try:
        return work()
    except StoreFull:
        return 0


def test_an_index_that_fills_up_slowly_never_fails_and_its_readers_follow(tmp_path: Path) -> None:
    index = Index.for_writing(tmp_path, 4 * MIB)
    with index.write() as txn:
        txn.put(Table.CHUNKS, b"first", b"1")
    with subprocess.Popen(
        [sys.executable, "-c", FOLLOW, tmp_path], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as reader:
        assert reader.stdin is not None and reader.stdout is not None
        for batch in range(60):  # 12 MiB
            with index.write() as txn:
                for n in range(50):
                    txn.put(Table.CHUNKS, b"%032d" % (50 * batch + n), bytes(3000))
            reader.stdin.write(f"{50 * batch}\n")
            reader.stdin.flush()
            assert reader.stdout.readline() == "3000\n"
        reader.stdin.close()
    index.close()


FOLLOW = """
import sys
from pathlib import Path
from hoard_p2p.storage.index import Index
index = Index.for_reading(Path(sys.argv[1]))
for line in sys.stdin:
    print(len(index.get_chunk(b"%032d" % int(line))), flush=True)
"""


@contextmanager
def largest_file(size: int) -> Iterator[None]:
    """Writes beyond this length of a file fail (EFBIG), as on a full disk."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_a_put_that_finds_no_space_fails_and_later_ones_work(tmp_path: Path) -> None:
    chunks = [RNG.randbytes(MIB) for _ in range(12)]
    with Store.open(tmp_path) as store, store.writer(FORGETFUL) as writer:
        with largest_file(8 * MIB):
            stored = [put(writer, data) for data in chunks[:8]]
            with pytest.raises(StoreFailed):
                put(writer, chunks[8])
            assert writer.has([chunk_id(chunks[8])]) == [False]
            writer.flush()
        stored += [put(writer, data) for data in chunks[8:]]
        writer.flush()
        for data, identifier in zip(chunks, stored, strict=True):
            into = bytearray(MIB)
            assert store.reader().read_into(identifier, 0, memoryview(into)) is not None
            assert into == data


@pytest.mark.root
def test_a_full_disk_fails_puts_and_files_and_the_store_recovers_when_there_is_room(tmp_path: Path) -> None:
    with memory_disk(tmp_path / "disk", 80 * MIB) as disk:
        (disk / "filler").write_bytes(bytes(60 * MIB))
        with Store.open(disk / "data") as store, store.writer(FORGETFUL) as writer:
            kept = []
            with pytest.raises(StoreFailed):
                for _ in range(40):
                    data = RNG.randbytes(MIB)
                    put(writer, data)
                    kept.append(data)
            assert 10 < len(kept) < 20
            sink = writer.open_file(20 * MIB)
            with pytest.raises(StoreFailed):
                sink.put(chunk_id(bytes(4 * MIB)), bytes(4 * MIB), 0)
            sink.abandon()
            (disk / "filler").unlink()
            for _ in range(5):
                kept.append(RNG.randbytes(MIB))
                put(writer, kept[-1])
            with suppress(StoreFailed):  # the group that met the full disk, if one did, says that it is lost
                writer.flush()
            for data in kept:  # what was lost can be put again, and what was not is put once
                put(writer, data)
            writer.flush()
            for data in kept:
                into = bytearray(MIB)
                assert store.reader().read_into(chunk_id(data), 0, memoryview(into)) is not None
                assert into == data


@pytest.mark.root
def test_a_disk_without_room_for_a_slab_or_an_index_page_is_a_failed_store(tmp_path: Path) -> None:
    with memory_disk(tmp_path / "disk", 4 * MIB) as disk, Store.open(disk / "data") as store:
        with (disk / "filler").open("wb", buffering=0) as filler, pytest.raises(OSError, match="No space"):
            while True:
                filler.write(bytes(4096))
        with pytest.raises(StoreFailed):
            for _ in range(100):  # the index has a few free pages of its own
                handle = store.new_slab(SlabKind.SHARED, 0)
                os.close(handle.data_fd)
                os.close(handle.sidecar_fd)
        (disk / "filler").unlink()
        handle = store.new_slab(SlabKind.SHARED, 0)
        os.close(handle.data_fd)
        os.close(handle.sidecar_fd)


def one_slab(store: Store, data: bytes) -> Path:
    with store.writer() as writer:
        put(writer, data)
    (slab,) = (store.data_dir / "slabs").glob("*.slab")
    return slab


def test_a_slab_cut_short_under_the_store_means_a_damaged_chunk(tmp_path: Path) -> None:
    data = RNG.randbytes(10_000)
    with Store.open(tmp_path) as store:
        slab = one_slab(store, data)
        into = bytearray(10_000)
        assert store.reader().read_into(chunk_id(data), 0, memoryview(into)) is not None
        os.truncate(slab, 5000)
        with pytest.raises(ChunkCorrupt):
            store.reader().read_into(chunk_id(data), 0, memoryview(into))
        os.truncate(slab, 0)
        with pytest.raises(ChunkCorrupt):
            store.reader().read_into(chunk_id(data), 0, memoryview(into))


def test_a_slab_that_vanished_means_a_damaged_chunk_which_can_be_quarantined_and_put_again(tmp_path: Path) -> None:
    data = RNG.randbytes(10_000)
    with Store.open(tmp_path) as store:
        one_slab(store, data).unlink()
        into = bytearray(10_000)
        with pytest.raises(ChunkCorrupt):
            store.reader().read_into(chunk_id(data), 0, memoryview(into))
        place = store.reader().place(chunk_id(data))
        assert place is not None
        assert store.quarantine(chunk_id(data), place)
        with store.writer() as writer:
            put(writer, data)
        assert store.reader().read_into(chunk_id(data), 0, memoryview(into)) is not None
        assert into == data


def test_a_worker_that_outlives_its_node_cannot_commit_into_the_next_one(tmp_path: Path) -> None:
    with Store.open(tmp_path) as store:
        handle = store.new_slab(SlabKind.SHARED, 0)
    with Store.open(tmp_path) as store, store.writer() as writer:
        put(writer, b"x" * 5000)
        writer.flush()
        place = store.reader().place(chunk_id(b"x" * 5000))
        assert place is not None
        assert place.slab != handle.slab
    os.close(handle.data_fd)
    os.close(handle.sidecar_fd)


@pytest.mark.root
def test_on_a_disk_that_others_filled_to_the_last_block_everything_can_be_dropped(tmp_path: Path) -> None:
    with loop_disk(tmp_path / "disk", 64 * MIB) as disk, Store.open(disk / "data") as store:
        with store.writer(WriterSettings(group_chunks=10_000, group_seconds=3600)) as writer:  # in one commit
            ids = [put(writer, RNG.randbytes(100)) for _ in range(6000)]
            ids += [put(writer, RNG.randbytes(3 * MIB))]
        fill(disk / "others")
        before = os.statvfs(disk).f_bavail
        with pytest.raises(OSError, match="No space"), (disk / "more").open("wb", buffering=0) as file:
            for _ in range(before + 1):
                file.write(bytes(4096))
        RNG.shuffle(ids)
        assert store.reclaimer.drop(ids).chunks == len(ids)
        reclaimed = sum(store.reclaimer.reclaim().bytes for _ in range(3))
        assert reclaimed > 3 * MIB
        assert os.statvfs(disk).f_bavail * os.statvfs(disk).f_frsize > 3 * MIB
