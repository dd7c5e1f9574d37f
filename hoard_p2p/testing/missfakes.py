"""The miss channel without a node: what a mount's workers ask goes to a test, which answers."""

import json
import socket
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from hoard_p2p.interfaces import Found, MissFailed, Place

DEADLINE = 20.0
"""Seconds after which waiting for a real process is given up."""


class SocketMisses:
    """`MissChannel` to a `FakeNode`: one message per question and answer, a line of JSON and then bytes."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._socket: socket.socket | None = None
        self._outstanding: dict[int, bytes] = {}
        self.tend()

    def fileno(self) -> int:
        return -1 if self._socket is None else self._socket.fileno()

    def ask(self, run: int, span: tuple[int, int] | None = None) -> None:
        if run not in self._outstanding:
            self._send(run, {"ask": run})

    def distrust(self, run: int, place: Place) -> None:
        self._send(run, {"distrust": run, "place": list(place)})

    def touch(self, run: int) -> None:
        """A fake node fetches nothing ahead."""

    def answers(self) -> list[Found | MissFailed]:
        answers = []
        while self._socket is not None:
            try:
                message = self._socket.recv(1 << 20)
            except BlockingIOError:
                break
            except OSError:
                message = b""
            if not message:
                self._socket.close()
                self._socket = None
                break
            answers.append(_answer(message))
            self._outstanding.pop(answers[-1].run, None)
        return answers

    def trouble(self) -> str:
        return "no fake node" if self._socket is None else ""

    def tend(self) -> None:
        if self._socket is not None:
            return
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        try:
            connection.connect(str(self._path))
        except OSError:
            connection.close()
            return
        connection.setblocking(False)
        self._socket = connection
        for message in self._outstanding.values():
            connection.send(message)

    def _send(self, run: int, question: dict[str, object]) -> None:
        self._outstanding[run] = json.dumps(question).encode()
        if self._socket is not None:
            with suppress(OSError):
                self._socket.send(self._outstanding[run])


def _answer(message: bytes) -> Found | MissFailed:
    head, _, data = message.partition(b"\n")
    said = json.loads(head)
    if "failed" in said:
        return MissFailed(said["run"], said["failed"])
    return Found(said["run"], Place(*said["place"]) if said["place"] else None, data)


@dataclass(frozen=True, slots=True)
class Question:
    """What a worker asked; `distrusted`: the place that it found damaged."""

    run: int
    distrusted: Place | None
    asker: socket.socket


class FakeNode:
    """The other end of every worker's `SocketMisses`. `answer` is called for each question, in the node's thread; what
    it does not answer stays in `questions` for the test."""

    def __init__(
        self, path: Path, answer: Callable[["FakeNode", Question], bool] = lambda node, question: False
    ) -> None:
        self._answer = answer
        self._changed = threading.Condition()
        self.questions: list[Question] = []
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._listener.bind(str(path))
        self._listener.listen(16)
        path.chmod(0o777)
        self._sockets: list[socket.socket] = [self._listener]
        self._threads = [threading.Thread(target=self._accept)]
        self._threads[0].start()

    def __enter__(self) -> "FakeNode":
        return self

    def __exit__(self, *_: object) -> None:
        for each in list(self._sockets):
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join(DEADLINE)
        for each in self._sockets:
            each.close()

    def wait_for(self, count: int) -> list[Question]:
        """The questions so far, once there are at least `count`. Raises TimeoutError."""
        with self._changed:
            if not self._changed.wait_for(lambda: len(self.questions) >= count, DEADLINE):
                raise TimeoutError(f"{len(self.questions)} questions instead of {count}")
            return list(self.questions)

    @staticmethod
    def found(question: Question, place: Place | None, data: bytes = b"") -> None:
        head = json.dumps({"run": question.run, "place": list(place) if place else None}).encode()
        question.asker.send(head + b"\n" + data)

    @staticmethod
    def failed(question: Question, message: str) -> None:
        question.asker.send(json.dumps({"run": question.run, "failed": message}).encode() + b"\n")

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                connection, _ = self._listener.accept()
                self._sockets.append(connection)
                self._threads.append(threading.Thread(target=self._listen, args=(connection,)))
                self._threads[-1].start()

    def _listen(self, connection: socket.socket) -> None:
        with suppress(OSError):
            while message := connection.recv(1 << 16):
                said = json.loads(message)
                place = Place(*said["place"]) if "place" in said else None
                question = Question(said.get("ask", said.get("distrust")), place, connection)
                if not self._answer(self, question):
                    with self._changed:
                        self.questions.append(question)
                        self._changed.notify_all()
