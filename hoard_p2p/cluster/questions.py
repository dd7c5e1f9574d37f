"""What the agent asks other nodes, and what they answer."""

from collections.abc import Sequence
from typing import Protocol

from hoard_p2p.peer import News, NodeId, Peer, Standing


class Greeting(Protocol):
    """What a node says of itself when asked; `transfer.wire.Hello` is one."""

    @property
    def peer(self) -> Peer: ...
    @property
    def cluster(self) -> str: ...
    @property
    def members(self) -> tuple[Peer, ...]: ...
    @property
    def boot(self) -> bytes: ...


class Answer(Protocol):
    """The answer to a probe; `transfer.wire_members.ProbeMessage` is one. It tells no members."""

    @property
    def hello(self) -> Greeting: ...
    @property
    def news(self) -> News: ...


class Questions(Protocol):
    """Each raises PeerUnavailable when there is no answer; the caller bounds the time."""

    async def hello(self, host: str, port: int) -> Greeting:
        """Says hello to a host and port (telling about this node)."""
        ...

    async def probe(self, peer: Peer, news: News) -> Answer:
        """Asks whether a node is at the host and port of `peer`; it may be another. The answer's record has them."""
        ...

    async def probe_for(self, helper: Peer, node: NodeId) -> bool:
        """Asks `helper` to probe another node: whether it got an answer."""
        ...

    async def standings(self, peer: Peer, known: Sequence[Standing]) -> Sequence[Standing]:
        """Standings that the peer knows and are not `known`, not always all of them."""
        ...
