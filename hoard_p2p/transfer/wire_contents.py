"""The records by which a node asks what the pieces of a lazy snapshot were found to be, before it is sealed.

As in `wire`: a decoder raises BadRequest for anything that is not exactly such a record.
"""

import struct
from collections.abc import Sequence
from dataclasses import dataclass

from hoard_p2p.errors import BadRequest
from hoard_p2p.ids import ID_SIZE, SnapshotId
from hoard_p2p.limits import MAX_SEGMENT_CHUNKS
from hoard_p2p.transfer.wire import MAX_SEGMENT_INDEX, Fields, encode

MAX_CONTENTS_ASKED = 32
"""Segments of one question."""
_COUNT = struct.Struct("<I")
MAX_CONTENTS = MAX_CONTENTS_ASKED * (_COUNT.size + MAX_SEGMENT_CHUNKS * ID_SIZE)
"""Bytes of an answer."""


@dataclass(frozen=True, slots=True)
class ContentsRequest:
    """What are the pieces of these segments of a lazy snapshot?"""

    snapshot: SnapshotId
    segments: tuple[int, ...]


def encode_contents_request(request: ContentsRequest) -> bytes:
    return encode({"snapshot": request.snapshot.hex(), "segments": list(request.segments)})


def encode_contents(contents: Sequence[bytes]) -> bytes:
    """`contents`: for each segment the content ids of its chunks, in the catalog's order, zeros where unknown."""
    return b"".join(_COUNT.pack(len(ids) // ID_SIZE) + ids for ids in contents)


def decode_contents_request(body: bytes) -> ContentsRequest:
    fields = Fields.parse(body)
    asked = fields.items("segments", MAX_CONTENTS_ASKED)
    numbers = tuple(Fields.of({"segments": one}).number("segments", MAX_SEGMENT_INDEX) for one in asked)
    if len(set(numbers)) != len(numbers):
        raise BadRequest("segments: one is asked for twice")
    return ContentsRequest(fields.snapshot("snapshot"), numbers)


def decode_contents(body: bytes) -> list[bytes]:
    found: list[bytes] = []
    at = 0
    while at < len(body):
        if len(found) == MAX_CONTENTS_ASKED or len(body) - at < _COUNT.size:
            raise BadRequest(f"{len(body) - at} bytes follow the contents of {len(found)} segments")
        (count,) = _COUNT.unpack_from(body, at)
        at += _COUNT.size
        if count > MAX_SEGMENT_CHUNKS or len(body) - at < count * ID_SIZE:
            raise BadRequest(f"a segment of {count} chunks, and {len(body) - at} bytes")
        found.append(body[at : at + count * ID_SIZE])
        at += count * ID_SIZE
    return found
