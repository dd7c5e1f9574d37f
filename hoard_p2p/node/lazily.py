"""Publishing from an origin: listed, not read, by this node; then read by all nodes together, sealed, and shown; or
shown at once, with `--lazy` (CLUSTER 4)."""

import logging
from collections.abc import Awaitable, Callable
from contextlib import ExitStack
from dataclasses import dataclass, replace

from hoard_p2p.catalog.reader import Catalog
from hoard_p2p.config import Json
from hoard_p2p.errors import ObjectChanged, Unavailable
from hoard_p2p.ids import SnapshotId, short, snapshot_id
from hoard_p2p.node.app import Node
from hoard_p2p.node.catalogs import OpenSnapshot
from hoard_p2p.node.contents import Contents, all_known, files_known
from hoard_p2p.node.ingest import Ingested
from hoard_p2p.node.joint import Joint, Spread, invite
from hoard_p2p.node.lazy_ingest import list_lazily
from hoard_p2p.node.sealing import seal
from hoard_p2p.node.showing import introduce
from hoard_p2p.node.wishes import Wish, check_for_origin
from hoard_p2p.peer import origin_id
from hoard_p2p.printing import printable
from hoard_p2p.storage.records import SnapshotRecord

log = logging.getLogger(__name__)

Body = dict[str, Json]
Report = Callable[[Body], Awaitable[None]]

ATTEMPTS = 4
"""Listings, where objects change meanwhile: what did not change is not read again."""

PASSED_ON = ("exclude", "preserve_owner", "reproducible", "skip_unmappable")


@dataclass(frozen=True, slots=True)
class Source:
    """What is published: its URL, and for a directory its descriptor, opened by who asked."""

    url: str
    directory: int | None


@dataclass(frozen=True, slots=True)
class _Before:
    """What was known of a listing before anything of it was read: bytes, and files."""

    size: int
    files: int


async def publish_origin(
    node: Node, source: Source, wish: Wish, options: Body, *, report: Report, held: ExitStack
) -> Body:
    """Publish it; the figures for the user. Raises OriginFailed & co, ObjectChanged if objects kept changing."""
    check_for_origin(options)
    held.enter_context(node.known_origins.publishing(source.url))
    tried: list[SnapshotId] = []
    for attempt in range(ATTEMPTS):
        listed = await _listed(node, source, options, report, held)
        snapshot = snapshot_id(listed.root)
        if snapshot not in tried:
            tried.append(snapshot)
            held.enter_context(node.retention.publishing(snapshot))
        try:
            body = await _publish(node, source, wish, listed, report)
        except ObjectChanged as error:
            if attempt == ATTEMPTS - 1:
                raise ObjectChanged(f"nothing was published, objects keep changing: {error}") from error
            await report({"note": f"{error}: {source.url} is listed again"})
            continue
        for one in tried:
            await node.blocking(node.names.forget, one)
        return body
    raise AssertionError("the last attempt returns or raises")


async def _listed(node: Node, source: Source, options: Body, report: Report, held: ExitStack) -> Ingested:
    claims = held.enter_context(node.store.reclaimer.new_claims())
    asked = {name: options[name] for name in PASSED_ON if name in options}
    grant = await node.known_origins.grant(source.url)
    trusted: list[Json] = [*sorted(grant.trusted)]
    return await list_lazily(
        {"origin": source.url, "as_owner": grant.as_owner, "trusted": trusted, **asked},
        data_dir=node.settings.data_dir,
        broker=node.store,
        claims=claims,
        executor=node.executor,
        report=report,
        fits=node.retention.could_fit,
        fds=() if source.directory is None else (source.directory,),
    )


async def _publish(node: Node, source: Source, wish: Wish, listed: Ingested, report: Report) -> Body:
    snapshot = snapshot_id(listed.root)
    now = node.names.creation_time(snapshot)
    record = SnapshotRecord(
        snapshot, now, now, wish.replicas, wish.pin, wish.keep, False, wish.source, origin=source.url
    )
    opened = await node.keep_published(listed.root, record)
    if wish.lazy:
        await node.blocking(node.names.show, listed.root, record)
        await introduce(node, snapshot, wish.name, report)
        return _body(wish, record, listed, lazy=True)
    contents = Contents(opened.catalog)
    before, spread = await fetch_all(node, opened, record, contents, report)
    sealed = await seal(node, opened, record, contents, report)
    await introduce(node, sealed.snapshot, wish.name, report)
    figures = _figures(listed, before)
    body = _body(wish, replace(record, id=sealed.snapshot), listed, lazy=False)
    readers, nodes = len(node.agent.reading(origin_id(source.url))), len(node.agent.view().peers)
    short_of = len({*spread.short_of, *sealed.short_of})
    return {**body, **figures, "under_replicated": short_of, "readers": readers, "nodes": nodes}


async def fetch_all(
    node: Node, opened: OpenSnapshot, record: SnapshotRecord, contents: Contents, report: Report
) -> tuple[_Before, Spread]:
    """Have all nodes read their shares; `contents` are known then. Raises ObjectChanged, Unavailable."""
    await report({"phase": "reading", "bytes": 0})
    await invite(node, opened.id, record.origin)
    await all_known(node, opened, contents)
    before = await node.blocking(_known, contents)
    spread = await Joint(node, opened, record.replicas, record.origin, report).run()
    if spread.lost:
        raise Unavailable(
            f"{len(spread.lost)} of {opened.catalog.segments} segments of {printable(record.origin)} could not be "
            f"read: {spread.why}"
        )
    await node.blocking(node.writer.flush)
    if not await all_known(node, opened, contents):
        raise Unavailable(
            f"what {len(contents.unknown)} segments of {short(opened.id)} are made of is known to no node that "
            "answers; publish it again: what was read is not read again"
        )
    return before, spread


def _known(contents: Contents) -> _Before:
    """Blocking."""
    catalog = contents.catalog
    known = [segment for segment in range(catalog.segments) if segment not in contents.unknown]
    size = sum(map(catalog.segment_size, known)) + _known_size(catalog, contents)
    return _Before(size, files_known(contents) if size else 0)


def _known_size(catalog: Catalog, contents: Contents) -> int:
    """Bytes that are known of segments that are not known as a whole."""
    runs = (run for segment in sorted(contents.unknown) for run in catalog.segment_runs(segment))
    return sum(catalog.length(run) for run in runs if contents.of(run) is not None)


def _totals(listed: Ingested) -> dict[str, Json]:
    totals = listed.summary.get("totals")
    return totals if isinstance(totals, dict) else {}


def _figures(listed: Ingested, before: _Before) -> Body:
    files, size = _totals(listed).get("files", 0), _totals(listed).get("size", 0)
    assert isinstance(files, int) and isinstance(size, int)
    unchanged = min(before.files, files) if before.size else 0
    return {
        "stored": max(0, size - before.size),
        "deduplicated": min(before.size, size),
        "read": files - unchanged,
        "unchanged": unchanged,
    }


def _body(wish: Wish, record: SnapshotRecord, listed: Ingested, *, lazy: bool) -> Body:
    totals = _totals(listed)
    return {
        "snapshot": record.id.hex(),
        "name": wish.name,
        "files": totals.get("files", 0),
        "bytes": totals.get("size", 0),
        **listed.summary,
        "under_replicated": 0,
        "origin": record.origin,
        "lazy": lazy,
    }
