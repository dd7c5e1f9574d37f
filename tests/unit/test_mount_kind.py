"""Which kind of mount suits a snapshot, and what is said about it."""

from collections.abc import Iterator

import pytest

from hoard_p2p.errors import MountFailed
from hoard_p2p.mount.kind import AUTO, NO_OPEN, PASSTHROUGH, Spread, choose, spread
from hoard_p2p.segments import LARGE_FILE

MIB = 1 << 20
SHARDS = Spread(files=100, size=100 << 30, large=100 << 30)
PHOTOS = Spread(files=1_000_000, size=110_000 << 20, large=0)


def test_large_files_are_passed_through_and_small_ones_opened_by_the_kernel() -> None:
    assert choose(AUTO, "first", SHARDS, "").io == PASSTHROUGH
    assert choose(AUTO, "first", PHOTOS, "").io == NO_OPEN
    assert choose(AUTO, "first", Spread(0, 0, 0), "").io == NO_OPEN


@pytest.mark.parametrize(("large", "io"), [(800_000 * 1000, NO_OPEN), (1_000_000 * 1000, PASSTHROUGH)])
def test_the_border_lies_at_nine_hundred_thousand_bytes_of_large_files_per_file(large: int, io: str) -> None:
    assert choose(AUTO, "first", Spread(1000, large, large), "").io == io


def test_what_stands_in_the_way_is_the_reason() -> None:
    obstructed = choose(AUTO, "first", SHARDS, "it needs CAP_SYS_ADMIN")
    assert obstructed.io == NO_OPEN
    assert "it needs CAP_SYS_ADMIN" in obstructed.reason
    always = choose(AUTO, "always", SHARDS, "")
    assert always.io == NO_OPEN
    assert "--verify always" in always.reason
    assert "CAP_SYS_ADMIN" not in choose(AUTO, "first", PHOTOS, "it needs CAP_SYS_ADMIN").reason


def test_what_is_asked_for_is_done_or_refused() -> None:
    assert choose(PASSTHROUGH, "first", PHOTOS, "").io == PASSTHROUGH
    assert choose(NO_OPEN, "first", SHARDS, "").io == NO_OPEN
    with pytest.raises(MountFailed, match=r"CAP_SYS_ADMIN.*--io no-open"):
        choose(PASSTHROUGH, "first", SHARDS, "it needs CAP_SYS_ADMIN")


def test_a_reason_is_one_sentence_with_figures() -> None:
    assert choose(AUTO, "first", Spread(3, 100 * MIB, 99 * MIB), "").reason.startswith("99 % of its bytes")
    assert "1,000,000 files" in choose(AUTO, "first", PHOTOS, "").reason


def test_a_million_small_files_are_not_looked_at() -> None:
    def sizes() -> Iterator[int]:
        raise AssertionError("looked at")
        yield 0

    assert spread(1_000_000, 110_000 << 20, sizes()) == PHOTOS


def test_only_files_with_slabs_of_their_own_count_as_large() -> None:
    sizes = [0, 5, LARGE_FILE, LARGE_FILE + 1, 20 * MIB]
    assert spread(5, sum(sizes), sizes) == Spread(5, sum(sizes), LARGE_FILE + 1 + 20 * MIB)
