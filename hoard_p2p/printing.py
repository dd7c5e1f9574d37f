"""Names and messages for people: names may hold any byte, and whoever published them chose them.

Nothing in what is shown may act on a terminal or break a line of a log: escape sequences, line breaks, text that runs
backwards. Pure.
"""

_UNITS = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")


def name_text(name: bytes) -> str:
    """The name as JSON carries it, the same in every locale: bytes that are no UTF-8 become lone surrogates, as
    Python's `surrogateescape` makes them."""
    return name.decode("utf-8", "surrogateescape")


def printable(name: bytes | str) -> str:
    """The name with everything escaped that a terminal might act on; distinct names stay distinct."""
    text = name_text(name) if isinstance(name, bytes) else name
    if text.isprintable() and "\\" not in text:
        return text
    return "".join("\\\\" if character == "\\" else _escaped(character) for character in text)


def message_text(message: str) -> str:
    """A message for a terminal: line breaks stay, what else a terminal might act on is escaped."""
    return "\n".join("".join(map(_escaped, line)) for line in message.split("\n"))


def _escaped(character: str) -> str:
    code = ord(character)
    if character.isprintable():
        return character
    if 0xDC80 <= code <= 0xDCFF:  # a byte that is no UTF-8
        return f"\\x{code - 0xDC00:02x}"
    if code > 0xFFFF:
        return f"\\U{code:08x}"
    return f"\\u{code:04x}" if code > 0xFF else f"\\x{code:02x}"


def size_text(size: float) -> str:
    """`1.4 GiB`."""
    for unit in _UNITS[:-1]:
        if abs(size) < 1024:
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1024
    return f"{size:.1f} {_UNITS[-1]}"
