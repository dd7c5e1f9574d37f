"""Collections that move to disk when they grow."""

import os
import random
from contextlib import closing
from pathlib import Path

from hoard_p2p.publish.spill import LinkMap, PathQueue, SortedRecords, spill_into


def test_names_come_back_sorted_and_once_whether_or_not_they_fit_in_memory(tmp_path: Path) -> None:
    rng = random.Random(1)
    names = [rng.randbytes(rng.randrange(1, 255)) for _ in range(5000)]
    for limit in (7, 600, 10_000):
        with closing(SortedRecords(spill_into(tmp_path), limit)) as sorter:
            for name in [*names, *names[:100]]:
                sorter.add(name)
            assert list(sorter) == sorted(set(names))


def test_a_directory_without_names_has_none(tmp_path: Path) -> None:
    with closing(SortedRecords(spill_into(tmp_path))) as sorter:
        assert list(sorter) == []


def test_a_queue_keeps_its_order_while_it_goes_to_disk_and_back(tmp_path: Path) -> None:
    rng = random.Random(2)
    paths = [rng.randbytes(rng.randrange(0, 60)) for _ in range(3000)]
    coming = iter(paths)
    with closing(PathQueue(spill_into(tmp_path), limit=500)) as queue:
        got: list[bytes] = []
        for path in coming:
            queue.put(path)
            if rng.random() < 0.45 and (out := queue.get()) is not None:
                got.append(out)
        while (out := queue.get()) is not None:
            got.append(out)
        assert got == paths
        queue.put(b"again")
        assert queue.get() == b"again"


def test_links_are_found_again_after_they_moved_to_disk(tmp_path: Path) -> None:
    keys = [(device, inode) for device in (0, 2**64 - 1) for inode in (0, 1, 2**63, 2**64 - 1)]
    with closing(LinkMap(tmp_path, limit=3)) as links:
        for number, key in enumerate(keys):
            assert links.get(key) is None
            links.set(key, number)
        assert [links.get(key) for key in keys] == list(range(len(keys)))
        links.set(keys[0], 77)
        links.set(keys[1], 78)
        links.set(keys[2], 79)
        assert [links.get(key) for key in keys[:4]] == [77, 78, 79, 3]


def test_spilled_collections_leave_no_name_and_no_descriptor(tmp_path: Path) -> None:
    before = set(os.listdir("/proc/self/fd"))
    links = LinkMap(tmp_path, limit=1)
    names = SortedRecords(spill_into(tmp_path), limit=1)
    queue = PathQueue(spill_into(tmp_path), limit=1)
    links.set((1, 1), 1)
    names.add(b"x")
    queue.put(b"x")
    queue.put(b"y")
    assert list(tmp_path.iterdir()) == []
    for each in (links, names, queue):
        each.close()
    assert set(os.listdir("/proc/self/fd")) == before
