"""The keys of a cluster: 32 random bytes each, in a file that only its owner may read.

The first key of a file signs, all of them are accepted: that is how keys are rotated. A key is never used itself, only
what is derived from it for one purpose (blake3 derive-key), so no use can be played against another.
"""

import os
import secrets
import stat
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from blake3 import blake3

from hoard_p2p.errors import BadRequest, Refused
from hoard_p2p.ids import from_hex
from hoard_p2p.peer import NodeId, Peer

if TYPE_CHECKING:
    import ssl

KEY_SIZE = 32
FINGERPRINT_SIZE = 8
MAX_KEYS = 16
MAX_KEY_FILE = 8 << 10
_FINGERPRINT = "hoard 2026-11-30 cluster key fingerprint v1"


@dataclass(frozen=True, slots=True)
class ClusterKey:
    """One key. Whoever has it is a full member of the cluster."""

    secret: bytes = field(repr=False)

    @property
    def fingerprint(self) -> bytes:
        """8 bytes that tell keys apart, and say nothing else about them."""
        return self.derive(_FINGERPRINT)[:FINGERPRINT_SIZE]

    def derive(self, context: str, more: bytes = b"") -> bytes:
        """32 secret bytes for one purpose; `more` is public and of a length that the context fixes."""
        return blake3(self.secret + more, derive_key_context=context).digest()


@dataclass(frozen=True, slots=True)
class KeyRing:
    """The keys that the node `me` has; never empty. The first signs, all are accepted."""

    me: NodeId
    keys: tuple[ClusterKey, ...]

    def find(self, fingerprint: bytes) -> ClusterKey | None:
        return next((key for key in self.keys if key.fingerprint == fingerprint), None)


@dataclass(frozen=True, slots=True)
class Tls:
    """What `--encrypt` wraps connections in: one context for each role."""

    server: "ssl.SSLContext"
    client: "ssl.SSLContext"


@dataclass(frozen=True, slots=True)
class Security:
    """How a node talks to others: in the open, with sessions by key, or with these inside of TLS."""

    ring: KeyRing | None = None
    tls: Tls | None = None

    @property
    def scheme(self) -> str:
        return "https" if self.tls is not None else "http"

    def url(self, peer: Peer) -> str:
        """Where a node of the same cluster is asked."""
        return f"{self.scheme}://{peer.place}"

    @property
    def fingerprints(self) -> tuple[str, ...]:
        """Of the keys, in hexadecimal, the one that signs first; of no key: one empty text."""
        return tuple(key.fingerprint.hex() for key in self.ring.keys) if self.ring is not None else ("",)


OPEN = Security()
"""No key: private addresses only, and whoever reaches the port may ask."""


def new_key() -> str:
    """A fresh key, as a line of a key file."""
    return secrets.token_bytes(KEY_SIZE).hex()


def parse_keys(text: str, where: str) -> tuple[ClusterKey, ...]:
    """The keys of a file: 64 hex digits a line; empty lines and those that begin with # are skipped. Raises BadRequest,
    whose message never has a part of a key."""
    lines = [(number, line.strip()) for number, line in enumerate(text.splitlines(), 1)]
    keys = [_parse_key(line, f"{where}, line {number}") for number, line in lines if line and not line.startswith("#")]
    if not keys:
        raise BadRequest(f"{where} has no key; make one with: hoard key new FILE")
    if len(keys) > MAX_KEYS:
        raise BadRequest(f"{where} has {len(keys)} keys, at most {MAX_KEYS} are taken; remove the old ones")
    return tuple(dict.fromkeys(keys))


def _parse_key(line: str, where: str) -> ClusterKey:
    try:
        secret = from_hex(line.lower(), KEY_SIZE, "a key")
    except ValueError:
        raise BadRequest(f"{where}: a key has {2 * KEY_SIZE} hex digits; make one with: hoard key new") from None
    if len(set(secret)) < KEY_SIZE // 4:
        raise BadRequest(f"{where}: that key was not drawn at random; make one with: hoard key new")
    return ClusterKey(secret)


def read_key_file(path: Path) -> tuple[ClusterKey, ...]:
    """The keys in a file of ours that nobody else may read. Raises BadRequest, Refused."""
    try:
        with path.open("rb") as file:
            _check_private(path, os.fstat(file.fileno()))
            text = file.read(MAX_KEY_FILE + 1)
    except OSError as error:
        raise BadRequest(f"the key file {path} cannot be read: {error.strerror or error}") from error
    if len(text) > MAX_KEY_FILE:
        raise BadRequest(f"{path} has more than {MAX_KEY_FILE} bytes: it is no key file")
    return parse_keys(text.decode("ascii", "replace"), str(path))


def _check_private(path: Path, found: os.stat_result) -> None:
    if not stat.S_ISREG(found.st_mode):
        raise BadRequest(f"{path} is no regular file")
    if found.st_mode & 0o077:
        raise Refused(
            f"{path} may be used by others than its owner (mode {stat.S_IMODE(found.st_mode):04o}); "
            f"run: chmod 600 {path}"
        )
    if found.st_uid not in (os.geteuid(), 0):
        raise Refused(f"{path} belongs to uid {found.st_uid}, who could change the key; chown it to yourself")


def write_key_file(path: Path, line: str) -> None:
    """Make the file, readable by its owner alone; one that is there already stays as it is. Raises Refused, OSError."""
    try:
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    except FileExistsError as error:
        raise Refused(f"{path} is there already; a new key can be added to it as a line") from error
    with open(fd, "w", encoding="ascii") as file:
        file.write(f"{line}\n")
        file.flush()
        os.fsync(file.fileno())
