"""What a node's `Ranged` is handed of the other rooms."""

import asyncio
import logging
import time
from typing import TYPE_CHECKING

from hoard_p2p.errors import BadRequest, ChunkCorrupt, HoardError, PeerUnavailable, Unavailable
from hoard_p2p.fetch.records import Records
from hoard_p2p.fetch.segment import Landed, Segment, Wanted
from hoard_p2p.ids import is_origin_key, short
from hoard_p2p.interfaces import Place
from hoard_p2p.node.ranged import Range, Ranged
from hoard_p2p.objects import RangeAsk
from hoard_p2p.peer import Peer
from hoard_p2p.placement import candidates

if TYPE_CHECKING:
    from hoard_p2p.node.app import Node

log = logging.getLogger(__name__)

LIKELY = 8
"""Peers that are asked whether they hold a segment: its homes and who would be one next."""

HELD_SECONDS = 0.1
"""A reader waits meanwhile."""

PATIENCE_SECONDS = 0.1
"""After which a peer says that the bytes are on their way (CLUSTER 4, "Read once")."""

ANSWER_SECONDS = 5.0
SERVE_SECONDS = 30.0
"""What a peer asked for is brought within this time though the peer hung up: it was told to ask again."""


def make_ranged(node: "Node") -> Ranged:
    """The `Ranged` of `node`, whose other rooms are there."""
    records = Records(node.control.residency, time.monotonic, node.group)

    async def held(segment: Segment) -> bool:
        view, suspects = node.agent.view(), node.agent.suspects()
        others = [peer for peer in candidates(view.peers, segment.key) if peer.node_id != view.me]
        likely = [peer for peer in others if peer.node_id not in suspects][:LIKELY]
        return bool(likely) and bool(await records.holders(likely, segment, HELD_SECONDS))

    async def chunk(segment: Segment, wanted: Wanted, seconds: float) -> Landed:
        return await node.fetcher.chunk(segment, wanted, timeout=seconds, fill=False)

    def ask(peer: Peer, wanted: Range) -> bytes | None:
        data = bytearray(wanted.stop - wanted.start)
        question = RangeAsk(
            wanted.segment.snapshot, wanted.chunk.run, wanted.start, len(data), wanted.hops, PATIENCE_SECONDS
        )
        try:
            end = node.bulk.range(peer, question, memoryview(data), timeout=ANSWER_SECONDS)
        except ChunkCorrupt as error:
            raise PeerUnavailable(f"{peer.name} sent damaged bytes: {error}") from error
        if not end.got and not end.pending:
            raise PeerUnavailable(f"{peer.name}: {end.reason}")
        return bytes(data) if end.got else None

    def landed(segment: Segment, wanted: Wanted, one: Landed) -> None:
        node.fetcher.landed(segment, wanted, one)
        node.group.create_task(_finish(node, segment))

    return Ranged(
        me=node.me.node_id,
        ranges=node.ranges,
        lane=node.origins,
        place=lambda wanted: node.keeper.place(wanted.chunk_id),
        chunk=chunk,
        held=held,
        landed=landed,
        ask=ask,
        group=node.group,
    )


async def serve(node: "Node", ask: RangeAsk) -> bytes | None:
    """Bytes of a piece of a lazy snapshot for a peer whose reader waits for them; None: they take longer than its
    patience, and come. Only such as this node has, or reads in its own view. Raises HoardError, with the reason."""
    opened = await node.open_local(ask.snapshot)
    if opened is None:
        raise Unavailable(f"{node.me.name} does not have the catalog of {short(ask.snapshot)}")
    if not 0 <= ask.run < opened.catalog.chunks or not is_origin_key(opened.catalog.chunk_id(ask.run)):
        raise BadRequest(f"snapshot {short(ask.snapshot)} has no piece {ask.run}")
    chunk = Wanted(ask.run, opened.catalog.chunk_id(ask.run), opened.catalog.length(ask.run))
    start, stop = ask.start, ask.start + ask.length
    if not 0 <= start < stop <= chunk.length:
        raise BadRequest(f"piece {ask.run} has no bytes {start} to {stop}")
    wanted = Range(node.demand.segment(opened, opened.catalog.segment_of(ask.run)), chunk, start, stop, ask.hops)
    try:
        async with asyncio.timeout(ask.patience):
            part = await node.ranged.need(wanted, SERVE_SECONDS)
    except TimeoutError:
        return None
    if part.place is not None:
        return await node.blocking(_read, node, part.place, (start, stop))
    return part.data if part.partial else part.data[start:stop]


def _read(node: "Node", place: Place, span: tuple[int, int]) -> bytes:
    data = bytearray(span[1] - span[0])
    node.reader.read_at(place, span[0], memoryview(data))
    return bytes(data)


async def _finish(node: "Node", segment: Segment) -> None:
    """The end of a flight of the segment, if this was the last of it."""

    def end() -> None:
        if not node.keeper.missing(segment):
            node.keeper.ended(segment, True)

    try:
        await node.blocking(end)
    except HoardError as error:
        log.warning("segment %d of %s: %s", segment.number, short(segment.snapshot), error)
