"""Training jobs: what they take when one can reckon it, directly and through Hoard; what the origin gives."""

from dataclasses import replace

import pytest

from simulations.paper import Paper, compare, misplaced
from simulations.reading import PageCache
from simulations.search import Search, table
from simulations.training import JobPlan, Setting, train

GB = 1_000_000_000
SETTING = Setting(
    racks=(0, 0, 1, 1),
    size=512 << 20,
    batch=4 << 20,
    segment=8 << 20,
    appetite=0.5e9,
    ahead=8,
    memory=0,
    room=(GB,) * 4,
    node_rate=1.25e9,
    uplink_rate=5e9,
    origin_rate=1e9,
    disk_rate=5e9,
)
ALL_AT_ONCE = [JobPlan(node, 0.0, 2) for node in range(4)]
AT_FULL_SPEED = SETTING.size / SETTING.appetite


def test_jobs_that_read_directly_share_the_origin() -> None:
    ran = train(SETTING, ALL_AT_ONCE, hoard=False)
    assert ran.origin == pytest.approx(8), "four jobs, two epochs"
    assert ran.mean_epoch(0) == pytest.approx(4 * SETTING.size / SETTING.origin_rate, rel=0.1)


@pytest.mark.parametrize("fill", [True, False])
def test_through_hoard_the_origin_is_read_about_once_and_later_epochs_run_at_full_speed(fill: bool) -> None:
    ran = train(SETTING, ALL_AT_ONCE, hoard=True, fill=fill)
    assert 1 <= ran.origin <= 1.01
    assert max(ran.into_racks) <= 1.01
    assert ran.mean_epoch(1) == pytest.approx(AT_FULL_SPEED, rel=0.02)
    assert ran.mean_epoch(0) < 1.6 * AT_FULL_SPEED


def test_nodes_with_room_for_a_part_keep_reading_from_others_and_the_origin_gives_what_nobody_kept() -> None:
    ran = train(replace(SETTING, room=(SETTING.size / 8,) * 4), ALL_AT_ONCE, hoard=True)
    assert ran.origin > 1.2
    assert ran.origin < train(SETTING, ALL_AT_ONCE, hoard=False).origin


def test_a_set_that_is_warm_elsewhere_is_not_read_from_the_origin_and_enters_the_rack_about_once() -> None:
    ran = train(replace(SETTING, warm=(0, 1)), [JobPlan(2, 0.0, 1), JobPlan(3, 0.0, 1)], hoard=True)
    assert ran.origin == 0
    assert 1 <= ran.into_racks[1] < 1.25


def test_memory_holds_what_was_used_last() -> None:
    cache = PageCache(2)
    assert [cache.hit(chunk) for chunk in (1, 2, 1, 3, 1, 2)] == [False, False, True, False, True, False]


def test_the_same_seed_gives_the_same_figures() -> None:
    small = Paper(size=256 << 20, batch=4 << 20, segment=8 << 20, memory=0)
    assert compare(small) == compare(small)
    assert compare(small).speed_up(90) == pytest.approx(2.1, abs=0.15), "660 MB/s over a quarter of 1.25 GB/s"


def test_a_job_in_another_rack_without_room_reads_through_its_uplink_in_each_epoch() -> None:
    found = misplaced(Paper(size=128 << 20, batch=4 << 20, segment=8 << 20, memory=0, uplinks=(1.25e9,)))
    into = dict(zip(zip(found.column("room there"), found.column("jobs away")), found.column("into their rack / set")))
    assert 4 < float(into["no", 4]) <= 8
    assert float(into["yes", 4]) < 2


def test_no_reader_and_gateway_wait_for_each_other() -> None:
    setting = replace(SETTING, racks=(0,) * 8 + (1,) * 8, room=(GB,) * 16, size=256 << 20)
    ran = train(setting, [JobPlan(node, 0.0, 1) for node in range(16)], hoard=True)
    assert 1 <= ran.origin < 1.02


def test_jobs_that_arrive_later_read_from_those_before() -> None:
    found = table(
        Search(jobs=4, nodes=4, rack_size=2, size=128 << 20, batch=4 << 20, segment=8 << 20, every=(0.0, 9.0))
    )
    by_hoard = [row for row in found.rows if row[1] == "Hoard"]
    assert [round(float(row[4]), 2) for row in by_hoard] == [1, 1]
