"""Reads whose chunks are not here: they wait without harm to others, and never for ever."""

import errno
import mmap
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from hoard_p2p.interfaces import Place
from hoard_p2p.testing.missfakes import DEADLINE, FakeNode, Question
from hoard_p2p.testing.mountfakes import FakeMount, Shop, mounted, publish_folder, running

pytestmark = [pytest.mark.root, pytest.mark.fuse]

FILES = 220


@pytest.fixture
def shop(new_directory: Callable[[str], Path]) -> Shop:
    """Small files `0` ..., all different, and `here`."""
    source = new_directory("s")
    for number in range(FILES):
        (source / str(number)).write_bytes(b"%d " % number * 1000)
    (source / "here").write_bytes(b"here " * 50_000)
    shop = Shop(new_directory("shop"))
    publish_folder(source, shop)
    return shop


@pytest.fixture
def mountpoint(new_directory: Callable[[str], Path]) -> Path:
    return new_directory("m")


def _content(number: int) -> bytes:
    return b"%d " % number * 1000


class _Reader(threading.Thread):
    """Reads a whole file in a thread, from the page cache's point of view like anyone else."""

    def __init__(self, path: Path) -> None:
        super().__init__(daemon=True)
        self.path = path
        self.content = b""
        self.error: OSError | None = None
        self.start()

    def run(self) -> None:
        try:
            self.content = self.path.read_bytes()
        except OSError as error:
            self.error = error


def _readers(mount: FakeMount, numbers: range) -> list[_Reader]:
    return [_Reader(mount.mountpoint / str(number)) for number in numbers]


def test_hits_go_on_while_two_hundred_reads_are_parked(shop: Shop, mountpoint: Path) -> None:
    numbers = range(200)
    kept = {number: shop.chunks.drop(shop.ids(str(number))[0]) for number in numbers}
    with FakeNode(shop.socket_path) as node, mounted(shop, mountpoint) as mount:
        readers = _readers(mount, numbers)
        questions = node.wait_for(200)
        assert not any(reader.content for reader in readers)
        for number in range(200, FILES):
            assert (mountpoint / str(number)).read_bytes() == _content(number)
        assert (mountpoint / "here").read_bytes() == b"here " * 50_000
        with shop.catalog() as catalog:
            for number in numbers:
                shop.chunks.put(shop.ids(str(number))[0], kept[number])
            for question in questions:
                node.found(question, shop.chunks.place(catalog.chunk_id(question.run)))
        for number, reader in zip(numbers, readers, strict=True):
            reader.join(DEADLINE)
            assert reader.content == _content(number)


def test_a_chunk_that_could_not_be_stored_is_served_from_the_answer(shop: Shop, mountpoint: Path) -> None:
    data = shop.chunks.drop(shop.ids("7")[0])
    with FakeNode(shop.socket_path) as node, mounted(shop, mountpoint):
        reader = _Reader(mountpoint / "7")
        node.found(node.wait_for(1)[0], None, data)
        reader.join(DEADLINE)
        assert reader.content == _content(7)


def test_a_chunk_that_nobody_has_is_an_io_error_with_the_reason_in_the_log(shop: Shop, mountpoint: Path) -> None:
    shop.chunks.drop(shop.ids("7")[0])
    with FakeNode(shop.socket_path) as node, mounted(shop, mountpoint) as mount:
        reader = _Reader(mountpoint / "7")
        node.failed(node.wait_for(1)[0], "tried n1, n2")
        reader.join(DEADLINE)
        assert reader.error is not None
        assert reader.error.errno == errno.EIO
        assert mount.log.count("tried n1, n2") == 1


def test_the_deadline_frees_a_reader_with_one_log_line(shop: Shop, mountpoint: Path) -> None:
    shop.chunks.drop(shop.ids("7")[0])
    with FakeNode(shop.socket_path), mounted(shop, mountpoint, timeout=1.0) as mount:
        started = time.monotonic()
        with pytest.raises(OSError) as caught:
            (mountpoint / "7").read_bytes()
        assert caught.value.errno == errno.EIO
        assert 0.9 < time.monotonic() - started < 1.9  # the page that the kernel asks for again fails at once
        assert mount.log.count("gave up after 1 s") == 1
        assert (mountpoint / "8").read_bytes() == _content(8)


def test_a_node_that_comes_back_is_asked_again(shop: Shop, mountpoint: Path) -> None:
    data = shop.chunks.drop(shop.ids("7")[0])
    with mounted(shop, mountpoint):
        reader = _Reader(mountpoint / "7")
        with FakeNode(shop.socket_path) as node:
            node.wait_for(1)
        shop.socket_path.unlink()
        with FakeNode(shop.socket_path) as node:
            node.found(node.wait_for(1)[0], None, data)
            reader.join(DEADLINE)
        assert reader.content == _content(7)


