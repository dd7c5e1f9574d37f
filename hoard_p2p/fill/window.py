"""Which segments of a snapshot are filled now: a bounded number, in an order that all its participants share. Pure.

The order is the same on every node, so that the chains of segments run at the same time on all of them; it looks
random from one stretch to the next, so that readers in order and the fill do not follow each other, and goes in order
inside a stretch, so that files become whole and origins are read in long runs.
"""

from collections import deque
from collections.abc import Callable, Iterable, Sequence

from hoard_p2p.ids import SnapshotId
from hoard_p2p.placement import mix64

WINDOW_BYTES = 96 << 20
WINDOW_SEGMENTS = 12
ASKED_SEGMENTS = 48
"""Segments that are under way only since peers asked for them, at most. They take no place in the window: what comes
late to this node along its chains would keep out what comes early, and its successors would stand still. With N nodes
about N / 8 segments of 8 chunks each are on their way along their chains at a time (docs/simulations.md)."""

STRETCH = 16
"""Segments in a row that stay in order: about 128 MiB."""

TRIES = 3


def common_order(snapshot: SnapshotId, segments: int) -> list[int]:
    """All segments, in the order in which every node fills them."""
    stretches = sorted(range(0, segments, STRETCH), key=lambda at: mix64(snapshot, at.to_bytes(16, "little")))
    return [number for at in stretches for number in range(at, min(at + STRETCH, segments))]


class Window:
    """Event in, instructions out: `take` says what to begin now; each of these ends by `done` or `failed`.

    What comes anyway, since a peer asked for it, is taken up in its turn, and takes no place."""

    def __init__(
        self,
        order: Iterable[int],
        size_of: Callable[[int], int],
        *,
        most_bytes: int = WINDOW_BYTES,
        most_segments: int = WINDOW_SEGMENTS,
    ) -> None:
        self._waiting = deque(order)
        self._size_of = size_of
        self._most_bytes = most_bytes
        self._most_segments = most_segments
        self._under_way: dict[int, int] = {}
        self._bytes = 0
        self._beside: set[int] = set()
        self._tries: dict[int, int] = {}
        self.lost: list[int] = []
        """What failed `TRIES` times."""

    @property
    def over(self) -> bool:
        """Nothing is left to do, or to wait for."""
        return not self._waiting and not self._under_way and not self._beside

    @property
    def under_way(self) -> Sequence[int]:
        return [*self._under_way, *self._beside]

    def take(self, comes: Callable[[int], bool] = lambda _: False) -> list[int]:
        """Segments to begin now; one at least is always under way, however large. `comes`: whether a segment is under
        way for a peer."""
        taken: list[int] = []
        while self._waiting:
            number = self._waiting[0]
            if comes(number):
                self._beside.add(number)
            elif self._fits(number):
                self._under_way[number] = self._size_of(number)
                self._bytes += self._under_way[number]
            else:
                break
            taken.append(self._waiting.popleft())
        return taken

    def _fits(self, number: int) -> bool:
        if not self._under_way:
            return True
        size = self._bytes + self._size_of(number)
        return len(self._under_way) < self._most_segments and size <= self._most_bytes

    def done(self, segment: int) -> None:
        """It is here."""
        if segment in self._beside:
            self._beside.remove(segment)
        else:
            self._bytes -= self._under_way.pop(segment)

    def failed(self, segment: int) -> None:
        """It could not be had: tried again when all others were."""
        self.done(segment)
        tries = self._tries[segment] = self._tries.get(segment, 0) + 1
        if tries < TRIES:
            self._waiting.append(segment)
        else:
            self.lost.append(segment)

    def stop(self) -> None:
        """Begin nothing more."""
        self.lost += self._waiting
        self._waiting.clear()

    def hasten(self, segment: int) -> None:
        """A reader is near it: it comes next, if it has not begun."""
        if segment in self._waiting:
            self._waiting.remove(segment)
            self._waiting.appendleft(segment)
