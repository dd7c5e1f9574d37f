"""Real nodes in one process, that talk over real sockets on loopback."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

from hoard_p2p.cluster.discovery import Address
from hoard_p2p.config import NodeSettings
from hoard_p2p.node.app import Node
from hoard_p2p.node.parts import NodeParts
from hoard_p2p.node.securing import security_of
from hoard_p2p.node.service import NodeService
from hoard_p2p.storage.store import Store
from hoard_p2p.transfer.control import PeerControl
from hoard_p2p.transfer.server import bind, make_server


class _End(Exception):
    """Ends the tasks of a node."""


@asynccontextmanager
async def running(
    data_dir: Path,
    *others: Node,
    discovery: str = "none",
    allow: Sequence[Path] = (),
    grace: float = 60.0,
    key_file: str = "",
    encrypt: bool = False,
    service: Callable[[Node], NodeService] = NodeService,
) -> AsyncIterator[Node]:
    """A node that serves, and has met `others`. `allow`: directories that it may read as origins."""
    settings = NodeSettings(
        data_dir,
        "127.0.0.1",
        0,
        "test",
        data_dir.name,
        "",
        1 << 30,
        (discovery,),
        allow_origin=tuple(map(str, allow)),
        repair_grace=grace,
        repair_limit=0,
        cluster_key_file=key_file,
        encrypt=encrypt,
    )
    with Store.open(data_dir) as store:
        store.set_capacity(1 << 30)
        listener = bind("127.0.0.1", 0)
        security = security_of(settings, store.node_id)
        try:
            async with PeerControl(security) as control, asyncio.TaskGroup() as group:
                parts = NodeParts(settings, store, control, group, asyncio.Event(), security=security)
                node = Node(parts, listener.getsockname()[1])
                server = make_server(service(node), security=security)
                await server.serve(listener)
                for work in (node.agent.run, node.gossip.run, node.naming.run, node.known_origins.run, node.fills.run):
                    group.create_task(work())
                try:
                    await meet(node, *others)
                    yield node
                finally:
                    await server.stop()
                raise _End
        except* _End:
            pass
        finally:
            listener.close()
            await asyncio.to_thread(node.close)


async def meet(node: Node, *others: Node) -> None:
    """Wait until they are in each other's view."""
    for other in others:
        node.agent.found(Address(other.me.host, other.me.port))
    await until(lambda: all(_sees(node, other) and _sees(other, node) for other in others))


def _sees(node: Node, other: Node) -> bool:
    return other.me.node_id in node.agent.view().by_id


async def until(done: Callable[[], bool], seconds: float = 20.0) -> None:
    """Poll until it is so."""
    async with asyncio.timeout(seconds):
        while not done():  # noqa: ASYNC110 - what is waited for is in a node, which signals nothing
            await asyncio.sleep(0.01)


def run(main: Callable[[], Awaitable[None]]) -> None:
    async def until_done() -> None:
        async with asyncio.timeout(60):
            await main()

    asyncio.run(until_done())
