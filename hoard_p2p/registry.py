"""The few calls that Hoard makes of an etcd, as a Protocol, and how a user names one. Pure.

The door to a real etcd is `transfer.etcd`; `cluster.etcd` keeps the membership in it and `node.refs` the refs.
"""

from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol
from urllib.parse import SplitResult, parse_qs, quote, unquote, urlsplit

from hoard_p2p.errors import BadRequest

DEFAULT_PORT = 2379
_FILES = ("ca", "cert", "key")


class Entry(NamedTuple):
    """A key, its value, and the revision of the registry at which it was last set."""

    key: str
    value: bytes
    revision: int


class Listing(NamedTuple):
    """What was under a prefix at one revision of the registry."""

    entries: tuple[Entry, ...]
    revision: int


class Change(NamedTuple):
    """A key was set, or went (`value` None)."""

    key: str
    value: bytes | None
    revision: int


class Registry(Protocol):
    """Keys with values that all nodes see alike. Every method raises Unavailable if the registry cannot be reached, or
    refuses; what was asked for may have been done then."""

    async def list(self, prefix: str) -> Listing:
        """Everything under a prefix."""
        ...

    async def get(self, key: str) -> Entry | None:
        """What a key is set to."""
        ...

    async def put(self, key: str, value: bytes, *, lease: int = 0) -> None:
        """Set a key; with a lease it goes when the lease does."""
        ...

    async def put_if(self, key: str, value: bytes, *, revision: int) -> bool:
        """Set a key if it was last set at `revision` (0: if it is not set); whether it was."""
        ...

    async def grant(self, seconds: int) -> int:
        """A new lease, which ends when nobody kept it alive for so long."""
        ...

    async def keep_alive(self, lease: int) -> bool:
        """Begin the time of a lease anew; False if it has ended."""
        ...

    async def revoke(self, lease: int) -> None:
        """End a lease now."""
        ...

    def watch(self, prefix: str, revision: int) -> AsyncGenerator[Sequence[Change], None]:
        """Changes under a prefix from `revision` on, in order. Ends when the registry has forgotten those: list it
        again."""
        ...


@dataclass(frozen=True, slots=True)
class RegistryAddress:
    """Where an etcd is: base URLs of its members, and how to log in. `ca`, `cert`, `key`: files in PEM, or empty."""

    urls: tuple[str, ...]
    user: str = ""
    password: str = ""
    ca: str = ""
    cert: str = ""
    key: str = ""

    @property
    def name(self) -> str:
        """For messages; without the password."""
        return f"etcd:{','.join(self.urls)}"


def parse_registry(text: str) -> RegistryAddress:
    """`etcd:HOST[:PORT],...`, `etcd://HOST[:PORT],...`, or `etcd:URL,...` with http or https; `USER:PASSWORD@` before
    the first host, `?ca=FILE&cert=FILE&key=FILE` behind the last. Raises BadRequest."""
    rest = text.removeprefix("etcd:").removeprefix("//")
    rest, _, query = rest.partition("?")
    given = parse_qs(query)
    parts = [_split(text, part.strip()) for part in rest.split(",") if part.strip()]
    if not parts or not set(given) <= set(_FILES):
        raise BadRequest(f"{_shown(text)!r} names no etcd; write etcd:HOST:PORT,... or etcd:https://HOST:PORT?ca=FILE")
    files = {name: values[-1] for name, values in given.items()}
    login = next((part for part in parts if part.username), parts[0])
    return RegistryAddress(
        urls=tuple(_base(part) for part in parts),
        user=unquote(login.username or ""),
        password=unquote(login.password or ""),
        **files,
    )


def _split(text: str, part: str) -> SplitResult:
    try:
        url = urlsplit(part if "://" in part else f"http://{part}")
        sound = url.scheme in ("http", "https") and url.hostname and not url.path.strip("/") and url.port != 0
    except ValueError:
        sound = False
    if not sound:
        raise BadRequest(f"{_shown(text)!r} names no etcd: {part.rpartition('@')[2]!r} is no HOST:PORT")
    return url


def _base(url: SplitResult) -> str:
    host = url.hostname or ""
    shown = f"[{host}]" if ":" in host else host
    return f"{url.scheme}://{shown}:{url.port or DEFAULT_PORT}"


def _shown(text: str) -> str:
    """Without user and password."""
    return f"etcd:{text.rpartition('@')[2]}" if "@" in text else text


def prefix_of(cluster: str, kind: str) -> str:
    """Where the keys of one cluster are: `/hoard/CLUSTER/KIND/`, the name quoted as in a URL."""
    return f"/hoard/{quote(cluster, safe='')}/{kind}/"
