"""A mount worker's line to its node: asks for missing chunk runs, survives the node's restarts (`MissChannel`)."""

import logging
import socket
import time
from contextlib import suppress
from itertools import count
from pathlib import Path
from typing import NamedTuple

from hoard_p2p.config import Json
from hoard_p2p.errors import DeadlineExceeded, HoardError, NoNode
from hoard_p2p.ids import ChunkId
from hoard_p2p.interfaces import Found, MissFailed, Place
from hoard_p2p.node import framing

log = logging.getLogger(__name__)

RECONNECT_SECONDS = 0.5
LONGEST_MARGIN = 1.0
SHORTEST_WAIT = 0.05
_TOUCH = 0
"""Sequence number of what is never answered with a run: run n has number n + 1, parts of runs those from here on."""
_FIRST_PART = 1 << 40


class _Asked(NamedTuple):
    run: int
    span: tuple[int, int] | None


class NodeMisses:
    """See `interfaces.MissChannel`. Single-threaded, never blocks. One request per missing run."""

    def __init__(self, data_dir: Path, snapshot: str, timeout: float, *, fill: bool = True) -> None:
        """`timeout`: seconds that a reader waits. The node is given a little less, counted from the first time that a
        run was asked for, so that its answer, which names the peers that were tried, comes before the reader's end.
        `fill`: whether the node may fetch ahead of this mount's readers."""
        self._data_dir = data_dir
        self._snapshot = snapshot
        self._patience = timeout - min(LONGEST_MARGIN, timeout / 10)
        self._fill = fill
        self._sock: socket.socket | None = None
        self._outstanding: dict[_Asked, Place | None] = {}
        self._since: dict[_Asked, float] = {}
        self._unsent: dict[_Asked, None] = {}
        self._numbers: dict[_Asked, int] = {}
        self._parts: dict[int, _Asked] = {}  # by number
        self._fresh = count(_FIRST_PART)
        self._next_try = 0.0
        self._trouble = "the node has not been asked yet"

    def fileno(self) -> int:
        return -1 if self._sock is None else self._sock.fileno()

    def ask(self, run: int, span: tuple[int, int] | None = None) -> None:
        asked = _Asked(run, span)
        if asked not in self._outstanding:
            self._queue(asked, None)
        elif self._sock is None:
            self._since[asked] = time.monotonic()  # a node that comes back has as long as this reader

    def distrust(self, run: int, place: Place) -> None:
        asked = _Asked(run, None)
        if self._outstanding.get(asked) != place:
            self._queue(asked, place)

    def touch(self, run: int) -> None:
        with suppress(OSError):
            if self._sock is not None:
                args: dict[str, Json] = {"snapshot": self._snapshot, "run": run, "fill": self._fill}
                framing.send(self._sock, {"seq": _TOUCH, "op": "touch", "args": args})

    def close(self) -> None:
        """Hang up."""
        if self._sock is not None:
            self._sock.close()
            self._sock = None

    def _queue(self, asked: _Asked, wrong: Place | None) -> None:
        self._outstanding[asked] = wrong
        self._since[asked] = time.monotonic()
        if asked.span is not None and asked not in self._numbers:
            number = self._numbers[asked] = next(self._fresh)
            self._parts[number] = asked
        self._unsent[asked] = None
        self._send()

    def _settled(self, number: int) -> _Asked | None:
        """What the question with that number was about, which is answered now; None if it is not outstanding."""
        asked = self._parts.pop(number, None) if number >= _FIRST_PART else _Asked(number - 1, None)
        if asked is None:
            return None
        self._numbers.pop(asked, None)
        self._since.pop(asked, None)
        return None if self._outstanding.pop(asked, self) is self else asked

    def answers(self) -> list[Found | MissFailed]:
        found: list[Found | MissFailed] = []
        while self._sock is not None:
            try:
                message = framing.receive(self._sock)
            except BlockingIOError:
                break
            except (HoardError, OSError):
                message = None
            if message is None:
                self._lost()
                break
            answer = self._decode(message)
            if answer is not None:
                found.append(answer)
        return found

    def _decode(self, message: framing.Message) -> Found | MissFailed | None:
        try:
            seq = message.body.get("seq")
            if not isinstance(seq, int) or seq == _TOUCH:
                return None
            asked = self._settled(seq)
            return None if asked is None else _answer(asked, message)
        finally:
            message.close()

    def tend(self) -> None:
        now = time.monotonic()
        if self._sock is None and now >= self._next_try:
            self._next_try = now + RECONNECT_SECONDS
            try:
                self._connect()
            except (NoNode, DeadlineExceeded) as error:
                self._trouble = str(error).partition(";")[0]  # without the advice
            except OSError as error:  # this process has no descriptor left
                self._trouble = f"the node cannot be asked: {error.strerror}"
        self._send()

    def trouble(self) -> str:
        return self._trouble if self._sock is None else ""

    def _connect(self) -> None:
        self._sock = framing.connect(self._data_dir, seconds=0)
        self._sock.setblocking(False)
        self._unsent = dict.fromkeys(self._outstanding)

    def _send(self) -> None:
        while self._unsent and self._sock is not None:
            asked = next(iter(self._unsent))
            wrong = self._outstanding.get(asked)
            waited = time.monotonic() - self._since.get(asked, time.monotonic())
            args: dict[str, Json] = {
                "snapshot": self._snapshot,
                "run": asked.run,
                "timeout": max(SHORTEST_WAIT, round(self._patience - waited, 2)),
                "wrong": None if wrong is None else list(wrong),
                "fill": self._fill,
            }
            if asked.span is not None:
                args["span"] = list(asked.span)
            if not self._request(self._numbers.get(asked, asked.run + 1), "need", args):
                return
            del self._unsent[asked]

    def _request(self, seq: int, op: str, args: dict[str, Json]) -> bool:
        """False if it could not be sent now; `tend` tries again."""
        if self._sock is None:
            return False
        try:
            framing.send(self._sock, {"seq": seq, "op": op, "args": args})
        except BlockingIOError:
            return False
        except OSError:
            self._lost()
            return False
        return True

    def _lost(self) -> None:
        if self._sock is not None:
            self._sock.close()
            self._sock = None
            self._trouble = "the node went away"
            log.info("the node went away; misses of this worker wait for its return")


def _answer(asked: _Asked, message: framing.Message) -> Found | MissFailed:
    result = message.body.get("result")
    if not isinstance(result, dict):
        return MissFailed(asked.run, str(message.body.get("message", "the node gave no reason")), asked.span)
    place, span = result.get("place"), asked.span if result.get("part") is True else None
    content = told_content(result)
    if isinstance(place, list):
        return Found(asked.run, Place(*(int(str(value)) for value in place)), b"", span, content)
    return Found(asked.run, None, framing.memfd_bytes(message.fds[0]), span, content)


def told_content(result: dict[str, Json]) -> ChunkId | None:
    """What the node says that an origin key was found to be; None if it does not say."""
    told = result.get("content")
    return ChunkId(bytes.fromhex(told)) if isinstance(told, str) else None
