"""Disks that report errors, under a store and under a node: FailingDisk, and what lives through it."""

import errno
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

import pytest

from tests.fault.failingdisk import failing_disk

pytestmark = [pytest.mark.root, pytest.mark.fuse]

WORK = """
import sys
from pathlib import Path
from hoard_p2p.errors import HoardError
from hoard_p2p.ids import chunk_id
from hoard_p2p.storage.reader import StoreReader
from hoard_p2p.storage.store import Store

def there(reader, number):
    data = b"%d" % number * 1000
    into = bytearray(len(data))
    return reader.read_into(chunk_id(data), 0, memoryview(into)) is not None and into == data

def act(store, words):
    if words[0] == "put":
        with store.writer() as writer:
            data = words[1].encode() * 1000
            writer.put(chunk_id(data), data)
    elif words[0] == "note":
        store.note({words[1].encode(): b"v"})
    elif words[0] == "meta":
        return store.meta(words[1].encode())
    elif words[0] == "has":
        return there(store.reader(), int(words[1]))
    elif words[0] == "capacity":
        store.set_capacity(int(words[1]))
        return store.capacity()

def answers(do):
    print("open", flush=True)
    for line in sys.stdin:
        try:
            print("->", do(line.split()), flush=True)
        except HoardError as error:
            print(type(error).__name__, error, flush=True)

if sys.argv[1] == "store":
    with Store.open(Path(sys.argv[2])) as store:
        answers(lambda words: act(store, words))
else:
    with StoreReader.open(Path(sys.argv[2])) as reader:
        answers(lambda words: there(reader, int(words[1])))
"""


class Asked:
    """A store, or a reader, in a process of its own."""

    def __init__(self, into: IO[str], out: IO[str]) -> None:
        self._into, self._out = into, out
        assert out.readline() == "open\n"

    def __call__(self, words: str) -> str:
        self._into.write(words + "\n")
        self._into.flush()
        return self._out.readline().strip()


@contextmanager
def process(kind: str, data_dir: Path) -> Iterator[Asked]:
    argv = [sys.executable, "-c", WORK, kind, os.fspath(data_dir)]
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as child:
        assert child.stdin is not None and child.stdout is not None
        try:
            yield Asked(child.stdin, child.stdout)
            child.stdin.close()
            assert child.wait(20) == 0
        finally:
            child.kill()


def test_an_error_on_the_index_s_root_page_lasts_no_longer_than_the_disk_s(
    new_directory: Callable[[str], Path],
) -> None:
    place = new_directory("roots")
    with failing_disk(place) as disk, process("store", place / "data") as store:
        assert store("put 1") == "-> None"
        with process("reader", place / "data") as reader:
            assert reader("has 1") == "-> True"
            disk.fail_roots(errno.EIO)
            assert store("note a").startswith("StoreFailed the index ")
            assert disk.hits > 0
            assert store("has 1") == "-> True", "reading goes on at once"
            assert reader("has 1") == "-> True"
            assert store("note a").startswith("StoreFailed")
            disk.mend()
            assert store("note b") == "-> None", "without a new start"
            assert store("meta b") == "-> b'v'"
            assert store("put 2") == "-> None"
            assert reader("has 2") == "-> True", "processes that read notice nothing"
            assert reader("has 1") == "-> True"
