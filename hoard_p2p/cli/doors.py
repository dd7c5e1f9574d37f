"""What commands reach the node through: handed to each command, so that tests can hand in others."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from hoard_p2p.config import Json

if TYPE_CHECKING:
    from hoard_p2p.catalog.reader import Catalog
    from hoard_p2p.node.reading import Stores

Body = dict[str, Json]


class Reply(Protocol):
    """What an operation of the node returned."""

    @property
    def body(self) -> Body: ...


class Client(Protocol):
    """A connection to the node of one data directory."""

    def call(
        self,
        op: str,
        args: Mapping[str, Json],
        *,
        fds: Sequence[int] = (),
        progress: Callable[[Body], None] | None = None,
    ) -> Reply:
        """Run one operation to its end. Raises the node's HoardError, or NoNode."""
        ...


class Snapshot(Protocol):
    """One open snapshot."""

    @property
    def catalog(self) -> "Catalog": ...

    @property
    def snapshot(self) -> str:
        """The snapshot id in hexadecimal."""
        ...

    def read(self, inode: int, offset: int, size: int) -> bytes:
        """Bytes of a regular file, clipped at its end. Raises Unavailable or Corrupt."""
        ...

    def stream(self, inode: int) -> Iterator[memoryview]:
        """A regular file from start to end; each view is good until the next. Raises Unavailable or Corrupt."""
        ...


@dataclass(frozen=True, slots=True)
class Doors:
    """`connect(data_dir)` raises NoNode; `reading(data_dir, text)` raises NoNode, NotFound or Unavailable.
    Several snapshots may be open, the last one is closed first."""

    connect: Callable[[Path], AbstractContextManager[Client]]
    reading: Callable[[Path, str], AbstractContextManager[Snapshot]]


def _connect(data_dir: Path) -> AbstractContextManager[Client]:
    from hoard_p2p.node.client import NodeClient

    return NodeClient.connect(data_dir)


class _Reading:
    """Opens snapshots; those that are open at the same time share what may be open only once."""

    def __init__(self) -> None:
        self._stores: Stores | None = None

    def __call__(self, data_dir: Path, text: str) -> AbstractContextManager[Snapshot]:
        from hoard_p2p.node.reading import Stores, open_snapshot

        self._stores = self._stores or Stores()
        return open_snapshot(self._stores, data_dir, text)


def node_doors() -> Doors:
    """The real ones."""
    return Doors(_connect, _Reading())
