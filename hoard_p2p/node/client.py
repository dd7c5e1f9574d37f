"""The short-lived side of the node's unix socket: what commands use. Blocking."""

import socket
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

from hoard_p2p.config import Json
from hoard_p2p.errors import NoNode
from hoard_p2p.node import framing


@dataclass(frozen=True, slots=True)
class Reply:
    """What an operation returned; the caller owns (and closes) `fds`."""

    body: dict[str, Json]
    fds: tuple[int, ...]


class NodeClient:
    """One connection; one call at a time. Closing it in the middle of a call cancels that call in the node."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock

    @classmethod
    def connect(cls, data_dir: Path) -> "NodeClient":
        """Raises NoNode, with the command that would start one."""
        return cls(framing.connect(data_dir))

    def call(
        self,
        op: str,
        args: Mapping[str, Json],
        *,
        fds: Sequence[int] = (),
        progress: Callable[[dict[str, Json]], None] | None = None,
    ) -> Reply:
        """Run one operation in the node and wait for its end; `progress` sees each report on the way.

        Raises the node's own HoardError, or NoNode if the node ended meanwhile.
        """
        try:
            framing.send(self._sock, {"op": op, "args": dict(args), "seq": 0}, fds)
            while (message := framing.receive(self._sock)) is not None:
                if "progress" in message.body:
                    self._report(message, progress)
                    continue
                framing.raise_error(message.body)
                result = message.body.get("result")
                return Reply(result if isinstance(result, dict) else {}, message.fds)
        except OSError as error:
            raise NoNode(f"the node went away during {op}: {error}") from error
        raise NoNode(f"the node ended during {op}")

    @staticmethod
    def _report(message: framing.Message, progress: Callable[[dict[str, Json]], None] | None) -> None:
        report = message.body["progress"]
        message.close()
        if progress is not None and isinstance(report, dict):
            progress(report)

    def close(self) -> None:
        self._sock.close()

    def __enter__(self) -> "NodeClient":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
