"""Reading the store through its node, for a process that cannot open the index itself: it is in another pid namespace
than the node, the index may not be opened, or LMDB's reader table is full. Slower than `StoreReader`, and as right: the
node copies the bytes while it holds the place. Large files still go at the kernel's speed: their slabs come as
descriptors.

While the node does not answer nothing is here, as on a disk without the chunk: who reads asks it for what is missing,
and waits for its return until the deadline.
"""

import logging
import os
import socket
import threading
import time
from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

from hoard_p2p.config import Json
from hoard_p2p.errors import (
    BadRequest,
    ChunkCorrupt,
    ChunkUnavailable,
    DeadlineExceeded,
    HoardError,
    NoNode,
    Refused,
    StoreFailed,
)
from hoard_p2p.ids import ChunkId, is_origin_key, short
from hoard_p2p.interfaces import Place
from hoard_p2p.node import framing
from hoard_p2p.node.descriptors import no_files_left
from hoard_p2p.storage.reader import StoreReader

log = logging.getLogger(__name__)

PATIENCE = 1.0
"""Seconds that a call waits. A node that takes longer hangs: nobody waits for it again until it has answered."""
RECONNECT_SECONDS = 0.5
MOST_AT_ONCE = 8 << 20
"""Bytes asked for in one call."""
MOST_KNOWN = 1 << 17
"""Origin keys whose content is remembered: it never changes."""
_READER = 0
"""Sequence number of what says who reads; it is never answered."""


def pid_namespace() -> int:
    """The number of this process's pid namespace, 0 if it cannot be told."""
    with suppress(OSError):
        return os.stat("/proc/self/ns/pid").st_ino
    return 0


def elsewhere(told: Mapping[str, Json], seen: int) -> str:
    """Why this process may not open the index beside the node: LMDB tells readers by their pids. Empty if it may.

    `told`: the node's own `pid` and `pidns` (an older node says neither, and cannot be read through); `seen`: its pid
    as this process's kernel shows it."""
    theirs, ours = told.get("pidns"), pid_namespace()
    if not isinstance(theirs, int):
        return ""
    if (theirs != ours) if theirs and ours else (told.get("pid") != seen):
        return "it is in another pid namespace than the node"
    return ""


class _Line:
    """A connection to the node for one call at a time. Safe from several threads; a call waits `PATIENCE` at most."""

    def __init__(self, data_dir: Path, introduction: Mapping[str, Json]) -> None:
        self._data_dir = data_dir
        self._introduction = dict(introduction)
        self._lock = threading.Lock()
        self._sock: socket.socket | None = None
        self._seq = 0
        self._late = False
        self._next_try = 0.0

    def call(self, op: str, args: Mapping[str, Json]) -> framing.Message | None:
        """The answer, None while the node does not answer. Raises the node's own HoardError."""
        with self._lock:
            try:
                message = self._ask(op, args)
            except TimeoutError:
                log.info("the node hangs; what is read through it waits")
                self._late = True
                return None
            except (OSError, NoNode, DeadlineExceeded) as error:
                log.debug("the node cannot be asked: %s", error)
                self.close()
                return None
        if message is not None and ("error" in message.body or message.cut):
            message.close()
            framing.raise_error(message.body)
            raise no_files_left(op)
        return message

    def greet(self) -> None:
        """Say who reads, if the node answers."""
        with self._lock, suppress(OSError, HoardError):
            self._connected()

    def close(self) -> None:
        if self._sock is not None:
            self._sock.close()
        self._sock, self._late = None, False

    def _ask(self, op: str, args: Mapping[str, Json]) -> framing.Message | None:
        sock = self._connected()
        if sock is None or (self._late and not self._came_back(sock)):
            return None
        self._seq += 1
        framing.send(sock, {"seq": self._seq, "op": op, "args": dict(args)})
        while True:
            message = framing.receive(sock)
            if message is None:
                raise NoNode("the node ended")
            if message.body.get("seq") == self._seq:
                return message
            message.close()

    def _connected(self) -> socket.socket | None:
        now = time.monotonic()
        if self._sock is None and now >= self._next_try:
            self._next_try = now + RECONNECT_SECONDS
            self._sock = framing.connect(self._data_dir, seconds=0)
            self._sock.settimeout(PATIENCE)
            framing.send(self._sock, {"seq": _READER, "op": "reads_through", "args": self._introduction})
        return self._sock

    def _came_back(self, sock: socket.socket) -> bool:
        """Whether the answer that was late has come now."""
        sock.setblocking(False)
        try:
            while True:
                message = framing.receive(sock)
                if message is None:
                    raise NoNode("the node ended")
                message.close()
                if message.body.get("seq") == self._seq:
                    self._late = False
                    return True
        except BlockingIOError:
            return False
        finally:
            sock.settimeout(PATIENCE)


