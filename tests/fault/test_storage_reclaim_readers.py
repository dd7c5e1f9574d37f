"""Readers and publishes in other processes while space is given back: stopped, killed, at every unlucky moment.

As a script (DATA_DIR WHAT ...) this file is such a process. It says each step on a line and goes on when told.
"""

import os
import random
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from hoard_p2p.config import DEFAULT_FLOOR
from hoard_p2p.ids import ChunkId, chunk_id
from hoard_p2p.interfaces import Place
from hoard_p2p.storage.claims import Claims
from hoard_p2p.storage.healing import Healer
from hoard_p2p.storage.index import Index
from hoard_p2p.storage.layout import DataDir
from hoard_p2p.storage.limbo import PATIENCE
from hoard_p2p.storage.reader import StoreReader
from hoard_p2p.storage.reclaim import Reclaimer
from hoard_p2p.storage.records import decode_place
from hoard_p2p.storage.room import Room
from hoard_p2p.storage.store import Store

RNG = random.Random(19)
DATAS = [RNG.randbytes(100_000) for _ in range(4)]
SECONDS = 30


def read_slowly(data_dir: Path, identifier: ChunkId) -> None:
    """Look a chunk up, and read it when told, inside one transaction, as `StoreReader.read_into` does."""
    slab = next((data_dir / "slabs").glob("*.slab"))
    index = Index.for_reading(data_dir / "index")

    def use(value: bytes) -> bytes:
        place = decode_place(value)
        say("inside")
        sys.stdin.readline()
        with slab.open("rb") as file:
            file.seek(place.offset)
            return file.read(place.length)

    data = index.look_up(identifier, use)
    say("right" if data is not None and chunk_id(data) == identifier else "wrong")
    sys.stdin.readline()


def publish(data_dir: Path, claims: Claims, identifier: ChunkId) -> None:
    """A publish that asks for one chunk, like `ChunkWriter.has`."""
    reader = StoreReader.open(data_dir)
    sys.stdin.readline()
    claims.mark([identifier])
    say("has" if reader.place(identifier) is not None else "not")
    sys.stdin.readline()


def say(word: str) -> None:
    sys.stdout.write(f"{word}\n")
    sys.stdout.flush()


