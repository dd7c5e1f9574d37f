"""Several snapshots of one data directory, read at the same time."""

from pathlib import Path

from hoard_p2p.ids import ChunkId
from hoard_p2p.node.reading import Stores
from hoard_p2p.storage.store import Store

UNKNOWN = ChunkId(bytes(32))


def test_readers_of_one_data_directory_share_it_and_it_can_be_opened_again(tmp_path: Path) -> None:
    Store.open(tmp_path).close()
    stores = Stores()
    for _ in range(2):
        with stores.reader(tmp_path) as one, stores.reader(tmp_path) as other:
            assert one is other
            assert other.place(UNKNOWN) is None
    with stores.reader(tmp_path) as one:
        with stores.reader(tmp_path):
            pass
        assert one.place(UNKNOWN) is None, "the inner one left it open"
