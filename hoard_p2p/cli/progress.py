"""Progress on standard error: a bar on a terminal, otherwise a plain line every two seconds."""

import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, NoReturn, Protocol, TextIO

from hoard_p2p.cli.output import seconds_text, size_text

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
    def details(self) -> str:
        """Files and savings, where there are any."""
        of = f" of {self.total_files:,}" if self.total_files else ""
        files = [] if self.files is None else [f"{self.files:,}{of} files"]
        saved = [f"{size_text(self.saved)} saved by deduplication"] if self.saved else []
        return ", ".join(files + saved)


class Display(Protocol):
    def show(self, step: Step) -> None: ...

    def close(self) -> None:
        """Leaves the terminal clean; may be called twice."""
        ...


class Lines:
    """A line at the first step, then at most one every `LINE_EVERY` seconds, with the rate since the phase began."""

    def __init__(self, stream: TextIO, clock: Callable[[], float] = time.monotonic) -> None:
        self._stream = stream
        self._clock = clock
        self._phase = ""
        self._began = 0.0
        self._due = 0.0

    def show(self, step: Step) -> None:
        now = self._clock()
        if step.phase != self._phase:
            self._phase, self._began, self._due = step.phase, now, now
        if now < self._due:
            return
        self._due = now + LINE_EVERY
        print(self._line(step, now - self._began), file=self._stream, flush=True)

    @staticmethod
    def _line(step: Step, elapsed: float) -> str:
        amount = size_text if step.in_bytes else str
        parts = [f"{step.phase}: {amount(step.done)}" + (f" of {amount(step.total)}" if step.total else "")]
        moving = elapsed > 0 and step.done != step.total
        if moving and step.in_bytes:
            parts.append(f"{size_text(step.done / elapsed)}/s")
        if moving and step.total and 0 < step.done < step.total:
            parts.append(f"{seconds_text(elapsed * (step.total - step.done) / step.done)} left")
        return ", ".join([*parts, *([step.details] if step.details else [])])

    def close(self) -> None:
        return


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
                unit="B" if step.in_bytes else "",
                unit_scale=step.in_bytes,
                unit_divisor=1024,
                file=self._stream,
                leave=False,
                dynamic_ncols=True,
            )
            self._phase = step.phase
        bar.total = step.total
        bar.set_postfix_str(step.details, refresh=False)
        bar.update(step.done - bar.n)

    def close(self) -> None:
        if self._bar is not None:
            self._bar.close()
            self._bar = None


def display() -> Display:
    """The right one for standard error."""
    return Bar(sys.stderr) if sys.stderr.isatty() else Lines(sys.stderr)
