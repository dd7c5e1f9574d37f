"""Going on with the slab of a large file under another name of that file."""

import logging

from hoard_p2p.errors import Corrupt
from hoard_p2p.storage import files, sidecar
from hoard_p2p.storage.index import Index
from hoard_p2p.storage.layout import sidecar_path
from hoard_p2p.storage.reader import StoreReader

log = logging.getLogger(__name__)


def take_over(index: Index, reader: StoreReader, file_key: bytes, runs: files.Runs) -> int | None:
    """Before the first chunk of a large file is put: if an unfinished slab of another file has chunks of it at their
    own offsets, and nothing else, it is this file's from now on. Its number; None if there is none, or the file has a
    slab already. Raises StoreFailed.

    Who still writes it under its old name is to put it aside. What he writes meanwhile is seen when it is opened again.
    """
    with index.read() as txn:
        found = files.unfinished_slab(txn, file_key, runs)
    if found is None:
        return None
    slab, record = found
    try:
        with sidecar_path(reader.slab_path(slab)).open("rb") as file:
            listed = reader.committed(list(sidecar.scan(file.fileno())))
    except (OSError, Corrupt) as error:
        log.info("slab %d is not taken over: %s", slab, error)
        return None
    if not files.is_part_of(listed, runs):
        return None
    with index.write() as txn:
        return slab if files.rename_slab(txn, slab, record, file_key) else None
