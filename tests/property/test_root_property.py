"""Laws of roots: both ways exact, and damage is noticed or gives another root."""

from contextlib import suppress

from hypothesis import given, settings
from hypothesis import strategies as st

from hoard_p2p.catalog.root import CatalogRun, Root, Totals, decode, decode_list, encode, encode_list
from hoard_p2p.chunking import FASTCDC, FIXED, Chunker, ChunkerKind
from hoard_p2p.errors import CatalogCorrupt
from hoard_p2p.ids import HOLE, ChunkId

MAX_CHUNK = 4 << 20
IDS = st.binary(min_size=32, max_size=32).filter(any).map(ChunkId)
CHUNK_RUNS = st.builds(CatalogRun, IDS, st.integers(1, MAX_CHUNK))
RUNS = CHUNK_RUNS | st.builds(CatalogRun, st.just(HOLE), st.integers(1, 1 << 30))
CHUNKERS = st.sampled_from([FASTCDC, FIXED]) | st.builds(
    Chunker,
    st.sampled_from(list(ChunkerKind)),
    st.integers(1, 1 << 10),
    st.integers(1 << 10, 1 << 20),
    st.integers(1 << 20, MAX_CHUNK),
    st.integers(1, MAX_CHUNK),
)


@st.composite
def roots(draw: st.DrawFn) -> Root:
    """Any root that can be encoded."""
    runs = (*draw(st.lists(RUNS, max_size=9)), CatalogRun(HOLE, 1 << 20))
    length = sum(run.length for run in runs)
    files, directories, symlinks, links, chunks = (draw(st.integers(1, 2000)) for _ in range(5))
    unique, data, size = sorted(draw(st.tuples(*[st.integers(0, (1 << 63) - 1)] * 3)))
    totals = Totals(
        files=files,
        directories=directories,
        symlinks=symlinks,
        hard_links=links,
        size=size,
        data=data,
        unique=unique,
        chunks=chunks,
        segments=draw(st.integers(0, chunks)),
        inodes=files + directories + symlinks + links,
    )
    listed = draw(st.none() | CHUNK_RUNS)
    return Root(
        chunker=draw(CHUNKERS),
        totals=totals,
        catalog_length=length,
        catalog_runs=() if listed else runs,
        catalog_list=listed,
        lazy=draw(st.booleans()),
        keep_owner=draw(st.booleans()),
        keep_mtimes=draw(st.booleans()),
    )


@settings(derandomize=True, deadline=None, max_examples=200)
@given(roots())
def test_decoding_undoes_encoding(root: Root) -> None:
    assert decode(encode(root)) == root


@settings(derandomize=True, deadline=None, max_examples=500)
@given(roots(), st.data())
def test_damaged_bytes_are_refused_or_are_exactly_another_root(root: Root, data: st.DataObject) -> None:
    damaged = bytearray(encode(root))
    for _ in range(data.draw(st.integers(1, 3))):
        place = data.draw(st.integers(0, len(damaged) - 1))
        damaged[place] ^= data.draw(st.integers(1, 255))
    del damaged[data.draw(st.integers(len(damaged) - 5, len(damaged))) :]
    try:
        other = decode(bytes(damaged))
    except CatalogCorrupt:
        return
    assert encode(other) == bytes(damaged)


@settings(derandomize=True, deadline=None, max_examples=200)
@given(st.binary(max_size=400))
def test_any_bytes_are_a_root_or_corrupt(data: bytes) -> None:
    with suppress(CatalogCorrupt):
        assert encode(decode(data)) == data


@settings(derandomize=True, deadline=None, max_examples=30)
@given(st.lists(RUNS, min_size=1, max_size=20), st.integers(257, 600), roots())
def test_list_chunks_both_ways(pattern: list[CatalogRun], count: int, root: Root) -> None:
    runs = (pattern * count)[:count]
    length = sum(run.length for run in runs)
    owner = Root(root.chunker, root.totals, length, (), CatalogRun(ChunkId(b"l" * 32), 1))
    assert decode_list(encode_list(runs), owner) == tuple(runs)
