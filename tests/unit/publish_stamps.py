"""Publishing again and again into memory, each time with what the last publish remembered."""

import os
import subprocess
import sys
import time
from contextlib import closing
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import BinaryIO

from hoard_p2p.config import Json
from hoard_p2p.publish import PublishOptions, PublishResult, publish_directory, stampscan
from hoard_p2p.publish.stamps import Known, Remembering, StampFile
from hoard_p2p.testing.memory import MemorySink, catalog_of
from tests.unit.publish_trees import options

LATER = 10_000_000_000
"""Nanoseconds that publishes seem to come later, so that a tree just made does not count as one that is being written.
It is safe to say so: reading waits until a young file's next change gets another stamp."""


def describe(result: PublishResult) -> dict[str, Json]:
    return {"not_kept": [{"name": kind.name} for kind in result.not_kept]}


def aged(stamps: StampFile) -> bytes:
    """The same stamps, as if the publish that wrote them had begun LATER: then nothing in them is racy."""
    header = stamps.header
    meta = replace(stamps.meta, begin=stamps.meta.begin + LATER).encode()
    rest = stamps.data[header.rows_at :]
    header.meta = len(meta)
    header.flags |= stampscan.FLAG_QUICK
    digest = stampscan.digest_of(header, [meta, rest])
    return header.pack(drops=header.drops, digest=digest) + meta + rest


@dataclass
class Again:
    """One source, published into one sink. `later`: see LATER."""

    source: Path
    later: int = LATER
    chosen: PublishOptions | None = None
    sink: MemorySink = field(default_factory=MemorySink)
    last: PublishResult | None = None
    stamps: BinaryIO | None = None

    def publish(self, *, rehash: bool = False) -> PublishResult:
        """Publish, from what the last one remembered unless `rehash`."""
        fd = os.open(self.source, os.O_RDONLY | os.O_DIRECTORY)
        known = None if rehash else self._known()
        out = (self.source.parent / "stamps").open("w+b", buffering=0)
        try:
            self.last = publish_directory(
                fd,
                self.sink,
                self.chosen or options(self.source.parent),
                report=lambda _: None,
                stop=lambda: False,
                remembering=Remembering(out, describe, known, lambda: time.time_ns() + self.later),
            )
        finally:
            os.close(fd)
            if known is not None:
                known.catalog.close()
                known.stamps.close()
            self.close()
            (self.source.parent / "stamps").unlink()
        self.stamps = out
        return self.last

    def full(self) -> PublishResult:
        """What a publish gives that knows nothing."""
        with closing(Again(self.source, self.later, self.chosen)) as fresh:
            return fresh.publish()

    @property
    def file(self) -> StampFile:
        assert self.stamps is not None
        return StampFile(self.stamps.fileno())

    def looks_equal(self) -> bool:
        """What the quick look says."""
        assert self.stamps is not None
        with Path(stampscan.__file__).open() as script:
            root = os.open(self.source, os.O_RDONLY | os.O_DIRECTORY)
            try:
                command = [sys.executable, "-I", "-S", script.name, str(self.stamps.fileno()), str(root)]
                done = subprocess.run(command, pass_fds=(self.stamps.fileno(), root), timeout=60, check=False)
            finally:
                os.close(root)
        assert done.returncode in (stampscan.EQUAL, stampscan.DIFFERENT), done.returncode
        return done.returncode == stampscan.EQUAL

    def close(self) -> None:
        if self.stamps is not None:
            self.stamps.close()
            self.stamps = None

    def _known(self) -> Known | None:
        if self.stamps is None or self.last is None:
            return None
        stamps = self.file
        assert stamps.is_whole()
        assert stamps.meta.snapshot == self.last.snapshot.hex()
        return Known(stamps, catalog_of(self.last.root, self.sink.chunks))
