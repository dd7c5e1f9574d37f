"""What one reading of an origin brings, and what of it counts."""

from dataclasses import dataclass, field

from hoard_p2p.fetch.segment import Segment, Wanted
from hoard_p2p.ids import ChunkId, SnapshotId, origin_key
from hoard_p2p.node.originwork import PARTED, Reading, works_of
from hoard_p2p.node.underway import Underway
from hoard_p2p.objects import ObjectRange
from hoard_p2p.origin.files import FileRead, Piece

LENGTH = 2 * PARTED
READ_BEFORE = LENGTH // 4
PIECE = Wanted(0, origin_key(b"bucket/object", b"v1", 0, LENGTH), LENGTH)
SEGMENT = Segment(SnapshotId(bytes(32)), 0, (PIECE,), ChunkId(bytes(32)))


@dataclass
class FirstQuarterHere:
    """`PartsHere` of a node where a reader had the first quarter of each piece read."""

    came_here: list[tuple[int, int]] = field(default_factory=list)

    def claim(self, segment: Segment, chunk: Wanted) -> list[tuple[int, int]]:
        return [(READ_BEFORE, chunk.length)]

    def came(self, segment: Segment, chunk: Wanted, start: int, data: memoryview) -> memoryview | None:
        self.came_here.append((start, start + len(data)))
        return memoryview(bytes(chunk.length))

    def gave_up(self, segment: Segment, chunk: Wanted, start: int, stop: int) -> None:
        raise AssertionError("nothing failed")

    def settled(self, segment: Segment, chunk: Wanted, seconds: float) -> bool:
        return True


def test_what_a_reader_had_read_of_a_piece_before_is_not_counted_as_good_again() -> None:
    delivered: list[int] = []
    parts = FirstQuarterHere()
    reading = Reading(SEGMENT, [PIECE], lambda _, data: delivered.append(len(data)), parts, Underway())
    plan = FileRead(b"object", LENGTH, (Piece(0, 0, LENGTH),), b"v1")
    with reading.underway.reading(reading.place):
        (work,) = works_of([plan], reading, 1)
        ranges = list(work.ranges())
        for wanted in ranges:
            work.came(wanted, memoryview(bytes(wanted.stop - wanted.start)))
    assert isinstance(ranges[0], ObjectRange)
    assert delivered == [LENGTH], "the whole piece is handed out"
    assert reading.good == LENGTH - READ_BEFORE == sum(one.stop - one.start for one in ranges)
