"""The end of a snapshot in the whole cluster: asked for by a user, or because its time is over (CLUSTER 5, "Life")."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from hoard_p2p.errors import Refused, SnapshotUnknown, Unavailable
from hoard_p2p.ids import SnapshotId, short
from hoard_p2p.node.gossip import AT_ONCE
from hoard_p2p.peer import Peer
from hoard_p2p.storage.eviction import lives_until
from hoard_p2p.storage.records import SnapshotRecord
from hoard_p2p.transfer.wire import Announcement
from hoard_p2p.transfer.wire_life import MAX_ASKED_USES, Use

if TYPE_CHECKING:
    from hoard_p2p.node.app import Node

HIDDEN_NS = 24 * 3600 * 1_000_000_000
"""How long a snapshot that users do not see is remembered after its last use: its publisher may still be at work."""

READ_NS = 600 * 1_000_000_000
"""The same for one that was read from its origin to be sealed: its publisher says that it is at work (`uses`)."""


@dataclass(slots=True)
class Uses:
    """What the cluster has to do with some snapshots. `users`: with the name of their node; `last_used`: the latest;
    `silent`: names of nodes that did not tell."""

    users: dict[SnapshotId, list[str]] = field(default_factory=dict)
    last_used: dict[SnapshotId, int] = field(default_factory=dict)
    silent: list[str] = field(default_factory=list)

    def add(self, node: str, use: Use) -> None:
        if use.users:
            self.users.setdefault(use.snapshot, []).extend(f"{user} on {node}" for user in use.users)
        self.last_used[use.snapshot] = max(use.last_used, self.last_used.get(use.snapshot, 0))


def uses_here(node: "Node", snapshots: Sequence[SnapshotId]) -> list[Use]:
    """What this node has to do with them. Free."""
    told = []
    for snapshot in snapshots:
        record = node.names.snapshot(snapshot)
        last_used = 0 if record is None or record.removed else record.last_used
        told.append(Use(snapshot, tuple(node.leases.users(snapshot)), last_used))
    return told


async def uses(node: "Node", snapshots: Sequence[SnapshotId]) -> Uses:
    """Ask every node of the view, this one first. (Who is not in the view is dead or gone, as far as is known.)"""
    found = Uses()
    for use in uses_here(node, snapshots):
        found.add("this node", use)
    limit = asyncio.Semaphore(AT_ONCE)

    async def ask(peer: Peer) -> None:
        async with limit:
            try:
                for at in range(0, len(snapshots), MAX_ASKED_USES):
                    for use in await node.control.uses(peer, snapshots[at : at + MAX_ASKED_USES]):
                        found.add(peer.name, use)
            except Unavailable:
                found.silent.append(peer.name)

    async with asyncio.TaskGroup() as group:
        for peer in node.agent.view().others:
            group.create_task(ask(peer))
    found.silent.sort()
    return found


async def check_unused(node: "Node", snapshot: SnapshotId) -> None:
    """Raises SnapshotUnknown; Refused while it is named, pinned or leased anywhere, or where a node does not say."""
    record = node.names.snapshot(snapshot)
    if record is None or record.removed:
        raise SnapshotUnknown(f"no snapshot {snapshot.hex()} is known here")
    name = snapshot.hex()
    if names := node.names.names_of(snapshot):
        raise Refused(f"{name} is named {', '.join(names)}; hoard untag them first, or use --force")
    if record.pinned:
        raise Refused(f"{name} is pinned; hoard unpin it first, or use --force")
    found = await uses(node, [snapshot])
    if users := found.users.get(snapshot):
        raise Refused(f"{name} is {'; '.join(users[:8])}; end that first, or use --force")
    if found.silent:
        raise Refused(f"{', '.join(found.silent[:8])} did not say whether {name} is in use there; use --force")


async def remove(node: "Node", snapshot: SnapshotId, *, force: bool) -> list[str]:
    """Remove a snapshot from the cluster; the names it had. Raises as `check_unused`, which `force` leaves out."""
    if not force:
        await check_unused(node, snapshot)
    names = await node.naming.release(snapshot) if force else []
    names += await node.retention.thread(lambda: node.names.remove(snapshot, force=force))
    node.retention.soon()
    told = await node.retention.thread(node.names.snapshot_record, snapshot)
    refs = tuple(record for record in node.names.ref_records() if record["name"] in names)
    await node.announce(Announcement(snapshots=() if told is None else (told,), refs=refs))
    return names


@dataclass(slots=True)
class Ended:
    """`removed`: their time was over; `forgotten`: users never saw them; `waiting`: nodes that have to be asked first,
    or what they said."""

    removed: list[SnapshotRecord] = field(default_factory=list)
    forgotten: list[SnapshotRecord] = field(default_factory=list)
    waiting: list[str] = field(default_factory=list)


def expires(node: "Node", record: SnapshotRecord) -> int | None:
    """When its life ends, by what this node knows: nanoseconds since the epoch, None: while it is named, pinned or
    leased here."""
    if node.leases.users(record.id):
        return None
    named = bool(node.names.names_of(record.id))
    return lives_until(last_used=record.last_used, keep=record.keep, pinned=record.pinned, named=named)


async def end_expired(node: "Node", now: int, *, dry_run: bool = False) -> Ended:
    """Remove what nothing keeps alive any more, once all nodes said that it is not in use there either. `now`:
    nanoseconds since the epoch."""
    ended = Ended()
    due = [record for record in node.names.snapshots() if _is_due(node, record, now)]
    hidden = [
        record
        for record in node.names.known()
        if not record.shown
        and not node.leases.users(record.id)
        and record.last_used + (READ_NS if record.origin else HIDDEN_NS) < now
    ]
    if not due and not hidden:
        return ended
    found = await uses(node, [record.id for record in (*due, *hidden)])
    if found.silent:
        ended.waiting.append(
            f"{len(due)} snapshots whose time is over wait for {', '.join(found.silent[:8])} to say they are not in use"
        )
        return ended
    ended.forgotten = [record for record in hidden if not found.users.get(record.id)]
    for record in due:
        last_used = max(record.last_used, found.last_used.get(record.id, 0))
        if found.users.get(record.id) or last_used + record.keep * 1_000_000_000 >= now:
            ended.waiting.append(f"{short(record.id)} is in use elsewhere")
        else:
            ended.removed.append(record)
    if not dry_run:
        await _end(node, ended)
    return ended


def _is_due(node: "Node", record: SnapshotRecord, now: int) -> bool:
    until = expires(node, record)
    return until is not None and until < now


async def _end(node: "Node", ended: Ended) -> None:
    for record in ended.forgotten:
        await node.retention.thread(node.names.forget, record.id)
    for record in ended.removed:
        try:
            await remove(node, record.id, force=False)
        except (Refused, SnapshotUnknown) as error:  # somebody named, used or removed it just now
            ended.waiting.append(str(error))
