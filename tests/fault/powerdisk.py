"""A disk that can lose its power: the changes made to a small file system, and what of them may be left after a cut.

**The model.** `Log` lists every change in the order in which the file system carried it out. At a cut before entry
number `cut`:

- What was synced is there: every change of a file's bytes, length and blocks that came before an `fsync` or
  `fdatasync` of that file, and every change of a folder's names that came before an `fsync` of that folder. Nothing
  else is promised, as POSIX has it; in particular the sync of a file does not save its name (on ext4 and XFS it does).
- Of the rest anything may be there (`Fate`): nothing; everything; a first part, whose last change is torn, as a journal
  keeps it (ext4, XFS); or any selection, as disks with a cache of their own make it. A write may be torn at boundaries
  of 512 bytes or 4 KiB; what is missing in it shows what was there before, zeros where nothing was, also when the
  file's length survived. A hole that was punched may be there in part, by blocks of 4 KiB. A rename happens or does
  not. A change that needs another one which was lost (the rename of a file that has no name) is lost.
- A sector of 512 bytes is written whole or not at all. LMDB counts on this for its meta page; so do others.

Left out: sectors that read as garbage or as errors (that is damage, found by hashing; other tests have it), disks that
lie about a flush, and attributes, owners and times, on which nothing here depends.
"""

import random
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import NamedTuple, TypeAlias

BLOCK = 4096
SECTOR = 512
ROOT = 1


class Create(NamedTuple):
    """A new file or folder (`mode` says which) under a name that is free."""

    folder: int
    name: bytes
    node: int
    mode: int
    is_folder: bool


class Unlink(NamedTuple):
    folder: int
    name: bytes


class Rename(NamedTuple):
    folder: int
    name: bytes
    to_folder: int
    to_name: bytes


class Write(NamedTuple):
    node: int
    offset: int
    data: bytes


class Truncate(NamedTuple):
    node: int
    size: int


class Allocate(NamedTuple):
    node: int
    offset: int
    length: int
    keep_size: bool


class Punch(NamedTuple):
    node: int
    offset: int
    length: int


class Sync(NamedTuple):
    """fsync or fdatasync of a file, fsync of a folder."""

    node: int


class Mark(NamedTuple):
    """A word of whoever uses the disk: by now this was promised."""

    word: bytes


Change: TypeAlias = Create | Unlink | Rename | Write | Truncate | Allocate | Punch
Entry: TypeAlias = Change | Sync | Mark


class Fate(Enum):
    """What becomes of the changes that were not synced."""

    NOTHING = "nothing"
    EVERYTHING = "everything"
    FIRST = "a first part"
    ANY = "any"


