"""A node is killed and leaves a writer behind, which goes on writing while the next node works, and reaches nothing."""

import os
import random
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import IO

import pytest

from hoard_p2p.ids import ChunkId, chunk_id
from hoard_p2p.storage.store import Store
from tests.fault.power_work import check_places, check_space

ROOT = Path(__file__).parents[2]
Process = subprocess.Popen[str]


@contextmanager
def node_and_writer(data_dir: Path, seed: int) -> Iterator[tuple[Process, Process]]:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with ExitStack() as undo:

        def start(role: str, end: socket.socket, *more: str) -> Process:
            argv = [
                sys.executable,
                "-m",
                "tests.fault.orphan_work",
                role,
                os.fspath(data_dir),
                str(end.fileno()),
                *more,
            ]
            made = subprocess.Popen(argv, cwd=ROOT, pass_fds=[end.fileno()], stdout=subprocess.PIPE, text=True)
            undo.enter_context(made)
            undo.callback(made.kill)
            end.close()
            return made

        node = start("node", ours)
        assert out(node).readline() == "open\n"
        yield node, start("writer", theirs, str(seed))


def out(process: Process) -> IO[str]:
    assert process.stdout is not None
    return process.stdout


def committed(writer: Process, rounds: int) -> set[bytes]:
    """What the writer says that it committed, in so many rounds."""
    return {bytes.fromhex(word) for _ in range(rounds) for word in out(writer).readline().split()}


@pytest.mark.parametrize("seed", [1, 2])
def test_a_writer_that_outlives_its_node_reaches_no_byte_that_anybody_relies_on(seed: int, tmp_path: Path) -> None:
    draw = random.Random(seed)
    with node_and_writer(tmp_path / "data", seed) as (node, orphan):
        promised = committed(orphan, 1 + draw.randrange(4))
        orphan.send_signal(signal.SIGSTOP)
        node.kill()
        node.wait(10)
        with Store.open(tmp_path / "data") as store:
            listed = check_places(store)
            assert promised <= listed
            gone = {ChunkId(each) for each in sorted(listed) if draw.random() < 0.5}
            own = work(store, gone, draw)
            orphan.send_signal(signal.SIGCONT)
            own |= work(store, set(), draw)
            assert check_places(store) == (listed - gone) | own
            promised |= committed(orphan, 1000)  # to its end: it waits while nobody takes what it says
            orphan.wait(30)
            assert check_places(store) == (listed - gone) | own, "an orphan's commit reached the next node's index"
            assert promised - gone <= listed
        with Store.open(tmp_path / "data") as store:
            assert check_places(store) == (listed - gone) | own
            check_space(store)
            assert check_places(store) == (listed - gone) | own


def work(store: Store, gone: set[ChunkId], draw: random.Random) -> set[bytes]:
    """What the next node does: publish, evict, clear away. The chunks that it stored."""
    data = [draw.randbytes(draw.choice((10, 5000, 40_000))) for _ in range(30)]
    with store.writer() as own:
        for each in data:
            own.put(chunk_id(each), each)
        store.reclaimer.drop(gone)
        own.flush()
    store.reclaimer.reclaim()
    store.reclaimer.leftovers()
    store.reclaimer.reclaim()
    return {chunk_id(each) for each in data}
