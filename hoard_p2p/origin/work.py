"""What `origin.streams` carries out."""

from collections.abc import Sequence
from typing import Protocol

from hoard_p2p.objects import ObjectRange


class Work(Protocol):
    """What one stream reads. Called in a thread of the engine or of who reads, one at a time for each work; maybe also
    after its `read` was given up: the work minds that itself."""

    def ranges(self) -> Sequence[ObjectRange]:
        """Its turn has come: what to read, each in one go; nothing, if that is not needed any more."""
        ...

    def came(self, wanted: ObjectRange, data: memoryview) -> None:
        """The bytes of one of the ranges, reused after return. What it raises ends the `read`."""
        ...

    def failed(self, wanted: ObjectRange, error: Exception) -> None:
        """One of the ranges cannot be read."""
        ...
