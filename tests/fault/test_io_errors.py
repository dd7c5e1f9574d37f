"""Disks that report errors, under a store and under a node: FailingDisk, and what lives through it."""

import errno
import os
import secrets
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import product
from pathlib import Path
from typing import IO

import pytest

from tests.fault.failingdisk import CREATE, DATA, INDEX, JOURNAL, PROBE, RESERVE, SIDECARS, SYNC, WRITE, failing_disk
from tests.system import Machine, machines, tree, wait_until

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


SLAB_FAULTS = [
    (errno.EIO, DATA, WRITE, "StoreFailed", "I/O error"),
    (errno.EIO, DATA, SYNC, "StoreFailed", "I/O error"),
    (errno.EIO, SIDECARS, WRITE, "StoreFailed", "I/O error"),
    (errno.EIO, SIDECARS, SYNC, "StoreFailed", "I/O error"),
    (errno.EIO, DATA, RESERVE, "StoreFailed", "I/O error"),
    (errno.EDQUOT, DATA, RESERVE, "StoreFull", "disk quota"),
    (errno.ENOSPC, DATA, RESERVE, "StoreFull", "disk is full"),
    (errno.ENOSPC, SIDECARS, WRITE, "StoreF", "disk is full"),
    (errno.EROFS, DATA, CREATE, "StoreFailed", "read-only"),
    (errno.EIO, INDEX, SYNC, "StoreFailed", "I/O error"),
    (errno.ENOSPC, INDEX, WRITE, "StoreFull", "disk is full"),
    (errno.EDQUOT, INDEX, WRITE, "StoreFull", "disk quota"),
]


def test_whatever_fails_under_a_slab_or_the_index_a_put_says_so_and_the_next_one_works(
    new_directory: Callable[[str], Path],
) -> None:
    place = new_directory("slabs")
    with failing_disk(place) as disk:
        with process("store", place / "data") as store:
            assert store("put 0") == "-> None"
            for number, (code, name, operation, kind, says) in enumerate(SLAB_FAULTS, 1):
                before = disk.hits
                disk.fail(code, name, operation)
                answer = store(f"put {number}")
                assert answer.startswith(kind) and says in answer, (answer, SLAB_FAULTS[number - 1])
                assert disk.hits > before
                assert store("has 0") == "-> True"
                disk.mend()
                assert store(f"put {number}") == "-> None", SLAB_FAULTS[number - 1]
                assert store(f"has {number}") == "-> True"
            assert store("put 0") == "-> None"
        with process("store", place / "data") as store:
            numbers = range(len(SLAB_FAULTS) + 1)
            assert {number: store(f"has {number}") for number in numbers} == dict.fromkeys(numbers, "-> True")


def test_a_journal_that_cannot_be_written_changes_nothing_and_is_written_when_the_disk_is_well_again(
    new_directory: Callable[[str], Path],
) -> None:
    place = new_directory("journal")
    with failing_disk(place) as disk:
        with process("store", place / "data") as store:
            for number, (code, operation) in enumerate(
                [(errno.EIO, WRITE), (errno.EIO, SYNC), (errno.EDQUOT, WRITE)], 1
            ):
                disk.fail(code, JOURNAL, operation)
                assert store("capacity 77777777").startswith("StoreF")
                disk.mend()
                assert store(f"capacity {number << 30}") == f"-> {number << 30}"
        with process("store", place / "data") as store:
            assert store(f"capacity {1 << 31}") == f"-> {1 << 31}"


def test_a_node_on_an_ill_disk_passes_reads_through_and_says_what_it_cannot_do_and_goes_on_when_the_disk_is_well(
    new_directory: Callable[[str], Path],
) -> None:
    top = new_directory("ill")
    for name in ("disk", "set", "other"):
        (top / name).mkdir()
    for name, number in product(("set", "other"), range(3)):
        (top / name / f"{number}").write_bytes(os.urandom(400_000))
    cluster = f"test-{secrets.token_hex(4)}"
    with failing_disk(top / "disk") as disk, machines([node_in(top / "well", cluster)]) as (well,):
        snapshot = well.publish(top / "set", "--replicas", "1")
        url = well.json("status")["node"]["url"].removeprefix("http://")
        ill = node_in(top / "disk", cluster, f"static:{url}")
        with machines([ill], others=1):
            pid = ill.call("ping")["pid"]
            disk.fail(errno.EIO, DATA, WRITE, RESERVE)
            disk.fail(errno.EIO, PROBE, WRITE)
            ill.hoard("export", snapshot, os.fspath(top / "out"))
            assert tree(top / "out") == tree(top / "set")
            assert ill.json("status")["store"]["unstored"] > 0
            wait_until(lambda: ill.json("status")["store"]["state"] == "failing", "the disk is looked at")
            assert "I/O error" in ill.json("status")["store"]["state_reason"]
            failed = ill.hoard("publish", os.fspath(top / "other"), check=False)
            assert failed.returncode == 1 and "I/O error" in failed.stderr, failed.stderr
            assert [each["id"] for each in ill.json("status")["snapshots"]] == [snapshot], "nothing half is shown"
            disk.mend()
            disk.fail_roots(errno.EIO)
            failed = ill.hoard("tag", snapshot, "name:1", check=False)
            assert failed.returncode == 1 and "Input/output error" in failed.stderr, failed.stderr
            disk.mend()
            published = ill.publish(top / "other", "--name", "other:1")
            ill.hoard("export", published, os.fspath(top / "out2"))
            assert tree(top / "out2") == tree(top / "other") and ill.call("ping")["pid"] == pid
            assert "Traceback" not in ill.log(), ill.log()


def node_in(place: Path, cluster: str, discovery: str = "none") -> Machine:
    return Machine(place / "data", cluster, place.name, discovery=discovery, listen="127.0.0.1:0")
