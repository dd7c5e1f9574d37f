"""A real node with its unix socket, in a thread of the test's process."""

import asyncio
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from hoard_p2p.node import operations
from hoard_p2p.node.app import Node
from hoard_p2p.node.local import LocalServer
from tests.unit.node_cluster import running

END_SECONDS = 60.0


@contextmanager
def node_in_thread(data_dir: Path, *, key_file: str = "") -> Iterator[Node]:
    """Its reader and writer may be used; everything else belongs to its loop. What the node fails with is raised, and
    nothing of it is left when the block ends."""
    begun: Future[tuple[Node, asyncio.AbstractEventLoop, asyncio.Event]] = Future()

    async def main() -> None:
        stop = asyncio.Event()
        async with running(data_dir, key_file=key_file) as node:
            server = LocalServer(data_dir, partial(operations.handle, node))
            async with asyncio.TaskGroup() as group:
                serving = group.create_task(server.run())
                await asyncio.sleep(0)  # it has begun, and so will end properly
                begun.set_result((node, asyncio.get_running_loop(), stop))
                await stop.wait()
                serving.cancel()

    with ThreadPoolExecutor(1, "node") as pool:
        ended = pool.submit(asyncio.run, main())
        ended.add_done_callback(lambda done: None if begun.done() else begun.set_exception(_reason(done)))
        node, loop, stop = begun.result(END_SECONDS)
        try:
            yield node
        finally:
            if not ended.done():
                loop.call_soon_threadsafe(stop.set)
            ended.result(END_SECONDS)


def _reason(ended: "Future[None]") -> BaseException:
    return ended.exception() or AssertionError("the node ended before it answered")