class _Piece(NamedTuple):
    """What one call brought of a chunk: bytes `at` in the file `fd` of that call."""

    place: Place
    fd: "_Descriptor"
    at: int


class _Descriptor:
    __slots__ = ("fd",)

    def __init__(self, fd: int) -> None:
        self.fd = fd

    def __del__(self) -> None:
        os.close(self.fd)

    def read(self, at: int, into: memoryview) -> None:
        """Raises StoreFailed if there is less than was told."""
        if os.preadv(self.fd, [into], at) != len(into):
            raise StoreFailed("the node sent fewer bytes than it told")


Span = tuple[ChunkId, int, int]
"""Bytes of a chunk: id, start, length."""


class _Window(NamedTuple):
    """Bytes of the chunk that was read last: who reads on in it need not ask. `next`: where the last read ended."""

    chunk_id: ChunkId
    start: int
    end: int
    piece: _Piece
    next: int


class ThroughNode:
    """LocalChunks and ListedSlabs over the node's unix socket. Safe from several threads; `expect` and `read_into` of
    one reader belong to one thread."""

    def __init__(self, data_dir: Path, why: str, mountpoint: str = "") -> None:
        """`why`: not the index itself; `mountpoint`: of the mount that reads. Both are for `hoard status`."""
        self.why = why
        self._line = _Line(data_dir, {"why": why, "mountpoint": mountpoint})
        self._expected: dict[Span, _Piece] = {}
        self._window: _Window | None = None
        self._known: OrderedDict[ChunkId, ChunkId] = OrderedDict()
        self._line.greet()

    def __enter__(self) -> "ThroughNode":
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def close(self) -> None:
        self._expected.clear()
        self._window = None
        self._line.close()

    def content(self, chunk_id: ChunkId) -> ChunkId | None:
        """See LocalChunks."""
        return self.contents([chunk_id])[0]

    def contents(self, ids: Sequence[ChunkId]) -> list[ChunkId | None]:
        """See LocalChunks. None also while the node does not answer."""
        keys = [one for one in ids if is_origin_key(one) and one not in self._known]
        if keys:
            answer = self._line.call("chunk_contents", {"ids": [one.hex() for one in keys]})
            result = None if answer is None else answer.body.get("result")
            told = result.get("contents") if isinstance(result, dict) else None
            for key, found in zip(keys, told if isinstance(told, list) else ()):
                if isinstance(found, str):
                    self._known[key] = ChunkId(bytes.fromhex(found))
            while len(self._known) > MOST_KNOWN:
                self._known.popitem(last=False)
        return [self._known.get(one) if is_origin_key(one) else one for one in ids]

    def place(self, chunk_id: ChunkId) -> Place | None:
        return self.places([chunk_id])[0]

    def places(self, ids: Sequence[ChunkId]) -> list[Place | None]:
        return [places[0] if places else None for places in self._places(ids)]

    def places_of(self, chunk_id: ChunkId) -> list[Place]:
        """See ListedSlabs."""
        return self._places([chunk_id])[0]

    def _places(self, ids: Sequence[ChunkId]) -> list[list[Place]]:
        answer = self._line.call("chunk_places", {"ids": [one.hex() for one in ids]}) if ids else None
        told = None if answer is None else answer.body.get("result")
        listed = told.get("places") if isinstance(told, dict) else None
        if not isinstance(listed, list) or len(listed) != len(ids):
            return [[] for _ in ids]
        return [[_place(one) for one in places] if isinstance(places, list) else [] for places in listed]

    def expect(self, wanted: Sequence[Span]) -> None:
        """These will be read next: get them in one call."""
        self._expected.clear()
        with suppress(HoardError):  # said when they are read
            taken, total = [], 0
            for span in wanted:
                total += span[2]
                if total > MOST_AT_ONCE:
                    break
                taken.append(span)
            found = self._fetch(taken) if len(taken) > 1 else []
            self._expected.update((span, piece) for span, piece in zip(taken, found) if isinstance(piece, _Piece))

    def read_into(self, chunk_id: ChunkId, start: int, into: memoryview) -> Place | None:
        """See LocalChunks. Raises ValueError if `start` and `into` reach beyond the chunk."""
        if (place := self._from_window(chunk_id, start, into)) is not None:
            return place
        size = len(into)
        piece: _Piece | str | None = self._expected.pop((chunk_id, start, size), None)
        if piece is None:
            size = self._ahead(chunk_id, start, size)
            try:
                piece = next(iter(self._fetch([(chunk_id, start, size)])), None)
            except BadRequest as error:
                raise ValueError(str(error)) from error
            except StoreFailed as error:  # of the node: it is asked for it as for what is missing
                log.info("chunk %s cannot be read through the node now: %s", short(chunk_id), error)
                return None
        if isinstance(piece, str):
            raise ChunkCorrupt(piece)
        if piece is None:
            return None
        piece.fd.read(piece.at, into)
        self._window = _Window(chunk_id, start, start + size, piece, start + len(into))
        return piece.place

    def _from_window(self, chunk_id: ChunkId, start: int, into: memoryview) -> Place | None:
        """What starts at 0 is always asked for: it may be a chunk to hash, whose bytes have been healed meanwhile."""
        window = self._window
        if window is None or window.chunk_id != chunk_id or not start:
            return None
        if start < window.start or start + len(into) > window.end:
            return None
        window.piece.fd.read(window.piece.at + start - window.start, into)
        self._window = window._replace(next=start + len(into))
        return window.piece.place

    def _ahead(self, chunk_id: ChunkId, start: int, length: int) -> int:
        """How much to ask for: the rest of the chunk for somebody who reads on in it."""
        window = self._window
        if window is None or window.chunk_id != chunk_id or window.next != start or not start:
            return length
        return max(length, window.piece.place.length - start)

    def _fetch(self, wanted: Sequence[Span]) -> list[_Piece | str | None]:
        """For each what the node has of it: the bytes, None, or in words why they are wrong. Empty while it does not
        answer."""
        args: dict[str, Json] = {"wanted": [[one.hex(), start, length] for one, start, length in wanted]}
        answer = self._line.call("chunk_bytes", args)
        if answer is None:
            return []
        result = answer.body.get("result")
        told = result.get("found") if isinstance(result, dict) else None
        if not answer.fds or not isinstance(told, list):
            answer.close()
            raise StoreFailed("the node's answer came without its bytes: no descriptor is left")
        file, at = _Descriptor(answer.fds[0]), 0
        pieces: list[_Piece | str | None] = []
        for one, span in zip(told, wanted):
            pieces.append(
                _Piece(_place(one), file, at) if isinstance(one, list) else one if isinstance(one, str) else None
            )
            at += span[2]
        return pieces

    def read_at(self, place: Place, start: int, into: memoryview) -> None:
        """See LocalChunks. Raises ChunkUnavailable while the node does not answer, and ValueError as `read_into`."""
        args: dict[str, Json] = {"place": list(place), "start": start, "length": len(into)}
        try:
            answer = self._line.call("place_bytes", args)
        except BadRequest as error:
            raise ValueError(str(error)) from error
        if answer is None or not answer.fds:
            raise ChunkUnavailable("the node, which this is read through, does not answer")
        _Descriptor(answer.fds[0]).read(0, into)

    def file_slab(self, file_key: bytes) -> tuple[int, bool] | None:
        """See FileSlabs."""
        answer = self._line.call("file_slab", {"key": file_key.hex()})
        result = None if answer is None else answer.body.get("result")
        slab = result.get("slab") if isinstance(result, dict) else None
        return (slab, result.get("complete") is True) if isinstance(slab, int) and isinstance(result, dict) else None

    def open_slab(self, slab: int) -> int:
        """See FileSlabs. Raises StoreFailed while the node does not answer."""
        answer = self._line.call("open_slab", {"slab": slab})
        if answer is None or not answer.fds:
            raise StoreFailed("the node, which slabs are opened through, does not answer")
        return answer.fds[0]


def _place(told: Json) -> Place:
    """Raises HoardError."""
    if not isinstance(told, list) or len(told) != len(Place._fields):
        raise StoreFailed(f"the node's answer has no place: {told!r}")
    return Place(*(int(str(value)) for value in told))


@contextmanager
def open_chunks(data_dir: Path, why_through: str, mountpoint: str = "") -> Iterator[StoreReader | ThroughNode]:
    """The store of this machine: the index itself, or, if `why_through` is not empty or it cannot be opened, the node.
    Raises NoNode if there is no store, StoreFormatUnknown."""
    opened: StoreReader | ThroughNode
    try:
        opened = ThroughNode(data_dir, why_through, mountpoint) if why_through else StoreReader.open(data_dir)
    except Refused as error:
        opened = ThroughNode(data_dir, str(error), mountpoint)
    if isinstance(opened, ThroughNode):
        log.info("the store %s is read through its node: %s", data_dir, opened.why)
    with opened:
        yield opened
