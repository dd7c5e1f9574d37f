"""What a store knows of origin keys: that they are found again by their bytes, after crashes and rebuilds too."""

import logging
from pathlib import Path

import lmdb
import pytest

from hoard_p2p.errors import StoreFailed
from hoard_p2p.ids import ChunkId, chunk_id, origin_key
from hoard_p2p.storage import keybook
from hoard_p2p.storage.groups import WriterSettings
from hoard_p2p.storage.layout import DataDir
from hoard_p2p.storage.reader import StoreReader
from hoard_p2p.storage.rebuild import rebuild
from hoard_p2p.storage.records import FileSlab
from hoard_p2p.storage.store import Store

DATA = b"some bytes of an object" * 300
CONTENT = chunk_id(DATA)


def key(number: int) -> ChunkId:
    return origin_key(b"s3://bucket/object", b"etag", number, len(DATA))


def test_a_key_is_found_by_its_bytes_before_and_after_they_are_durable(tmp_path: Path) -> None:
    with Store.open(tmp_path) as store, store.writer(WriterSettings(group_seconds=3600)) as writer:
        assert writer.content(key(1)) is None
        assert writer.has([key(1), CONTENT]) == [False, False]
        writer.put(CONTENT, DATA)
        writer.know(key(1), CONTENT)
        assert writer.content(key(1)) == CONTENT
        assert writer.has([key(1), key(2), CONTENT]) == [True, False, True]
        assert store.contents([key(1)]) == [None]
        writer.flush()
        assert writer.content(key(1)) == CONTENT
        assert store.contents([key(1), key(2), CONTENT]) == [CONTENT, None, CONTENT]
        place = store.reader().place(key(1))
        assert place is not None and place == store.reader().place(CONTENT)


def test_a_key_whose_bytes_are_stored_already_is_learned_all_the_same(tmp_path: Path) -> None:
    with Store.open(tmp_path) as store, store.writer() as writer:
        writer.put(CONTENT, DATA)
        writer.flush()
        writer.know(key(1), CONTENT)
        writer.flush()
        assert store.contents([key(1)]) == [CONTENT]


def test_a_key_is_not_learned_by_a_writer_that_is_closed(tmp_path: Path) -> None:
    with Store.open(tmp_path) as store:
        writer = store.writer()
        writer.close()
        with pytest.raises(StoreFailed, match="closed"):
            writer.know(key(1), CONTENT)


@pytest.mark.expect_warnings
def test_the_first_word_on_a_key_stays_and_the_second_is_counted(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with Store.open(tmp_path) as store, store.writer() as writer, caplog.at_level(logging.WARNING):
        writer.know(key(1), CONTENT)
        writer.flush()
        writer.know(key(1), chunk_id(b"others"))
        writer.flush()
        assert store.contents([key(1)]) == [CONTENT]
        assert store.keybook.conflicts == 1
    assert CONTENT.hex()[:12] in caplog.text and chunk_id(b"others").hex()[:12] in caplog.text


def test_what_was_wrong_about_a_key_can_be_forgotten_and_learned_anew(tmp_path: Path) -> None:
    with Store.open(tmp_path) as store, store.writer() as writer:
        writer.know(key(1), chunk_id(b"wrong"))
        writer.know(key(2), CONTENT)
        writer.flush()
        store.unknow([key(1), key(3)])
        assert store.contents([key(1), key(2)]) == [None, CONTENT]
        assert [pair for part in keybook.told(tmp_path / "keys") for pair in part] == [(key(2), CONTENT)]
        writer.know(key(1), CONTENT)
        writer.flush()
        assert store.contents([key(1)]) == [CONTENT]


def test_a_rebuilt_index_knows_the_keys_whose_bytes_are_here(tmp_path: Path) -> None:
    with Store.open(tmp_path) as store, store.writer() as writer:
        writer.put(CONTENT, DATA)
        writer.know(key(1), CONTENT)
        writer.flush()
        writer.know(key(2), chunk_id(b"not here"))
        writer.know(key(3), CONTENT)
        writer.flush()
    rebuild(DataDir(tmp_path), lambda *_: None)
    with Store.open(tmp_path) as store:
        assert store.contents([key(1), key(2), key(3)]) == [CONTENT, None, CONTENT]


def test_the_journal_of_keys_is_written_anew_when_it_is_damaged_or_gone(tmp_path: Path) -> None:
    with Store.open(tmp_path) as store, store.writer() as writer:
        assert store.mend() == 0
        writer.know(key(1), CONTENT)
        writer.flush()
        assert store.mend() == 0
        path = tmp_path / "keys"
        raw = bytearray(path.read_bytes())
        raw[20] ^= 1
        path.write_bytes(raw)
        assert store.mend() == 1
        path.unlink()
        assert store.mend() == 1
        assert [pair for part in keybook.told(path) for pair in part] == [(key(1), CONTENT)]


def test_a_store_that_has_no_table_of_keys_yet_can_be_read_and_opened(tmp_path: Path) -> None:
    with Store.open(tmp_path) as store, store.writer() as writer:
        writer.put(CONTENT, DATA)
        writer.flush()
    env = lmdb.open(str(tmp_path / "index"), max_dbs=32)
    with env.begin(write=True) as txn:
        txn.drop(env.open_db(b"keys", txn, create=False))
    env.close()
    with StoreReader.open(tmp_path) as reader:
        assert reader.content(key(1)) is None
        assert reader.places([key(1), CONTENT])[0] is None
        assert reader.place(CONTENT) is not None
        assert reader.file_slab(bytes(15) + b"f") is None
    with Store.open(tmp_path) as store:
        assert store.contents([key(1)]) == [None]


def test_a_large_file_is_found_by_both_of_its_names(tmp_path: Path) -> None:
    lazy, sealed = b"lazy".ljust(16, b"."), b"sealed".ljust(16, b".")
    with Store.open(tmp_path) as store, store.writer() as writer:
        sink = writer.resume_file(lazy, len(DATA))
        sink.put(CONTENT, DATA, 0)
        slab = store.file_slab(lazy)
        assert slab is not None and not slab.complete
        writer.know(key(1), CONTENT)
        writer.know_file(lazy, sealed)
        sink.finish(sealed, [(CONTENT, len(DATA))])
        writer.flush()
        assert store.file_slab(lazy) == store.file_slab(sealed) == FileSlab(slab.slab, True)
        assert store.life.file_slabs() == [(sealed, slab.slab)]
        store.reclaimer.drop([CONTENT])
        assert store.file_slab(lazy) == store.file_slab(sealed) == FileSlab(slab.slab, False)


def test_a_file_whose_slab_is_gone_gets_a_new_one_that_both_names_find(tmp_path: Path) -> None:
    lazy, sealed = b"lazy".ljust(16, b"."), b"sealed".ljust(16, b".")
    with Store.open(tmp_path) as store, store.writer() as writer:
        writer.know_file(lazy, sealed)
        writer.flush()
        writer.resume_file(lazy, len(DATA)).put(CONTENT, DATA, 0)
        found = store.file_slab(sealed)
        assert found is not None and found == store.file_slab(lazy)
