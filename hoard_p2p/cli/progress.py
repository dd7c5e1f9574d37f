"""Progress on standard error: a bar on a terminal, otherwise a plain line every two seconds."""

import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, NoReturn, Protocol, TextIO

from hoard_p2p.cli.output import seconds_text
from hoard_p2p.printing import size_text

if TYPE_CHECKING:
    from tqdm import tqdm

LINE_EVERY = 2.0
"""Seconds between plain lines."""


@dataclass(frozen=True, slots=True)
class Step:
    """How far something has come. Totals are None while nobody knows them. `done` and `total` count bytes where
    `in_bytes`, else pieces of work such as segments."""

    phase: str
    done: int
    total: int | None
    in_bytes: bool = True
    files: int | None = None
    total_files: int | None = None
    saved: int = 0

    @property
    def bound(self) -> int | None:
        """The total, unless it is passed already: then what was counted grows, and nobody knows."""
        return None if self.total is None or self.done > self.total else self.total

    @property
    def details(self) -> str:
        """Files and savings, where there are any."""
        of = f" of {self.total_files:,}" if self.total_files and (self.files or 0) <= self.total_files else ""
        files = [] if self.files is None else [f"{self.files:,}{of} files"]
        saved = [f"{size_text(self.saved)} saved by deduplication"] if self.saved else []
        return ", ".join(files + saved)


class Display(Protocol):
    def show(self, step: Step) -> None: ...

    def close(self) -> None:
        """Leaves the terminal clean; may be called twice."""
        ...


class Lines:
    """At most one line every `LINE_EVERY` seconds, the first that long after the phase began, with the rate since then
    (what was done before does not count); a phase that had lines ends with one more."""

    def __init__(self, stream: TextIO, clock: Callable[[], float] = time.monotonic) -> None:
        self._stream = stream
        self._clock = clock
        self._phase = ""
        self._began = 0.0
        self._before = 0  # done when the phase began
        self._due = 0.0
        self._last: Step | None = None
        self._is_new = False  # the last step has not been printed yet
        self._printed = False  # this phase has lines

    def show(self, step: Step) -> None:
        now = self._clock()
        if step.phase != self._phase:
            self._end_phase()
            self._phase, self._began, self._due = step.phase, now, now + LINE_EVERY
            self._before = step.done
        self._last = step
        self._is_new = True
        if now >= self._due:
            self._due = now + LINE_EVERY
            self._print(now)

    def _print(self, now: float) -> None:
        if self._last is not None and self._is_new:
            print(
                self._line(self._last, self._last.done - self._before, now - self._began), file=self._stream, flush=True
            )
        self._is_new = False
        self._printed = True

    def _end_phase(self) -> None:
        """A phase that had lines ends with one that tells how far it came."""
        if self._printed:
            self._print(self._clock())
        self._printed = False
        self._last = None

    @staticmethod
    def _line(step: Step, came: int, elapsed: float) -> str:
        amount = size_text if step.in_bytes else str
        parts = [f"{step.phase}: {amount(step.done)}" + (f" of {amount(step.bound)}" if step.bound else "")]
        moving = elapsed > 0 and step.done != step.bound
        if moving and step.in_bytes:
            parts.append(f"{size_text(came / elapsed)}/s")
        if moving and step.bound and came > 0:
            parts.append(f"{seconds_text(elapsed * (step.bound - step.done) / came)} left")
        return ", ".join([*parts, *([step.details] if step.details else [])])

    def close(self) -> None:
        self._end_phase()


class Bar:
    """One bar per phase, drawn in place, removed at the end of the phase."""

    def __init__(self, stream: TextIO) -> None:
        import tqdm as bars

        self._new = bars.tqdm
        self._stream = stream
        self._phase = ""
        self._bar: tqdm[NoReturn] | None = None

    def show(self, step: Step) -> None:
        bar: tqdm[NoReturn] | None = self._bar
        if bar is None or step.phase != self._phase:
            self.close()
            self._bar = bar = self._new(
                desc=step.phase,
                total=step.total,
                initial=step.done,
                unit="B" if step.in_bytes else "",
                unit_scale=step.in_bytes,
                unit_divisor=1024,
                file=self._stream,
                leave=False,
                dynamic_ncols=True,
            )
            self._phase = step.phase
        bar.total = step.bound
        bar.set_postfix_str(step.details, refresh=False)
        bar.update(step.done - bar.n)

    def close(self) -> None:
        if self._bar is not None:
            self._bar.close()
            self._bar = None


def display() -> Display:
    """The right one for standard error."""
    return Bar(sys.stderr) if sys.stderr.isatty() else Lines(sys.stderr)


class Repeating:
    """Shows the last step again, from a thread, while nothing new comes: for work that may wait long for a peer."""

    def __init__(self, shown: Display, every: float = LINE_EVERY) -> None:
        self._shown = shown
        self._every = every
        self._last: Step | None = None
        self._lock = threading.Lock()
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._repeat, name="progress", daemon=True)
        self._thread.start()

    def show(self, step: Step) -> None:
        with self._lock:
            self._last = step
            self._shown.show(step)

    def _repeat(self) -> None:
        while not self._over.wait(self._every):
            with self._lock:
                if self._last is not None:
                    self._shown.show(self._last)

    def close(self) -> None:
        self._over.set()
        self._thread.join()
        self._shown.close()
