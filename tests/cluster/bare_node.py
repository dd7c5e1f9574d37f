"""A node without a store, as a program: server, control client, membership and discovery. Prints its view as a JSON
line whenever it changes, and stops at SIGTERM. Arguments: NUMBER CLUSTER HOST:PORT DISCOVERY[+DISCOVERY]."""

import asyncio
import json
import signal
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from random import Random

from hoard_p2p.cluster.agent import ClusterAgent
from hoard_p2p.cluster.discovery import Advert, parse_discovery
from hoard_p2p.cluster.membership import IdConflict, Membership
from hoard_p2p.config import parse_listen
from hoard_p2p.node.meeting import WireQuestions, answer_probe, unknown_standings
from hoard_p2p.peer import ClusterView, NodeId, Standing
from hoard_p2p.testing.network import FileService, a_peer
from hoard_p2p.transfer.control import PeerControl
from hoard_p2p.transfer.server import make_server
from hoard_p2p.transfer.wire import Hello
from hoard_p2p.transfer.wire_members import KnownStanding, ProbeMessage


class BareService(FileService):
    """Passes hellos and goodbyes on to the agent."""

    agent: ClusterAgent | None = None

    def hello(self) -> Hello:
        members = () if self.agent is None else self.agent.view().others
        return Hello(self.me, self.cluster, members, boot=self.boot)

    def greeted(self, caller: Hello) -> None:
        if self.agent is not None:
            self.agent.greeted(caller)

    def probed(self, caller: ProbeMessage) -> ProbeMessage:
        if self.agent is None:
            return ProbeMessage(replace(self.hello(), members=()))
        return answer_probe(self.agent, self.hello(), caller)

    async def probe_for(self, node: NodeId) -> bool:
        return self.agent is not None and await self.agent.probe_for(node)

    def standings(self, known: Sequence[KnownStanding]) -> Sequence[Standing]:
        return [] if self.agent is None else unknown_standings(self.agent, known)

    async def left(self, node: NodeId, incarnation: int) -> None:
        if self.agent is not None:
            self.agent.left(node, incarnation)


def write(line: dict[str, object]) -> None:
    sys.stdout.write(json.dumps(line) + "\n")
    sys.stdout.flush()


def show(view: ClusterView) -> None:
    write({peer.name: f"{peer.host}:{peer.port}" for peer in view.others})


def show_conflict(conflict: IdConflict) -> None:
    write({"conflict": sorted([conflict.first.host, conflict.second.host])})


async def serve(number: int, cluster: str, listen: str, discovery: str, directory: Path) -> None:
    host, port = parse_listen(listen)
    service = BareService(a_peer(number, host), directory / "slab", cluster=cluster, boot=Random().randbytes(8))
    server = make_server(service)
    port = await server.start(host, port)
    service.me = replace(service.me, port=port)
    random = Random(number)
    membership = Membership(service.me, sample=random.sample, boot=service.boot)
    async with PeerControl() as control:
        advert = Advert(service.me.node_id, cluster, "", host, port)
        agent = service.agent = ClusterAgent(
            membership,
            [parse_discovery(text, advert) for text in discovery.split("+")],
            WireQuestions(control, service.hello),
            cluster=cluster,
            clock=time.monotonic,
            random=random,
            on_view=show,
            on_conflict=show_conflict,
        )
        stop = asyncio.Event()
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
        write({"port": port})
        async with asyncio.TaskGroup() as group:
            running = group.create_task(agent.run())
            await stop.wait()
            running.cancel()
    await server.stop()
    service.close()


def main() -> None:
    number, cluster, listen, discovery = sys.argv[1:]
    with tempfile.TemporaryDirectory() as directory:
        asyncio.run(serve(int(number), cluster, listen, discovery, Path(directory)))


if __name__ == "__main__":
    main()
