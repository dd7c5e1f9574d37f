"""Ways to find the first peers, by the name the user gave. Discovery adds addresses, it never removes any: only etcd
does, where the leases are the membership."""

from collections.abc import Callable
from pathlib import Path

from hoard_p2p.cluster.addresses import Address, Advert, Discovery, Found
from hoard_p2p.cluster.mdns import MdnsDiscovery
from hoard_p2p.cluster.static import StaticDiscovery, parse_address, parse_list, read_address_file
from hoard_p2p.errors import BadRequest
from hoard_p2p.registry import RegistryAddress, parse_registry

__all__ = ["Address", "Advert", "Discovery", "Found", "parse_discovery"]

WAYS = "mdns, static:HOST:PORT,..., static:FILE, dns:NAME:PORT, etcd:HOST:PORT,... or none"


def no_registry(address: RegistryAddress) -> Discovery:
    """Where there is no door to one. Raises BadRequest."""
    raise BadRequest(f"{address.name} cannot be used here")


def parse_discovery(
    text: str, advert: Advert, by_etcd: Callable[[RegistryAddress], Discovery] = no_registry
) -> Discovery:
    """The discovery that `text` names (`WAYS`); `by_etcd` makes the one by a registry. Raises BadRequest."""
    kind, _, rest = text.partition(":")
    if text == "mdns":
        return MdnsDiscovery(advert)
    if text == "none":
        return StaticDiscovery(text, list)
    if kind == "static" and rest:
        return _parse_static(text, rest)
    if kind == "dns" and rest:
        service = [parse_address(rest)]
        return StaticDiscovery(text, lambda: service)
    if kind == "etcd":
        return by_etcd(parse_registry(text))
    raise BadRequest(f"no such discovery: {text!r}; use {WAYS}")


def _parse_static(text: str, rest: str) -> Discovery:
    path = Path(rest)
    if "/" in rest or path.is_file():
        return StaticDiscovery(text, lambda: read_address_file(path))
    addresses = parse_list(rest)
    return StaticDiscovery(text, lambda: addresses)
