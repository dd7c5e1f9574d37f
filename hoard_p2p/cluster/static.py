"""Discovery from a list of addresses that the operator wrote down."""

import asyncio
import logging
import socket
from collections.abc import Callable, Sequence
from pathlib import Path

from hoard_p2p.cluster.addresses import Address, Found
from hoard_p2p.config import parse_listen
from hoard_p2p.errors import BadRequest
from hoard_p2p.peer import is_wildcard

log = logging.getLogger(__name__)

STATIC_EVERY = 10.0
"""Seconds between two readings of a list: names may resolve later, and files may be edited."""
RESOLVE_TIME = 5.0


def read_address_file(path: Path) -> list[Address]:
    """One HOST:PORT a line; empty lines and those that begin with # are skipped. Raises OSError, BadRequest."""
    lines = (line.strip() for line in path.read_text(encoding="utf-8", errors="replace").splitlines())
    return [parse_address(line) for line in lines if line and not line.startswith("#")]


def parse_address(text: str) -> Address:
    """The peer that HOST:PORT names. Raises BadRequest."""
    host, port = parse_listen(text.strip())
    if not port or is_wildcard(host):
        raise BadRequest(f"{text!r} names no peer; write HOST:PORT")
    return Address(host, port)


class StaticDiscovery:
    """A list of addresses, read and resolved again every few seconds. An empty list is the discovery `none`."""

    def __init__(self, name: str, read: Callable[[], Sequence[Address]]) -> None:
        self.name = name
        self._read = read
        self._unresolved: set[str] = set()

    async def run(self, found: Found) -> None:
        while addresses := await asyncio.to_thread(self._read):
            for address in addresses:
                for host in await self._resolve(address):
                    found(Address(host, address.port))
            await asyncio.sleep(STATIC_EVERY)

    async def _resolve(self, address: Address) -> list[str]:
        """The IP addresses of a name. A name that has none now is warned about once, and may have some later."""
        try:
            async with asyncio.timeout(RESOLVE_TIME):
                answers = await asyncio.get_running_loop().getaddrinfo(
                    address.host, address.port, type=socket.SOCK_STREAM
                )
        except (OSError, UnicodeError) as error:  # TimeoutError is an OSError; UnicodeError: it cannot be a name
            if address.host not in self._unresolved:
                log.warning("discovery %s: %s does not resolve: %r", self.name, address.host, error)
            self._unresolved.add(address.host)
            return []
        self._unresolved.discard(address.host)
        return list(dict.fromkeys(str(answer[4][0]) for answer in answers))
