"""A benchmark's table: its lines (the mount's are here) and targets, what was measured, and how that is printed. Pure.

A sample is a pair: the native figure, and the one taken right after it. A ratio is the median of the samples' ratios,
always "figure over native": of a rate more is better, of a time less. It is void if the native figures of a line moved
more than twofold.
"""

import statistics
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from benchmarks.figures import moved

OURS = "Hoard"
TOLERANCE = 0.05
"""How far below one reader's ratio that of many may lie: what two measurements of one thing differ by."""


@dataclass(frozen=True, slots=True)
class Target:
    """A bound on the ratio to native, or on the figure itself; or no worse a ratio than that of the line `like`."""

    least_ratio: float | None = None
    most_ratio: float | None = None
    most: float | None = None
    like: str = ""

    def text(self, line: "Line") -> str:
        if self.least_ratio is not None:
            return f">= {self.least_ratio:.2f} x"
        if self.most_ratio is not None:
            return f"<= {self.most_ratio:g} x"
        if self.most is not None:
            return f"<= {self.most:g} {line.unit}" if self.most else "0"
        return "as one reader"


@dataclass(frozen=True, slots=True)
class Line:
    """One line of the table. `unit` says what is better: less of a time, of CPU and of memory, more of a rate."""

    key: str
    what: str
    unit: str
    target: Target | None = None


def _at_least(ratio: float) -> Target:
    return Target(least_ratio=ratio)


def _times(ratio: float) -> Target:
    return Target(most_ratio=ratio)


LINES = (
    Line("large-cold", "large files, first pass, disk cold", "GB/s", _at_least(0.90)),
    Line("large-hot", "large files, first pass, page cache hot", "GB/s", _at_least(0.30)),
    Line("large-sequential", "large files, warm, sequential", "GB/s", _at_least(0.97)),
    Line("large-random", "large files, warm, random 4 KiB", "reads/s", _at_least(0.95)),
    Line("large-mmap", "large files, warm, mmap, random pages", "pages/s"),
    Line("large-eight", "large files, warm, 8 readers, a file each", "GB/s", Target(like="large-sequential")),
    Line("large-same", "large files, warm, 8 readers, one file", "GB/s", Target(like="large-sequential")),
    Line("small-cold", "110 KB files, first pass, disk cold", "files/s", _at_least(0.80)),
    Line("small-cold-four", "the same, 4 readers", "files/s"),
    Line("small-hot", "110 KB files, first pass, page cache hot", "files/s", _at_least(0.25)),
    Line("small-hot-four", "the same, 4 readers", "files/s"),
    Line("small-one", "110 KB files, warm, 1 reader", "files/s", _at_least(0.95)),
    Line("small-four", "110 KB files, warm, 4 readers", "files/s", _at_least(0.95)),
    Line("small-eight", "110 KB files, warm, 8 readers", "files/s", Target(like="small-one")),
    Line("walk-find", "find, fresh mount", "ms", _times(2)),
    Line("walk-stat", "find with stat, first", "ms", _times(3)),
    Line("walk-again", "find with stat, second", "ms", _times(1.2)),
    Line("walk-ls", "ls -lR, fresh mount", "ms"),
    Line("walk-ls-again", "ls -lR, again", "ms"),
    Line("start-large", "mount command to first byte, large files", "ms", Target(most=100)),
    Line("start-small", "mount command to first byte, small files", "ms", Target(most=100)),
    Line("large-cpu", "CPU of the mount per warm GB, large files", "s/GB", Target(most=0)),
    Line("small-cpu", "CPU of the mount per warm GB, 110 KB files", "s/GB", Target(most=0)),
    Line("large-node", "CPU of the node meanwhile, large files", "s/GB"),
    Line("small-node", "CPU of the node meanwhile, 110 KB files", "s/GB"),
    Line("large-memory", "memory (PSS) of the mount, large files", "MB"),
    Line("small-memory", "memory (PSS) of the mount, 110 KB files", "MB"),
    Line("million-start", "a million files: mount command to first byte", "ms", Target(most=1000)),
    Line("million-find", "a million files: find, fresh mount", "ms", _times(2)),
    Line("million-ls", "a million files: ls -lR, fresh mount", "ms", _times(2)),
    Line("million-find-again", "a million files: find, again", "ms", _times(2)),
    Line("million-ls-again", "a million files: ls -lR, again", "ms", _times(2)),
    Line("million-memory", "a million files: memory (PSS) of the mount", "MB", Target(most=150)),
    Line("million-flat", "one directory of a million: listed", "ms"),
    Line("million-pause", "one directory of a million: longest pause", "ms"),
)
BY_KEY = {line.key: line for line in LINES}


@dataclass(frozen=True, slots=True)
class Sample:
    """A figure in its line's unit, and the native one from right before it (None where there is no such thing)."""

    figure: float
    native: float | None = None


@dataclass(frozen=True, slots=True)
class Ratio:
    value: float
    void: bool

    def __str__(self) -> str:
        return "void" if self.void else f"{self.value:.2f} x" if self.value < 100 else f"{self.value:,.0f} x"


