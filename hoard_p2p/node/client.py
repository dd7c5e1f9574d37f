"""The short-lived side of the node's unix socket: what commands use. Blocking, with a deadline for every call."""

import socket
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import NamedTuple

from hoard_p2p.config import Json
from hoard_p2p.errors import DeadlineExceeded, NoNode
from hoard_p2p.node import framing
from hoard_p2p.node.descriptors import no_files_left

QUICK_SECONDS = 30.0
"""What an operation may take that waits for nothing but the node and short questions to its peers."""

SILENCE_SECONDS = 60.0
"""What a node may be silent that works for a caller: it says every few seconds that it does (`local.BEAT_SECONDS`)."""

LONG = frozenset({"publish", "open", "tag", "need", "evict", "gc", "rm", "scrub", "warm", "drain", "where", "replicas"})
"""Operations that read a source, or wait for data of peers: the node bounds them, the caller waits while it works."""


class Patience(NamedTuple):
    """Seconds after which a caller takes the node for hung: of a quick operation, and of silence in a long one.
    None: never, for a process that dies with its node."""

    quick: float | None = QUICK_SECONDS
    silence: float | None = SILENCE_SECONDS


USUAL = Patience()
ENDLESS = Patience(None, None)


class Reply(NamedTuple):
    """What an operation returned; the caller owns (and closes) `fds`."""

    body: dict[str, Json]
    fds: tuple[int, ...]


class NodeClient:
    """One connection; one call at a time. Closing it in the middle of a call cancels that call in the node."""

    def __init__(self, sock: socket.socket, patience: Patience) -> None:
        self._sock = sock
        self._patience = patience

    @classmethod
    def connect(cls, data_dir: Path, patience: Patience = USUAL) -> "NodeClient":
        """Raises NoNode, with the command that would start one, and DeadlineExceeded."""
        return cls(framing.connect(data_dir), patience)

    def call(
        self,
        op: str,
        args: Mapping[str, Json],
        *,
        fds: Sequence[int] = (),
        progress: Callable[[dict[str, Json]], None] | None = None,
    ) -> Reply:
        """Run one operation in the node and wait for its end; `progress` sees each report on the way.

        Raises the node's own HoardError, NoNode if the node ended meanwhile, and DeadlineExceeded if it hangs: then
        only `close` is left to do.
        """
        long = op in LONG
        seconds = self._patience.silence if long else self._patience.quick
        with self._explained(op, seconds):
            self._sock.settimeout(seconds)
            framing.send(self._sock, {"op": op, "args": dict(args), "seq": 0, "heartbeat": long}, fds)
        while True:
            with self._explained(op, seconds):
                message = framing.receive(self._sock)
            if message is None:
                raise NoNode(f"the node ended during {op}")
            if not message.body.keys() & {"progress", "alive"}:
                break
            message.close()
            report = message.body.get("progress")
            if progress is not None and isinstance(report, dict):
                progress(report)
        framing.raise_error(message.body)
        if message.cut:
            message.close()
            raise no_files_left(op)
        result = message.body.get("result")
        return Reply(result if isinstance(result, dict) else {}, message.fds)

    @contextmanager
    def _explained(self, op: str, seconds: float | None) -> Iterator[None]:
        try:
            yield
        except TimeoutError as error:
            pid = framing.peer_pid(self._sock)
            raise DeadlineExceeded(
                f"the node (pid {pid}) did not answer {op} within {seconds:g} s: it is stopped or hangs; wake it with: "
                f"kill -CONT {pid}, or end it with: kill -9 {pid} (what is stored stays)"
            ) from error
        except OSError as error:
            raise NoNode(f"the node went away during {op}: {error}") from error

    @property
    def node_pid(self) -> int:
        """The node's pid as this process's kernel shows it; 0 if it is not to be seen from here."""
        return framing.peer_pid(self._sock)

    def close(self) -> None:
        self._sock.close()

    def __enter__(self) -> "NodeClient":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
