"""Who is home of what, per snapshot, as the view changes: `placement.Shares`, worked out off the event loop."""

import asyncio
import sys
from collections import OrderedDict
from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from contextlib import suppress
from dataclasses import dataclass

from hoard_p2p.catalog.reader import Catalog
from hoard_p2p.errors import HoardError
from hoard_p2p.ids import ChunkId, SnapshotId
from hoard_p2p.node.blocking import in_executor
from hoard_p2p.node.catalogs import OpenSnapshot
from hoard_p2p.node.share_worker import decode_rows, encode_task
from hoard_p2p.peer import NodeId, Peer
from hoard_p2p.placement import Row, Shares
from hoard_p2p.repair.planner import SPARE_HOMES

IN_THREAD = 100_000
"""Scores that are worked out in a thread (0.1 s, in turns of 5 ms with the event loop); more go to a process."""
KEPT_SHARES = 32
WORKER_SECONDS = 1800.0


@dataclass(frozen=True, slots=True)
class Placed:
    """The segments of a snapshot that hold data, and the first nodes in the order of each."""

    segments: Sequence[int]
    rows: Sequence[Row]

    def of(self, node: NodeId, held: set[int]) -> dict[int, Row]:
        """Those in whose rows the node is, and those that it holds."""
        pairs = zip(self.segments, self.rows, strict=True)
        return {segment: row for segment, row in pairs if node in row or segment in held}


@dataclass(slots=True)
class _Kept:
    segments: list[int]
    keys: list[ChunkId]
    shares: Shares
    depth: int


class Sharing:
    """For the event loop. One snapshot at a time."""

    def __init__(self, executor: Executor) -> None:
        self._executor = executor
        self._kept: OrderedDict[SnapshotId, _Kept] = OrderedDict()
        self._turn = asyncio.Lock()

    async def placed(self, opened: OpenSnapshot, peers: Sequence[Peer], replicas: int) -> Placed:
        """Raises HoardError if the process that works it out ends."""
        async with self._turn:
            depth = replicas + SPARE_HOMES
            kept = self._kept.pop(opened.id, None)
            if kept is None or kept.depth != depth:
                segments, keys = await in_executor(self._executor, placement_keys, opened.catalog)
                kept = _Kept(segments, keys, await self._shares(peers, keys, depth), depth)
            elif kept.shares.changes(peers) * 4 > len(peers) > 4:
                kept.shares = await self._shares(peers, kept.keys, depth)
            else:
                await in_executor(self._executor, kept.shares.follow, peers)
            self._kept[opened.id] = kept
            while len(self._kept) > KEPT_SHARES:
                self._kept.popitem(last=False)
            return Placed(kept.segments, tuple(kept.shares.rows))

    async def _shares(self, peers: Sequence[Peer], keys: list[ChunkId], depth: int) -> Shares:
        known = await full_rows(peers, keys, depth) if len(peers) * len(keys) > IN_THREAD else None
        make: Callable[[], Shares] = lambda: Shares(peers, keys, depth, known)  # noqa: E731 - typed
        return await in_executor(self._executor, make)


def placement_keys(catalog: Catalog) -> tuple[list[int], list[ChunkId]]:
    """Blocking. The segments that hold data, and what each is placed by."""
    segments, keys = [], []
    for segment in range(catalog.segments):
        key = catalog.placement_key(segment)
        if key is not None:
            segments.append(segment)
            keys.append(key)
    return segments, keys


async def full_rows(peers: Sequence[Peer], keys: Sequence[ChunkId], depth: int) -> list[Row]:
    """`placement.rows` in a process of its own, which ends with the caller."""
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "hoard_p2p.node.share_worker",
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
    )
    try:
        async with asyncio.timeout(WORKER_SECONDS):
            answer, _ = await process.communicate(encode_task(peers, keys, depth))
    finally:
        if process.returncode is None:
            with suppress(ProcessLookupError):
                process.kill()
            await process.wait()
    if process.returncode or len(answer) != 4 * depth * len(keys):
        raise HoardError(f"working out the homes of {len(keys)} segments failed, status {process.returncode}")
    return decode_rows(answer, peers, depth)
