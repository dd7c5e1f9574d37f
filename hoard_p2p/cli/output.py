"""How things are shown: names, sizes, times, tables, JSON.

A name is `printable` on a terminal, the bytes it is in a pipe, and `name_text` in JSON.
"""

import json
import re
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager

from hoard_p2p.config import Json
from hoard_p2p.printing import message_text, printable


def write_names(names: Iterable[bytes], *, nul: bool) -> None:
    """One name a line on standard output: escaped on a terminal, raw bytes elsewhere; `nul` ends each with NUL, raw."""
    out = sys.stdout.buffer
    raw = nul or not sys.stdout.isatty()
    end = b"\0" if nul else b"\n"
    sys.stdout.flush()
    for name in names:
        out.write((name if raw else printable(name).encode("utf-8", "backslashreplace")) + end)


def write_json(value: Json, *, indent: int | None = 2) -> None:
    """ASCII only, so that it reads the same in every locale."""
    print(json.dumps(value, indent=indent, ensure_ascii=True))


def complain(message: str) -> None:
    """One message on standard error, with the command's name."""
    print(f"hoard: {message_text(message)}".encode("utf-8", "backslashreplace").decode(), file=sys.stderr)


@contextmanager
def noting_interrupt(note: str) -> Iterator[None]:
    """What Ctrl-C in here leaves, said after `interrupted`."""
    try:
        yield
    except KeyboardInterrupt as error:
        error.add_note(note)
        raise


def seconds_text(seconds: float) -> str:
    """`0.38 s`, `12.1 s`, `3 min 20 s`, `2 h 5 min`."""
    if seconds < 10:
        return f"{seconds:.2f} s"
    if seconds < 120:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(int(seconds), 60)
    return f"{minutes} min {rest} s" if minutes < 60 else f"{minutes // 60} h {minutes % 60} min"


def when_text(seconds: float) -> str:
    """Local time to the second; empty for a time that no calendar has."""
    from datetime import datetime

    try:
        return datetime.fromtimestamp(seconds).astimezone().strftime("%Y-%m-%d %H:%M:%S")
    except (ValueError, OverflowError, OSError):
        return ""


_NUMERIC = re.compile(r"[\d,.]*( .*|-|%)?")


def table(header: Sequence[str], rows: Sequence[Sequence[str]], *, indent: str = "") -> str:
    """Aligned columns; one that holds only numbers, with their units, is aligned to the right."""
    cells = [list(header), *[list(row) for row in rows]]
    columns = list(zip(*cells))
    widths = [max(map(len, column)) for column in columns]
    right = [bool(rows) and all(_NUMERIC.fullmatch(cell) for cell in column[1:]) for column in columns]
    lines = (
        "  ".join(cell.rjust(w) if to_right else cell.ljust(w) for cell, w, to_right in zip(row, widths, right))
        for row in cells
    )
    return "\n".join((indent + line).rstrip() for line in lines)
