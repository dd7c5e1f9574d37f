"""What the pieces of a lazy snapshot were found to be, here and at their homes (`POST /v1/contents`)."""

import asyncio
import logging
from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import TYPE_CHECKING, TypeVar

from hoard_p2p.catalog.reader import Catalog
from hoard_p2p.errors import BadRequest, SnapshotUnknown, Unavailable
from hoard_p2p.ids import ID_SIZE, ChunkId, SnapshotId, is_origin_key, short
from hoard_p2p.node.residencies import ask_residencies
from hoard_p2p.peer import NodeId, Peer
from hoard_p2p.placement import homes
from hoard_p2p.storage.store import Store
from hoard_p2p.transfer.wire_contents import ContentsRequest

if TYPE_CHECKING:
    from hoard_p2p.node.app import Node
    from hoard_p2p.node.catalogs import OpenSnapshot

log = logging.getLogger(__name__)

T = TypeVar("T")

ASKED_SEGMENTS = 16
"""In one question: about as many pieces as half a MiB of ids, where objects are small."""
STEP = 256
"""Segments that are looked up in one go."""
ASKED_AT_ONCE = 16
ASK_SECONDS = 10.0
SPARE_HOMES = 2
UNKNOWN = bytes(ID_SIZE)


class Disagreement(Unavailable):
    """Two nodes say that one piece is different things."""


@dataclass
class Contents:
    """What each run of a lazy snapshot was found to be: 32 bytes a run, of repeated keys for the first alone.
    `told`: runs that this node took from another, by node."""

    catalog: Catalog
    ids: bytearray = field(init=False)
    unknown: set[int] = field(init=False)
    """Segments of which not every piece is known."""
    told: dict[NodeId, set[int]] = field(default_factory=lambda: defaultdict(set))

    def __post_init__(self) -> None:
        self.ids = bytearray(self.catalog.chunks * ID_SIZE)
        self.unknown = set(range(self.catalog.segments))

    def of(self, run: int) -> ChunkId | None:
        run = self.catalog.canonical(run)
        found = bytes(self.ids[run * ID_SIZE : (run + 1) * ID_SIZE])
        return None if found == UNKNOWN else ChunkId(found)

    def learn(self, segment: int, ids: Sequence[bytes | None]) -> list[int]:
        """Blocking. Take what is known of the pieces of a segment, in order; the runs of which that is another content
        than is known already. Raises BadRequest for another number of them, or for what is no chunk id."""
        chunks = self.catalog.segment_chunks(segment)
        if len(chunks) != len(ids):
            raise BadRequest(f"{len(ids)} contents for the {len(chunks)} pieces of segment {segment}")
        odd, whole = [], True
        for chunk, content in zip(chunks, ids, strict=True):
            known = self.of(chunk.run)
            if content is None or content == UNKNOWN:
                whole = whole and known is not None
            elif len(content) != ID_SIZE or is_origin_key(content):
                raise BadRequest(f"{content.hex()[:80]} is no content of a piece")
            elif known is None:
                self.ids[chunk.run * ID_SIZE : (chunk.run + 1) * ID_SIZE] = content
            elif known != content:
                odd.append(chunk.run)
        if whole:
            self.unknown.discard(segment)
        return odd

    def in_order(self) -> "Callable[[Sequence[ChunkId]], list[ChunkId]]":
        """For `publish.sealing.seal_catalog`, which asks for all keys in the order of the chunk table, once. Raises
        Unavailable for one that is not known."""
        runs = iter(range(self.catalog.chunks))

        def found(keys: Sequence[ChunkId]) -> list[ChunkId]:
            return [self._known(run) for run in islice(runs, len(keys))]

        return found

    def _known(self, run: int) -> ChunkId:
        content = self.of(run)
        if content is None:
            raise Unavailable(f"what piece {short(self.catalog.chunk_id(run))} is made of is not known")
        return content


async def all_known(node: "Node", opened: "OpenSnapshot", contents: Contents) -> bool:
    """Learn what pieces are made of, here first and then from others; whether all are known. Raises Disagreement."""
    await _learn_from_store(node, contents)
    if contents.unknown:
        await _learn_there(node, opened, contents)
    return not contents.unknown


async def _learn_from_store(node: "Node", contents: Contents) -> None:
    """Take what this node's own store knows."""
    for some in _parts(sorted(contents.unknown), STEP):
        await node.blocking(_learn_here, node.store, contents, some)


