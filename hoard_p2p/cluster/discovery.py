"""Ways to find the first peers, by the name the user gave. Discovery adds addresses, it never removes any."""

from pathlib import Path

from hoard_p2p.cluster.addresses import Address, Advert, Discovery, Found
from hoard_p2p.cluster.mdns import MdnsDiscovery
from hoard_p2p.cluster.static import StaticDiscovery, parse_address, read_address_file
from hoard_p2p.errors import BadRequest

__all__ = ["Address", "Advert", "Discovery", "Found", "parse_discovery"]


def parse_discovery(text: str, advert: Advert) -> Discovery:
    """The discovery for `mdns`, `static:HOST:PORT,...`, `static:FILE` or `none`. Raises BadRequest."""
    kind, _, rest = text.partition(":")
    if text == "mdns":
        return MdnsDiscovery(advert)
    if text == "none":
        return StaticDiscovery(text, list)
    if kind == "static" and rest:
        return _parse_static(text, rest)
    if kind in ("dns", "etcd"):
        raise BadRequest(f"discovery {kind!r} is not in this version; use mdns, static:HOST:PORT,... or static:FILE")
    raise BadRequest(f"no such discovery: {text!r}; use mdns, static:HOST:PORT,..., static:FILE or none")


def _parse_static(text: str, rest: str) -> Discovery:
    path = Path(rest)
    if "/" in rest or path.is_file():
        return StaticDiscovery(text, lambda: read_address_file(path))
    addresses = [parse_address(part) for part in rest.split(",") if part.strip()]
    return StaticDiscovery(text, lambda: addresses)
