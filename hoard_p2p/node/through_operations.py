"""The node's side of `node.through`: places, bytes and slabs for processes that cannot open the index."""

import asyncio
import mmap
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from hoard_p2p.config import Json
from hoard_p2p.errors import BadRequest, ChunkCorrupt
from hoard_p2p.ids import ChunkId
from hoard_p2p.interfaces import Place
from hoard_p2p.limits import MAX_CHUNK
from hoard_p2p.node.app import Node
from hoard_p2p.node.asking import Operation, number_of, text_of
from hoard_p2p.node.local import LocalReply, LocalRequest
from hoard_p2p.node.through import MOST_AT_ONCE
from hoard_p2p.storage.reader import StoreReader

MOST_IDS = 1 << 16


@dataclass(frozen=True, slots=True)
class _Wanted:
    chunk_id: ChunkId
    start: int
    length: int


async def _reads_through(node: Node, request: LocalRequest) -> LocalReply:
    """A process reads through this node, as long as the connection lives; answered never."""
    why, mountpoint = text_of(request.args, "why"), text_of(request.args, "mountpoint")
    with node.mounts.through.listed(mountpoint, why):
        await asyncio.Event().wait()
    return LocalReply()


async def _chunk_places(node: Node, request: LocalRequest) -> LocalReply:
    """All places of each chunk, first the one that is read."""
    listed = request.args.get("ids")
    if not isinstance(listed, list) or len(listed) > MOST_IDS:
        raise BadRequest(f"ids: a list of at most {MOST_IDS} chunk ids")
    ids = [_chunk_id(one) for one in listed]
    found = await node.blocking(lambda: [node.reader.places_of(one) for one in ids])
    places: list[Json] = [[list(place) for place in one] for one in found]
    return LocalReply({"places": places})


async def _chunk_contents(node: Node, request: LocalRequest) -> LocalReply:
    """What each origin key was found to be, null where that is not known."""
    listed = request.args.get("ids")
    if not isinstance(listed, list) or len(listed) > MOST_IDS:
        raise BadRequest(f"ids: a list of at most {MOST_IDS} origin keys")
    found = await node.blocking(node.reader.contents, [_chunk_id(one) for one in listed])
    return LocalReply({"contents": [None if one is None else one.hex() for one in found]})


async def _chunk_bytes(node: Node, request: LocalRequest) -> LocalReply:
    """Bytes of chunks, one after the other in one file, and for each its place, null, or why it is damaged."""
    wanted = _wanted(request.args.get("wanted"))
    with _file_of(sum(one.length for one in wanted)) as (fd, memory):
        told = await node.blocking(_copy, node.reader, wanted, memory)
        return LocalReply({"found": told}, (os.dup(fd),))


def _copy(reader: StoreReader, wanted: Sequence[_Wanted], memory: mmap.mmap) -> list[Json]:
    """Each copied inside the transaction that its place was read in. Raises BadRequest, StoreFailed."""
    told: list[Json] = []
    at = 0
    with memoryview(memory) as room:
        for one in wanted:
            with room[at : at + one.length] as into:
                try:
                    place = reader.read_into(one.chunk_id, one.start, into)
                except ChunkCorrupt as error:
                    told.append(str(error))
                except ValueError as error:
                    raise BadRequest(str(error)) from error
                else:
                    told.append(None if place is None else list(place))
            at += one.length
    return told


async def _place_bytes(node: Node, request: LocalRequest) -> LocalReply:
    """Bytes at a place that the asker knows; it checks them."""
    told = request.args.get("place")
    if not isinstance(told, list) or len(told) != len(Place._fields) or not all(isinstance(one, int) for one in told):
        raise BadRequest("place: slab, offset, length and generation")
    place = Place(*(int(str(one)) for one in told))
    if not 0 <= place.slab < 1 << 32 or not 0 <= place.offset < 1 << 62 or not 0 <= place.length <= MAX_CHUNK:
        raise BadRequest("place: no such slab, offset or length can be")
    start, length = number_of(request.args, "start"), number_of(request.args, "length")
    if start < 0 or not 0 <= length <= MAX_CHUNK:
        raise BadRequest(f"start and length: at most {MAX_CHUNK} bytes")
    with _file_of(length) as (fd, memory):
        await node.blocking(_copy_at, node.reader, place, start, memory, length)
        return LocalReply({}, (os.dup(fd),))


def _copy_at(reader: StoreReader, place: Place, start: int, memory: mmap.mmap, length: int) -> None:
    with memoryview(memory) as room, room[:length] as into:
        try:
            reader.read_at(place, start, into)
        except ValueError as error:
            raise BadRequest(str(error)) from error


async def _file_slab(node: Node, request: LocalRequest) -> LocalReply:
    key = _bytes(text_of(request.args, "key"))
    found = await node.blocking(node.reader.file_slab, key)
    return LocalReply({} if found is None else {"slab": found[0], "complete": found[1]})


async def _open_slab(node: Node, request: LocalRequest) -> LocalReply:
    """A descriptor of the slab's data file, for reading alone."""
    slab = number_of(request.args, "slab")
    if not 0 <= slab < 1 << 32:
        raise BadRequest(f"there is no slab {slab}")
    return LocalReply({}, (await node.blocking(node.reader.open_slab, slab),))


@contextmanager
def _file_of(size: int) -> Iterator[tuple[int, mmap.mmap]]:
    """A file in memory and a map of it, which a thread may still write to when the file is closed."""
    fd = os.memfd_create("hoard-chunks", os.MFD_CLOEXEC)
    try:
        os.ftruncate(fd, max(size, 1))
        yield fd, mmap.mmap(fd, max(size, 1))
    finally:
        os.close(fd)


def _wanted(told: Json) -> list[_Wanted]:
    if not isinstance(told, list):
        raise BadRequest("wanted: a list of chunk id, start and length")
    found = [_one(entry) for entry in told]
    if sum(one.length for one in found) > max(MOST_AT_ONCE, MAX_CHUNK):
        raise BadRequest(f"at most {MOST_AT_ONCE} bytes are sent at once")
    return found


def _one(entry: Json) -> _Wanted:
    if not isinstance(entry, list) or len(entry) != 3:
        raise BadRequest("wanted: a list of chunk id, start and length")
    one, start, length = entry
    if not isinstance(start, int) or not isinstance(length, int) or start < 0 or length < 0:
        raise BadRequest("start and length are numbers")
    return _Wanted(_chunk_id(one), start, length)


def _chunk_id(told: Json) -> ChunkId:
    found = ChunkId(_bytes(told))
    if len(found) != 32:
        raise BadRequest(f"{told!r} is no chunk id")
    return found


def _bytes(told: Json) -> bytes:
    try:
        return bytes.fromhex(str(told))
    except ValueError as error:
        raise BadRequest(f"{told!r} is not hexadecimal") from error


OPERATIONS: Mapping[str, Operation] = {
    "reads_through": _reads_through,
    "chunk_places": _chunk_places,
    "chunk_contents": _chunk_contents,
    "chunk_bytes": _chunk_bytes,
    "place_bytes": _place_bytes,
    "file_slab": _file_slab,
    "open_slab": _open_slab,
}
