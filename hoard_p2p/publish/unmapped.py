"""What cannot be in a snapshot: every entry counted, the first of them named."""

from hoard_p2p.publish.listing import Unmappable
from hoard_p2p.publish.outcome import NAMED, Named
from hoard_p2p.publish.walk import path_text


class Unmapped:
    """Such entries. Used from one thread."""

    def __init__(self) -> None:
        self.count = 0
        self.first: list[str] = []

    def add(self, entry: Unmappable) -> None:
        self.count += 1
        if len(self.first) < NAMED:
            self.first.append(f"{path_text(entry.path)}: {entry.why}")

    def named(self) -> Named:
        return Named(self.count, tuple(self.first))
