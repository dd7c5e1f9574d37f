"""The verifier's threads: when they wake its loop, and what they make of trouble."""

import os
import select
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from hoard_p2p.ids import chunk_id
from hoard_p2p.mount.checking import DEPTH, THREADS, Checkers, Outcome, SlabData
from hoard_p2p.mount.pieces import Check, Piece, Task

PATIENCE = 10
SIZE = 4096
BYTES = os.urandom(SIZE)
FIRST, SUBJECT = 1, 2
HELD, LATER = 100, 200


class Gate:
    """What `Checkers` tells of runs that are right; holds its threads until they may go on."""

    def __init__(self) -> None:
        self.filled = threading.Event()
        self.ended = threading.Event()
        self.held = threading.Semaphore(0)

    def remember(self, run: int, _generation: int) -> None:
        """`FIRST` is through as soon as all pieces are submitted, `SUBJECT` at once, the others only at the end."""
        if run == FIRST:
            assert self.filled.wait(PATIENCE)
        elif run != SUBJECT:
            self.held.release()
            assert self.ended.wait(PATIENCE)


@pytest.fixture
def slab(tmp_path: Path) -> SlabData:
    path = tmp_path / "slab"
    path.write_bytes(BYTES)
    return SlabData(os.open(path, os.O_RDONLY))


@pytest.fixture
def gate() -> Iterator[Gate]:
    gate = Gate()
    yield gate
    gate.filled.set()
    gate.ended.set()


def task(run: int, *, right: bool = True) -> Task:
    identifier = chunk_id(BYTES if right else BYTES[1:])
    return Task(Piece(1, 0, SIZE, (Check(run, identifier, 0, SIZE, 1),)), None)


def is_woken(checkers: Checkers, patience: float) -> bool:
    return bool(select.select([checkers.fileno()], [], [], patience)[0])


def all_outcomes(checkers: Checkers) -> list[Outcome]:
    outcomes: list[Outcome] = []
    while checkers.outstanding:
        assert is_woken(checkers, PATIENCE)
        outcomes += checkers.outcomes()
    return outcomes


@pytest.mark.parametrize(("prompt", "right"), [(False, True), (True, True), (False, False)])
def test_while_many_pieces_wait_the_loop_is_woken_only_for_what_somebody_waits_for_and_for_damage(
    slab: SlabData, gate: Gate, prompt: bool, right: bool
) -> None:
    checkers = Checkers(gate.remember)
    try:
        for run in range(THREADS - 1):
            checkers.submit(task(HELD + run), slab)
            assert gate.held.acquire(timeout=PATIENCE)
        checkers.submit(task(FIRST), slab)  # the last free thread is here until all are submitted
        checkers.submit(task(SUBJECT, right=right), slab, prompt=prompt)
        for run in range(DEPTH - THREADS - 1):
            checkers.submit(task(LATER + run), slab)
        gate.filled.set()
        assert gate.held.acquire(timeout=PATIENCE)  # it is through with both, and held by a later piece
        assert is_woken(checkers, 0) == (prompt or not right)
        gate.ended.set()
        outcomes = all_outcomes(checkers)
    finally:
        gate.filled.set()
        gate.ended.set()
        checkers.close()
    assert len(outcomes) == DEPTH
    wrong = [outcome.task.piece.checks[0].run for outcome in outcomes if outcome.wrong]
    assert wrong == ([] if right else [SUBJECT])


def test_what_a_thread_stumbles_over_ends_the_loop_and_is_no_verdict_about_the_chunk(slab: SlabData) -> None:
    def remember(_run: int, _generation: int) -> None:
        raise ValueError("no room for it")

    checkers = Checkers(remember)
    try:
        checkers.submit(task(FIRST), slab)
        assert is_woken(checkers, PATIENCE)
        with pytest.raises(ValueError, match="no room for it"):
            checkers.outcomes()
    finally:
        checkers.close()
