"""Long questions to a peer, given up when it leaves the view: one that vanished without a word answers never."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

from hoard_p2p.errors import Unavailable
from hoard_p2p.node.blocking import sleep_while
from hoard_p2p.peer import ClusterView, Peer

T = TypeVar("T")

LOOK_SECONDS = 0.5


async def while_member(
    group: asyncio.TaskGroup, view: Callable[[], ClusterView], peer: Peer, question: Awaitable[T]
) -> T:
    """The answer to `question`, which has a deadline of its own. Raises Unavailable when the peer leaves the view."""

    async def watch(limit: asyncio.Timeout) -> None:
        await sleep_while(lambda: LOOK_SECONDS if peer.node_id in view().by_id else 0.0)
        limit.reschedule(asyncio.get_running_loop().time())

    try:
        async with asyncio.timeout(None) as limit:
            watcher = group.create_task(watch(limit))
            try:
                return await question
            finally:
                watcher.cancel()
    except TimeoutError as error:
        raise Unavailable(f"{peer.name} left the cluster while it was asked") from error
