"""From the listing of an origin to a lazy snapshot, in memory that does not grow with the number of entries.

The listing may come in any order: it is written to temporary files in sorted runs, and these are merged into the
catalog. No byte of the objects is read.
"""

import sqlite3
from collections.abc import Callable
from contextlib import ExitStack, closing
from dataclasses import dataclass
from pathlib import Path

from hoard_p2p.catalog.builder import CatalogBuilder, Totals
from hoard_p2p.catalog.root import Root, encode
from hoard_p2p.chunking import PIECES
from hoard_p2p.errors import SourceUnmappable, StoreFailed
from hoard_p2p.ids import SnapshotId, snapshot_id
from hoard_p2p.interfaces import ChunkSink
from hoard_p2p.objects import Origin
from hoard_p2p.publish.catalogfile import CatalogChunks, put_catalog
from hoard_p2p.publish.exclude import Rules
from hoard_p2p.publish.outcome import Named, Phase
from hoard_p2p.publish.recording import Recording
from hoard_p2p.publish.sorted_tree import SortedTree, TreeOptions
from hoard_p2p.publish.spill import LinkMap, PathQueue, SortedRecords, spill_into
from hoard_p2p.publish.tally import Pace
from hoard_p2p.publish.unmapped import Unmapped


@dataclass(frozen=True, slots=True)
class LazyOptions:
    """What the user asked of a publish from an origin. `exclude`: patterns, see `exclude.Rules`. `temp_dir`: where
    intermediate files go (unlinked from the start), inside the data directory; they take about 400 bytes an entry.
    `own_data`: the path in the data set where the node's own data directory lies, which is left out; empty: outside.
    `skip_unmappable`: leave out what cannot be a file, instead of failing for it."""

    temp_dir: Path
    exclude: tuple[bytes, ...] = ()
    preserve_owner: bool = False
    reproducible: bool = False
    skip_unmappable: bool = False
    own_data: bytes = b""


@dataclass(frozen=True, slots=True)
class LazyProgress:
    """Where it stands. `entries` (files and symbolic links) and `bytes` are what was listed so far; `done`: entries
    that are in the catalog."""

    phase: Phase
    entries: int
    bytes: int
    done: int
    unmappable: int


@dataclass(frozen=True, slots=True)
class LazyResult:
    """A lazy snapshot; its catalog is in the sink and flushed. `stored`: bytes of it that were not stored before.
    `special`: devices, sockets and FIFOs, which are left out. `own_data`: the node's data directory, likewise.
    `excluded`: entries that patterns left out."""

    root: bytes
    snapshot: SnapshotId
    totals: Totals
    stored: int
    unmappable: Named
    special: Named
    own_data: Named
    excluded: int
    unmatched_excludes: tuple[bytes, ...] = ()


def build_lazy(
    origin: Origin,
    options: LazyOptions,
    sink: ChunkSink,
    *,
    report: Callable[[LazyProgress], None],
    stop: Callable[[], bool],
) -> LazyResult:
    """List `origin` and put the catalog of a lazy snapshot into `sink`. Blocking.

    The same listing, in whatever order, gives the same snapshot id. Memory is bounded. `report` and `stop` as for
    `publish_directory`. Raises OriginFailed and its kin, SourceUnmappable (after the whole listing, and before anything
    is put), StoreFailed, BadRequest (a pattern), Refused (stopped).
    """
    try:
        with ExitStack() as stack:
            lazy = _Lazy(origin, options, stack, report=report, stop=stop)
            lazy.list_entries()
            return lazy.finish(sink)
    except (OSError, sqlite3.Error) as error:  # an origin's own errors are OriginFailed
        raise StoreFailed(f"publishing needs room for temporary files in {options.temp_dir}: {error}") from error


class _Lazy:
    """One such publish."""

    def __init__(
        self,
        origin: Origin,
        options: LazyOptions,
        stack: ExitStack,
        *,
        report: Callable[[LazyProgress], None],
        stop: Callable[[], bool],
    ) -> None:
        """Everything is closed with `stack`. Raises BadRequest."""
        spill = spill_into(options.temp_dir)
        self._origin = origin
        self._options = options
        self._rules = Rules(options.exclude)
        self._unmapped = Unmapped()
        self._records = stack.enter_context(closing(SortedRecords(spill)))
        self._recording = Recording(self._rules, self._records, self._unmapped, options.own_data)
        self._catalog = stack.enter_context(spill())
        links = stack.enter_context(closing(LinkMap(options.temp_dir)))
        builder = stack.enter_context(CatalogBuilder(spill=spill, keep_owner=options.preserve_owner, lazy=True))
        kept = TreeOptions(keep_mtimes=not options.reproducible, skip_unmappable=options.skip_unmappable)
        directories = stack.enter_context(closing(PathQueue(spill)))
        self._tree = SortedTree(builder, links, directories, origin.identity, self._unmapped, options=kept)
        self._report = report
        self._pace = Pace(self._tell, stop)

    def list_entries(self) -> None:
        """Afterwards all that can be in the snapshot is in the records."""
        self._pace.enter(Phase.LISTING)
        for entry in self._origin.listing():
            self._recording.add(entry)
            self._pace.tick()

    def finish(self, sink: ChunkSink) -> LazyResult:
        """Catalog, root and flush."""
        self._pace.enter(Phase.CATALOG)
        self._tree.build(self._records, self._pace.tick)
        if self._unmapped.count and not self._options.skip_unmappable:
            raise SourceUnmappable(self._unmapped.count, self._unmapped.first)
        totals = self._tree.finish(self._catalog)
        self._pace.enter(Phase.SYNC)
        chunks = put_catalog(self._catalog, sink)
        root = encode(self._root(totals, chunks))
        sink.flush()
        return LazyResult(
            root=root,
            snapshot=snapshot_id(root),
            totals=totals,
            stored=chunks.stored,
            unmappable=self._unmapped.named(),
            special=self._recording.special.named(),
            own_data=self._recording.own_data.named(),
            excluded=self._recording.excluded,
            unmatched_excludes=self._rules.unmatched(),
        )

    def _tell(self, phase: Phase) -> None:
        recording = self._recording
        self._report(LazyProgress(phase, recording.entries, recording.bytes, self._tree.done, self._unmapped.count))

    def _root(self, totals: Totals, chunks: CatalogChunks) -> Root:
        return Root(
            chunker=PIECES,
            totals=totals,
            catalog_length=chunks.length,
            catalog_runs=chunks.runs,
            catalog_list=chunks.runs_list,
            lazy=True,
            keep_owner=self._options.preserve_owner,
            keep_mtimes=not self._options.reproducible,
        )
