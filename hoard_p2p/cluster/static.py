"""Discovery from a list of addresses that the operator wrote down."""

import asyncio
import logging
import re
from collections.abc import Callable, Sequence
from pathlib import Path

from hoard_p2p.cluster.addresses import Address, Found
from hoard_p2p.cluster.dns import Resolver
from hoard_p2p.config import parse_listen
from hoard_p2p.errors import BadRequest, Unavailable
from hoard_p2p.peer import is_wildcard

log = logging.getLogger(__name__)

STATIC_EVERY = 10.0
"""Seconds between two readings of a list: names may resolve later, and files may be edited."""
MAX_LISTED = 4096
"""Addresses of one list."""
NO_HOST = frozenset("[](){}<>/?*;,@=!|&\\'\" \t")
_RANGES = re.compile(r"\[(\d+(?:-\d+)?(?:,\d+(?:-\d+)?)*)\]")
_COMMA = re.compile(r",(?![^\[]*\])")


def read_address_file(path: Path) -> list[Address]:
    """One HOST:PORT (or node list) a line; empty lines and those that begin with # are skipped. Raises OSError,
    BadRequest."""
    lines = (line.strip() for line in path.read_text(encoding="utf-8", errors="replace").splitlines())
    return [address for line in lines if line and not line.startswith("#") for address in parse_list(line)]


def parse_list(text: str) -> list[Address]:
    """`HOST:PORT,...`, where a host may be a node list as Slurm writes it: `node[01-04,7]:7440`. Raises BadRequest."""
    addresses: list[Address] = []
    for part in _COMMA.split(text):
        if part.strip():
            addresses += [parse_address(one) for one in _expanded(part.strip())]
    return addresses


def _expanded(text: str) -> list[str]:
    """The texts that one with ranges in brackets stands for."""
    match = _RANGES.search(text)
    if match is None:
        return [text]
    behind = _expanded(text[match.end() :])
    numbers = [number for part in match[1].split(",") for number in _numbers(text, part)]
    if len(numbers) * len(behind) > MAX_LISTED:
        raise BadRequest(f"{text[:80]!r} stands for more than {MAX_LISTED} nodes")
    return [f"{text[: match.start()]}{number}{rest}" for number in numbers for rest in behind]


def _numbers(text: str, part: str) -> list[str]:
    """`01-04`: 01 to 04, as wide as the first is written."""
    first, _, last = part.partition("-")
    low, high = int(first), int(last or first)
    if not low <= high < low + MAX_LISTED:
        raise BadRequest(f"{text[:80]!r}: {part} is no range of at most {MAX_LISTED} numbers")
    return [f"{number:0{len(first)}}" for number in range(low, high + 1)]


def parse_address(text: str) -> Address:
    """The peer that HOST:PORT names. Raises BadRequest."""
    try:
        host, port = parse_listen(text.strip())
    except BadRequest as error:
        raise BadRequest(f"{text!r} names no peer; write HOST:PORT") from error
    if not port or is_wildcard(host):
        raise BadRequest(f"{text!r} names no peer; write HOST:PORT")
    if strange := NO_HOST & set(host):
        raise BadRequest(f"{text!r} is no host: {min(strange)!r} cannot be in one; a node list is node[01-16,20]:PORT")
    return Address(host, port)


class StaticDiscovery:
    """A list of addresses, read and resolved again every few seconds. An empty list is the discovery `none`."""

    def __init__(self, name: str, read: Callable[[], Sequence[Address]]) -> None:
        self.name = name
        self._read = read
        self._unresolved: set[str] = set()

    async def run(self, found: Found) -> None:
        with Resolver() as resolver:
            while addresses := await asyncio.to_thread(self._read):
                for address in addresses:
                    for host in await self._resolve(resolver, address.host):
                        found(Address(host, address.port))
                await asyncio.sleep(STATIC_EVERY)

    async def _resolve(self, resolver: Resolver, host: str) -> list[str]:
        """The IP addresses of a name. A name that has none now is warned about once, and may have some later."""
        try:
            hosts = await resolver.resolve(host)
        except Unavailable as error:
            if host not in self._unresolved:
                log.warning("discovery %s, %s: %s", self.name, host, error)
            self._unresolved.add(host)
            return []
        self._unresolved.discard(host)
        return hosts
