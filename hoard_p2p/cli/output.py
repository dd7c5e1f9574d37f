"""How things are shown: names that may hold any byte, sizes, tables, JSON.

A name comes from whoever published it. On a terminal nothing in it may act (escape sequences, line breaks, text that
runs backwards); in a pipe it is passed on as the bytes it is; in JSON bytes that are no UTF-8 are lone surrogates, as
Python's `surrogateescape` makes them.
"""

import json
import re
import sys
from collections.abc import Iterable, Sequence

from hoard_p2p.config import Json

_UNITS = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")


def name_text(name: bytes) -> str:
    """The name as JSON carries it, the same in every locale; `name_bytes` is the way back."""
    return name.decode("utf-8", "surrogateescape")


def name_bytes(text: str) -> bytes:
    return text.encode("utf-8", "surrogateescape")


def _escaped(character: str) -> str:
    code = ord(character)
    if character == "\\":
        return "\\\\"
    if character.isprintable():
        return character
    if 0xDC80 <= code <= 0xDCFF:  # a byte that is no UTF-8
        return f"\\x{code - 0xDC00:02x}"
    if code > 0xFFFF:
        return f"\\U{code:08x}"
    return f"\\u{code:04x}" if code > 0xFF else f"\\x{code:02x}"


def printable(name: bytes | str) -> str:
    """The name with everything escaped that a terminal might act on; distinct names stay distinct."""
    text = name_text(name) if isinstance(name, bytes) else name
    if text.isprintable() and "\\" not in text:
        return text
    return "".join(map(_escaped, text))


def message_text(message: str) -> str:
    """A message for a terminal: line breaks stay, what else a terminal might act on is escaped."""
    return "\n".join("".join(c if c == "\\" else _escaped(c) for c in line) for line in message.split("\n"))


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


def size_text(size: float) -> str:
    """`1.4 GiB`."""
    for unit in _UNITS[:-1]:
        if abs(size) < 1024:
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1024
    return f"{size:.1f} {_UNITS[-1]}"


def seconds_text(seconds: float) -> str:
    """`0.38 s`, `12.1 s`, `3 min 20 s`, `2 h 5 min`."""
    if seconds < 10:
        return f"{seconds:.2f} s"
    if seconds < 120:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(int(seconds), 60)
    return f"{minutes} min {rest} s" if minutes < 60 else f"{minutes // 60} h {minutes % 60} min"


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