class Other:
    """The other process."""

    def __init__(self, data_dir: Path, *arguments: str, fds: Sequence[int] = ()) -> None:
        argv = [sys.executable, __file__, os.fspath(data_dir), *arguments]
        self.process = subprocess.Popen(
            argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1, pass_fds=fds
        )

    def hear(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline().strip()

    def go_on(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write("\n")

    def end(self, number: signal.Signals = signal.SIGKILL) -> None:
        self.process.send_signal(number)
        self.process.wait(SECONDS)
        for stream in (self.process.stdin, self.process.stdout):
            assert stream is not None
            stream.close()


@contextmanager
def other(data_dir: Path, *arguments: str, fds: Sequence[int] = ()) -> Iterator[Other]:
    process = Other(data_dir, *arguments, fds=fds)
    try:
        yield process
    finally:
        process.end()


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


class Meddler:
    """Stands in the list of the node's writers: does something whenever it is asked whether a chunk is pending, which
    is inside the transaction that is about to unlist the chunk."""

    closed = False

    def __init__(self, meddle: Callable[[], object] = lambda: None) -> None:
        self._meddle = meddle

    def pending(self, identifier: ChunkId) -> Place | None:
        self._meddle()
        return None

    def put_aside(self, slab: int) -> None:
        pass

    def note_space(self) -> None:
        pass


@contextmanager
def reclaiming(
    data_dir: Path, writers: Sequence[object] = (), clock: Callable[[], float] = lambda: 0.0
) -> Iterator[Reclaimer]:
    """A reclaimer over a closed store with the chunks of `DATAS`."""
    with Store.open(data_dir) as store, store.writer() as writer:
        for data in DATAS:
            writer.put(chunk_id(data), data)
    layout = DataDir(data_dir)
    with ExitStack() as undo:
        index = Index.for_writing(layout.index)
        undo.callback(index.close)
        reader = StoreReader(index, layout, owns_index=False)
        undo.callback(reader.close)
        reclaimer = Reclaimer(
            index,
            reader,
            layout,
            healer=Healer(index, reader),
            room=Room(layout, None, DEFAULT_FLOOR),
            writers=writers,  # type: ignore[arg-type]
            new_writer=lambda: pytest.fail("nothing is to be copied"),
            clock=clock,
        )
        undo.callback(reclaimer.close)
        yield reclaimer


def used(data_dir: Path) -> int:
    return sum(path.stat().st_blocks * 512 for path in (data_dir / "slabs").glob("*.slab"))


def listed(data_dir: Path) -> list[bool]:
    with Store.open(data_dir) as store:
        return [_is_right(store, data) for data in DATAS]


def _is_right(store: Store, data: bytes) -> bool:
    into = bytearray(len(data))
    return store.reader().read_into(chunk_id(data), 0, memoryview(into)) is not None and into == data


@pytest.mark.expect_warnings
def test_a_stopped_reader_delays_the_return_is_named_after_a_minute_and_reads_right_bytes(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    clock = Clock()
    with reclaiming(tmp_path, clock=clock) as reclaimer, other(tmp_path, "read", chunk_id(DATAS[1]).hex()) as slow:
        assert slow.hear() == "inside"
        slow.process.send_signal(signal.SIGSTOP)
        before = used(tmp_path)
        reclaimer.drop(map(chunk_id, DATAS[:3]))
        for clock.now in (1, PATIENCE + 1, PATIENCE + 100):
            reclaimed = reclaimer.reclaim()
            assert reclaimed.bytes == reclaimer.leftovers().bytes == 0
            (waiting,) = reclaimed.waiting
            assert waiting[:2] == (300_000, clock.now)
            assert f"process {slow.process.pid} (" in waiting.reason
            assert "test_storage_reclaim_readers.py" in waiting.reason
        assert used(tmp_path) == before
        assert [record.levelname for record in caplog.records].count("WARNING") == 1
        slow.process.send_signal(signal.SIGCONT)
        slow.go_on()
        assert slow.hear() == "right"
        reclaimed = reclaimer.reclaim()
        assert reclaimed.bytes == before - used(tmp_path) >= 300_000
        assert not reclaimed.waiting
    assert listed(tmp_path) == [False, False, False, True]


def test_a_reader_that_is_killed_delays_nothing_any_more(tmp_path: Path) -> None:
    with reclaiming(tmp_path) as reclaimer:
        with other(tmp_path, "read", chunk_id(DATAS[1]).hex()) as slow:
            assert slow.hear() == "inside"
            reclaimer.drop(map(chunk_id, DATAS[:3]))
            assert reclaimer.reclaim().waiting
        reclaimed = reclaimer.reclaim()
        assert reclaimed.bytes >= 300_000
        assert not reclaimed.waiting


def test_a_reader_that_began_after_the_drop_delays_nothing(tmp_path: Path) -> None:
    with reclaiming(tmp_path) as reclaimer:
        reclaimer.drop(map(chunk_id, DATAS[:3]))
        with other(tmp_path, "read", chunk_id(DATAS[3]).hex()) as slow:
            assert slow.hear() == "inside"
            assert not reclaimer.reclaim().waiting
            slow.go_on()
            assert slow.hear() == "right"


def test_a_chunk_that_a_publish_finds_while_it_is_being_dropped_is_listed_again(tmp_path: Path) -> None:
    """The node looks at the claims, the publish marks the chunk and finds it, the node commits."""
    heard: list[str] = []
    with ExitStack() as undo:
        meddler = Meddler(lambda: heard.append(_turn(publisher)))
        reclaimer = undo.enter_context(reclaiming(tmp_path, [meddler]))
        claims = undo.enter_context(reclaimer.new_claims())
        words = ("publish", chunk_id(DATAS[1]).hex(), str(claims.fd))
        publisher = undo.enter_context(other(tmp_path, *words, fds=(claims.fd,)))
        assert reclaimer.drop([chunk_id(DATAS[1])]).chunks == 1
        assert heard == ["has"]
        assert not reclaimer.reclaim().waiting
        assert reclaimer.leftovers().bytes == 0
    assert listed(tmp_path) == [True] * 4


def test_a_chunk_that_a_publish_looks_for_after_it_was_dropped_is_not_found(tmp_path: Path) -> None:
    with ExitStack() as undo:
        reclaimer = undo.enter_context(reclaiming(tmp_path))
        claims = undo.enter_context(reclaimer.new_claims())
        words = ("publish", chunk_id(DATAS[1]).hex(), str(claims.fd))
        publisher = undo.enter_context(other(tmp_path, *words, fds=(claims.fd,)))
        reclaimer.drop([chunk_id(DATAS[1])])
        assert _turn(publisher) == "not"
        reclaimer.reclaim()  # listed again all the same, which costs no more than a copy


def _turn(process: Other) -> str:
    process.go_on()
    return process.hear()


def main() -> None:
    data_dir, what, identifier = Path(sys.argv[1]), sys.argv[2], ChunkId(bytes.fromhex(sys.argv[3]))
    if what == "read":
        read_slowly(data_dir, identifier)
    else:
        publish(data_dir, Claims(int(sys.argv[4])), identifier)


if __name__ == "__main__":
    main()
