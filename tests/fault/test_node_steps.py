"""A node is killed -9 before any call that touches its disk (each so many-th of them in `make test`), while it fetches
from a peer, heals what a scrub found, publishes, evicts and collects: what it left is right, keeps what it had, takes
no room that nobody can read, and a node goes on with it.

A kill is a picture of the directory (`killpoint`). `HOARD_NODE_EVERY` says how many steps lie between two.
"""

import asyncio
import os
import shutil
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

import pytest

from hoard_p2p.ids import SnapshotId
from hoard_p2p.node.app import Node
from hoard_p2p.storage.store import Store
from tests.fault.killpoint import Camera, copy_tree
from tests.fault.power_work import check_places, check_space
from tests.unit.node_cluster import running
from tests.unit.test_node_retention import published, read_whole

EVERY = int(os.environ.get("HOARD_NODE_EVERY", "90"))
MIB = 1 << 20

pytestmark = pytest.mark.timeout(120 + 12_000 // EVERY)


@dataclass
class Album:
    """Pictures of one directory. `keeps`: what must be in those that are taken next; None while bytes are damaged."""

    directory: Path
    place: Path
    keeps: set[bytes] | None = field(default_factory=set)
    pictures: list[tuple[Path, str, set[bytes] | None]] = field(default_factory=list)
    camera: Camera = field(default_factory=Camera)

    async def during(self, what: str, action: Callable[[], Awaitable[object]]) -> None:
        def take() -> None:
            path = self.place / f"{len(self.pictures)}"
            copy_tree(self.directory, path)
            self.pictures.append((path, what, self.keeps))

        first = 1 + (len(what) * 7) % min(EVERY, 20)  # the shortest action has some 30 steps
        with self.camera.series(take, first, EVERY):
            await action()


def a_tree(path: Path, seed: int) -> Path:
    """A large file of two segments, and small ones."""
    draw = Random(seed)
    path.mkdir()
    (path / "large").write_bytes(draw.randbytes(9 * MIB))
    for number in range(30):
        (path / f"small{number}").write_bytes(draw.randbytes(draw.choice((10, 4096, 30_000))))
    return path


def listed(node: Node) -> set[bytes]:
    return check_places(node.store)


async def quiet(body: object) -> None:
    return


async def live(album: Album, first: Node, sources: Path) -> SnapshotId:
    """Everything that a node does, with pictures; a snapshot that `first` has."""
    snapshot = await published(first, a_tree(sources / "theirs", 1), replicas=1)
    async with running(album.directory, first) as node:
        await album.during("fetch", lambda: read_whole(node, snapshot))
        album.keeps = listed(node)
        source = a_tree(sources / "own", 2)
        await album.during("publish", lambda: published(node, source, replicas=1))
        own = listed(node) - album.keeps
        album.keeps = None
        for path in sorted(node.store.data_dir.glob("slabs/*.slab"))[:2]:
            with path.open("r+b") as slab:
                slab.seek(4 * 4096)
                slab.write(b"rot")
        await album.during("scrub", lambda: node.scrubbing.scrub(snapshot, quiet))
        await node.scrubbing.scrub(None, quiet)
        assert own & listed(node)
        album.keeps = own & listed(node)
        await album.during("evict", lambda: node.retention.evict(snapshot))
        await album.during("gc", node.retention.gc)
    return snapshot


def look(picture: Path, keeps: set[bytes] | None) -> None:
    with Store.open(picture) as store:
        if keeps is None:  # bits rotted, which the next reader or scrub finds
            return
        found = check_places(store)
        assert keeps <= found, "chunks were lost"
        check_space(store)
        assert check_places(store) == found


@pytest.mark.expect_warnings
def test_whatever_the_step_at_which_a_node_dies_the_next_one_goes_on(tmp_path: Path) -> None:
    for name in ("b", "album", "sources"):
        (tmp_path / name).mkdir()
    album = Album(tmp_path / "b", tmp_path / "album")

    async def main() -> None:
        async with running(tmp_path / "a") as first:
            with album.camera.worn():
                snapshot = await live(album, first, tmp_path / "sources")
            for number, (picture, what, keeps) in enumerate(album.pictures):
                try:
                    await asyncio.to_thread(look, picture, keeps)
                    if number % 4 == 0 or what == "scrub":
                        await go_on(picture, first, snapshot)
                except Exception as error:
                    raise AssertionError(f"killed in {what}, picture {number}") from error
                shutil.rmtree(picture)

    asyncio.run(main())
    assert {what for _, what, _ in album.pictures} >= {"fetch", "publish", "scrub", "evict", "gc"}


async def go_on(picture: Path, first: Node, snapshot: SnapshotId) -> None:
    """Another node heals, gets all of the snapshot, and nothing is wrong any more."""
    async with running(picture, first) as node:
        await node.scrubbing.scrub(None, quiet)
        await read_whole(node, snapshot)
        listed(node)
