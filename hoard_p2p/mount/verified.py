"""Bytes of chunks, proven to be right before they are given to the kernel (I1)."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

from hoard_p2p.catalog.reader import Catalog, ChunkSpan
from hoard_p2p.errors import CatalogCorrupt, ChunkCorrupt, ChunkUnavailable
from hoard_p2p.ids import ChunkId, chunk_id, is_origin_key
from hoard_p2p.interfaces import Found, LocalChunks, Place
from hoard_p2p.limits import MAX_CHUNK, PAGE, WHOLE_PIECE
from hoard_p2p.mount.buffers import buffer
from hoard_p2p.mount.kernel import MAX_READ

_ZEROS = memoryview(bytes(MAX_READ))
Expect = Callable[[Sequence[tuple[ChunkId, int, int]]], None]
"""Told which bytes of chunks are read next: (id, start, length)."""


class Missing(NamedTuple):
    """The chunk of canonical run `run` is not on this machine. `part`: of a long piece of a lazy snapshot, these bytes
    would do."""

    run: int
    part: tuple[int, int] | None = None


class Wrong(NamedTuple):
    """The bytes of canonical run `run` at `place` are not the chunk (None: no place, they came over the socket)."""

    run: int
    place: Place | None


class VerifiedChunks:
    """Fills buffers with bytes of chunk runs. Single-threaded: one buffer for whole chunks is reused."""

    def __init__(
        self, catalog: Catalog, chunks: LocalChunks, generations: memoryview, verify: str, expect: Expect | None = None
    ) -> None:
        """`generations`: the mount's byte per run (`SharedState.verified`). `verify`: `first`: hash a chunk at its
        first read under this mount; `arrival`: never, it was hashed when it came; `always`: at each read. `expect`: for
        a store where bytes of several chunks are better asked for at once."""
        self._catalog = catalog
        self._chunks = chunks
        self._generations = generations
        self._trusting = verify == "arrival"
        self._remembering = verify == "first"
        self._whole = buffer(MAX_CHUNK)
        self._expect = expect

    def expect(self, spans: Sequence[ChunkSpan]) -> None:
        """`fill` will be called for these."""
        if self._expect is not None:
            self._expect([self._reading(span) for span in spans if not self._catalog.is_hole(span.run)])

    def _reading(self, span: ChunkSpan) -> tuple[ChunkId, int, int]:
        """What of a chunk will be read: a chunk that has to be hashed, as a whole."""
        run = self._catalog.canonical(span.run)
        identifier = self._catalog.chunk_id(run)
        if self._generations[run] or self._trusting:
            return identifier, span.start, span.length
        return identifier, 0, self._catalog.length(run)

    def fill(self, span: ChunkSpan, into: memoryview, answer: Found | None) -> Missing | Wrong | None:
        """Fill `into`, which is as long as `span`. `answer`: what the node said about the run, if it was asked.

        None: done. Otherwise `into` holds nothing of use. Raises CatalogCorrupt, OSError.
        """
        catalog = self._catalog
        if self._is_verified(span, into):
            return None
        if catalog.is_hole(span.run):
            into[:] = _ZEROS[: len(into)]
            return None
        run = catalog.canonical(span.run)
        length = catalog.length(run)
        if length > MAX_CHUNK or (run != span.run and catalog.length(span.run) != length):
            raise CatalogCorrupt(f"chunk run {span.run} has a length that its chunk cannot have")
        wanted = _Wanted(run, catalog.chunk_id(run), length, span, into)
        try:
            return self._from_store(wanted) if answer is None else self._from_answer(wanted, answer)
        except ChunkCorrupt:  # the slab is shorter than the index says
            return _wrong(wanted, answer.place if answer else self._chunks.place(wanted.chunk_id))
        except ChunkUnavailable:  # read through a node that went away: waited for like what is missing
            return _missing(wanted)

    def _is_verified(self, span: ChunkSpan, into: memoryview) -> bool:
        """The short way for a run that is marked: it is canonical, no hole, and has the right length then."""
        remembered = self._generations[span.run]
        if not remembered:
            return False
        try:
            place = self._chunks.read_into(self._catalog.chunk_id(span.run), span.start, into)
        except ChunkCorrupt:  # to be found again, and reported, on the long way
            return False
        return place is not None and place.generation == remembered

    def _from_store(self, wanted: "_Wanted") -> Missing | Wrong | None:
        # The mark first, then the bytes with the generation of their place: a place that is replaced in between has
        # another one, and is hashed.
        remembered = self._generations[wanted.run]
        if remembered or self._trusting:
            place = self._chunks.read_into(wanted.chunk_id, wanted.span.start, wanted.into)
            if place is None:
                return _missing(wanted)
            if self._trusting or place.generation == remembered:
                return None
        whole = self._room(wanted)
        place = self._chunks.read_into(wanted.chunk_id, 0, whole)
        return _missing(wanted) if place is None else self._check(wanted, whole, place)

    def _from_answer(self, wanted: "_Wanted", answer: Found) -> Missing | Wrong | None:
        if answer.span is not None:
            return self._from_part(wanted, answer, answer.span)
        if answer.place is None:
            if len(answer.data) != wanted.length:
                return Wrong(wanted.run, None)
            return self._check(wanted, memoryview(answer.data), None, fresh=answer)
        whole = self._room(wanted)
        self._chunks.read_at(answer.place, 0, whole)
        return self._check(wanted, whole, answer.place, fresh=answer)

    def copied(self, answer: Found) -> Found:
        """The same with the bytes of its span at hand, if they can be read."""
        if answer.place is None or answer.span is None:
            return answer
        data = bytearray(answer.span[1] - answer.span[0])
        try:
            self._chunks.read_at(answer.place, answer.span[0], memoryview(data))
        except ChunkCorrupt:
            return answer  # found again, and asked again, when it is read
        return answer._replace(place=None, data=bytes(data))

    def _from_part(self, wanted: "_Wanted", answer: Found, part: tuple[int, int]) -> Missing | None:
        """Bytes of an unfinished piece, which has no id yet to compare them with: for this READ only."""
        start, stop = wanted.span.start, wanted.span.start + wanted.span.length
        if not part[0] <= start < stop <= part[1]:
            return _missing(wanted)
        if answer.place is None:
            data = memoryview(answer.data)[start - part[0] : stop - part[0]]
            if len(data) != wanted.span.length:
                return _missing(wanted)
            wanted.into[:] = data
            return None
        if answer.place.length != wanted.length:
            return _missing(wanted)
        try:
            self._chunks.read_at(answer.place, start, wanted.into)
        except ChunkCorrupt:  # the slab was cut since
            return _missing(wanted)
        return None

    def _room(self, wanted: "_Wanted") -> memoryview:
        """Where to read a whole chunk: straight into the reply if it is wanted whole."""
        return wanted.into if len(wanted.into) == wanted.length else self._whole[: wanted.length]

    def _check(
        self, wanted: "_Wanted", whole: memoryview, place: Place | None, *, fresh: Found | None = None
    ) -> Missing | Wrong | None:
        """`fresh`: the node has just told of it, so that the index may not know yet what an origin key was found to be:
        the answer says it. If the node does not know either (the piece could not be stored), nothing can be compared,
        and nothing is remembered."""
        content = self._chunks.content(wanted.chunk_id)
        if content is None and fresh is None:
            return _missing(wanted)
        if content is None and fresh is not None:
            content = fresh.content
        if content is not None and chunk_id(whole) != content:
            return _wrong(wanted, place)
        if place is not None and self._remembering and content is not None:
            self._generations[wanted.run] = place.generation
        if whole is not wanted.into:
            wanted.into[:] = whole[wanted.span.start : wanted.span.start + wanted.span.length]
        return None


class _Wanted(NamedTuple):
    run: int
    chunk_id: ChunkId
    length: int
    span: ChunkSpan
    into: memoryview


def _missing(wanted: _Wanted) -> Missing:
    """What to ask for: of a long piece whose bytes nobody knows yet just the pages that are wanted."""
    if wanted.length <= WHOLE_PIECE or not is_origin_key(wanted.chunk_id):
        return Missing(wanted.run)
    start, stop = wanted.span.start, wanted.span.start + wanted.span.length
    return Missing(wanted.run, (start // PAGE * PAGE, min(-(-stop // PAGE) * PAGE, wanted.length)))


def _wrong(wanted: _Wanted, place: Place | None) -> Wrong:
    """Raises CatalogCorrupt if the store and the catalog differ about the length: then the place is not to blame, and
    a hostile catalog must not get good chunks thrown away."""
    if place is not None and place.length != wanted.length:
        raise CatalogCorrupt(f"chunk run {wanted.run} is {place.length} bytes long, the catalog says {wanted.length}")
    return Wrong(wanted.run, place)
