"""A directory origin as an `interfaces.Origin`."""

from collections.abc import Callable, Iterator

from hoard_p2p.errors import ObjectChanged
from hoard_p2p.interfaces import Listed, ObjectRange
from hoard_p2p.origin.allowed import directory_url
from hoard_p2p.origin.directory import DirectoryOrigin
from hoard_p2p.origin.files import FileRead, Piece


class PlainDirectory:
    """Reads what a plan of one piece says."""

    def __init__(self, directory: DirectoryOrigin) -> None:
        self._directory = directory
        self.url = directory_url(str(directory.path))

    def identity(self, path: bytes) -> bytes:
        return self.url.encode() + b"/" + path

    def check(self) -> None:
        self._directory.check()

    def listing(self) -> Iterator[Listed]:
        raise NotImplementedError

    def read(self, wanted: ObjectRange, into: memoryview, moved: Callable[[int], None]) -> None:
        failed: list[str] = []

        def take(_piece: Piece, data: memoryview) -> None:
            into[:] = data
            moved(len(data))

        piece = Piece(0, wanted.start, wanted.stop - wanted.start)
        self._directory.read([FileRead(wanted.path, wanted.size, (piece,))], take, lambda _, why: failed.append(why))
        if failed:
            raise ObjectChanged(failed[0])

    def close(self) -> None:
        return None
