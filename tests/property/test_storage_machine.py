"""The store as a state machine against a dictionary: put, large files, flush, damage, quarantine, restart, kill."""

import shutil
import tempfile
from pathlib import Path

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from hoard_p2p.ids import ChunkId, chunk_id
from hoard_p2p.storage.groups import WriterSettings
from hoard_p2p.storage.store import Store

PIECES = st.builds(
    lambda byte, length: bytes([byte]) * length, st.integers(0, 9), st.sampled_from([1, 100, 4096, 9000])
)


class StoreMachine(RuleBasedStateMachine):
    """`put` maps every chunk that was put and not lost to its bytes; `safe` are those that were flushed."""

    def __init__(self) -> None:
        super().__init__()
        self.directory = Path(tempfile.mkdtemp(prefix="store-machine-"))
        self.bytes: dict[ChunkId, bytes] = {}
        self.files: set[bytes] = set()
        self._open()

    def _open(self) -> None:
        self.store = Store.open(self.directory)
        self.writer = self.store.writer(WriterSettings(group_chunks=5, group_seconds=3600))

    def teardown(self) -> None:
        self.store.close()
        shutil.rmtree(self.directory)

    @rule(data=PIECES)
    def put(self, data: bytes) -> None:
        self.writer.put(chunk_id(data), data)
        self.bytes[chunk_id(data)] = data

    @rule(pieces=st.lists(PIECES, min_size=1, max_size=5), resumed=st.booleans())
    def put_file(self, pieces: list[bytes], resumed: bool) -> None:
        key = chunk_id(b"".join(pieces))[:16]
        size = sum(map(len, pieces))
        sink = self.writer.resume_file(key, size) if resumed else self.writer.open_file(size)
        offset = 0
        for data in pieces:
            sink.put(chunk_id(data), data, offset)
            offset += len(data)
            self.bytes[chunk_id(data)] = data
        sink.finish(key, [(chunk_id(data), len(data)) for data in pieces])

    @rule()
    def flush(self) -> None:
        self.writer.flush()
        places = self.store.reader().places(list(self.bytes))
        assert all(place is not None for place in places)

    @rule()
    def restart(self) -> None:
        start = self.store.start_number
        self.store.close()
        self._open()
        assert self.store.start_number == start + 1
        assert self.store.extents_count() == len(self.bytes)

    @rule(data=st.data())
    def quarantine_all_places_of_one(self, data: st.DataObject) -> None:
        if not self.bytes:
            return
        self.writer.flush()
        victim = data.draw(st.sampled_from(sorted(self.bytes)))
        seen = set()
        while (place := self.store.reader().place(victim)) is not None:
            assert place.generation not in seen
            seen.add(place.generation)
            assert self.store.quarantine(victim, place)
        del self.bytes[victim]

    @invariant()
    def everything_put_reads_back(self) -> None:
        for identifier, data in self.bytes.items():
            place = self.writer.pending(identifier) or self.store.reader().place(identifier)
            assert place is not None
            assert place.length == len(data)
            into = bytearray(len(data))
            self.store.reader().read_at(place, 0, memoryview(into))
            assert into == data

    @invariant()
    def has_agrees(self) -> None:
        unknown = ChunkId(bytes(32))
        assert self.writer.has([*self.bytes, unknown]) == [True] * len(self.bytes) + [False]


StoreMachine.TestCase.settings = settings(
    max_examples=15,
    stateful_step_count=15,
    deadline=None,
    derandomize=True,
    database=None,
    suppress_health_check=list(HealthCheck),
)
TestStoreMachine = StoreMachine.TestCase