def test_wrong_bytes_are_reported_and_replaced_never_served(shop: Shop, mountpoint: Path) -> None:
    identifier = shop.ids("7")[0]
    good = shop.chunks.drop(identifier)
    shop.chunks.put(identifier, b"X" + good[1:])
    with FakeNode(shop.socket_path) as node, mounted(shop, mountpoint):
        reader = _Reader(mountpoint / "7")
        question = node.wait_for(1)[0]
        assert question.distrusted == Place(int.from_bytes(identifier[:8]), 0, len(good), 1)
        node.found(question, shop.chunks.put(identifier, good, generation=2))
        reader.join(DEADLINE)
        assert reader.content == _content(7)
        assert len(node.questions) == 1


def test_bytes_that_are_wrong_twice_are_an_io_error(shop: Shop, mountpoint: Path) -> None:
    identifier = shop.ids("7")[0]
    damaged = b"X" + shop.chunks.drop(identifier)[1:]
    shop.chunks.put(identifier, damaged)
    with FakeNode(shop.socket_path) as node, mounted(shop, mountpoint) as mount:
        reader = _Reader(mountpoint / "7")
        node.found(node.wait_for(1)[0], None, damaged)
        reader.join(DEADLINE)
        assert (reader.content, reader.error and reader.error.errno) == (b"", errno.EIO)
        assert "wrong bytes twice" in mount.log


@pytest.mark.parametrize("verify", ["first", "always", "arrival"])
def test_verify_says_when_damage_is_noticed(shop: Shop, mountpoint: Path, verify: str) -> None:
    identifier = shop.ids("here")[0]
    good = shop.chunks.drop(identifier)

    def repair(node: FakeNode, question: Question) -> bool:
        node.found(question, shop.chunks.put(identifier, good, generation=2))
        return False

    shop.chunks.put(identifier, good)
    with FakeNode(shop.socket_path, repair) as node, mounted(shop, mountpoint, verify=verify, workers=1):
        first = _read_direct(mountpoint / "here", 0)
        shop.chunks.put(identifier, b"X" + good[1:])  # same generation: damage that nobody reported
        second = _read_direct(mountpoint / "here", 0)
        assert first == good
        assert second == (good if verify == "always" else b"X" + good[1:])
        assert len(node.questions) == (verify == "always")


def _read_direct(path: Path, offset: int) -> bytes:
    """Past the page cache."""
    file = os.open(path, os.O_RDONLY | os.O_DIRECT)
    with mmap.mmap(-1, 1 << 20) as buffer:
        got = os.preadv(file, [buffer], offset)
        content = buffer[:got]
    os.close(file)
    return content


READ_DIRECT = """
import mmap, os, sys
buffer = mmap.mmap(-1, 1 << 20)
try: os.preadv(os.open(sys.argv[1], os.O_RDONLY | os.O_DIRECT), [buffer], 0)
except KeyboardInterrupt: sys.exit(7)
"""


@pytest.mark.parametrize("workers", [1, 3])
@pytest.mark.parametrize(
    "argv, code", [(["cat"], -signal.SIGINT), ([sys.executable, "-c", READ_DIRECT], 7)], ids=["killed", "handled"]
)
def test_ctrl_c_frees_a_reader_that_waits(
    shop: Shop, mountpoint: Path, workers: int, argv: list[str], code: int
) -> None:
    """A signal that kills needs nobody's help; one that is handled must reach the worker that has the read parked."""
    shop.chunks.drop(shop.ids("7")[0])
    cat = [*argv, str(mountpoint / "7")]
    with FakeNode(shop.socket_path) as node, mounted(shop, mountpoint, workers=workers), running(cat) as reader:
        node.wait_for(1)
        reader.send_signal(signal.SIGINT)
        assert reader.wait(5) == code


def test_a_signal_to_its_reader_does_not_end_a_read_that_is_a_hit(shop: Shop, mountpoint: Path) -> None:
    with FakeNode(shop.socket_path), mounted(shop, mountpoint, workers=2):
        count = []
        before = signal.signal(signal.SIGALRM, lambda *_: count.append(1))
        signal.setitimer(signal.ITIMER_REAL, 0.0005, 0.0005)
        try:
            for number in range(FILES):
                assert _read_direct(mountpoint / str(number), 0) == _content(number)
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, before)
        assert count
