"""A set that is larger than its room: the real eviction code against LRU."""

import pytest

from simulations.retention import SHARES, compare


@pytest.mark.parametrize("share", SHARES)
def test_a_shuffled_epoch_hits_in_proportion_to_the_room(share: float) -> None:
    row = compare(share)
    assert row.hoard == pytest.approx(share)
    assert row.hoard_churn <= share, "only the cold set went, and once"
    if share < 1:
        assert row.lru < 0.8 * row.hoard
