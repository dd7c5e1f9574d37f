"""What the node tells a scrub process, and what that answers. Values and their JSON only."""

from collections.abc import Iterator, Mapping
from typing import NamedTuple

from hoard_p2p.config import Json
from hoard_p2p.ids import ChunkId
from hoard_p2p.interfaces import Place
from hoard_p2p.storage.scrub import Verdict
from hoard_p2p.storage.survey import Stored

AT_ONCE = 4096
"""Places in one message."""
_FLAGS = ("gone", "cut", "long", "dirty", "unlisted")


class Order(NamedTuple):
    """What to scrub: everything from `offset` of `slab` on, about `most` bytes of it; or, with `ids` (then a memfd of
    chunk ids comes along), these chunks. `pace`: bytes a second, 0: as fast as it goes. `polite`: make way for others
    who read the disk. `survey`: also look for places that no sidecar names."""

    ids: bool = False
    slab: int = 0
    offset: int = 0
    most: int = 1 << 62
    pace: int = 0
    polite: bool = False
    survey: bool = True

    def encode(self) -> dict[str, Json]:
        return self._asdict()

    @classmethod
    def decode(cls, body: Mapping[str, Json]) -> "Order":
        return cls(**{key: body[key] for key in cls._fields if key in body})  # type: ignore[arg-type]  # as encoded


class Progress(NamedTuple):
    """How far a scrub has come. `slab`, `offset`: where it goes on; `total`: bytes, about. `absent`: chunks that were
    asked for and are not here."""

    chunks: int
    size: int
    total: int
    slab: int
    offset: int
    absent: int = 0

    def encode(self) -> dict[str, Json]:
        return self._asdict()

    @classmethod
    def decode(cls, body: Mapping[str, Json]) -> "Progress":
        return cls(**{key: int(str(body[key])) for key in cls._fields})


def encode_verdict(verdict: Verdict) -> Iterator[dict[str, Json]]:
    """One message, or several if much is wrong."""
    wrong = verdict.wrong
    for at in range(0, max(1, len(wrong)), AT_ONCE):
        last = at + AT_ONCE >= len(wrong)
        listed: list[Json] = [[one.chunk_id.hex(), *one.place] for one in wrong[at : at + AT_ONCE]]
        flags: list[Json] = [name for name in _FLAGS if last and getattr(verdict, name)]
        yield {"slab": verdict.slab, "wrong": listed, "flags": flags}


def decode_verdict(body: Mapping[str, Json]) -> Verdict:
    wrong, flags = body["wrong"], body["flags"]
    assert isinstance(wrong, list)
    assert isinstance(flags, list)
    stored = tuple(_stored(row) for row in wrong if isinstance(row, list))
    return Verdict(int(str(body["slab"])), stored, **{name: name in flags for name in _FLAGS})


def _stored(row: list[Json]) -> Stored:
    return Stored(ChunkId(bytes.fromhex(str(row[0]))), Place(*(int(str(value)) for value in row[1:])))
