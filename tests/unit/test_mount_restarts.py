"""When dead processes of a mount are started again, and which ones hang."""

from hoard_p2p.mount.restarts import FORGIVEN, LASTING, LONGEST_DELAY, VAIN_STARTS, VERIFIER_LONGEST_DELAY, Restarts
from hoard_p2p.mount.stillness import IN_DISK, STILL, STOPPED, Stillness, allowance

VERIFIER = 2


def test_a_worker_that_served_is_replaced_at_once() -> None:
    restarts = Restarts(VERIFIER)
    restarts.ended(0, served=True, now=10.0)
    assert restarts.wait(10.0) == 0
    assert restarts.due(10.0) == [0]
    assert restarts.due(10.0) == []


def test_workers_that_never_serve_are_started_ever_slower_until_one_serves() -> None:
    restarts = Restarts(VERIFIER)
    delays: list[float] = []
    for _ in range(40):
        assert restarts.in_vain == (len(delays) >= VAIN_STARTS)
        restarts.ended(1, served=False, now=10.0)
        delays.append(restarts.wait(10.0))
        restarts.due(100.0)
    assert delays == sorted(delays)
    assert delays[-1] == LONGEST_DELAY
    restarts.served()
    restarts.ended(1, served=True, now=10.0)
    assert not restarts.in_vain
    assert restarts.wait(10.0) == 0


def test_workers_that_serve_and_crash_again_and_again_are_started_ever_slower() -> None:
    restarts, now, delays = Restarts(VERIFIER), 10.0, []
    for _ in range(40):
        restarts.served()
        restarts.ended(0, served=True, now=now, crashed=True)
        delays.append(restarts.wait(now))
        now += delays[-1]
        assert restarts.due(now) == [0]
    assert delays[:FORGIVEN] == [0] * FORGIVEN
    assert delays == sorted(delays)
    assert delays[-1] > LONGEST_DELAY / 2
    assert not restarts.in_vain
    restarts.ended(1, served=True, now=now)  # killed by somebody: that says nothing about the next one
    assert restarts.wait(now) == 0
    now += LASTING
    restarts.ended(0, served=True, now=now, crashed=True)
    assert restarts.wait(now) == 0


def test_a_verifier_that_dies_again_and_again_is_started_ever_slower_and_never_gives_the_mount_up() -> None:
    restarts, now, delays = Restarts(VERIFIER), 0.0, []
    for _ in range(10):
        restarts.ended(VERIFIER, served=False, now=now)
        delays.append(restarts.wait(now))
        now += delays[-1]
        assert restarts.due(now) == [VERIFIER]
    assert delays == sorted(delays)
    assert delays[-1] == VERIFIER_LONGEST_DELAY
    assert not restarts.in_vain
    now += 2 * VERIFIER_LONGEST_DELAY  # it lived long
    restarts.ended(VERIFIER, served=False, now=now)
    assert restarts.wait(now) == delays[0]


def test_a_slot_that_does_not_move_is_still_and_one_that_moves_is_not() -> None:
    stillness = Stillness()
    assert [stillness.idle(0, "same", now) for now in (5.0, 6.0, 7.5)] == [0.0, 1.0, 2.5]
    assert [stillness.idle(1, now, now) for now in (5.0, 6.0, 7.5)] == [0.0, 0.0, 0.0]
    assert stillness.idle(0, "other", 8.0) == 0.0


def test_nobody_hangs_because_everybody_slept() -> None:
    stillness = Stillness()
    stillness.idle(0, "same", 5.0)
    assert stillness.idle(0, "same", 500.0) <= STOPPED


def test_a_stopped_process_is_given_up_first_and_one_that_waits_for_a_disk_last() -> None:
    assert allowance("T") == STOPPED < allowance("S") == allowance("") == STILL < allowance("D") == IN_DISK
