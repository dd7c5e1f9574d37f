"""What the operator allowed the store, as the index keeps it."""

import struct

from hoard_p2p.config import DEFAULT_FLOOR, Floor, parse_floor
from hoard_p2p.storage.index import Table, Transaction

_U64 = struct.Struct("<Q")
CAPACITY = b"capacity"
FLOOR = b"floor"


def capacity(txn: Transaction) -> int | None:
    """Bytes, None if never set."""
    raw = txn.get(Table.META, CAPACITY)
    return int(_U64.unpack(raw)[0]) if raw else None


def encode_capacity(size: int) -> bytes:
    return _U64.pack(size)


def floor(txn: Transaction) -> Floor:
    """What stays free of the file system; the default if none was ever set."""
    raw = txn.get(Table.META, FLOOR)
    return parse_floor(raw.decode()) if raw else DEFAULT_FLOOR


def encode_floor(value: Floor) -> bytes:
    return str(value).encode()
