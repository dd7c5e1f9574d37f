"""`hoard doctor --rebuild-index`: the index made again while no node runs, and large files recorded whose slabs are
complete."""

import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from hoard_p2p.catalog.reader import Catalog
from hoard_p2p.catalog.root import CatalogRun, Root, check, decode_list
from hoard_p2p.catalog.root import decode as decode_root
from hoard_p2p.errors import ChunkCorrupt, Corrupt, HoardError, NoNode, Refused
from hoard_p2p.ids import HOLE, chunk_id, short
from hoard_p2p.mount.users import crews, reads_from
from hoard_p2p.node.keeping import settle_file
from hoard_p2p.storage.layout import DataDir
from hoard_p2p.storage.lock import NodeLock
from hoard_p2p.storage.rebuild import Rebuilt, rebuild
from hoard_p2p.storage.store import Store
from hoard_p2p.storage.writer import ChunkWriter

log = logging.getLogger(__name__)


LARGE = 1 << 20
"""Bytes: a smaller file is one chunk, and never has a slab of its own."""


@dataclass(slots=True)
class Outcome:
    """`files`: large files that the kernel can read by itself again; `catalogs`: snapshots whose catalogs are here."""

    rebuilt: Rebuilt
    files: int = 0
    catalogs: int = 0
    without: list[str] = field(default_factory=list)


def rebuild_index(data_dir: Path, report: Callable[[int, int], None]) -> Outcome:
    """Raises NoNode if there is no store, NodeRunning, Refused while mounts read by the old index, StoreFailed."""
    layout = DataDir(data_dir)
    if not layout.check_format() and not layout.slabs.exists():
        raise NoNode(f"there is no store in {data_dir}")
    _refuse_mounts(data_dir)
    lock = NodeLock(layout.lock)
    try:
        outcome = Outcome(rebuild(layout, report))
    finally:
        lock.release()
    with Store.open(data_dir) as store, store.writer() as writer:
        for name, catalog in _catalogs(store, outcome):
            outcome.catalogs += 1
            outcome.files += _settle(store, writer, name, catalog)
    return outcome


def _refuse_mounts(data_dir: Path) -> None:
    pids = sorted({pid for device, crew in crews().items() if reads_from(device, data_dir) for pid in crew})
    if pids:
        listed = " ".join(map(str, pids))
        raise Refused(
            f"mounts of {data_dir} read by the index that is there now (processes {listed}): unmount them first, "
            "hoard status or hoard doctor names them"
        )


def _catalogs(store: Store, outcome: Outcome) -> Iterator[tuple[str, Catalog]]:
    """Of the living snapshots, those whose catalogs are here whole."""
    for record in store.snapshots():
        root = store.root(record.id)
        if record.removed or root is None:
            continue
        try:
            catalog = _catalog(store, decode_root(root))
        except Corrupt as error:
            log.info("the catalog of %s is not here whole: %s", short(record.id), error)
            outcome.without.append(record.id.hex())
            continue
        try:
            yield record.id.hex(), catalog
        finally:
            catalog.close()


def _catalog(store: Store, root: Root) -> Catalog:
    """Raises Corrupt if it is not here, or wrong."""
    runs = root.catalog_runs
    if root.catalog_list is not None:
        runs = decode_list(_bytes(store, [root.catalog_list]), root)
    catalog = Catalog(memoryview(_bytes(store, runs)))
    check(root, catalog)
    return catalog


def _bytes(store: Store, runs: "list[CatalogRun] | tuple[CatalogRun, ...]") -> bytes:
    parts = []
    for run in runs:
        part = bytearray(run.length)
        if run.chunk_id != HOLE:
            found = store.reader().read_into(run.chunk_id, 0, memoryview(part))
            if found is None or chunk_id(part) != run.chunk_id:
                raise ChunkCorrupt(f"chunk {short(run.chunk_id)} is not here")
        parts.append(part)
    return b"".join(parts)


def _settle(store: Store, writer: ChunkWriter, name: str, catalog: Catalog) -> int:
    """Large files whose slabs are complete, or nearly; how many."""
    done = 0
    try:
        for inode in (inode for inode, size in enumerate(catalog.sizes()) if size > LARGE and catalog.is_file(inode)):
            done += settle_file(store, writer, catalog, inode)
        writer.flush()
    except HoardError as error:
        log.warning("the large files of %s were not all looked through: %s", name[:12], error)
    return done
