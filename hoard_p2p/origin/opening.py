"""Opening an origin of any kind. Needs no node: processes that list origins use it, too."""

import os
from pathlib import Path

from hoard_p2p.errors import BadRequest, OriginFailed, Unavailable
from hoard_p2p.objects import Origin
from hoard_p2p.origin.allowed import real_path
from hoard_p2p.origin.directory import DirectoryOrigin
from hoard_p2p.origin.urls import WEB_PORTS, Address, parse_address
from hoard_p2p.printing import printable


def open_origin(
    url: str, *, directory: int | None = None, as_owner: bool = False, trusted: frozenset[str] = frozenset()
) -> Origin:
    """Blocking. Whoever calls has decided that it may be read; whether it can is what `check` tells.

    `directory`: an open descriptor of a directory origin, which stays the caller's; else it is opened by its path.
    `as_owner`: see `DirectoryOrigin.open`. `trusted`: hosts that the web may be read from though they are this machine
    or its neighbours. Raises Unavailable.
    """
    try:
        address = parse_address(url)
    except BadRequest as error:
        raise Unavailable(f"the origin {printable(url)} cannot be read by this version: {error}") from error
    path = address.directory
    if path is not None:
        return _directory(path, address.url, directory, as_owner)
    return _remote(address, trusted)


def _directory(path: Path, url: str, directory: int | None, as_owner: bool) -> Origin:
    try:
        real = real_path(path)
        descriptor = None if directory is None else os.dup(directory)
    except OSError as error:
        raise OriginFailed(f"the origin {printable(url)} is not there: {error.strerror}") from error
    if descriptor is not None:
        return DirectoryOrigin.adopt(real, descriptor, as_owner=as_owner, url=url)
    return DirectoryOrigin.open(real, as_owner=as_owner, url=url)


def _remote(address: Address, trusted: frozenset[str]) -> Origin:
    if address.s3 is not None:
        from hoard_p2p.origin.s3 import S3Origin

        return S3Origin(address.s3)
    if address.scheme in WEB_PORTS:
        from hoard_p2p.origin.web import WebOrigin

        return WebOrigin(address, trusted)
    from hoard_p2p.origin.fsspec_origin import open_fsspec

    return open_fsspec(address)
