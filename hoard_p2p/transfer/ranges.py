"""Exact ranges of pieces of lazy snapshots, `POST /v1/range`: the question, and the answer for both sides (wire.md).

The bytes of a part can be compared with nothing: what is checked is that they arrived as they were sent. Whoever asks
uses them for the read at hand and keeps no chunk on their word.
"""

import struct

from blake3 import blake3

from hoard_p2p.errors import BadRequest, ChunkCorrupt
from hoard_p2p.ids import ID_SIZE, SnapshotId
from hoard_p2p.limits import MAX_CHUNK
from hoard_p2p.objects import RangeAsk, RangeEnd
from hoard_p2p.transfer.connection import Connection, Garbled
from hoard_p2p.transfer.service import FeedEnd
from hoard_p2p.transfer.sessions import frames_mark
from hoard_p2p.transfer.streams import MAX_PATIENCE, MAX_REASON
from hoard_p2p.transfer.wire import shown

_ASK = struct.Struct(f"<{ID_SIZE}sIQIBH")
"""Snapshot, run, start, length, hops, patience in ms."""
_HEAD = struct.Struct(f"<BI{ID_SIZE}s")
"""How it ended, length and blake3 of what follows."""
CANNOT, PENDING, BYTES = 0, 1, 2
MAX_RANGE_ASK = _ASK.size
MAX_RANGE = 2 << 20
"""Bytes of one range: more than the kernel asks of a mount at a time (1 MiB), rounded to pages."""


def encode_range(ask: RangeAsk) -> bytes:
    milliseconds = round(min(max(ask.patience, 0.0), MAX_PATIENCE) * 1000)
    return _ASK.pack(ask.snapshot, ask.run, ask.start, ask.length, min(ask.hops, 255), milliseconds)


def decode_range(body: bytes) -> RangeAsk:
    """Raises BadRequest."""
    if len(body) != _ASK.size:
        raise BadRequest(f"a body of {len(body)} bytes, not {_ASK.size}")
    snapshot, run, start, length, hops, milliseconds = _ASK.unpack(body)
    if not 1 <= length <= MAX_RANGE or start + length > MAX_CHUNK or milliseconds > MAX_PATIENCE * 1000:
        raise BadRequest(f"{length} bytes at {start} of a piece, patience {milliseconds} ms: no such question")
    return RangeAsk(SnapshotId(snapshot), run, start, length, hops, milliseconds / 1000)


def range_answer(answer: bytes | FeedEnd) -> tuple[bytes, bytes]:
    """What is sent: its head, which is what its mark covers, and what follows."""
    if isinstance(answer, FeedEnd):
        kind = PENDING if answer.pending else CANNOT
        answer = answer.reason.encode("utf-8", "backslashreplace")[:MAX_REASON]
    else:
        kind = BYTES
    return _HEAD.pack(kind, len(answer), blake3(answer).digest()), answer


def receive_range(connection: Connection, into: memoryview) -> RangeEnd:
    """Read an answer, and fill `into` if it has the bytes. Raises ChunkCorrupt, Garbled, OSError."""
    body = connection.answer()
    if not _HEAD.size <= body <= _HEAD.size + max(len(into), MAX_REASON):
        raise Garbled(f"an answer of {body} bytes where {len(into)} were asked for")
    head = bytes(connection.read(_HEAD.size))
    connection.check_body(frames_mark(head))
    kind, length, digest = _HEAD.unpack(head)
    if length != body - _HEAD.size or kind > BYTES or (length != len(into) if kind == BYTES else length > MAX_REASON):
        raise Garbled(f"an answer of kind {kind} with {length} bytes where {len(into)} were asked for")
    data = connection.read(length)
    if blake3(data).digest() != digest:
        raise ChunkCorrupt(f"a range of {length} bytes was damaged on the way")
    if kind == BYTES:
        into[:] = data
        return RangeEnd(True, False, "")
    return RangeEnd(False, kind == PENDING, shown(bytes(data).decode("utf-8", "replace")))