@dataclass(slots=True)
class Node:
    """A file or a folder. `blocks`: content by block number; `reserved`: blocks that are allocated, written or not."""

    mode: int
    is_folder: bool
    names: dict[bytes, int] = field(default_factory=dict)
    blocks: dict[int, bytearray] = field(default_factory=dict)
    reserved: set[int] = field(default_factory=set)
    size: int = 0
    links: int = 1

    def read(self, offset: int, length: int) -> bytes:
        """Clipped at the end of the file."""
        length = max(0, min(length, self.size - offset))
        parts = []
        for number, start, stop in spans(offset, length):
            block = self.blocks.get(number)
            parts.append(bytes(stop - start) if block is None else block[start:stop])
        return b"".join(parts)

    def write(self, offset: int, data: bytes) -> None:
        at = 0
        for number, start, stop in spans(offset, len(data)):
            block = self.blocks.get(number)
            if block is None:
                block = self.blocks[number] = bytearray(BLOCK)
                self.reserved.add(number)
            block[start:stop] = data[at : at + stop - start]
            at += stop - start
        self.size = max(self.size, offset + len(data))

    def truncate(self, size: int) -> None:
        if size < self.size:
            self.punch(size, self.size - size)
            for number in [n for n in self.reserved if n * BLOCK >= size]:
                self.reserved.discard(number)
                self.blocks.pop(number, None)
        self.size = size

    def allocate(self, offset: int, length: int, keep_size: bool) -> None:
        self.reserved.update(range(offset // BLOCK, (offset + length + BLOCK - 1) // BLOCK))
        if not keep_size:
            self.size = max(self.size, offset + length)

    def punch(self, offset: int, length: int) -> None:
        for number, start, stop in spans(offset, length):
            if stop - start == BLOCK:
                self.blocks.pop(number, None)
                self.reserved.discard(number)
            elif (block := self.blocks.get(number)) is not None:
                block[start:stop] = bytes(stop - start)


def spans(offset: int, length: int) -> Iterator[tuple[int, int, int]]:
    """(block, first byte in it, end in it) of a range."""
    end = offset + length
    while offset < end:
        number, start = divmod(offset, BLOCK)
        stop = min(BLOCK, start + end - offset)
        yield number, start, stop
        offset += stop - start


class Disk:
    """The state of the file system after some changes."""

    def __init__(self) -> None:
        self.nodes: dict[int, Node] = {ROOT: Node(0o755, True)}

    def apply(self, change: Change) -> None:
        """Carry out a change if that can be done: see the model."""
        match change:
            case Create(folder, name, node, mode, is_folder):
                known = self.nodes.setdefault(node, Node(mode, is_folder))
                if folder in self.nodes and name not in self.nodes[folder].names:
                    self.nodes[folder].names[name] = node
                    known.links = 1
            case Unlink(folder, name):
                self._forget(folder, name)
            case Rename(folder, name, to_folder, to_name):
                node_number = self._names(folder).pop(name, None)
                if node_number is not None:
                    self._forget(to_folder, to_name)
                    self._names(to_folder)[to_name] = node_number
            case Write(node, offset, data):
                self._file(node).write(offset, data)
            case Truncate(node, size):
                self._file(node).truncate(size)
            case Allocate(node, offset, length, keep_size):
                self._file(node).allocate(offset, length, keep_size)
            case Punch(node, offset, length):
                file = self._file(node)
                file.punch(offset, min(length, max(0, file.size - offset)))

    def _names(self, folder: int) -> dict[bytes, int]:
        return self.nodes.setdefault(folder, Node(0o755, True)).names

    def _file(self, node: int) -> Node:
        return self.nodes.setdefault(node, Node(0o644, False))  # a file whose name was lost

    def _forget(self, folder: int, name: bytes) -> None:
        node = self._names(folder).pop(name, None)
        if node is not None:
            self.nodes[node].links = 0

    def build(self, directory: Path, node: int = ROOT) -> None:
        """Make an ordinary directory of what has a name. It must not exist."""
        directory.mkdir()
        for name, number in self.nodes[node].names.items():
            child = self.nodes[number]
            path = directory / name.decode()
            if child.is_folder:
                self.build(path, number)
                continue
            with path.open("wb", buffering=0) as file:
                file.truncate(child.size)
                for block, data in child.blocks.items():
                    file.seek(block * BLOCK)
                    file.write(data[: max(0, child.size - block * BLOCK)])


class Log:
    """Every change in order, with what makes it durable."""

    def __init__(self, entries: Sequence[Entry]) -> None:
        self.entries = entries
        self._synced = _synced_at(entries)

    def __len__(self) -> int:
        return len(self.entries)

    def marks(self, cut: int) -> list[bytes]:
        """What was promised before the cut."""
        return [entry.word for entry in self.entries[:cut] if isinstance(entry, Mark)]

    def after(self, cut: int, fate: Fate, draw: random.Random) -> Disk:
        """A disk as it may be when the power came back."""
        disk = Disk()
        for change in self._left(cut, fate, draw):
            disk.apply(change)
        return disk

    def _left(self, cut: int, fate: Fate, draw: random.Random) -> Iterator[Change]:
        loose = [n for n in range(cut) if self._synced[n] >= cut and not isinstance(self.entries[n], Sync | Mark)]
        kept = draw.randint(0, len(loose))
        last = loose[kept - 1] if kept and fate is Fate.FIRST else -1
        first = set(loose[: kept - 1] if kept else ())
        luck = draw.choice((0.1, 0.5, 0.9))
        unsure = set(loose)
        for number in range(cut):
            entry = self.entries[number]
            if isinstance(entry, Sync | Mark):
                continue
            if number not in unsure or fate is Fate.EVERYTHING or (fate is Fate.FIRST and number in first):
                yield entry
            elif number == last or (fate is Fate.ANY and draw.random() < luck):
                yield from torn(entry, draw)


def torn(change: Change, draw: random.Random) -> Iterable[Change]:
    """What may be left of one change that was under way."""
    unit = draw.choice((SECTOR, BLOCK))
    match change:
        case Write(node, offset, data):
            if draw.random() < 0.3:
                return [change]
            pieces = [piece for piece in _pieces(offset, len(data), unit) if draw.random() < 0.5]
            left: list[Change] = [Write(node, offset + start, data[start:end]) for start, end in pieces]
            return [*left, Allocate(node, offset, len(data), False)] if draw.random() < 0.5 else left
        case Punch(node, offset, length):
            return [Punch(node, offset + a, b - a) for a, b in _pieces(offset, length, BLOCK) if draw.random() < 0.5]
    return [change]


def _pieces(offset: int, length: int, unit: int) -> Iterator[tuple[int, int]]:
    """A range cut at multiples of `unit`, relative to `offset`."""
    at = 0
    while at < length:
        end = min(length, at + unit - (offset + at) % unit)
        yield at, end
        at = end


def _synced_at(entries: Sequence[Entry]) -> list[int]:
    """For each entry the number of the first sync after it that makes it durable; the length if there is none."""
    next_sync: dict[int, int] = {}
    found = [len(entries)] * len(entries)
    for number in range(len(entries) - 1, -1, -1):
        match entries[number]:
            case Sync(node):
                next_sync[node] = number
            case Create(folder=folder) | Unlink(folder=folder):
                found[number] = next_sync.get(folder, len(entries))
            case Rename(folder=folder, to_folder=to_folder):
                found[number] = min(next_sync.get(each, len(entries)) for each in (folder, to_folder))
            case Write(node=node) | Truncate(node=node) | Allocate(node=node) | Punch(node=node):
                found[number] = next_sync.get(node, len(entries))
    return found
