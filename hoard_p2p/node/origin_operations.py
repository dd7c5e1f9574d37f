"""Origins: operations of the unix socket (`node.operations`)."""

from collections.abc import Mapping

from hoard_p2p.config import Json
from hoard_p2p.node.app import Node
from hoard_p2p.node.asking import Operation
from hoard_p2p.node.local import LocalReply, LocalRequest


def origins_body(node: Node) -> list[Json]:
    """What a status shows of them."""
    return node.known_origins.body(lambda origin: len(node.agent.reading(origin)))


async def _origins(node: Node, request: LocalRequest) -> LocalReply:
    """As in a status, which counts much else."""
    return LocalReply({"origins": origins_body(node)})


OPERATIONS: Mapping[str, Operation] = {"origins": _origins}
