"""A real node with its unix socket, in a thread of the test's process."""

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from hoard_p2p.node import operations
from hoard_p2p.node.app import Node
from hoard_p2p.node.local import LocalServer
from tests.unit.node_cluster import running


@contextmanager
def node_in_thread(data_dir: Path) -> Iterator[Node]:
    """Its reader and writer may be used; everything else belongs to its loop."""
    started: list[Node] = []
    answers, stop = threading.Event(), asyncio.Event()
    loops: list[asyncio.AbstractEventLoop] = []

    async def main() -> None:
        loops.append(asyncio.get_running_loop())
        async with running(data_dir) as node, asyncio.TaskGroup() as group:
            serving = group.create_task(LocalServer(data_dir, partial(operations.handle, node)).run())
            await asyncio.sleep(0)  # it has begun, and so will end properly
            started.append(node)
            answers.set()
            await stop.wait()
            serving.cancel()

    thread = threading.Thread(target=lambda: asyncio.run(main()))
    thread.start()
    try:
        assert answers.wait(20), "the node does not start"
        yield started[0]
    finally:
        loops[0].call_soon_threadsafe(stop.set)
        thread.join(20)
