"""Room on a disk for tests of those who ask for it."""

from threading import Lock

from hoard_p2p.errors import StoreFull


class FixedRoom:
    """`Grants` of `size` bytes in all. `promised` and `used` as the one who asks left them; `grants`: the sizes asked
    for, refused ones too."""

    def __init__(self, size: int = 1 << 40) -> None:
        self.size = size
        self.used = 0
        self.promised = 0
        self.grants: list[int] = []
        self._lock = Lock()

    def grant(self, size: int) -> None:
        with self._lock:
            self.grants.append(size)
            if self.used + self.promised + size > self.size:
                raise StoreFull(f"{self.used + self.promised + size - self.size} bytes are missing")
            self.promised += size

    def give_back(self, size: int, taken: int = 0) -> None:
        with self._lock:
            self.promised -= size
            self.used += taken
