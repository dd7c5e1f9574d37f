"""What an operation of the unix socket is, and how it takes its arguments apart."""

from collections.abc import Awaitable, Callable

from hoard_p2p.errors import BadRequest
from hoard_p2p.node.app import Node
from hoard_p2p.node.local import Body, LocalReply, LocalRequest

Operation = Callable[[Node, LocalRequest], Awaitable[LocalReply]]


def text_of(args: Body, key: str) -> str:
    """Raises BadRequest if there is no such text."""
    value = args.get(key)
    if not isinstance(value, str):
        raise BadRequest(f"{key} is missing")
    return value


def number_of(args: Body, key: str) -> int:
    """Raises BadRequest if there is no such number."""
    value = args.get(key)
    if not isinstance(value, int):
        raise BadRequest(f"{key} is no number")
    return value
