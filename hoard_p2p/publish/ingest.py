"""From a directory to a snapshot: walk, read, cut and hash in parallel, store, and build the catalog in order.

The calling thread walks, and builds the catalog. A pool reads and hashes small files, in batches, and the chunks of
large ones, which a few lanes read and cut. All of them end before the call returns (I10).
"""

import os
import sqlite3
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, closing

from hoard_p2p.catalog.builder import CatalogBuilder, Totals
from hoard_p2p.catalog.root import MAX_INLINE_RUNS, CatalogRun, Root, encode, encode_list
from hoard_p2p.errors import Refused, StoreFailed
from hoard_p2p.ids import chunk_id, snapshot_id
from hoard_p2p.interfaces import ChunkSink
from hoard_p2p.publish.assembly import Assembly
from hoard_p2p.publish.attributes import read_attributes
from hoard_p2p.publish.board import Counts
from hoard_p2p.publish.crew import Crew
from hoard_p2p.publish.deposit import Deposit, Piece
from hoard_p2p.publish.entries import Content, EntryReader, HardLink, Outcome, SmallFiles, Step
from hoard_p2p.publish.estimate import Estimate
from hoard_p2p.publish.exclude import Rules
from hoard_p2p.publish.large import LANES, LargeFile, WindowReader
from hoard_p2p.publish.outcome import Phase, Progress, PublishOptions, PublishResult
from hoard_p2p.publish.pipeline import Pipeline
from hoard_p2p.publish.spill import LinkMap, spill_into
from hoard_p2p.publish.stampmemory import Memory
from hoard_p2p.publish.stamps import Remembering
from hoard_p2p.publish.stampsift import Sifted, Unchanged
from hoard_p2p.publish.tally import Pace, Tally, TreeCount
from hoard_p2p.publish.walk import Found, Walk
from hoard_p2p.segments import data_size

MAX_THREADS = 16
"""More would not help: the interpreter lock is the limit long before. Each takes a buffer of 3 MiB."""


def publish_directory(
    dir_fd: int,
    sink: ChunkSink,
    options: PublishOptions,
    *,
    report: Callable[[Progress], None],
    stop: Callable[[], bool],
    remembering: Remembering | None = None,
    crew: Crew | None = None,
) -> PublishResult:
    """Put the tree beneath `dir_fd` into `sink` and return its root. Blocking; `dir_fd` stays open and the caller's.

    The same tree and options give the same snapshot id (I6), whatever the order of directories on disk, threads,
    locale or the layout of holes. Memory is bounded, whatever the tree. `report` is called from the calling thread, at
    most ten times a second and once per phase; `stop` as often, and when it turns true the publish ends soon with
    Refused. With `remembering`, files that the last publish read and nobody changed since are not read, if the sink
    has their chunks; the result is the same. With a `crew` its processes read the files, and store them in their own
    sinks; it stays the caller's, but serves one publish. Nothing is shown anywhere: chunks that were put before a
    failure are left for the store to reclaim.
    Raises SourceUnreadable (naming each path), SourceChanging, StoreFailed, BadRequest (a pattern), Refused.
    """
    status = os.fstat(dir_fd)
    if (status.st_dev, status.st_ino) == options.own_data:
        raise Refused("this is the data directory of a node; publish something else")
    try:
        with ExitStack() as stack:
            publish = _Publish(
                dir_fd, sink, options, stack, report=report, stop=stop, remembering=remembering, crew=crew
            )
            publish.read_tree()
            return publish.finish()
    except (OSError, sqlite3.Error) as error:  # those of the source were caught where they arose
        raise StoreFailed(f"publishing needs room for temporary files in {options.temp_dir}: {error}") from error


