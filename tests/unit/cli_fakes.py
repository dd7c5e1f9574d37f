"""A node and snapshots in memory, handed to commands through `Doors`."""

import io
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path

from hoard_p2p.catalog.builder import CatalogBuilder, Meta
from hoard_p2p.catalog.reader import Catalog
from hoard_p2p.cli.doors import Body, Client, Doors, Snapshot
from hoard_p2p.config import Json
from hoard_p2p.errors import HoardError, SnapshotUnknown
from hoard_p2p.ids import HOLE, ChunkId, chunk_id

DIRECTORY, FILE, LINK = 0o040000, 0o100000, 0o120000
MTIME = 1_500_000_000_123_456_789


@dataclass
class File:
    """`parts`: data, or the length of a hole."""

    parts: Sequence[bytes | int] = ()
    mode: int = 0o644
    mtime: int = MTIME
    xattrs: tuple[tuple[bytes, bytes], ...] = ()


@dataclass
class Link:
    target: bytes


@dataclass
class Hard:
    """One more name of the file at a path that comes earlier in breadth-first order."""

    path: bytes


@dataclass
class Dir:
    entries: Mapping[bytes, "File | Link | Hard | Dir"] = field(default_factory=dict)
    mode: int = 0o755
    mtime: int = MTIME
    xattrs: tuple[tuple[bytes, bytes], ...] = ()


class TreeSnapshot:
    """A snapshot made of a `Dir`, with a real catalog; it keeps owners if there is an `owner`, of everything."""

    def __init__(self, tree: Dir, name: str = "ab" * 32, owner: tuple[int, int] | None = None) -> None:
        self.snapshot = name
        self._chunks: dict[ChunkId, bytes] = {}
        self._inodes: dict[bytes, int] = {}
        self._owner = owner or (0, 0)
        with CatalogBuilder(spill=io.BytesIO, keep_owner=owner is not None) as builder:
            out = io.BytesIO()
            self._build(builder, tree)
            builder.finish(out)
        self.catalog = Catalog(memoryview(out.getvalue()))

    def _build(self, builder: CatalogBuilder, tree: Dir) -> None:
        builder.add_root(Meta(DIRECTORY | tree.mode, tree.mtime, *self._owner, tree.xattrs))
        waiting = deque([(b"", tree)])
        while waiting:
            prefix, directory = waiting.popleft()
            builder.next_directory()
            for name, entry in sorted(directory.entries.items()):
                path = prefix + name
                self._add(builder, name, path, entry)
                if isinstance(entry, Dir):
                    waiting.append((path + b"/", entry))

    def _add(self, builder: CatalogBuilder, name: bytes, path: bytes, entry: File | Link | Hard | Dir) -> None:
        match entry:
            case Dir():
                builder.add_directory(name, Meta(DIRECTORY | entry.mode, entry.mtime, *self._owner, entry.xattrs))
            case Link():
                builder.add_symlink(name, Meta(LINK | 0o777, MTIME, *self._owner), entry.target)
            case Hard():
                builder.add_hard_link(name, self._inodes[entry.path])
            case File():
                runs = [self._run(part) for part in entry.parts]
                meta = Meta(FILE | entry.mode, entry.mtime, *self._owner, entry.xattrs)
                self._inodes[path] = builder.add_file(name, meta, sum(length for _, length in runs), runs)

    def _run(self, part: bytes | int) -> tuple[ChunkId, int]:
        if isinstance(part, int):
            return HOLE, part
        self._chunks[chunk_id(part)] = part
        return chunk_id(part), len(part)

    def read(self, inode: int, offset: int, size: int) -> bytes:
        catalog = self.catalog
        return b"".join(
            bytes(span.length)
            if catalog.is_hole(span.run)
            else self._chunks[catalog.chunk_id(span.run)][span.start : span.start + span.length]
            for span in catalog.span(inode, offset, size)
        )

    def stream(self, inode: int) -> Iterator[memoryview]:
        for run in self.catalog.runs(inode):
            yield memoryview(self.read(inode, self.catalog.run_offset(inode, run), self.catalog.length(run)))


class FailingSnapshot(TreeSnapshot):
    """Reads of one file raise."""

    def __init__(self, tree: Dir, name: bytes, error: HoardError) -> None:
        super().__init__(tree)
        self._name, self._error = name, error

    def stream(self, inode: int) -> Iterator[memoryview]:
        if self.catalog.name(inode) == self._name:
            raise self._error
        return super().stream(inode)


@dataclass
class FakeReply:
    body: Body


class FakeNode:
    """Answers operations from functions, and keeps what it was asked."""

    def __init__(self, **answers: Callable[[Body], Body] | Body | HoardError) -> None:
        self._answers = answers
        self.asked: list[tuple[str, Body]] = []
        self.fds: list[int] = []
        self.progress: list[Body] = []
        self.snapshots: dict[str, Snapshot] = {}

    def call(
        self,
        op: str,
        args: Mapping[str, Json],
        *,
        fds: Sequence[int] = (),
        progress: Callable[[Body], None] | None = None,
    ) -> FakeReply:
        self.asked.append((op, dict(args)))
        self.fds = list(fds)
        for report in self.progress:
            if progress is not None:
                progress(report)
        answer = self._answers[op]
        if isinstance(answer, HoardError):
            raise answer
        return FakeReply(answer(dict(args)) if callable(answer) else answer)

    def doors(self) -> Doors:
        return Doors(self._connect, self._reading)

    def _connect(self, data_dir: Path) -> AbstractContextManager[Client]:
        return nullcontext(self)

    @contextmanager
    def _reading(self, data_dir: Path, text: str) -> Iterator[Snapshot]:
        if text not in self.snapshots:
            raise SnapshotUnknown(f"no snapshot {text}")
        yield self.snapshots[text]
