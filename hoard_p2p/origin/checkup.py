"""A look at an origin for people: can it be read here, how fast is it, and what of it can be no snapshot.

Blocking, and bounded: so many entries, bytes and seconds. Reads nothing but a few samples.
"""

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from email.utils import parsedate_to_datetime
from random import Random
from statistics import median

from hoard_p2p.errors import OriginFailed, OriginRefused
from hoard_p2p.objects import Kind, Listed, ObjectRange, Origin
from hoard_p2p.origin.directory import DirectoryOrigin
from hoard_p2p.origin.fsspec_origin import FsspecOrigin
from hoard_p2p.origin.s3 import S3Origin
from hoard_p2p.origin.urls import parse_address
from hoard_p2p.origin.web import WebOrigin
from hoard_p2p.origin.webdoor import WebDoor
from hoard_p2p.printing import printable

MOST_ENTRIES = 10_000
LISTING_SECONDS = 30.0
SAMPLES = 16
SAMPLE_BYTES = 4 << 20
READERS = 8
SHOWN = 100
"""Entries that can be no part of a snapshot and are named."""

Mapped = Callable[[Listed], str]
"""Why an entry can be in no snapshot; empty if it can."""


@dataclass(slots=True)
class Checkup:
    """What was seen. `why`: of what failed, for people, with `refused`: another node may be luckier; `credentials`:
    where they come from, never what they are; `versions`: what is compared; `skew`: seconds that the server's clock is
    ahead of ours, None if it does not tell; `special`: devices, sockets and FIFOs, which publishing leaves out;
    `skipped`: what else can be in no snapshot; `complete`: all was listed. Rates are 0 if there was nothing to measure.
    """

    url: str
    credentials: str = ""
    versions: str = ""
    reachable: bool = False
    refused: bool = False
    why: str = ""
    skew: float | None = None
    entries: int = 0
    files: int = 0
    size: int = 0
    complete: bool = False
    listing_rate: float = 0.0
    special: int = 0
    skipped: int = 0
    skipped_names: list[str] = field(default_factory=list)
    samples: int = 0
    read_rate: float = 0.0
    first_byte: float = 0.0


def check_up(origin: Origin, mapped: Mapped, report: Callable[[int], None]) -> Checkup:
    """Raises nothing that an origin may do wrong. `report` is told of entries as they are listed."""
    seen = Checkup(origin.url, versions=_versions(origin))
    try:
        seen.credentials = _credentials(origin)
        origin.check()
        seen.reachable = True
        seen.skew = _skew(origin)
        files = _list(origin, mapped, seen, report)
        _read(origin, files, seen)
    except OriginFailed as error:
        seen.why, seen.refused = str(error), isinstance(error, OriginRefused)
    return seen


def _list(origin: Origin, mapped: Mapped, seen: Checkup, report: Callable[[int], None]) -> list[Listed]:
    """The files that were listed and have bytes."""
    files: list[Listed] = []
    names = set[bytes]()
    began = time.monotonic()
    entries = origin.listing()
    seen.complete = True
    for entry in entries:
        if seen.entries == MOST_ENTRIES or time.monotonic() - began > LISTING_SECONDS:
            seen.complete = False
            break
        seen.entries += 1
        why = mapped(entry)
        if entry.kind is Kind.SPECIAL:
            seen.special += 1
        elif why:
            _skip(seen, entry, why)
        elif entry.kind is Kind.FILE:
            names.add(entry.path)
            seen.files += 1
            seen.size += entry.size
            if entry.size:
                files.append(entry)
        if seen.entries % 500 == 0:
            report(seen.entries)
    seen.listing_rate = seen.entries / max(time.monotonic() - began, 1e-9)
    _skip_conflicts(seen, names)
    return files


def _skip(seen: Checkup, entry: Listed, why: str) -> None:
    seen.skipped += 1
    if len(seen.skipped_names) < SHOWN:
        seen.skipped_names.append(f"{printable(entry.path)}: {why}")


def _skip_conflicts(seen: Checkup, names: set[bytes]) -> None:
    """What only shows in the whole: names that are also directories."""
    above = set[bytes]()
    for path in names:
        parts = path.split(b"/")
        above.update(b"/".join(parts[:count]) for count in range(1, len(parts)))
    for path in sorted(above & names):
        entry = Listed(path, Kind.FILE, 0, 0, 0, b"")
        _skip(seen, entry, "there are entries below a directory of this name")


def _read(origin: Origin, files: list[Listed], seen: Checkup) -> None:
    """A few of them, some side by side. Raises OriginFailed."""
    samples = Random(0).sample(files, min(SAMPLES, len(files)))
    if not samples:
        return
    firsts: list[float] = []

    def read(entry: Listed) -> int:
        size, began, first = min(entry.size, SAMPLE_BYTES), time.monotonic(), list[float]()
        wanted = ObjectRange(entry.path, entry.size, entry.version, 0, size)
        origin.read(
            wanted, memoryview(bytearray(size)), lambda _: first.append(time.monotonic()) if not first else None
        )
        firsts.append(first[0] - began)
        return size

    began = time.monotonic()
    with ThreadPoolExecutor(READERS, "check") as pool:
        read_bytes = sum(pool.map(read, samples))
    seen.read_rate = read_bytes / max(time.monotonic() - began, 1e-9)
    seen.samples, seen.first_byte = len(samples), median(firsts)


def _credentials(origin: Origin) -> str:
    """Raises OriginRefused if there are none."""
    if isinstance(origin, S3Origin):
        return origin.account.source
    if isinstance(origin, FsspecOrigin):
        return "those that the store's own package finds"
    return "none needed" if isinstance(origin, WebOrigin) else "the rights of the user that the node runs as"


def _versions(origin: Origin) -> str:
    if isinstance(origin, S3Origin):
        return "ETag"
    if isinstance(origin, DirectoryOrigin):
        return "size, mtime, ctime, inode"
    return "ETag or Last-Modified" if isinstance(origin, WebOrigin) else "what the store tells: checksum or time"


def _skew(origin: Origin) -> float | None:
    """Seconds that the clock of a server of the web is ahead of ours."""
    if isinstance(origin, S3Origin):
        url = origin.account.reach().endpoint + "/"
    elif isinstance(origin, WebOrigin):
        url = origin.url
    else:
        return None
    door = WebDoor(frozenset([parse_address(url).host]))
    try:
        with suppress(OriginFailed, ValueError, TypeError), door.ask("HEAD", url, {}) as answer:
            answer.response.read()
            return parsedate_to_datetime(answer.response.getheader("Date") or "").timestamp() - time.time()
    finally:
        door.close()
    return None
