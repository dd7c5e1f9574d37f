"""Connections that have not asked anything yet, over real sockets."""

import asyncio
import gc
import weakref

from hoard_p2p.transfer.doorstep import Doorstep


class Inside(asyncio.Protocol):
    """Answers each byte with an exclamation mark, and notes when the connection ends."""

    def __init__(self) -> None:
        self.gone = asyncio.Event()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport
        self.seen = weakref.ref(transport)

    def data_received(self, data: bytes) -> None:
        self.transport.write(b"!" * len(data))

    def connection_lost(self, exc: Exception | None) -> None:
        del self.transport
        self.gone.set()


class Doors:
    """A server whose connections stand on a doorstep."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self.insides: list[Inside] = []
        self.doorsteps: list[weakref.ref[Doorstep]] = []

    def connected(self) -> asyncio.BaseProtocol:
        self.insides.append(Inside())
        doorstep = Doorstep(self.insides[-1], self._seconds)
        self.doorsteps.append(weakref.ref(doorstep))
        return doorstep

    async def start(self) -> tuple[asyncio.Server, int]:
        server = await asyncio.get_running_loop().create_server(self.connected, "127.0.0.1", 0)
        return server, server.sockets[0].getsockname()[1]


def test_a_connection_that_goes_away_leaves_nothing_behind() -> None:
    async def main() -> None:
        doors = Doors(3600)
        server, port = await doors.start()
        async with server, asyncio.timeout(10):
            for _ in range(20):
                _, writer = await asyncio.open_connection("127.0.0.1", port)
                writer.transport.abort()
            while len(doors.insides) < 20:  # noqa: ASYNC110 - the server accepts in its own time
                await asyncio.sleep(0.01)
            for inside in doors.insides:
                await inside.gone.wait()
            await asyncio.sleep(0)
            gc.collect()
            assert [doorstep for doorstep in doors.doorsteps if doorstep() is not None] == []
            assert [inside for inside in doors.insides if inside.seen() is not None] == []

    asyncio.run(main())


def test_a_connection_that_is_not_let_in_is_ended_and_one_that_is_stays() -> None:
    async def main() -> None:
        doors = Doors(0.3)
        server, port = await doors.start()
        async with server, asyncio.timeout(10):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            other_reader, other_writer = await asyncio.open_connection("127.0.0.1", port)
            for one in (writer, other_writer):
                one.write(b"??")
            assert await reader.readexactly(2) == b"!!"
            assert await other_reader.readexactly(2) == b"!!"
            protocol = doors.insides[0].transport.get_protocol()
            assert isinstance(protocol, Doorstep)
            protocol.let_in()
            assert doors.insides[0].transport.get_protocol() is doors.insides[0]
            await doors.insides[1].gone.wait()
            writer.write(b"?")
            assert await reader.readexactly(1) == b"!"
            writer.close()
            other_writer.close()
            await doors.insides[0].gone.wait()

    asyncio.run(main())
