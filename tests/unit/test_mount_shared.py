"""The shared memory of a mount: what one process writes another reads."""

import os
from collections.abc import Iterator
from multiprocessing import get_context
from multiprocessing.connection import Connection

import pytest

from hoard_p2p.mount.kernel import RESENT
from hoard_p2p.mount.shared import FAILURES, KILLS, MountFds, SharedState


@pytest.fixture
def shared() -> Iterator[SharedState]:
    shared = SharedState.create(name="test", workers=3, runs=1001)
    yield shared
    shared.close()


def test_the_descriptors_of_a_mount_travel_as_text() -> None:
    fds = MountFds((5, 6), 7, 8, 9, 10)
    assert MountFds.parse(fds.encode()) == fds == MountFds.of(fds.all)
    for text in ("", "1:2:3:4", "1:2:3:4:x"):
        with pytest.raises(ValueError):
            MountFds.parse(text)


def test_another_mapping_sees_what_was_written(shared: SharedState) -> None:
    other = SharedState(os.dup(shared.fd))
    shared.verified[1000] = 255
    shared.attach(2, 4711)
    shared.beat(2, served=5, parked=1)
    shared.begin(2, 42 | RESENT)
    shared.count_failure(2)
    view = other.slot(2)
    assert (other.workers, other.runs, other.verified[1000], len(other.verified)) == (3, 1001, 255, 1001)
    assert (view.working_on, view.pid, view.served, view.parked, view.failed) == (42, 4711, 5, 1, 1)
    assert view.beat > 0
    other.close()


def test_the_slots_and_the_bytes_do_not_overlap(shared: SharedState) -> None:
    for worker in range(3):
        shared.attach(worker, 1 << 31)
        shared.begin(worker, (1 << 63) - 2)
    assert bytes(shared.verified) == bytes(1001)
    shared.verified[:] = b"\xff" * 1001
    assert [shared.slot(worker).pid for worker in range(3)] == [1 << 31] * 3


def test_the_memory_cannot_be_made_smaller_under_a_reader(shared: SharedState) -> None:
    with pytest.raises(PermissionError):
        os.ftruncate(shared.fd, 10)


def test_another_file_is_refused() -> None:
    fd = os.memfd_create("other")
    os.ftruncate(fd, 1 << 16)
    with pytest.raises(ValueError):
        SharedState(fd)
    os.close(fd)


def test_a_failure_is_remembered_until_its_time_and_for_its_run_alone(shared: SharedState) -> None:
    assert not shared.failed_recently(0, 0.0)
    shared.remember_failure(7, 102.0)
    assert shared.failed_recently(7, 101.9)
    assert not shared.failed_recently(7, 102.2)
    assert not shared.failed_recently(7 + FAILURES, 101.0)
    shared.remember_failure(7 + FAILURES, 103.0)
    assert not shared.failed_recently(7, 101.0)


def test_an_interrupt_is_found_with_and_without_the_resent_bit(shared: SharedState) -> None:
    shared.interrupt(40 | RESENT)
    assert shared.interrupted(40)
    assert shared.interrupted(40 | RESENT)
    assert not shared.interrupted(42)


def _mark(fd: int, start: int) -> None:
    shared = SharedState(fd)
    for run in range(start, 1000, 2):
        shared.verified[run] = 1 + start


def test_two_processes_that_mark_neighbouring_runs_lose_nothing(shared: SharedState) -> None:
    processes = [get_context("fork").Process(target=_mark, args=(os.dup(shared.fd), start)) for start in range(2)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    assert bytes(shared.verified[:1000]) == b"\x01\x02" * 500


def test_a_request_is_blamed_when_the_second_worker_dies_of_it_and_a_death_counts_once(shared: SharedState) -> None:
    shared.begin(0, 40)
    assert shared.blame(0, by_itself=True) == 0
    assert shared.blame(0, by_itself=True) == 0  # whoever looks at the dead worker's slot again
    shared.begin(1, 40 | RESENT)
    assert shared.blame(1, by_itself=True) == 40


def test_a_request_at_which_workers_are_killed_is_blamed_later_than_one_that_they_die_of(shared: SharedState) -> None:
    blamed = []
    for _ in range(KILLS):
        shared.begin(0, 40)
        blamed.append(shared.blame(0, by_itself=False))
    assert blamed == [0, 0, 0, 40]
    shared.begin(0, 42)
    assert shared.blame(0, by_itself=False) == 0  # another request


def test_a_worker_that_died_of_nothing_blames_no_request(shared: SharedState) -> None:
    for worker in range(2):
        shared.beat(worker)
        assert shared.blame(worker, by_itself=True) == 0


def _supervise(fd: int, answer: Connection) -> None:
    shared = SharedState(fd)
    answer.send(shared.lock())
    answer.recv()


def test_one_process_supervises_until_it_ends(shared: SharedState) -> None:
    context = get_context("fork")
    ours, theirs = context.Pipe()
    other = context.Process(target=_supervise, args=(shared.fd, theirs))
    assert shared.holder() == 0
    other.start()
    assert ours.recv() is True
    assert shared.holder() == shared.supervisor == other.pid
    assert not shared.lock()
    other.kill()
    other.join()
    assert shared.holder() == 0
    assert shared.lock()
    assert shared.supervisor == os.getpid()


def test_descriptors_that_are_not_held_keep_their_place() -> None:
    fds = MountFds((-1, 7, -1), 3, 4, 5, 6)
    assert fds.all == (7, 3, 4, 5, 6)
    assert MountFds.parse(fds.encode()) == fds
