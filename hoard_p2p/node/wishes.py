"""What a user asked of a publish besides what the processes that read and list are told. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass

from hoard_p2p.config import DEFAULT_REPLICAS, Json
from hoard_p2p.errors import BadRequest
from hoard_p2p.node.names import DEFAULT_KEEP, new_ref_name
from hoard_p2p.node.names_wire import MAX_REPLICAS

MAX_KEEP = 1000 * 365 * 24 * 3600

_NOT_FOR_ORIGINS = {
    "rehash": "--rehash: an origin's versions tell what changed",
    "skip_unreadable": "--skip-unreadable: use --skip-unmappable",
}
"""Options that mean nothing where a listing is all that is looked at, with what to say."""


@dataclass(frozen=True, slots=True)
class Wish:
    """`shared`: whether SOURCE is an origin that other nodes read, too; None: it is, if it looks like one. `lazy`: show
    it as soon as it is listed. `chunker`: as the user named it, empty if not."""

    source: str
    name: str | None
    replicas: int
    pin: bool
    keep: int
    shared: bool | None
    lazy: bool
    chunker: str

    @property
    def is_url(self) -> bool:
        return "://" in self.source and not self.source.startswith("/")


def wish_of(options: Mapping[str, Json]) -> Wish:
    """Raises BadRequest."""
    replicas, name = options.get("replicas", DEFAULT_REPLICAS), options.get("name")
    if not isinstance(replicas, int) or isinstance(replicas, bool) or not 1 <= replicas <= MAX_REPLICAS:
        raise BadRequest(f"there can be 1 - {MAX_REPLICAS} copies, not {str(replicas)[:80]}")
    wish = Wish(
        source=str(options.get("source", "")),
        name=new_ref_name(str(name)) if name else None,
        replicas=replicas,
        pin=options.get("pin") is True,
        keep=_keep(options.get("keep")),
        shared=shared if isinstance(shared := options.get("shared_origin"), bool) else None,
        lazy=options.get("lazy") is True,
        chunker=str(options.get("chunker") or ""),
    )
    _check(wish)
    return wish


def _check(wish: Wish) -> None:
    """Raises BadRequest for wishes that exclude each other."""
    if wish.is_url and wish.shared is False:
        raise BadRequest(
            f"--no-shared-origin is for directories; {wish.source} is an origin that nodes read by themselves"
        )
    if wish.lazy and wish.shared is False:
        raise BadRequest("--lazy leaves the bytes at the origin, so it cannot go with --no-shared-origin")
    if wish.chunker and (wish.is_url or wish.lazy):
        raise BadRequest(
            "--chunker is for directories that one node reads; what is read at its origin is cut every 4 MiB"
        )


def check_for_origin(options: Mapping[str, Json]) -> None:
    """Raises BadRequest for what cannot be asked where an origin is listed."""
    for option, why in _NOT_FOR_ORIGINS.items():
        if options.get(option) is True:
            raise BadRequest(f"{why}; leave it out")


def _keep(value: Json) -> int:
    """Seconds that the snapshot is kept for after its last use."""
    if value is None:
        return DEFAULT_KEEP
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= MAX_KEEP:
        raise BadRequest(f"a snapshot is kept for 0 - {MAX_KEEP} seconds, not {str(value)[:80]}")
    return value
