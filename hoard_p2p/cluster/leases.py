"""Who is a member by the leases in a registry: what was listed and what changed goes in, the members come out. Pure.

A registry that comes back may have forgotten everything: whoever was a member before and is missing from the first
listing afterwards stays one for a while, so that all have the time to enter themselves again.
"""

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from hoard_p2p.cluster.addresses import Address, Advert
from hoard_p2p.peer import NodeId, parse_node_id
from hoard_p2p.registry import Change, Entry

MAX_RECORD = 4096
MAX_HOSTS = 16
MAX_NODES = 8192


@dataclass(frozen=True, slots=True)
class Leased:
    """What a node put under its lease: where it may be reached."""

    node_id: NodeId
    addresses: tuple[Address, ...]


def encode_leased(advert: Advert, hosts: Sequence[str]) -> bytes:
    told = {"id": advert.node_id.hex(), "rack": advert.rack, "port": advert.port, "hosts": list(hosts)[:MAX_HOSTS]}
    return json.dumps(told).encode()


def decode_leased(value: bytes) -> Leased | None:
    """None for what no node has written."""
    if len(value) > MAX_RECORD:
        return None
    try:
        told = json.loads(value)
        hosts, port = told["hosts"], told["port"]
        addresses = tuple(Address(host, port) for host in hosts[:MAX_HOSTS] if isinstance(host, str))
        sound = isinstance(port, int) and 0 < port < 1 << 16
        return Leased(parse_node_id(told["id"]), addresses) if sound else None
    except (ValueError, TypeError, KeyError, RecursionError):
        return None


class Roll:
    """The members by lease. Times are seconds of any monotonic clock."""

    def __init__(self, grace: float) -> None:
        """`grace`: how long a member that is missing after an interruption stays one."""
        self._grace = grace
        self._there: dict[str, Leased] = {}
        self._missing: dict[str, tuple[Leased, float]] = {}

    def listed(self, entries: Iterable[Entry], now: float) -> list[Address]:
        """All keys, after a start or an interruption; where those nodes may be reached."""
        before = {**{key: (leased, now + self._grace) for key, leased in self._there.items()}, **self._missing}
        self._there = {}
        for entry in entries:
            leased = decode_leased(entry.value)
            if leased is not None and len(self._there) < MAX_NODES:
                self._there[entry.key] = leased
        self._missing = {key: known for key, known in before.items() if key not in self._there}
        return [address for leased in self._there.values() for address in leased.addresses]

    def changed(self, changes: Iterable[Change]) -> list[Address]:
        """What happened since; where nodes that came or changed may be reached."""
        found: list[Address] = []
        for change in changes:
            self._missing.pop(change.key, None)
            leased = None if change.value is None else decode_leased(change.value)
            if leased is None or (change.key not in self._there and len(self._there) >= MAX_NODES):
                self._there.pop(change.key, None)
            else:
                self._there[change.key] = leased
                found += leased.addresses
        return found

    def has(self, key: str) -> bool:
        """Whether a key is there."""
        return key in self._there

    def members(self, now: float) -> frozenset[NodeId]:
        """Who is a member at this time."""
        self._missing = {key: known for key, known in self._missing.items() if known[1] > now}
        kept = (leased for leased, _ in self._missing.values())
        return frozenset(leased.node_id for leased in (*self._there.values(), *kept))