class _Publish:
    """One publish: the parts that work on it, and how each of them ends."""

    def __init__(
        self,
        dir_fd: int,
        sink: ChunkSink,
        options: PublishOptions,
        stack: ExitStack,
        *,
        report: Callable[[Progress], None],
        stop: Callable[[], bool],
        remembering: Remembering | None,
        crew: Crew | None,
    ) -> None:
        """Every part ends when `stack` closes. Raises BadRequest."""
        self._dir_fd = dir_fd
        self._sink = sink
        self._crew = crew
        self._options = options
        self._rules = rules = Rules(options.exclude)
        self._unchanged = 0
        spill = spill_into(options.temp_dir)
        links = stack.enter_context(closing(LinkMap(options.temp_dir)))
        builder = stack.enter_context(CatalogBuilder(spill=spill, keep_owner=options.preserve_owner))
        self._catalog = stack.enter_context(spill())
        self._walk = Walk(dir_fd, rules, spill, options.own_data)
        self._estimate = Estimate(options.chunker, sink.has, options.fits)
        self._count = TreeCount(dir_fd, rules, spill, options.own_data, self._estimate)
        self._deposit = Deposit(sink)
        self._tally = Tally(self._deposit, self._count, self._done_elsewhere)
        self._pace = Pace(lambda phase: self._report(phase, report), stop)
        self._assembly = Assembly(builder, links, self._tally, options, self._read_now)
        self._memory = Memory(remembering, sink, spill, stack, listed=rules.empty)
        self._start(stack)

    def _start(self, stack: ExitStack) -> None:
        """The threads. `stack` ends them from the last line to the first: first they are told, then waited for, then
        what they used is closed."""
        threads = min(self._options.threads or len(os.sched_getaffinity(0)), MAX_THREADS)
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="publish-hash")
        self._lanes = ThreadPoolExecutor(LANES, thread_name_prefix="publish-read")
        self._windows = WindowReader(
            self._options.chunker, self._deposit, self._pool, threads=threads, check=self._pace.check
        )
        self._reader = EntryReader(self._small_files, self._read_large, self._pace.pause)
        self._pipeline = Pipeline(
            len(self._crew) if self._crew else threads, self._read_batch, self._settle, self._pace.tick
        )
        stack.callback(self._windows.close)
        stack.callback(self._reader.close)
        stack.callback(self._pipeline.close)
        stack.callback(self._pool.shutdown, cancel_futures=True)
        stack.callback(self._lanes.shutdown, cancel_futures=True)
        stack.callback(self._end)
        stack.callback(self._count.close)
        self._count.start()

    def read_tree(self) -> None:
        """Afterwards everything of the tree is in the sink and in the builder, or is known to be left out."""
        self._pace.enter(Phase.READING)
        self._count.lead(self._pace.tick)
        self._estimate.check()
        status = os.fstat(self._dir_fd)
        self._assembly.add_root(status, read_attributes(self._dir_fd))
        self._memory.add_root(self._dir_fd, status)
        with closing(self._walk.events()) as events, closing(self._memory.sifted(events)) as sifted:
            for event in sifted:
                self._take(event)
        self._pipeline.finish()
        self._estimate.check()

    def finish(self) -> PublishResult:
        """Catalog, root and flush."""
        self._pace.enter(Phase.CATALOG)
        totals = self._assembly.finish(self._catalog)
        root = encode(self._root(totals))
        self._pace.enter(Phase.SYNC)
        flushes = self._crew.flush() if self._crew else []
        for flush in (*flushes, self._pool.submit(self._sink.flush)):
            self._pipeline.wait_for(flush)
        result = PublishResult(
            root=root,
            snapshot=snapshot_id(root),
            totals=totals,
            stored=self._tally.stored,
            deduplicated=self._tally.deduplicated,
            skipped=self._assembly.skipped(),
            not_kept=self._assembly.not_kept(),
            unmatched_excludes=self._rules.unmatched(),
            unchanged=self._unchanged,
        )
        self._memory.write(result, sound=self._assembly.as_told)
        return result

    def _report(self, phase: Phase, report: Callable[[Progress], None]) -> None:
        if phase is Phase.READING:
            self._estimate.check()
        report(self._tally.progress(phase))

    def _take(self, event: Sifted) -> None:
        if isinstance(event, Unchanged):
            self._take_unchanged(event)
        elif not isinstance(event, Found):
            self._pipeline.add(event)
        elif self._assembly.seen(event):
            self._pipeline.add_work(HardLink(event), event.directory, 0)
        else:
            self._pipeline.add_work(event, event.directory, event.status.st_size)

    def _take_unchanged(self, event: Unchanged) -> None:
        if self._assembly.seen(event.found):
            self._pipeline.add_work(HardLink(event.found), event.found.directory, 0)
            return
        self._unchanged += 1
        self._deposit.count_known(data_size(event.file.runs))
        self._tally.moved(event.file.status.st_size)
        self._pipeline.add(event.file)

    def _settle(self, outcome: Outcome) -> None:
        self._assembly.add(outcome)
        self._memory.add(outcome)
        self._reader.only_open = self._assembly.failed
        if self._crew and self._assembly.failed:
            self._crew.only_open()

    def _read_batch(self, steps: list[Step]) -> Future[list[Outcome]]:
        return self._crew.read(steps) if self._crew else self._pool.submit(self._reader.read_batch, steps)

    def _done_elsewhere(self) -> Counts:
        return self._crew.counts if self._crew else Counts()

    def _end(self) -> None:
        """Have every thread and process stop where it next looks."""
        self._pace.end()
        if self._crew:
            self._crew.end()

    def _small_files(self, arena: memoryview) -> SmallFiles:
        return SmallFiles(arena, self._options.chunker, self._deposit, self._tally.moved)

    def _read_large(self, found: Found) -> Future[Content]:
        intake = LargeFile(self._windows, self._sink, self._tally.moved)
        return self._lanes.submit(self._reader.read_alone, found, intake)

    def _read_now(self, found: Found) -> Content:
        return self._pipeline.wait_for(self._read_large(found))

    def _root(self, totals: Totals) -> Root:
        """The root, after the catalog's bytes were cut and put like those of one more file."""
        self._tally.files_end()
        self._catalog.flush()
        length = os.fstat(self._catalog.fileno()).st_size
        work = self._lanes.submit(self._windows.runs, self._catalog.fileno(), length, None, lambda _: None)
        runs = tuple(CatalogRun(*run) for run in self._pipeline.wait_for(work) or ())
        inline = len(runs) <= MAX_INLINE_RUNS
        return Root(
            chunker=self._options.chunker,
            totals=totals,
            catalog_length=length,
            catalog_runs=runs if inline else (),
            catalog_list=None if inline else self._put_list(encode_list(runs)),
            keep_owner=self._options.preserve_owner,
            keep_mtimes=not self._options.reproducible,
        )

    def _put_list(self, data: bytes) -> CatalogRun:
        name = chunk_id(data)
        self._deposit.keep([Piece(name, memoryview(data), 0)])
        return CatalogRun(name, len(data))
