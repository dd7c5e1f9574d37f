"""Laws of cutting, with a chunker of small sizes so that many cuts happen."""

from itertools import accumulate

from blake3 import blake3
from hypothesis import example, given, settings
from hypothesis import strategies as st

from hoard_p2p.chunking import SMALL_FILE, Chunker, ChunkerKind, Cutter, Run, runs_of, skippable

BLOCK = 4096
CONTENT = Chunker(ChunkerKind.FASTCDC, 8192, 32768, 100_000, BLOCK)  # longest chunks end inside blocks
FIXED = Chunker(ChunkerKind.FIXED, 65536, 65536, 65536, 65536)
CHUNKERS = st.sampled_from([CONTENT, FIXED])

Piece = tuple[str, int, int]  # kind, length, seed
PIECES = st.lists(
    st.tuples(st.sampled_from(["zeros", "random", "thin"]), st.integers(1, 1_200_000), st.integers(0, 3)), max_size=6
)


def content(pieces: list[Piece]) -> bytes:
    return b"".join(one_piece(*piece) for piece in pieces)


def one_piece(kind: str, length: int, seed: int) -> bytes:
    """Zeros, random bytes, or mostly zeros: one other byte in each block, so that no block is a hole."""
    if kind == "zeros":
        return bytes(length)
    if kind == "random":
        return blake3(b"%d" % seed).digest(length=length)
    return (b"\x01" + bytes(BLOCK - 1)) * (length // BLOCK) + b"\x01" * (length % BLOCK)


def zero_ranges(pieces: list[Piece]) -> list[range]:
    ends = list(accumulate(length for _, length, _ in pieces))
    return [range(end - length, end) for (kind, length, _), end in zip(pieces, ends, strict=True) if kind == "zeros"]


def cut_in_windows(chunker: Chunker, data: bytes, steps: list[int]) -> list[Run]:
    """Offer ever more of `data`, from the cutter's position, `steps` bytes more each time."""
    cutter = Cutter(chunker, len(data))
    runs: list[Run] = []
    end = turn = 0
    while cutter.position < len(data):
        end = min(max(end, cutter.position) + steps[turn % len(steps)], len(data))
        runs += cutter.cut(memoryview(data)[cutter.position : end], final=end == len(data))
        turn += 1
    return runs


def cut_with_holes(chunker: Chunker, data: bytes, holes: list[range]) -> list[Run]:
    """Skip all that may be skipped of `holes`."""
    cutter = Cutter(chunker, len(data))
    runs: list[Run] = []
    for hole in holes:
        skip = skippable(chunker, hole.start, hole.stop, len(data))
        if skip:
            runs += cutter.skip_hole(memoryview(data)[cutter.position : skip.start], len(skip))
    if cutter.position < len(data):
        runs += cutter.cut(memoryview(data)[cutter.position :], final=True)
    return runs


@settings(derandomize=True, deadline=None, max_examples=60)
@given(CHUNKERS, PIECES)
def test_runs_cover_the_file_and_holes_are_zeros(chunker: Chunker, pieces: list[Piece]) -> None:
    data = content(pieces)
    here = 0
    last_was_hole = False
    for run in runs_of(chunker, data):
        part = data[here : here + run.length]
        assert len(part) == run.length > 0
        if run.hole:
            assert not last_was_hole
            assert here % chunker.hole_block == 0
            assert not any(part)
        else:
            assert run.length <= max(chunker.max_size, SMALL_FILE)
            assert any(part)
        last_was_hole = run.hole
        here += run.length
    assert here == len(data)


@settings(derandomize=True, deadline=None, max_examples=60)
@example(CONTENT, [("thin", 2_000_000, 0)], [150_000])  # zeros between a cut and the end of its block are data
@given(CHUNKERS, PIECES, st.lists(st.integers(1, 300_000), min_size=1, max_size=5))
def test_windows_do_not_matter(chunker: Chunker, pieces: list[Piece], steps: list[int]) -> None:
    data = content(pieces)
    steps = [max(step, len(data) // 200) for step in steps]
    assert cut_in_windows(chunker, data, steps) == runs_of(chunker, data)


@settings(derandomize=True, deadline=None, max_examples=60)
@given(CHUNKERS, PIECES)
def test_skipping_known_zeros_does_not_matter(chunker: Chunker, pieces: list[Piece]) -> None:
    data = content(pieces)
    assert cut_with_holes(chunker, data, zero_ranges(pieces)) == runs_of(chunker, data)


@settings(derandomize=True, deadline=None, max_examples=25)
@given(st.integers(0, 1_500_000), st.binary(min_size=1, max_size=5000), st.integers(0, 9))
def test_an_insertion_changes_few_chunks(place: int, inserted: bytes, seed: int) -> None:
    data = blake3(b"insert %d" % seed).digest(length=3_000_000)
    changed = data[:place] + inserted + data[place:]
    before, after = chunks(data), chunks(changed)
    assert len(set(after) - set(before)) <= 12
    assert len(before) > 50


def chunks(data: bytes) -> list[bytes]:
    ends = list(accumulate(run.length for run in runs_of(CONTENT, data)))
    return [data[start:end] for start, end in zip([0, *ends], ends, strict=False)]
