"""Which pages of a piece are here, and which are being read."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hoard_p2p.limits import PAGE
from hoard_p2p.origin.coverage import Coverage

LENGTH = 10 * PAGE + 100


def test_a_range_is_claimed_in_whole_pages_once() -> None:
    cover = Coverage(LENGTH)
    assert cover.claim(5000, 9000) == [(PAGE, 3 * PAGE)]
    assert cover.claim(0, 4 * PAGE) == [(0, PAGE), (3 * PAGE, 4 * PAGE)]
    assert cover.claim(100, 200) == []


def test_the_last_page_ends_where_the_piece_does() -> None:
    cover = Coverage(LENGTH)
    assert cover.claim(LENGTH - 1, LENGTH) == [(10 * PAGE, LENGTH)]
    cover.land(10 * PAGE, LENGTH)
    assert cover.has(LENGTH - 1, LENGTH)
    assert not cover.whole


def test_what_was_lost_may_be_claimed_again() -> None:
    cover = Coverage(LENGTH)
    cover.claim(0, LENGTH)
    cover.release(PAGE, 2 * PAGE)
    assert cover.claim(0, LENGTH) == [(PAGE, 2 * PAGE)]


def test_what_does_not_lie_in_the_piece_is_refused() -> None:
    for start, stop in ((-1, 5), (5, 5), (0, LENGTH + 1)):
        with pytest.raises(ValueError, match="of a piece"):
            Coverage(LENGTH).claim(start, stop)


SPANS = st.lists(st.tuples(st.integers(0, LENGTH - 1), st.integers(1, LENGTH), st.booleans()), max_size=30)


@given(SPANS)
def test_every_byte_is_claimed_once_until_it_is_lost_and_then_the_piece_is_whole(
    spans: list[tuple[int, int, bool]],
) -> None:
    cover, read = Coverage(LENGTH), bytearray(LENGTH)
    for start, size, well in [*spans, (0, LENGTH, True)]:
        for first, behind in cover.claim(start, min(start + size, LENGTH)):
            assert not any(read[first:behind])
            if well:
                cover.land(first, behind)
                read[first:behind] = b"\1" * (behind - first)
            else:
                cover.release(first, behind)
        assert not well or cover.has(start, min(start + size, LENGTH))
    assert cover.whole
    assert not cover.busy
    assert read == b"\1" * LENGTH
