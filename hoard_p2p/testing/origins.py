"""Origins for tests: one in memory, and wrappers named for what is wrong with them."""

import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from hoard_p2p.errors import ObjectChanged, OriginBusy, OriginFailed, OriginRefused
from hoard_p2p.objects import Kind, Listed, ObjectRange, Origin


@dataclass
class MemoryOrigin:
    """Objects by name; the version of one is its `versions` entry, else `v1`. `asked` has every range in turn."""

    objects: dict[bytes, bytes]
    versions: dict[bytes, bytes] = field(default_factory=dict)
    asked: list[ObjectRange] = field(default_factory=list)
    url: str = "memory://origin"

    def identity(self, path: bytes) -> bytes:
        return self.url.encode() + b"/" + path

    def check(self) -> None:
        return None

    def version(self, path: bytes) -> bytes:
        return self.versions.get(path, b"v1")

    def listing(self) -> Iterator[Listed]:
        for path, data in self.objects.items():
            yield Listed(path, Kind.FILE, len(data), 0, 0o644, self.version(path))

    def read(self, wanted: ObjectRange, into: memoryview, moved: Callable[[int], None]) -> None:
        self.asked.append(wanted)
        data = self.objects.get(wanted.path)
        if data is None or len(data) != wanted.size or wanted.version not in (b"", self.version(wanted.path)):
            raise ObjectChanged(f"{wanted.path!r} changed since it was listed; publish again")
        into[:] = data[wanted.start : wanted.stop]
        moved(len(into))

    def close(self) -> None:
        return None


class _Wrapped:
    def __init__(self, inner: Origin) -> None:
        self._inner = inner
        self.url = inner.url

    def identity(self, path: bytes) -> bytes:
        return self._inner.identity(path)

    def check(self) -> None:
        self._inner.check()

    def listing(self) -> Iterator[Listed]:
        return self._inner.listing()

    def read(self, wanted: ObjectRange, into: memoryview, moved: Callable[[int], None]) -> None:
        self._inner.read(wanted, into, moved)

    def close(self) -> None:
        self._inner.close()


class TruncatingOrigin(_Wrapped):
    """Its first `times` answers end early: half of the bytes move, and then it fails."""

    def __init__(self, inner: Origin, times: int) -> None:
        super().__init__(inner)
        self.times = times

    def read(self, wanted: ObjectRange, into: memoryview, moved: Callable[[int], None]) -> None:
        if self.times > 0:
            self.times -= 1
            half = len(into) // 2
            into[:half] = b"?" * half
            moved(half)
            raise OriginFailed(f"{wanted.path!r}: {half} bytes came of {len(into)}")
        super().read(wanted, into, moved)


class ThrottlingOrigin(_Wrapped):
    """Asks to be asked less, `times` times."""

    def __init__(self, inner: Origin, times: int) -> None:
        super().__init__(inner)
        self.times = times

    def read(self, wanted: ObjectRange, into: memoryview, moved: Callable[[int], None]) -> None:
        if self.times > 0:
            self.times -= 1
            raise OriginBusy("slow down")
        super().read(wanted, into, moved)


class StallingOrigin(_Wrapped):
    """Never answers, until `go_on` is set. `stalled` is set once it was asked."""

    def __init__(self, inner: Origin) -> None:
        super().__init__(inner)
        self.go_on, self.stalled = threading.Event(), threading.Event()

    def read(self, wanted: ObjectRange, into: memoryview, moved: Callable[[int], None]) -> None:
        self.stalled.set()
        self.go_on.wait()
        super().read(wanted, into, moved)


class RefusingOrigin(_Wrapped):
    """Lets nobody read."""

    def read(self, wanted: ObjectRange, into: memoryview, moved: Callable[[int], None]) -> None:
        raise OriginRefused("403: no credentials; give the node some")
