"""Settings: what the user chose, parsed once at the edge. Pure apart from reading the environment for defaults."""

import os
import re
from pathlib import Path
from typing import NamedTuple, TypeAlias

from hoard_p2p.errors import BadRequest

Json: TypeAlias = "bool | int | float | str | list[Json] | dict[str, Json] | None"
"""A value that JSON can carry; file names in it use the surrogateescape convention of `os.fsdecode`."""

DEFAULT_REPLICAS = 2
MOST_REPLICAS = 16
DEFAULT_TIMEOUT = 60.0
DEFAULT_REPAIR_GRACE = 60.0
DEFAULT_REPAIR_LIMIT = 50 << 20
LEAST_CAPACITY, MOST_CAPACITY = 1 << 20, 1 << 60
"""Bytes that a store may be allowed."""
_UNITS = {"": 1, "b": 1, "k": 10, "m": 20, "g": 30, "t": 40, "p": 50}
_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([kmgtp]?)(?:i?b)?", re.IGNORECASE)


class Floor(NamedTuple):
    """What a store leaves free of its file system, for others: bytes, or percent of its size."""

    size: int = 0
    percent: float = 0.0

    def of(self, disk: int) -> int:
        """In bytes, for a file system of `disk` bytes."""
        return self.size + int(disk * self.percent / 100)

    def __str__(self) -> str:
        """As `parse_floor` reads it."""
        return f"{self.percent:g}%" if self.percent else str(self.size)


DEFAULT_FLOOR = Floor(percent=5.0)


class NodeSettings(NamedTuple):
    """What `hoard up` was told. `capacity` in bytes, None: as before, at first the default share of the disk; `floor`
    as `parse_floor` reads it, empty: as before, at first the default. `port` 0: any free port. `scrub_days`: the
    period of the background scrub, 0: none, None: as before. `peer_limit`: bytes a second sent to other nodes, 0: no
    limit. `origin_streams`: questions that all nodes together ask one origin at a time; `origin_limit`: bytes a second
    that they read of it, 0: no limit. `rack_command` prints the rack, if `rack` is empty.
    `repair_grace`: seconds for which the copies of a node that is away are not made elsewhere; `repair_limit`: bytes a
    second that this node copies to repair, 0: no limit.
    """

    data_dir: Path
    host: str
    port: int
    cluster: str
    name: str
    rack: str
    capacity: int | None
    discovery: tuple[str, ...]
    floor: str = ""
    scrub_days: float | None = None
    rack_command: str = ""
    allow_origin: tuple[str, ...] = ()
    origin_streams: int = 64
    origin_limit: int = 0
    peer_limit: int = 0
    cluster_key_file: str = ""
    encrypt: bool = False
    repair_grace: float = DEFAULT_REPAIR_GRACE
    repair_limit: int = DEFAULT_REPAIR_LIMIT


def parse_size(text: str) -> int:
    """Bytes for a text such as `500GiB`, `1.5T`, `4096`. Units are powers of 1024. Raises BadRequest."""
    match = _SIZE.fullmatch(text.strip())
    if not match:
        raise BadRequest(f"{text!r} is no size; write for instance 500GiB")
    unit = match[2].lower()
    return int(float(match[1]) * (1 << _UNITS[unit] if unit else 1))


def check_capacity(size: int) -> int:
    """The size, if a store can have it. Raises BadRequest."""
    if size < LEAST_CAPACITY:
        raise BadRequest(f"a capacity of {size} bytes is too little; 1MiB is the least")
    if size > MOST_CAPACITY:
        raise BadRequest(f"a capacity of {size} bytes is too much; 1024PiB is the most")
    return size


def parse_capacity(text: str) -> int:
    """Bytes of a size (see `parse_size`) that a store can have. Raises BadRequest."""
    return check_capacity(parse_size(text))


def parse_floor(text: str) -> Floor:
    """A size (see `parse_size`), or a percentage such as `5%`, below 100. Raises BadRequest."""
    if not text.strip().endswith("%"):
        return Floor(size=parse_size(text))
    try:
        percent = float(text.strip()[:-1])
    except ValueError:
        percent = -1.0
    if not 0 <= percent < 100:
        raise BadRequest(f"{text!r} is no floor; write for instance 5% or 50GiB")
    return Floor(percent=percent)


def parse_days(text: str) -> float:
    """Days, at least 0, at most 100 years. Raises BadRequest."""
    try:
        days = float(text)
    except ValueError:
        days = -1.0
    if not 0 <= days <= 36_500:
        raise BadRequest(f"{text!r} is no number of days; write for instance 7, or 0 for never")
    return days


def parse_listen(text: str) -> tuple[str, int]:
    """Host and port of `HOST:PORT`, `[V6]:PORT` or `:PORT`. Raises BadRequest."""
    host, colon, port = text.rpartition(":")
    if not colon or not port.isdigit() or int(port) > 65535:
        raise BadRequest(f"{text!r} is no address; write HOST:PORT, port 0 for any free one")
    return host.strip("[]") or "0.0.0.0", int(port)


def default_data_dir() -> Path:
    """`HOARD_DATA_DIR`, else /var/lib/hoard for root, else the user's data directory."""
    chosen = os.environ.get("HOARD_DATA_DIR")
    if chosen:
        return Path(chosen).absolute()
    if os.geteuid() == 0:
        return Path("/var/lib/hoard")
    base = os.environ.get("XDG_DATA_HOME") or str(Path.home() / ".local" / "share")
    return Path(base) / "hoard"


def default_cluster() -> str:
    """The user's name: nodes of different users on one network stay apart."""
    import getpass

    try:
        return getpass.getuser()
    except (KeyError, OSError):  # no entry in the password database, as in many containers
        return f"uid-{os.getuid()}"


def default_name() -> str:
    return os.uname().nodename


def default_workers() -> int:
    """Of a mount: two at least, so that one slow request never stops the rest; more than four gained nothing on any
    machine measured so far."""
    return max(2, min(4, os.cpu_count() or 1))
