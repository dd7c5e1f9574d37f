"""What the index's tables about chunks, slabs and large files mean. Each function works inside a given transaction.

A chunk has up to `MAX_PLACES` places; readers use the first. Generations of one chunk's places differ from each other
and from the last one that was quarantined, so "verified at generation g" never speaks of other bytes.
"""

import struct
from collections.abc import Callable, Collection, Iterable

from hoard_p2p.errors import BadRequest, Refused
from hoard_p2p.ids import ChunkId, is_origin_key
from hoard_p2p.interfaces import Extent, Place
from hoard_p2p.storage.index import Table, Transaction
from hoard_p2p.storage.records import (
    FileSlab,
    SlabRecord,
    decode_file,
    decode_places,
    decode_slab,
    encode_file,
    encode_places,
    encode_slab,
    names_place,
)

MAX_PLACES = 16
"""Further places are not listed; their bytes are found by sidecar only."""
Unwanted = Callable[[list[Place]], list[Place]]
"""Chooses among all places of a chunk those that go."""
MOST_MARKED = 128
"""Generations that are remembered of a forgotten key: others stay free."""

_NEXT_SLAB = b"next_slab"
_U32 = struct.Struct(">I")  # keys sort by number


def next_generation(listed: Collection[int], last: bytes | None) -> int:
    """The generation of a chunk's next place. `last`: the chunk's row in GENERATIONS, which is the last one given and
    exists once a place was quarantined; before that the listed places tell it. Runs through 1 - 255 in a circle."""
    after = last[0] if last else max(listed, default=0)
    circle = (generation % 255 + 1 for generation in range(after, after + 255))
    return next(generation for generation in circle if generation not in listed)


def content_of(txn: Transaction, identifier: ChunkId) -> ChunkId | None:
    """The id of the bytes that an id of a chunk table stands for: itself, or what an origin key was found to be; None
    if that is not known here."""
    if not is_origin_key(identifier):
        return identifier
    known = txn.get(Table.KEYS, identifier)
    return None if known is None else ChunkId(known)


def slab_key(slab: int) -> bytes:
    return _U32.pack(slab)


def add_slab(txn: Transaction, record: SlabRecord) -> int:
    """List a new slab; its number was never used before."""
    raw = txn.get(Table.META, _NEXT_SLAB)
    slab = _U32.unpack(raw)[0] if raw else 1
    txn.put(Table.META, _NEXT_SLAB, _U32.pack(slab + 1))
    if record.file_key:
        record = record._replace(file_key=_file_name(txn, record.file_key))
    txn.put(Table.SLABS, slab_key(slab), encode_slab(record))
    if record.file_key:
        put_file(txn, record.file_key, FileSlab(slab, False))
    return slab


def never_before(txn: Transaction, slab: int) -> None:
    """Slab numbers up to this one were used before the index was made."""
    txn.put(Table.META, _NEXT_SLAB, _U32.pack(slab + 1))


def forget_slab(txn: Transaction, slab: int) -> None:
    """Unlist a slab in which nothing is listed, and its large file."""
    record = get_slab(txn, slab)
    if record is None:
        return
    txn.delete(Table.SLABS, slab_key(slab))
    known = get_file(txn, record.file_key) if record.file_key else None
    if known is not None and known.slab == slab:
        txn.delete(Table.FILES, record.file_key)


def all_slabs(txn: Transaction) -> dict[int, SlabRecord]:
    return {_U32.unpack(key)[0]: decode_slab(raw) for key, raw in txn.scan(Table.SLABS)}


def get_slab(txn: Transaction, slab: int) -> SlabRecord | None:
    raw = txn.get(Table.SLABS, slab_key(slab))
    return decode_slab(raw) if raw else None


def get_file(txn: Transaction, file_key: bytes) -> FileSlab | None:
    """The slab of a large file, by its key over the ids of its chunks or over their origin keys."""
    raw = txn.get(Table.FILES, _file_name(txn, file_key))
    return decode_file(raw) if raw else None


def _file_name(txn: Transaction, file_key: bytes) -> bytes:
    """The key that a file is recorded under: the one over the ids of its chunks once all are known."""
    return txn.get(Table.KEYS, file_key) or file_key


def rename_file(txn: Transaction, old: bytes, new: bytes) -> None:
    """A file that was recorded under its key over origin keys gets the one over chunk ids, for which KEYS now has its
    old one."""
    raw = txn.get(Table.FILES, old)
    if raw is not None:
        txn.delete(Table.FILES, old)
        record = decode_file(raw)
        if get_file(txn, new) is None:
            put_file(txn, new, record)
        set_file_key(txn, record.slab, new)


