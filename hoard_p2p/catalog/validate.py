"""The full check of a catalog, in O(n): beyond the checks at each use, that it is the one that its tree makes. Pure."""

from collections import Counter
from collections.abc import Mapping
from typing import TYPE_CHECKING

from hoard_p2p.catalog.layout import Column
from hoard_p2p.errors import CatalogCorrupt
from hoard_p2p.ids import ChunkId, is_origin_key, slot_id
from hoard_p2p.segments import Segmenter

if TYPE_CHECKING:
    from hoard_p2p.catalog.reader import Catalog


def validate(catalog: "Catalog", columns: Mapping[Column, memoryview]) -> None:
    """Raises CatalogCorrupt. Not checked: that `canonical` finds every repetition (that would take a table of all
    ids), and the padding between sections. Memory: 8 bytes a segment, and a counter per hard link set."""
    _validate_tree(catalog)
    _validate_entries(catalog)
    _validate_heap(catalog, columns)
    _validate_runs(catalog)
    _validate_segments(catalog, columns)
    _validate_xattrs(catalog, columns)
    _validate_versions(catalog, columns)


def _validate_tree(catalog: "Catalog") -> None:
    """The children of the directories, in order, are the inodes from 1 on; names ascend within each."""
    following = 1
    for inode in range(catalog.inodes):
        if not catalog.is_dir(inode):
            continue
        entries = catalog.children(inode)
        _require(entries.start == following, f"entries of directory {inode} begin at {entries.start}, not {following}")
        following = entries.stop
        last = b""
        for entry in entries:
            name = catalog.name(entry)
            _require(name > last, f"entry {entry} of directory {inode} is out of order")
            last = name
    _require(following == catalog.inodes and catalog.is_dir(0), "directories do not hold every inode")


def _validate_entries(catalog: "Catalog") -> None:
    """Attributes are in range; links are counted where they point."""
    names: Counter[int] = Counter()
    for inode in range(catalog.inodes):
        target = catalog.resolve(inode)
        if target != inode:
            names[target] += 1
        catalog.mode(inode)
        catalog.parent(inode)
        if catalog.is_dir(inode):
            _require(catalog.size(inode) == 0, f"directory {inode} has a size")
    for inode in range(catalog.inodes):
        _require(
            catalog.resolve(inode) != inode or catalog.nlink(inode) == 1 + names[inode],
            f"link count of {inode} is wrong",
        )


def _validate_heap(catalog: "Catalog", columns: Mapping[Column, memoryview]) -> None:
    """Names lie without gaps from the start of the heap, symlink targets follow in inode order."""
    offsets = columns[Column.NAME]
    _require(offsets[0] == offsets[1] == 0, "the root has a name")
    here = offsets[catalog.inodes]
    for inode in range(catalog.inodes):
        target = catalog.target(inode)
        if target:
            _require(columns[Column.FIRST][inode] == here, f"target of symlink {inode} is not at {here} of the heap")
            here += len(target)
    _require(here == len(columns[Column.NAME_HEAP]), "the name heap has bytes that nothing uses")


def _validate_runs(catalog: "Catalog") -> None:
    """The files' runs, in inode order, are the chunk table; lengths and first occurrences are right."""
    following = 0
    for inode in range(catalog.inodes):
        if catalog.is_file(inode) and catalog.resolve(inode) == inode:
            runs = catalog.runs(inode)
            _require(runs.start == following, f"runs of file {inode} begin at {runs.start}, not {following}")
            following = runs.stop
    _require(following == catalog.chunks, "the chunk table has runs of no file")
    holes = False
    for run in range(catalog.chunks):
        catalog.length(run)
        hole = catalog.is_hole(run)
        holes |= hole
        _require(catalog.canonical(run) == run or not hole, f"hole {run} points to another")
    _require(holes == catalog.has_holes, "the flag for holes is wrong")


def _validate_segments(catalog: "Catalog", columns: Mapping[Column, memoryview]) -> None:
    """The segments are those that the chunk table makes, or in a data set from an origin, the places of its pieces."""
    segmenter = Segmenter()
    placed = Column.SEGMENT_KEY in columns
    for inode in range(catalog.inodes):
        if catalog.resolve(inode) == inode:
            runs = [(catalog.chunk_id(run), catalog.length(run)) for run in catalog.runs(inode)]
            segmenter.add_file(runs, inode, _slots(catalog, inode) if placed and runs else None)
    made = segmenter.finish()
    _require(not placed or made.keys == columns[Column.SEGMENT_KEY].tobytes(), "placement keys are not those of places")
    _require(len(made.files) == catalog.segments, f"{catalog.segments} segments, the chunks make {len(made.files)}")
    for segment, file in enumerate(made.files):
        expected = range(made.firsts[segment], made.firsts[segment + 1])
        _require(catalog.segment_runs(segment) == expected, f"segment {segment} is not {expected}")
        _require(catalog.segment_file(segment) == file, f"segment {segment} is not in file {file}")
        catalog.segment_chunks(segment)


def _slots(catalog: "Catalog", inode: int) -> list[ChunkId]:
    path, runs = catalog.path_of(inode), catalog.runs(inode)
    return [slot_id(path, catalog.run_offset(inode, run)) for run in runs]


def _validate_xattrs(catalog: "Catalog", columns: Mapping[Column, memoryview]) -> None:
    """Every entry of the attribute sections is found from its inode, and nothing is left over."""
    if not catalog.has_xattrs:
        return
    inodes, offsets = columns[Column.XATTR_INODE], columns[Column.XATTR_OFFSET]
    last = -1
    for place, inode in enumerate(inodes):
        _require(last < inode < catalog.inodes, f"attributes of inode {inode} after those of {last}")
        _require(catalog.resolve(inode) == inode and bool(catalog.xattrs(inode)), f"attributes of inode {inode}")
        _require(offsets[place] < offsets[place + 1], f"attributes of inode {inode} are out of order")
        last = inode
    ends = (offsets[0], offsets[len(inodes)])
    _require(ends == (0, len(columns[Column.XATTR_HEAP])) and len(inodes) > 0, "attributes do not fill their heap")


def _validate_versions(catalog: "Catalog", columns: Mapping[Column, memoryview]) -> None:
    """Only files of lazy snapshots have versions, which fill their heap; all chunk ids of these are origin keys."""
    if not catalog.is_lazy:
        _require(not catalog.provenance.has_origin_keys, "it has origin keys, and no versions")
        return
    offsets = columns[Column.VERSION]
    ends = (offsets[0], offsets[catalog.inodes])
    _require(ends == (0, len(columns[Column.VERSION_HEAP])), "versions do not fill their heap")
    for inode in range(catalog.inodes):
        plain = catalog.is_file(inode) and catalog.resolve(inode) == inode
        _require(plain or offsets[inode] == offsets[inode + 1], f"{inode} is no file and has a version")
        catalog.version(inode)
    for run in range(catalog.chunks):
        _require(is_origin_key(catalog.chunk_id(run)), f"run {run} of a lazy snapshot has no origin key")


def _require(condition: bool, what: str) -> None:
    if not condition:
        raise CatalogCorrupt(f"catalog is damaged: {what}")
