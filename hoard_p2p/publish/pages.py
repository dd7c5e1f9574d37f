"""Reading a source: past the page cache where its pages are not there yet.

A publish reads each byte once. Through the cache that costs a copy, and a page to fill for each 4 KiB (0.2 to 2 CPU
s/GB, the more the fuller memory is; directly 0.1), and it pushes out what others read.
"""

import fcntl
import os
from errno import EAGAIN, EINVAL, EOPNOTSUPP

PAGE = 4096
"""What direct reads are aligned to: no disk asks for more."""


class Pages:
    """The bytes of one open file, read front to back."""

    def __init__(self, fd: int, size: int) -> None:
        self._fd = fd
        self._size = size
        self._direct = False
        self._may_direct = os.major(os.fstat(fd).st_dev) != 0  # on a disk of this machine; 0: network, memory, FUSE
        # Even a read that must not wait starts reading ahead, and what it read would be found in the cache by the next
        # look; of a file that is read at random it reads the one page.
        advice = os.POSIX_FADV_RANDOM if self._may_direct else os.POSIX_FADV_SEQUENTIAL
        os.posix_fadvise(fd, 0, 0, advice)

    def fill(self, buffer: memoryview, offset: int, length: int) -> bool:
        """Read `length` bytes into the front of `buffer`, which begins on a page boundary; bytes after them may change.
        False if the file ends before. Raises OSError."""
        whole = -(-length // PAGE) * PAGE
        if self._may_direct and offset % PAGE == 0 and whole <= len(buffer) and not self._cached(offset):
            try:
                self._switch(True)
                return fill(self._fd, buffer[:whole], offset, enough=length)
            except OSError as error:
                if error.errno not in (EINVAL, EOPNOTSUPP):
                    raise
                self._may_direct = False
        self._switch(False)
        if not self._may_direct and offset + length < self._size:
            os.posix_fadvise(self._fd, offset + length, len(buffer), os.POSIX_FADV_WILLNEED)
        return fill(self._fd, buffer[:length], offset)

    def _cached(self, offset: int) -> bool:
        """Whether the page there is in the cache: then its neighbours likely are."""
        self._switch(False)
        try:
            return os.preadv(self._fd, [bytearray(1)], offset, os.RWF_NOWAIT) > 0
        except OSError as error:
            if error.errno == EAGAIN:
                return False
            if error.errno == EOPNOTSUPP:
                self._may_direct = False
                return True
            raise

    def _switch(self, direct: bool) -> None:
        if direct is not self._direct:
            flags = fcntl.fcntl(self._fd, fcntl.F_GETFL)
            fcntl.fcntl(self._fd, fcntl.F_SETFL, flags | os.O_DIRECT if direct else flags & ~os.O_DIRECT)
            self._direct = direct


def fill(fd: int, into: memoryview, offset: int, enough: int | None = None) -> bool:
    """Read exactly `into`, or at least its first `enough` bytes; False if the file ends before."""
    least = len(into) if enough is None else enough
    done = 0
    while done < least:
        count = os.preadv(fd, [into[done:]], offset + done)
        if count == 0:
            return False
        done += count
    return True
