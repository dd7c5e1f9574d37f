"""Who may set a name: this node by itself, or all nodes by turns through an etcd.

With an etcd its key decides: it is set only if it is still what was seen, so that of two who set one name at the same
time one is refused. What this node knows follows by watching, and goes on to answer while etcd cannot be reached.
"""

import asyncio
import json
import logging
from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from contextlib import AbstractAsyncContextManager, aclosing
from random import Random
from typing import Protocol, TypeAlias

from hoard_p2p.errors import HoardError, Unavailable
from hoard_p2p.ids import SnapshotId
from hoard_p2p.node.blocking import in_executor
from hoard_p2p.node.names import Names
from hoard_p2p.node.names_wire import Record, parse_ref, ref_json, ref_name
from hoard_p2p.registry import Entry, Registry, prefix_of
from hoard_p2p.storage.records import RefRecord, Stamp

log = logging.getLogger(__name__)

ATTEMPTS = 8
"""Times that a name is looked at anew because somebody else set it in between."""

RETRY = 1.0
MAX_RECORD = 64 << 10
NO_LIMIT = 1 << 63

Connect: TypeAlias = Callable[[], AbstractAsyncContextManager[Registry]]


class Naming(Protocol):
    """Sets names for the whole cluster. For the event loop."""

    async def run(self) -> None:
        """Works in the background until cancelled, or until there is nothing to do."""
        ...

    async def tag(self, snapshot: SnapshotId, text: str, *, move: bool) -> RefRecord:
        """As `Names.tag`; Unavailable if nothing can be set now."""
        ...

    async def untag(self, text: str) -> RefRecord:
        """As `Names.untag`; Unavailable if nothing can be set now."""
        ...

    async def release(self, snapshot: SnapshotId) -> list[str]:
        """Remove the names of a snapshot that `Names.remove` would leave elsewhere; the names."""
        ...


class LocalNaming:
    """Sets names here; others learn them."""

    def __init__(self, names: Names, executor: Executor) -> None:
        self._names = names
        self._executor = executor

    async def run(self) -> None:
        return

    async def tag(self, snapshot: SnapshotId, text: str, *, move: bool) -> RefRecord:
        return await in_executor(self._executor, lambda: self._names.tag(snapshot, text, move=move))

    async def untag(self, text: str) -> RefRecord:
        return await in_executor(self._executor, self._names.untag, text)

    async def release(self, snapshot: SnapshotId) -> list[str]:
        return []


class EtcdNaming:
    """Sets names in an etcd, and keeps what this node knows like it."""

    def __init__(self, names: Names, executor: Executor, connect: Connect, cluster: str) -> None:
        self._names = names
        self._executor = executor
        self._connect = connect
        self._prefix = prefix_of(cluster, "refs")
        self._random = Random()
        self._lost = False

    # --- setting

    async def tag(self, snapshot: SnapshotId, text: str, *, move: bool) -> RefRecord:
        return await self._set(ref_name(text), lambda: self._names.planned_tag(snapshot, text, move=move))

    async def untag(self, text: str) -> RefRecord:
        return await self._set(ref_name(text), lambda: self._names.planned_untag(text))

    async def release(self, snapshot: SnapshotId) -> list[str]:
        names = self._names.names_of(snapshot)
        for name in names:
            await self.untag(name)
        return names

    async def _set(self, name: str, plan: Callable[[], RefRecord]) -> RefRecord:
        try:
            async with self._connect() as registry:
                return await self._set_in(registry, name, plan)
        except Unavailable as error:
            raise Unavailable(f"{name} cannot be changed now, since names are in etcd: {error}") from error

    async def _set_in(self, registry: Registry, name: str, plan: Callable[[], RefRecord]) -> RefRecord:
        for _ in range(ATTEMPTS):
            entry = await registry.get(self._prefix + name)
            if entry is not None:
                await self._learn([entry])
            planned = await in_executor(self._executor, plan)
            there = entry is not None and _stamp(entry) == planned.stamp
            if there or await registry.put_if(
                self._prefix + name, _encoded(planned), revision=0 if entry is None else entry.revision
            ):
                await in_executor(self._executor, self._names.merge_refs, [ref_json(planned)], "this node")
                return planned
        raise Unavailable("others set it again and again at the same time")

    # --- following

    async def run(self) -> None:
        async with self._connect() as registry:
            while True:
                try:
                    await self._follow(registry)
                except Unavailable as error:
                    if not self._lost:
                        log.warning("names are as they were known last, and cannot be changed: %s", error)
                    self._lost = True
                await asyncio.sleep(RETRY * self._random.uniform(0.5, 1.5))

    async def _follow(self, registry: Registry) -> None:
        """Learn what is there, tell what is not, and watch."""
        listing = await registry.list(self._prefix)
        await self._learn(listing.entries)
        await self._tell(registry, listing.entries)
        if self._lost:
            log.info("names can be changed again")
            self._lost = False
        async with aclosing(registry.watch(self._prefix, listing.revision + 1)) as watched:
            async for changes in watched:
                await self._learn([Entry(one.key, one.value, one.revision) for one in changes if one.value is not None])

    async def _tell(self, registry: Registry, entries: Sequence[Entry]) -> None:
        """Put there what it has not: names that were set before etcd was used, or that it lost."""
        there = {entry.key: entry for entry in entries}
        for ref in self._names.all_refs():
            entry = there.get(self._prefix + ref.name)
            stamp = None if entry is None else _stamp(entry)
            if stamp is None or stamp < ref.stamp:
                revision = 0 if entry is None else entry.revision
                await registry.put_if(self._prefix + ref.name, _encoded(ref), revision=revision)

    async def _learn(self, entries: Sequence[Entry]) -> None:
        records = [record for record in map(_decoded, entries) if record is not None]
        await in_executor(self._executor, self._names.merge_refs, records, "etcd")


def _encoded(ref: RefRecord) -> bytes:
    return json.dumps(ref_json(ref)).encode()


def _decoded(entry: Entry) -> Record | None:
    """None for what is no record at all; what is a wrong one is left out by `Names.merge_refs`."""
    try:
        record = json.loads(entry.value) if len(entry.value) <= MAX_RECORD else None
    except (ValueError, RecursionError):
        record = None
    return record if isinstance(record, dict) else None


def _stamp(entry: Entry) -> Stamp | None:
    """When and by whom it was set, None for what is no ref."""
    record = _decoded(entry)
    try:
        return None if record is None else parse_ref(record, NO_LIMIT).stamp
    except (ValueError, TypeError, KeyError, HoardError):
        return None