def put_file(txn: Transaction, file_key: bytes, record: FileSlab) -> None:
    """Record a file's slab, unless another slab has it complete already."""
    file_key = _file_name(txn, file_key)
    known = get_file(txn, file_key)
    if known is not None and known.complete and known.slab != record.slab:
        return  # that one may be a mount's backing file, and is kept whole because it is recorded
    txn.put(Table.FILES, file_key, encode_file(record))


def own_slab(txn: Transaction, slab: int, start: int) -> SlabRecord:
    """The record of a slab made in this start. Raises BadRequest, or Refused for another start (a writer that outlived
    its node)."""
    record = get_slab(txn, slab)
    if record is None:
        raise BadRequest(f"slab {slab} is not listed; ask for a new slab")
    if record.start != start:
        raise Refused(f"slab {slab} was made in start {record.start}, this is start {start}; ask for a new slab")
    return record


def add_extents(txn: Transaction, extents: Iterable[Extent]) -> None:
    """Give each chunk one more place. Repeating it changes nothing."""
    quarantines = txn.count(Table.GENERATIONS) > 0
    for slab, offset, length, chunk_id in sorted(extents, key=lambda extent: extent.chunk_id):
        raw = txn.get(Table.CHUNKS, chunk_id)
        last = txn.get(Table.GENERATIONS, chunk_id) if quarantines else None
        if raw is None and last is None:  # nearly always: a publish lists many thousand a second
            txn.put(Table.CHUNKS, chunk_id, encode_places((Place(slab, offset, length, 1),)))
            continue
        places = decode_places(raw) if raw else []
        if len(places) >= MAX_PLACES or any((p.slab, p.offset) == (slab, offset) for p in places):
            continue
        generation = next_generation([p.generation for p in places], last)
        txn.put(Table.CHUNKS, chunk_id, encode_places([*places, Place(slab, offset, length, generation)]))
        if last:
            txn.put(Table.GENERATIONS, chunk_id, bytes([generation]))


def listed(txn: Transaction, after: bytes, count: int) -> list[tuple[ChunkId, int]]:
    """The next `count` chunks behind the id `after`, and the bytes of all their places."""
    rows = txn.page(Table.CHUNKS, after, count)
    return [(ChunkId(key), sum(place.length for place in decode_places(raw))) for key, raw in rows]


def lists(txn: Transaction, extent: Extent) -> bool:
    """Whether the index lists exactly this extent."""
    raw = txn.get(Table.CHUNKS, extent.chunk_id)
    return raw is not None and names_place(raw, extent.slab, extent.offset, extent.length)


def may_serve(txn: Transaction, extent: Extent) -> bool:
    """Whether an extent of a large file's slab is listed, or repeats a chunk that is: the index may have no room for
    it, and a mount whose backing file the slab is reads it all the same."""
    raw = txn.get(Table.CHUNKS, extent.chunk_id)
    places = decode_places(raw) if raw else []
    return len(places) >= MAX_PLACES or any(place.slab == extent.slab for place in places)


def drop_place(txn: Transaction, chunk_id: bytes, place: Place) -> bool:
    """Quarantine one place, exactly as listed; False if it is not listed."""
    raw = txn.get(Table.CHUNKS, chunk_id)
    places = decode_places(raw) if raw else []
    if place not in places:
        return False
    if txn.get(Table.GENERATIONS, chunk_id) is None:
        txn.put(Table.GENERATIONS, chunk_id, bytes([max(p.generation for p in places)]))
    places.remove(place)
    if places:
        txn.put(Table.CHUNKS, chunk_id, encode_places(places))
    else:
        txn.delete(Table.CHUNKS, chunk_id)
    demote(txn, place.slab)
    return True


def unlist(txn: Transaction, chunk_id: bytes, unwanted: Unwanted) -> list[Place]:
    """Forget the places of a chunk that are unwanted; those that were forgotten.

    A chunk that keeps a place remembers the highest generation that it had: a mount may have verified it there, and no
    further place may be given that number. One that goes altogether leaves nothing behind: who remembers anything
    about it has its snapshot leased, and then it does not go."""
    raw = txn.get(Table.CHUNKS, chunk_id)
    places = decode_places(raw) if raw else []
    gone = unwanted(places) if places else []
    if not gone:
        return []
    kept = [place for place in places if place not in gone]
    if not kept:
        txn.delete(Table.CHUNKS, chunk_id)
    else:
        txn.put(Table.CHUNKS, chunk_id, encode_places(kept))
        highest = max(place.generation for place in places)
        if highest > max(place.generation for place in kept) and txn.get(Table.GENERATIONS, chunk_id) is None:
            txn.put(Table.GENERATIONS, chunk_id, bytes([highest]))
    return gone