def ratio_of(samples: Sequence[Sample]) -> Ratio | None:
    """Median of the ratios; None if nothing native was measured."""
    pairs = [(sample.figure, sample.native) for sample in samples if sample.native]
    if not pairs:
        return None
    return Ratio(statistics.median(figure / native for figure, native in pairs), moved([pair[1] for pair in pairs]))


class Sheet:
    """What was measured so far: samples by subject (Hoard, and the others) and line."""

    def __init__(self, lines: Sequence[Line] = LINES) -> None:
        self.lines = lines
        self._by_key = {line.key: line for line in lines}
        self._samples: defaultdict[tuple[str, str], list[Sample]] = defaultdict(list)
        self.subjects: list[str] = []
        self.notes: list[str] = []

    def add(self, subject: str, key: str, figure: float, native: float | None = None) -> None:
        if subject not in self.subjects:
            self.subjects.append(subject)
        self._samples[subject, self._by_key[key].key].append(Sample(figure, native))

    def samples(self, subject: str, key: str) -> Sequence[Sample]:
        return self._samples.get((subject, key), ())

    def ratio(self, subject: str, key: str) -> Ratio | None:
        return ratio_of(self.samples(subject, key))

    def verdict(self, subject: str, key: str) -> str:
        """`met`, `missed` or `void`; empty where there is no target or no figure. Judged as printed, so rounded."""
        target, samples = self._by_key[key].target, self.samples(subject, key)
        if target is None or not samples:
            return ""
        if target.most is not None:
            return _judged(round(statistics.median(one.figure for one in samples), 2) <= target.most)
        ratio, other = self.ratio(subject, key), self.ratio(subject, target.like) if target.like else None
        if ratio is None or (target.like and other is None):
            return ""
        if ratio.void or (other is not None and other.void):
            return "void"
        if target.most_ratio is not None:
            return _judged(round(ratio.value, 2) <= target.most_ratio)
        least = target.least_ratio if other is None else other.value * (1 - TOLERANCE)
        return _judged(least is not None and round(ratio.value, 2) >= round(least, 2))

    def rows(self) -> list[list[str]]:
        """The table: what is measured, native, ours, ratio, target, verdict, and a column for each other subject."""
        others = [name for name in self.subjects if name != OURS]
        table = [["", "native", OURS, "ratio", "target", "", *others]]
        for line in self.lines:
            if not any(self.samples(name, line.key) for name in self.subjects):
                continue
            ours, ratio = self.samples(OURS, line.key), self.ratio(OURS, line.key)
            native = [one.native for one in ours if one.native is not None]
            table.append(
                [
                    line.what,
                    _spread(native, line.unit),
                    _spread([one.figure for one in ours], line.unit),
                    "" if ratio is None else str(ratio),
                    "" if line.target is None else line.target.text(line),
                    self.verdict(OURS, line.key),
                    *(self._cell(name, line) for name in others),
                ]
            )
        return table

    def _cell(self, subject: str, line: Line) -> str:
        """A rival's ratio, or its figure where there is none."""
        samples, ratio = self.samples(subject, line.key), self.ratio(subject, line.key)
        if not samples:
            return "-"
        return _figure(statistics.median(one.figure for one in samples), line.unit) if ratio is None else str(ratio)

    def json(self) -> list[dict[str, object]]:
        """The lines with all their samples."""
        return [
            {
                "key": line.key,
                "what": line.what,
                "unit": line.unit,
                "target": "" if line.target is None else line.target.text(line),
                "subjects": {
                    name: self._json(name, line.key) for name in self.subjects if self.samples(name, line.key)
                },
            }
            for line in self.lines
        ]

    def _json(self, subject: str, key: str) -> dict[str, object]:
        samples, ratio = self.samples(subject, key), self.ratio(subject, key)
        return {
            "native": [one.native for one in samples],
            "figures": [one.figure for one in samples],
            "ratio": None if ratio is None else ratio.value,
            "void": ratio is not None and ratio.void,
            "verdict": self.verdict(subject, key),
        }


def _judged(held: bool) -> str:
    return "met" if held else "missed"


def _number(value: float, unit: str) -> str:
    if unit in ("GB/s", "s/GB", "x"):
        return f"{value:.2f}"
    return f"{value:,.1f}" if value < 100 else f"{value:,.0f}"


def _figure(value: float, unit: str) -> str:
    return f"{_number(value, unit)} {unit}"


def _spread(values: Sequence[float], unit: str) -> str:
    """Median, and the range where there were several."""
    if not values:
        return ""
    shown, low, high = (_number(one, unit) for one in (statistics.median(values), min(values), max(values)))
    return f"{shown} {unit}" if low == high else f"{shown} {unit} ({low} - {high})"


def plain(rows: Sequence[Sequence[str]]) -> str:
    """Columns aligned for a terminal."""
    widths = [max(map(len, column)) for column in zip(*rows)]
    return "\n".join("  ".join(cell.ljust(width) for cell, width in zip(row, widths)).rstrip() for row in rows)


def markdown(rows: Iterable[Sequence[str]]) -> str:
    """The same as a Markdown table; the first row is the heading."""
    lines = [f"| {' | '.join(row)} |" for row in rows]
    return "\n".join([lines[0], "|" + "---|" * (lines[0].count("|") - 1), *lines[1:]])