def _learn_here(store: Store, contents: Contents, segments: Sequence[int]) -> None:
    for segment in segments:
        contents.learn(segment, store.contents([chunk.chunk_id for chunk in contents.catalog.segment_chunks(segment)]))


async def _learn_there(node: "Node", opened: "OpenSnapshot", contents: Contents) -> None:
    """Ask the homes of what is not known yet, then whoever else holds it. Two nodes are asked about each piece, where
    two have it. Raises Disagreement."""
    await _ask(node, opened, contents, await node.blocking(_homes, node, opened.id, contents))
    if contents.unknown and (others := node.agent.view().others):
        told = await ask_residencies(node.control, others, opened.id, seconds=ASK_SECONDS)
        known = node.agent.view().by_id
        holding = {
            known[name]: [segment for segment in sorted(contents.unknown) if residency.holds(segment)]
            for name, residency in told.items()
            if residency is not None and name in known
        }
        await _ask(node, opened, contents, holding)


async def _ask(node: "Node", opened: "OpenSnapshot", contents: Contents, asked: Mapping[Peer, Sequence[int]]) -> None:
    limit = asyncio.Semaphore(ASKED_AT_ONCE)
    odd: list[str] = []

    async def ask(peer: Peer, segments: Sequence[int]) -> None:
        async with limit:
            try:
                told = await node.control.contents(peer, opened.id, segments)
                wrong = await node.blocking(_learn_from, contents, peer, segments, told)
            except (Unavailable, BadRequest) as error:
                log.info("%s does not tell what pieces of %s are: %s", peer.name, short(opened.id), error)
                return
            odd.extend(f"{peer.name} on piece {short(contents.catalog.chunk_id(run))}" for run in wrong[:1])

    async with asyncio.TaskGroup() as group:
        for peer, segments in asked.items():
            for some in _parts(segments, ASKED_SEGMENTS):
                group.create_task(ask(peer, some))
    if odd:
        raise Disagreement(
            f"nodes disagree about what pieces of {short(opened.id)} are made of: {'; '.join(odd[:8])}; "
            "one of them has a damaged disk, or lies"
        )


def _learn_from(contents: Contents, peer: Peer, segments: Sequence[int], told: Sequence[bytes]) -> list[int]:
    """Blocking. The runs about which the peer says something else than is known."""
    odd = []
    for segment, joined in zip(segments, told, strict=True):
        ids = [joined[at : at + ID_SIZE] for at in range(0, len(joined), ID_SIZE)]
        odd += contents.learn(segment, ids)
        contents.told[peer.node_id].add(segment)
    return odd


def _homes(node: "Node", snapshot: SnapshotId, contents: Contents) -> dict[Peer, list[int]]:
    """Blocking. Which segments to ask a home about."""
    view, most = node.agent.view(), node.replicas(snapshot) + SPARE_HOMES
    asked: dict[Peer, list[int]] = defaultdict(list)
    for segment in sorted(contents.unknown):
        key = contents.catalog.placement_key(segment)
        for peer in homes(view.peers, key, most) if key is not None else ():
            if peer.node_id != view.me:
                asked[peer].append(segment)
    return asked


async def answer(node: "Node", request: ContentsRequest) -> list[bytes]:
    """See `PeerService.contents`."""
    opened = await node.open_local(request.snapshot)
    if opened is None:
        raise SnapshotUnknown(f"{node.me.name} has no catalog of {short(request.snapshot)}")
    return await node.blocking(_answer, node.store, opened.catalog, request.segments)


def _answer(store: Store, catalog: Catalog, segments: Collection[int]) -> list[bytes]:
    """Blocking."""
    if any(segment >= catalog.segments for segment in segments):
        raise BadRequest(f"the snapshot has {catalog.segments} segments")
    return [_joined(store, catalog, segment) for segment in segments]


def _joined(store: Store, catalog: Catalog, segment: int) -> bytes:
    ids = [chunk.chunk_id for chunk in catalog.segment_chunks(segment)]
    return b"".join(content or UNKNOWN for content in store.contents(ids))


def _parts(items: Sequence[T], step: int) -> Iterator[Sequence[T]]:
    return (items[at : at + step] for at in range(0, len(items), step))


def files_known(contents: Contents) -> int:
    """Blocking. Files with bytes, all of whose pieces are known."""
    catalog = contents.catalog
    files = (inode for inode in range(catalog.inodes) if catalog.is_file(inode) and catalog.resolve(inode) == inode)
    return sum(all(contents.of(run) is not None for run in catalog.runs(inode)) for inode in files)