def mark_forgotten(txn: Transaction, key: ChunkId) -> None:
    """An origin key is about to be forgotten: mounts may have verified its runs at any generation of what it was found
    to be. Those are in the key's own row of GENERATIONS from now on."""
    found = txn.get(Table.KEYS, key)
    if found is None:
        return
    raw = txn.get(Table.CHUNKS, found)
    used = {place.generation for place in decode_places(raw)} if raw else set()
    used.update(txn.get(Table.GENERATIONS, found) or b"", txn.get(Table.GENERATIONS, key) or b"")
    txn.put(Table.GENERATIONS, key, bytes(sorted(used)[:MOST_MARKED]))


def avoid_forgotten(txn: Transaction, key: bytes, found: bytes) -> None:
    """A key is learned: if it was something else before, no place of its chunk keeps a generation that its runs may be
    marked with. That costs the chunk's other readers one more look at it."""
    marked = txn.get(Table.GENERATIONS, key) or b""
    raw = txn.get(Table.CHUNKS, found) if marked else None
    places = decode_places(raw) if raw else []
    for number, place in enumerate(places):
        if place.generation in marked:
            taken = [*marked, *(other.generation for other in places)]
            generation = next_generation(taken, txn.get(Table.GENERATIONS, found))
            places[number] = place._replace(generation=generation)
            txn.put(Table.GENERATIONS, found, bytes([generation]))
    if places:
        txn.put(Table.CHUNKS, found, encode_places(places))


def redundant_in(slab: int, places: list[Place]) -> list[Place]:
    """The places in a slab of a chunk that has one elsewhere, too."""
    return [place for place in places if place.slab == slab] if any(place.slab != slab for place in places) else []


def relist(txn: Transaction, chunk_id: bytes, place: Place) -> None:
    """List a place again that was unlisted and not changed since. As good as before if its generation is free. Not in a
    slab that was deleted meanwhile."""
    raw = txn.get(Table.CHUNKS, chunk_id)
    places = decode_places(raw) if raw else []
    if get_slab(txn, place.slab) is None:
        return
    if len(places) >= MAX_PLACES or any(known[:2] == place[:2] for known in places):
        return
    taken = [known.generation for known in places]
    last = txn.get(Table.GENERATIONS, chunk_id)
    generation = next_generation(taken, last) if place.generation in taken else place.generation
    txn.put(Table.CHUNKS, chunk_id, encode_places([*places, place._replace(generation=generation)]))
    if last and generation != place.generation:
        txn.put(Table.GENERATIONS, chunk_id, bytes([generation]))


def restore_place(txn: Transaction, chunk_id: bytes, place: Place) -> Place | None:
    """List a quarantined place again, whose bytes are right by now; as it is listed from now on, None if it cannot be.

    Its generation is not the next one but the one after: the next may have been told already of a copy that is being
    written elsewhere (`StoreReader.vacancies`), and "verified" must not speak of two places.
    """
    raw = txn.get(Table.CHUNKS, chunk_id)
    places = decode_places(raw) if raw else []
    found = next((known for known in places if known[:3] == place[:3]), None)
    if found is not None or len(places) >= MAX_PLACES or get_slab(txn, place.slab) is None:
        return found
    listed = [known.generation for known in places]
    told = next_generation(listed, txn.get(Table.GENERATIONS, chunk_id))
    generation = next_generation([*listed, told], bytes([told]))
    healed = place._replace(generation=generation)
    txn.put(Table.CHUNKS, chunk_id, encode_places([*places, healed]))
    txn.put(Table.GENERATIONS, chunk_id, bytes([generation]))
    return healed


def is_complete(txn: Transaction, slab: int) -> bool:
    """Whether the slab is recorded to have all of its large file."""
    record = get_slab(txn, slab)
    return record is not None and bool(record.file_key) and get_file(txn, record.file_key) == FileSlab(slab, True)


def restore_file(txn: Transaction, slab: int) -> None:
    """A file slab that lost places has all of them again."""
    record = get_slab(txn, slab)
    if record is not None and record.file_key and get_file(txn, record.file_key) == FileSlab(slab, False):
        txn.put(Table.FILES, record.file_key, encode_file(FileSlab(slab, True)))


def demote(txn: Transaction, slab: int) -> None:
    """A file slab that lost a place no longer has all of its file."""
    record = get_slab(txn, slab)
    if record is not None and is_complete(txn, slab):
        txn.put(Table.FILES, record.file_key, encode_file(FileSlab(slab, False)))


def set_file_key(txn: Transaction, slab: int, file_key: bytes) -> None:
    """Name the large file that a slab holds, once its key is known."""
    record, file_key = get_slab(txn, slab), _file_name(txn, file_key)
    if record is not None and record.file_key != file_key:
        txn.put(Table.SLABS, slab_key(slab), encode_slab(record._replace(file_key=file_key)))
