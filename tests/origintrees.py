"""Origins over a directory of this machine, of every kind that can be: for suites that try all kinds."""

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import fsspec

from hoard_p2p.objects import Origin
from hoard_p2p.origin.directory import DirectoryOrigin
from hoard_p2p.origin.fsspec_origin import FsspecOrigin
from hoard_p2p.origin.urls import parse_address
from hoard_p2p.origin.web import WebOrigin
from tests.webserver import web_server

OLD = 1_500_000_000 * 10**9
"""When the objects were written: long ago, so that nothing waits for them to settle, and any change shows."""

KINDS = ("directory", "web", "fsspec")


def write_object(root: Path, path: bytes, data: bytes) -> None:
    """A new file in place of what was there."""
    target = root / os.fsdecode(path)
    target.parent.mkdir(parents=True, exist_ok=True)
    target.unlink(missing_ok=True)
    target.write_bytes(data)


def write_objects(root: Path, objects: Mapping[bytes, bytes]) -> None:
    root.mkdir(parents=True)
    for path, data in objects.items():
        write_object(root, path, data)
        os.utime(root / os.fsdecode(path), ns=(OLD, OLD))


@contextmanager
def open_tree(kind: str, root: Path) -> Iterator[Origin]:
    """`root/set` as an origin; beside it there may be others."""
    if kind == "web":
        with web_server(root) as server:
            origin = WebOrigin(parse_address(server.url + "set"), frozenset([server.host]))
            yield origin
            origin.close()
        return
    yield _OPENED[kind](root / "set")


def _directory(path: Path) -> Origin:
    return DirectoryOrigin(path, os.open(path, os.O_RDONLY | os.O_DIRECTORY), None, rest=lambda _: None)


def _fsspec(path: Path) -> Origin:
    store = fsspec.filesystem("file", skip_instance_cache=True)
    return FsspecOrigin(f"gs://{path.parent.name}/set", store, str(path))


_OPENED: Mapping[str, Callable[[Path], Origin]] = {"directory": _directory, "fsspec": _fsspec}
