"""The number in META that changes with every transaction that unlists a chunk (`Index.write` sees to that).

Who knows that all chunks of a snapshot were listed at one number knows it as long as the number stays. It begins
anywhere, so that an index made anew does not go on with the numbers of the one before. Pure.
"""

import os

DROPS = b"drops"


def following(known: bytes | None) -> bytes:
    """The number after the row `known`."""
    return number_of(known or os.urandom(8), 1).to_bytes(8, "little")


def number_of(row: bytes, more: int = 0) -> int:
    return (int.from_bytes(row, "little") + more) % (1 << 64)
