"""Memory mappings whose file can be closed before them (Python's own keep a copy of the descriptor)."""

import ctypes
import mmap
import os

_libc = ctypes.CDLL(None, use_errno=True)
_libc.mmap.restype = ctypes.c_void_p
_libc.mmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long)
_libc.memcpy.argtypes = (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t)
_libc.munmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t)
_FAILED = ctypes.c_void_p(-1).value


class Mapping:
    """`length` bytes from the start of the file behind `fd`, for reading. Raises OSError."""

    def __init__(self, fd: int, length: int) -> None:
        address = _libc.mmap(None, length, mmap.PROT_READ, mmap.MAP_SHARED, fd, 0)
        if address == _FAILED:
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number))
        self._address, self._length = address, length

    def read(self, size: int, offset: int = 0) -> bytes:
        assert offset + size <= self._length
        into = ctypes.create_string_buffer(size)
        _libc.memcpy(into, self._address + offset, size)  # without the interpreter's lock: a fault may need a thread
        return into.raw

    def close(self) -> None:
        _libc.munmap(self._address, self._length)
