"""Telling others where the readers of a mount are, cheaply enough for every READ: the verifier, which reads ahead of
them, and the node, which fetches ahead."""

import os
import time

from hoard_p2p.catalog.reader import Catalog
from hoard_p2p.interfaces import LocalChunks, MissChannel
from hoard_p2p.mount.shared import SharedState

REGION = 22
"""A reader is told of once per 4 MiB (1 << 22) of the chunk table."""
REMEMBERED = 1024
"""Regions remembered as told: 4 GiB of reading."""
BELL_SECONDS = 0.002
"""Between two rings of the bell. A reader that jumps about would wake the verifier at each READ."""


class Progress:
    """Where the readers behind one worker are. Single-threaded."""

    def __init__(
        self,
        catalog: Catalog,
        chunks: LocalChunks,
        misses: MissChannel,
        shared: SharedState,
        *,
        hint_bell: int,
        verify: str,
    ) -> None:
        """`hint_bell`: the verifier's eventfd. `verify`: only with `first` is there anything to verify ahead."""
        self._catalog = catalog
        self._position = catalog.position
        self._chunks = chunks
        self._misses = misses
        self._shared = shared
        self._bell = hint_bell
        self._verifying = verify == "first"
        self._told: set[int] = set()
        self._segments: set[int] = set()
        self._quiet_until = 0.0

    def at(self, run: int) -> None:
        """A READ begins in chunk run `run`. Raises CatalogCorrupt."""
        region = self._position(run) >> REGION
        if region not in self._told:
            self._enter(region, run)

    def _enter(self, region: int, run: int) -> None:
        if len(self._told) >= REMEMBERED:
            self._told.clear()
            self._segments.clear()
        self._told.add(region)
        if self._verifying:
            self._hint(run)
        self._touch(run)

    def _hint(self, run: int) -> None:
        self._shared.hint(run)
        now = time.monotonic()
        if now >= self._quiet_until:
            self._quiet_until = now + BELL_SECONDS
            os.eventfd_write(self._bell, 1)

    def _touch(self, run: int) -> None:
        """Tell the node, once per segment, if the next one is not here."""
        catalog = self._catalog
        if catalog.is_hole(run):
            return
        segment = catalog.segment_of(run)
        if segment in self._segments:
            return
        self._segments.add(segment)
        if segment + 1 < catalog.segments:
            following = catalog.segment_runs(segment + 1).start
            if not catalog.is_hole(following) and self._chunks.place(catalog.chunk_id(following)) is None:
                self._misses.touch(run)
