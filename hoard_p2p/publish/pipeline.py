"""Steps in order through a pool of threads: batched on the way in, in order again on the way out."""

from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, wait
from typing import TypeVar

from hoard_p2p.publish.entries import BATCH_BYTES, Outcome, Step
from hoard_p2p.publish.walk import Directory

BATCH_FILES = 32
"""Files that one task reads; handing a task over costs about 30 us."""

BATCH_STEPS = 256

DIRECTORIES = 256
"""Directories that steps under way may keep open."""

POLL = 0.05
"""Seconds between two ticks while waiting."""

T = TypeVar("T")


class _Batch:
    """Steps for one task. The directories are held for them."""

    def __init__(self) -> None:
        self.steps: list[Step] = []
        self.directories: list[Directory] = []
        self.files = 0
        self.size = 0

    def release(self) -> None:
        while self.directories:
            self.directories.pop().release()


class Pipeline:
    """Takes steps in order and gives `settle` their outcomes in the same order. Used from one thread."""

    def __init__(
        self,
        readers: int,
        read_batch: Callable[[list[Step]], Future[list[Outcome]]],
        settle: Callable[[Outcome], None],
        tick: Callable[[], None],
    ) -> None:
        """`read_batch` has steps carried out by one of `readers` threads or processes. `tick` is called often, and may
        raise to stop."""
        self._window = 2 * readers + 4
        self._most_directories = max(1, DIRECTORIES // self._window)
        self._read_batch = read_batch
        self._settle = settle
        self._tick = tick
        self._batch = _Batch()
        self._under_way: deque[tuple[_Batch, Future[list[Outcome]]]] = deque()

    def add(self, step: Step) -> None:
        """A step with nothing to read. Raises what earlier steps raised."""
        self._batch.steps.append(step)
        if len(self._batch.steps) >= BATCH_STEPS:
            self._submit()

    def add_work(self, step: Step, directory: Directory, size: int) -> None:
        """A step that reads about `size` bytes beneath `directory`, which is held until the step is settled. Raises
        what earlier steps raised."""
        batch = self._batch
        if not batch.directories or batch.directories[-1] is not directory:
            directory.hold()
            batch.directories.append(directory)
        batch.files += 1
        batch.size += size
        self.add(step)
        if batch is self._batch and self._is_full(batch):
            self._submit()

    def finish(self) -> None:
        """Settle everything that was added. Raises what steps raised."""
        self._submit()
        while self._under_way:
            self._settle_oldest()

    def close(self) -> None:
        """Let go of the directories of steps that were not settled. No thread may be at work on them any more."""
        for batch, _ in self._under_way:
            batch.release()
        self._under_way.clear()
        self._batch.release()

    def wait_for(self, future: "Future[T]") -> T:
        """The result of `future`, ticking while it takes time. Raises what it raised."""
        while not future.done():
            self._tick()
            wait((future,), POLL)
        return future.result()

    def _is_full(self, batch: _Batch) -> bool:
        return (
            batch.files >= BATCH_FILES or batch.size >= BATCH_BYTES or len(batch.directories) >= self._most_directories
        )

    def _submit(self) -> None:
        self._tick()
        if self._batch.steps:
            future = self._read_batch(self._batch.steps)
            self._under_way.append((self._batch, future))
            self._batch = _Batch()
        while len(self._under_way) > self._window:
            self._settle_oldest()

    def _settle_oldest(self) -> None:
        batch, future = self._under_way[0]
        for outcome in self.wait_for(future):
            self._settle(self.wait_for(outcome) if isinstance(outcome, Future) else outcome)
        self._under_way.popleft()
        batch.release()
