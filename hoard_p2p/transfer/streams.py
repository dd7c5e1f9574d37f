"""Streams of chunks, `POST /v1/stream`, as the asker sees them: the question, and the frames of the answer (wire.md).

A frame is u32 index, u32 length, and the chunk; where the run has an origin key the content id is before the chunk, and
in a session what proves that. Numbers are little-endian. The index counts the runs asked for. The last frame
has the index `LAST`, instead of a length how it ended, and behind it a reason, to the end of its HTTP chunk. An HTTP
chunk holds whole frames.
"""

import struct

from blake3 import blake3

from hoard_p2p.errors import BadRequest
from hoard_p2p.ids import ID_SIZE, SnapshotId
from hoard_p2p.interfaces import AskMode, SegmentAsk, StreamEnd
from hoard_p2p.transfer.connection import Connection, Garbled
from hoard_p2p.transfer.intake import Intake, content_of
from hoard_p2p.transfer.wire import MAX_ASKED, shown

_HEAD = struct.Struct(f"<{ID_SIZE}sIBBH")
"""Before the runs of a question: snapshot, segment, mode, hops, patience in ms."""
_MODES = {mode.value: mode for mode in AskMode}
MAX_ASK = _HEAD.size + 4 * MAX_ASKED
MAX_PATIENCE = 60.0
"""Seconds."""
FRAME = struct.Struct("<II")
LAST = 0xFFFFFFFF
CANNOT, PENDING = 0, 1
MAX_REASON = 1000
"""Bytes of the reason at the end."""


def encode_ask(ask: SegmentAsk, patience: float) -> bytes:
    """The body of a question; `patience` in seconds."""
    milliseconds = round(min(max(patience, 0.0), MAX_PATIENCE) * 1000)
    head = _HEAD.pack(ask.snapshot, ask.segment, ask.mode.value, ask.hops, milliseconds)
    return head + struct.pack(f"<{len(ask.runs)}I", *ask.runs)


def decode_ask(body: bytes) -> tuple[SegmentAsk, float]:
    """The question, and its patience in seconds. Raises BadRequest."""
    count, rest = divmod(len(body) - _HEAD.size, 4)
    if rest or not 1 <= count <= MAX_ASKED:
        raise BadRequest(f"a body of {len(body)} bytes, not {_HEAD.size} and 4 for each of 1 - {MAX_ASKED} runs")
    snapshot, segment, mode, hops, milliseconds = _HEAD.unpack_from(body)
    if mode not in _MODES or milliseconds > MAX_PATIENCE * 1000:
        raise BadRequest(f"mode {mode}, patience {milliseconds} ms: no such question")
    runs = struct.unpack_from(f"<{count}I", body, _HEAD.size)
    if len(set(runs)) != count:
        raise BadRequest("a run is asked for twice")
    return SegmentAsk(SnapshotId(snapshot), segment, _MODES[mode], hops, runs), milliseconds / 1000


def receive_stream(connection: Connection, intake: Intake) -> StreamEnd:
    """Read the body of an answer whose head was read. Raises ChunkCorrupt, Garbled, OSError."""
    outstanding = dict.fromkeys(range(len(intake.wanted)))
    end: tuple[bool, str] | None = None
    heads = blake3()
    while left := connection.chunk_size():
        if end is not None:
            raise Garbled("more follows the last frame")
        while left:
            head = bytes(_read(connection, FRAME.size, left))
            heads.update(head)
            index, length = FRAME.unpack(head)
            left -= FRAME.size
            if index == LAST:
                end = _ended(length, _reason(connection, left, heads))
                left = 0
                connection.progressed()
                continue
            if index not in outstanding:
                raise Garbled(f"chunk {index} was not asked for, or came already")
            del outstanding[index]
            intake.check_length(index, length)
            left -= _receive_chunk(connection, intake, index, left, heads)
        connection.end_chunk()
    connection.end_chunk()
    if end is None:
        raise Garbled("the stream has no last frame")
    return StreamEnd(list(outstanding), *end)


def _receive_chunk(connection: Connection, intake: Intake, index: int, left: int, heads: blake3) -> int:
    """What is behind the first bytes of a frame, whose length is right; returns how many bytes that were."""
    named = bytes(_read(connection, intake.named_size(index, connection), left))
    heads.update(named)
    data = _read(connection, intake.length(index), left - len(named))
    connection.progressed()
    intake.take(index, content_of(connection, index, named), data)
    return len(named) + len(data)


def _read(connection: Connection, count: int, left: int) -> memoryview:
    if count > left:
        raise Garbled("an HTTP chunk ends inside a frame")
    return connection.read(count)


def _reason(connection: Connection, left: int, heads: blake3) -> bytes | None:
    """What is behind the head of the last frame, proven where there is a key; None if it is too long or short."""
    size = left - connection.seal_size
    if not 0 <= size <= MAX_REASON:
        return None
    told = bytes(connection.read(left))
    heads.update(told[:size])
    connection.check_end(heads.digest(), told[size:])
    return told[:size]


def _ended(how: int, reason: bytes | None) -> tuple[bool, str]:
    if how not in {CANNOT, PENDING} or reason is None:
        raise Garbled("a last frame that says nothing known")
    return how == PENDING, shown(reason.decode("utf-8", "replace"))
