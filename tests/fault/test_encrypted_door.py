"""Strangers at the door of a node that encrypts: they cannot finish a handshake, and cannot begin many."""

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from hoard_p2p.peer import NodeId
from hoard_p2p.testing.network import FileService, a_peer
from hoard_p2p.transfer.control import PeerControl
from hoard_p2p.transfer.guard import Limits
from hoard_p2p.transfer.keys import ClusterKey, KeyRing, Security
from hoard_p2p.transfer.server import make_server
from hoard_p2p.transfer.tls import make_tls

KEY = ClusterKey(bytes(range(32)))
LIMITS = Limits(handshakes=3, handshake_time=0.5)


@pytest.fixture
def service(tmp_path: Path) -> Iterator[FileService]:
    service = FileService(a_peer(1), tmp_path / "slab")
    yield service
    service.close()


def security(node: bytes) -> Security:
    ring = KeyRing(NodeId(node * 16), (KEY,))
    return Security(ring, make_tls(ring))


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # asyncio drops the refused socket
def test_handshakes_that_are_not_finished_are_bounded_and_end(service: FileService) -> None:
    async def main() -> None:
        server = make_server(service, limits=LIMITS, security=security(b"s"))
        port = await server.start("127.0.0.1", 0)
        try:
            async with asyncio.timeout(30), PeerControl(security(b"c")) as control:
                strangers = [await asyncio.open_connection("127.0.0.1", port) for _ in range(3)]
                one_more = await asyncio.open_connection("127.0.0.1", port)
                assert await one_more[0].read() == b"", "refused at once"
                for reader, _ in strangers:
                    assert await reader.read() == b"", "hung up on in the end"
                assert (await control.hello("127.0.0.1", port)).cluster == "test"
                for _, writer in (*strangers, one_more):
                    writer.close()
        finally:
            await server.stop()

    asyncio.run(main())
