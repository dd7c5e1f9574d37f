"""How a process in the background tells its starter that it answers."""

import os

import pytest

from hoard_p2p.errors import MountBusy
from hoard_p2p.node.background import Report, wait_for_report


def test_it_answers() -> None:
    ours, theirs = os.pipe()
    Report(theirs).answers()
    assert wait_for_report(ours)


def test_it_ended_without_a_word() -> None:
    ours, theirs = os.pipe()
    os.close(theirs)
    assert not wait_for_report(ours)


def test_it_failed_with_an_error_that_keeps_its_type() -> None:
    ours, theirs = os.pipe()
    Report(theirs).failed(MountBusy("in use by 7"))
    with pytest.raises(MountBusy, match="in use by 7"):
        wait_for_report(ours)


def test_an_error_longer_than_a_pipe_arrives() -> None:
    ours, theirs = os.pipe()
    Report(theirs).failed(MountBusy("\U0001f600" * 100_000))
    with pytest.raises(MountBusy, match=r"^\U0001f600{5000}$"):
        wait_for_report(ours)


def test_one_that_says_nothing_is_not_waited_for_without_end() -> None:
    ours, theirs = os.pipe()
    before = len(os.listdir("/proc/self/fd"))
    with pytest.raises(TimeoutError):
        wait_for_report(ours, 0.01)
    assert len(os.listdir("/proc/self/fd")) == before - 1
    Report(theirs).answers()  # nobody listens any more, and that is no error


def test_what_is_told_after_the_answer_goes_nowhere() -> None:
    ours, theirs = os.pipe()
    report = Report(theirs)
    report.answers()
    reader, writer = os.pipe()  # gets the number that the report had
    try:
        report.failed(MountBusy("later"))
        os.set_blocking(reader, False)
        with pytest.raises(BlockingIOError):
            os.read(reader, 1)
    finally:
        os.close(reader)
        os.close(writer)
    assert wait_for_report(ours)
