"""Which blocks of a slab may go, against a plain set."""

from itertools import pairwise

from hypothesis import given, settings
from hypothesis import strategies as st

from hoard_p2p.storage.openslab import BLOCK
from hoard_p2p.storage.punching import WINDOW, Blocks, Span

BLOCKS = 3 * WINDOW + 77
near = st.sampled_from((0, 1, WINDOW - 1, WINDOW, WINDOW + 1, 2 * WINDOW, 3 * WINDOW, BLOCKS - 1))
blocks = st.one_of(near, st.integers(0, BLOCKS + 9))
extents = st.tuples(
    blocks, st.integers(0, BLOCK - 1), st.one_of(st.integers(1, 3 * BLOCK), blocks.map(lambda n: n * BLOCK + 1))
)


@settings(max_examples=60, deadline=None)
@given(st.integers(0, BLOCK - 1), st.lists(extents, max_size=12), st.tuples(blocks, blocks).map(sorted))
def test_marks_are_those_of_a_plain_set(tail: int, marked: list[tuple[int, int, int]], asked: list[int]) -> None:
    size = BLOCKS * BLOCK - tail
    kept, model = Blocks(size), set[int]()
    for block, inside, length in marked:
        offset = block * BLOCK + inside
        kept.mark(offset, length)
        model |= set(range(block, min(-(-(offset + length) // BLOCK), BLOCKS)))
    gaps = list(kept.gaps())
    free = {block for start, end in gaps for block in range(start // BLOCK, end // BLOCK)}
    assert free == set(range(BLOCKS)) - model
    assert all(first.end < second.start for first, second in pairwise(gaps)), "as few as possible"
    assert bool(kept) == bool(model)
    span = Span(*(block * BLOCK for block in asked))
    assert kept.touches(span) == any(block in model for block in range(*asked))
