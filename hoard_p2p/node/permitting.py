"""Which origins this node may read: those that its users named, and those beneath what its operator allowed.

Nothing is read on a peer's word: a snapshot record names an origin, this node decides whether it opens it.
"""

import json
import os
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from hoard_p2p.errors import BadRequest, Refused, Unavailable
from hoard_p2p.origin.allowed import Prefix, allows, command_to_allow, is_beneath, may_look, parse_prefix, real_path
from hoard_p2p.origin.s3url import parse_endpoint
from hoard_p2p.origin.urls import HOSTED, Address, parse_address
from hoard_p2p.printing import printable
from hoard_p2p.storage.store import Store

NAMED = b"origins"
"""In META: what local users named, as JSON: the paths of directories, as they wrote them and as they are, and URLs."""

MOST_NAMED = 256

_ENDPOINTS = ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL")
"""Where the environment of this node says whom its AWS tools ask, the first one first."""


@dataclass(frozen=True, slots=True)
class Grant:
    """That an origin may be read here. `as_owner`: of a directory what its owner could read; `trusted`: hosts that may
    be asked though they are this machine or its neighbours, since who allowed the origin named them."""

    address: Address
    as_owner: bool = False
    trusted: frozenset[str] = frozenset()


class Permissions:
    """Blocking (the index, paths); for any thread."""

    def __init__(self, store: Store, allow: Iterable[str]) -> None:
        """Raises BadRequest for a prefix that can be none."""
        self._store = store
        self._prefixes = [parse_prefix(text) for text in allow]
        self._endpoint = _default_endpoint()

    def may_look(self, url: str) -> bool:
        """Whether an origin that a peer named is one of ours, as far as its name tells. Reads no file."""
        try:
            address = parse_address(url)
        except BadRequest:
            return False
        path, named = address.directory, self.named()
        if path is None:
            return address.url in named or self._allowing(address) is not None
        return may_look(path, named, [*self._directories(), *self._real_directories()])

    def check(self, url: str) -> Grant:
        """Raises Refused with the command that allows it, BadRequest for what is no origin, Unavailable for a
        directory that is not there."""
        address, named = parse_address(url), self.named()
        if address.directory is None:
            return self._check_url(address, named)
        if not self.may_look(url):
            raise _refusal(address)
        try:
            real = real_path(address.directory)
        except OSError as error:
            raise Unavailable(f"the origin {printable(url)} is not there: {error.strerror}") from error
        if str(real) not in named and not is_beneath(real, self._real_directories()):
            raise _refusal(parse_address(f"dir:{real}"))
        return Grant(address, as_owner=str(real) not in named)

    def _check_url(self, address: Address, named: list[str]) -> Grant:
        if address.url in named:
            return Grant(address, trusted=_host_of(address))
        prefix = self._allowing(address)
        if prefix is None:
            raise _refusal(address)
        return Grant(address, trusted=_host_of(address) if prefix.host else frozenset())

    def _allowing(self, address: Address) -> Prefix | None:
        return next((prefix for prefix in self._prefixes if allows(prefix, address, self._endpoint)), None)

    def _directories(self) -> list[Path]:
        return [prefix.directory for prefix in self._prefixes if prefix.directory is not None]

    def _real_directories(self) -> list[Path]:
        found = []
        for path in self._directories():
            with suppress(OSError):  # not mounted yet
                found.append(real_path(path))
        return found

    def named(self) -> list[str]:
        """What local users named."""
        told = json.loads(self._store.meta(NAMED) or b"[]")
        return [str(text) for text in told] if isinstance(told, list) else []

    def add(self, *texts: str) -> None:
        """A local user named these. Raises StoreFailed."""
        named = self.named()
        fresh = [text for text in dict.fromkeys(texts) if text not in named]
        if fresh:
            self._store.choose(NAMED, json.dumps([*named, *fresh][-MOST_NAMED:]).encode())


def _refusal(address: Address) -> Refused:
    url = printable(address.url.removeprefix("dir:"))
    return Refused(f"the origin {url} may not be read by this node; allow it with: {command_to_allow(address)}")


def _host_of(address: Address) -> frozenset[str]:
    return frozenset([address.host] if address.scheme in HOSTED else [])


def _default_endpoint() -> str:
    """Empty: AWS. One that cannot be read allows nothing but itself."""
    told = next((text for name in _ENDPOINTS if (text := os.environ.get(name))), "")
    try:
        return parse_endpoint(told)
    except BadRequest:
        return told
