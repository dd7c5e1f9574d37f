"""A mount's line to its node, and the time that a node is given for a miss."""

import asyncio
import os
import queue
import threading
from pathlib import Path

import pytest

from hoard_p2p import __version__
from hoard_p2p.config import Json
from hoard_p2p.errors import BadRequest
from hoard_p2p.node.local import LocalReply, LocalRequest
from hoard_p2p.node.misses import NodeMisses
from hoard_p2p.node.mount_line import SupervisorLine
from hoard_p2p.node.plan import MountPlan
from tests.unit.test_node_local import poll, serving


def a_plan(data_dir: Path) -> MountPlan:
    return MountPlan(str(data_dir), "ab" * 32, 1, 1, 1, "/mnt/x", 70, 5.0, "first")


def test_a_line_attaches_its_mount_with_all_descriptors_whenever_the_node_is_there(tmp_path: Path) -> None:
    told: queue.Queue[tuple[dict[str, Json], int]] = queue.Queue()
    fds = [os.memfd_create("shared")] * 68  # what a mount of 64 workers has
    line = SupervisorLine(a_plan(tmp_path), "0:77", fds)

    async def handler(request: LocalRequest) -> LocalReply:
        told.put((request.args, len(request.fds)))
        await asyncio.Event().wait()
        return LocalReply()

    def heard() -> bool:
        line.tend()
        return not told.empty()

    line.tend()
    assert line.fileno() == -1, "there is no node yet"
    for _ in range(2):
        with serving(tmp_path, handler):
            poll(heard)
            args, count = told.get()
            assert count == 68
            assert (args["device"], args["version"], args["pid"]) == ("0:77", __version__, os.getpid())
            assert MountPlan.parse(str(args["plan"])) == a_plan(tmp_path)
            line.tend()
            assert told.empty(), "once is enough"
    line.close()
    assert line.fileno() == -1
    os.close(fds[0])


@pytest.mark.expect_warnings
def test_a_line_that_is_refused_says_so_once_and_stays(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    asked: list[str] = []

    async def handler(request: LocalRequest) -> LocalReply:
        asked.append(request.op)
        raise BadRequest("no such mounts here")

    def refused() -> bool:
        line.tend()
        return "no such mounts here" in caplog.text

    line = SupervisorLine(a_plan(tmp_path), "0:77", ())
    with serving(tmp_path, handler):
        poll(refused)
        line.tend()
        assert line.fileno() >= 0
    line.close()
    assert asked == ["attach"]


@pytest.mark.parametrize("timeout, most", [(60.0, 59.0), (2.0, 1.8)])
def test_the_node_is_given_less_time_for_a_miss_than_its_reader_has(
    tmp_path: Path, timeout: float, most: float
) -> None:
    asked: queue.Queue[float] = queue.Queue()
    again = threading.Event()

    async def handler(request: LocalRequest) -> LocalReply:
        asked.put(float(str(request.args["timeout"])))
        await asyncio.Event().wait()
        return LocalReply()

    def heard() -> bool:
        misses.tend()
        misses.answers()
        return not asked.empty()

    misses = NodeMisses(tmp_path, "ab" * 32, timeout)
    misses.ask(4)
    with serving(tmp_path, handler):
        poll(heard)
        first = asked.get()
    again.wait(0.1)  # the reader's time goes on while there is no node
    with serving(tmp_path, handler):
        poll(heard)
        second = asked.get()
    misses.close()
    assert most - 1.0 < first <= most
    assert second <= first - 0.1
