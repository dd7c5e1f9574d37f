"""The verifier of a mount: a process that reads and hashes ahead of readers, so that they need not wait for it.

It serves nothing and holds nothing for the kernel's sake. Killed at any moment it leaves marks that are true and work
that its successor, or a reader's own worker, does. It ends with the mount (I10).
"""

import logging
import os
import select
import time
from collections import Counter
from contextlib import ExitStack, suppress

from hoard_p2p.catalog.reader import Catalog
from hoard_p2p.errors import HoardError
from hoard_p2p.ids import HOLE, short
from hoard_p2p.interfaces import Found, ListedSlabs, LocalChunks, MissChannel, MountOptions, Place
from hoard_p2p.mount.agenda import Agenda
from hoard_p2p.mount.brake import Brake
from hoard_p2p.mount.checking import DEPTH, Checkers, OpenSlabs, Outcome
from hoard_p2p.mount.pieces import Check, Piece, Task
from hoard_p2p.mount.shared import SharedState, WorkerSlot

log = logging.getLogger(__name__)

TICK = 0.5
REPLAY = 16
"""Hints from before its start that a verifier takes up: its predecessor may have died over them."""
REPAIRS = 2
"""How often one run is reported as damaged in this process's life."""


class Verifier:
    """Verifies ahead until the mount is gone. Call in a process of its own."""

    def __init__(
        self,
        slot: WorkerSlot,
        *,
        catalog: Catalog,
        chunks: LocalChunks,
        slabs: ListedSlabs,
        misses: MissChannel,
        options: MountOptions,
    ) -> None:
        """`slot`: the supervisor has put this process into it. With `options.verify` other than `first` there
        is nothing to do: nobody asks whether a chunk was verified."""
        self._slot = slot
        self._catalog = catalog
        self._slabs = slabs
        self._misses = misses
        self._idle = options.verify != "first"
        self._shared = SharedState(os.dup(slot.fds.shared))
        self._agenda = Agenda(catalog, chunks, slabs, self._shared, time.monotonic())
        self._open = OpenSlabs(slabs)
        self._told = 0
        self._repairs: Counter[int] = Counter()
        self._waiting: set[int] = set()
        self._next_tend = 0.0
        self._brake = Brake(log)

    def run(self) -> None:
        """Verify until the mount ends, its supervisor dies (the next one starts a verifier of its own) or another
        process has taken the slot."""
        self._shared.attach(self._slot.number, os.getpid())
        self._told = max(0, self._shared.hints(0)[0] - REPLAY)
        with ExitStack() as stack:
            stack.callback(self._shared.close)
            try:
                supervisor = os.pidfd_open(self._shared.supervisor)
            except OSError:
                return
            stack.callback(os.close, supervisor)
            checkers = Checkers(self._remember)
            stack.callback(checkers.close)
            while self._lives(supervisor):
                self._turn(checkers, supervisor)

    def _remember(self, run: int, generation: int) -> None:
        self._shared.verified[run] = generation

    def _lives(self, supervisor: int) -> bool:
        if self._shared.ending or self._shared.slot(self._slot.number).process != os.getpid():
            return False
        poll = select.poll()
        poll.register(supervisor, select.POLLIN)
        return not poll.poll(0)

    def _turn(self, checkers: Checkers, supervisor: int) -> None:
        """One round: hear, hand out work, wait."""
        now = time.monotonic()
        self._shared.beat(self._slot.number)
        self._hear_hints(now)
        self._hear_node(now)
        for outcome in checkers.outcomes():
            self._settle(outcome)
        if not self._idle:
            self._hand_out(checkers, now)
        if self._agenda.finished:
            self._agenda.finished = False
            os.eventfd_write(self._slot.fds.checked_bell, 1)
        self._wait(checkers, supervisor, now)

    def _hear_hints(self, now: float) -> None:
        with suppress(BlockingIOError):
            os.eventfd_read(self._slot.fds.hint_bell)
        self._told, hints = self._shared.hints(self._told)
        for hint in hints:
            self._agenda.hear(hint, now)

    def _hand_out(self, checkers: Checkers, now: float) -> None:
        while checkers.outstanding < DEPTH:
            task = self._agenda.next(now)
            if task is None:
                break
            self._submit(checkers, task, calm=False)
        if not checkers.outstanding:
            task = self._agenda.next_calm(now)
            if task is not None:
                self._submit(checkers, task, calm=True)

    def _submit(self, checkers: Checkers, task: Task, *, calm: bool) -> None:
        try:
            slab = self._open.get(task.piece.slab)
        except HoardError as error:
            log.info("slab %d cannot be opened: %s", task.piece.slab, error)
            self._settle(Outcome(task, task.piece.checks))
            return
        checkers.submit(task, slab, calm=calm, prompt=task.owner is not None and task.owner.left == 0)

    def _wait(self, checkers: Checkers, supervisor: int, now: float) -> None:
        patience = TICK
        if not checkers.outstanding and not self._idle:
            patience = min(patience, self._calm_patience(now))
        poll = select.poll()
        for fileno in (self._slot.fds.hint_bell, checkers.fileno(), supervisor, self._misses.fileno()):
            if fileno >= 0:
                poll.register(fileno, select.POLLIN)
        poll.poll(patience * 1000)

    def _calm_patience(self, now: float) -> float:
        wait = self._agenda.calm_wait(now)
        return TICK if wait is None else wait

    # --- damage

    def _settle(self, outcome: Outcome) -> None:
        self._agenda.settle(outcome.task, bool(outcome.wrong))
        for check in outcome.wrong:
            self._suspect(outcome.task.piece, check)

    def _suspect(self, piece: Piece, check: Check) -> None:
        """Have a chunk repaired whose bytes are wrong, unless it has moved meanwhile, or the store and the catalog
        differ about its length: a hostile catalog must not get good chunks thrown away."""
        self._open.forget(piece.slab)
        if check.chunk_id == HOLE:
            return
        wanted = (piece.slab, piece.offset + check.start, check.length)
        place = next((place for place in self._slabs.places_of(check.chunk_id) if place[:3] == wanted), None)
        run = self._catalog.canonical(check.run)
        if place is not None and self._repairs[run] < REPAIRS:
            self._repair(run, place)

    def _repair(self, run: int, place: Place) -> None:
        chunk = short(self._catalog.chunk_id(run))
        self._brake.line(logging.WARNING, "chunk %s in slab %d is damaged, fetching it again", chunk, place.slab)
        self._repairs[run] += 1
        self._waiting.add(run)
        self._misses.distrust(run, place)

    def _hear_node(self, now: float) -> None:
        """The node's answers about damaged chunks; a connection is only kept while there are any."""
        if not self._waiting:
            return
        if now >= self._next_tend:
            self._next_tend = now + TICK
            self._misses.tend()
        for answer in self._misses.answers():
            self._waiting.discard(answer.run)
            if isinstance(answer, Found):
                self._agenda.verify(answer.run)
            else:
                chunk = short(self._catalog.chunk_id(answer.run))
                self._brake.line(logging.WARNING, "chunk %s is damaged and cannot be had: %s", chunk, answer.message)
