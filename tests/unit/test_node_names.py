"""Refs and snapshots: what wins, what a text means, what peers may tell."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from hoard_p2p.catalog.layout import Totals
from hoard_p2p.catalog.root import CatalogRun, Root, encode
from hoard_p2p.chunking import FASTCDC
from hoard_p2p.config import Json
from hoard_p2p.errors import BadRequest, Refused, SnapshotAmbiguous, SnapshotUnknown
from hoard_p2p.ids import SnapshotId, chunk_id, snapshot_id
from hoard_p2p.node.names import DEFAULT_KEEP, Names, newer_ref, newer_snapshot, ref_name
from hoard_p2p.peer import NodeId
from hoard_p2p.storage.records import RefRecord, SnapshotRecord, Stamp
from hoard_p2p.storage.store import Store

ME, OTHER = NodeId(b"m" * 16), NodeId(b"o" * 16)
SECOND = 1_000_000_000


class Clock:
    """Nanoseconds that pass when told to."""

    def __init__(self) -> None:
        self.now = 1_700_000_000 * SECOND

    def __call__(self) -> int:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def names(tmp_path: Path, clock: Clock) -> Iterator[Names]:
    with Store.open(tmp_path / "a") as store:
        yield Names(store, ME, clock)


@pytest.fixture
def other(tmp_path: Path, clock: Clock) -> Iterator[Names]:
    with Store.open(tmp_path / "b") as store:
        yield Names(store, OTHER, clock)


def root(seed: int) -> bytes:
    """A root of its own for each seed."""
    totals = Totals(
        files=1,
        directories=1,
        symlinks=0,
        hard_links=0,
        size=9,
        data=9,
        unique=9,
        chunks=1,
        segments=1,
        inodes=2,
    )
    return encode(Root(FASTCDC, totals, 1000, (CatalogRun(chunk_id(b"%d" % seed), 1000),)))


def add(names: Names, seed: int, created: int = SECOND) -> SnapshotId:
    encoded = root(seed)
    identifier = snapshot_id(encoded)
    names.add_snapshot(encoded, SnapshotRecord(identifier, created, created, 2, False, DEFAULT_KEEP, True, "here", 0))
    return identifier


def test_a_name_without_a_tag_is_latest() -> None:
    assert ref_name("imagenet") == "imagenet:latest"
    assert ref_name("team/imagenet:2012") == "team/imagenet:2012"


@pytest.mark.parametrize("text", ["", ":x", "a:b:c", "-x", "a b", "x\n", "é", "a" * 200, "../x"])
def test_what_can_be_no_name_is_refused(text: str) -> None:
    with pytest.raises(BadRequest):
        ref_name(text)


def test_a_snapshot_is_found_by_name_id_and_unique_prefix(names: Names) -> None:
    snapshot = add(names, 1)
    names.tag(snapshot, "set:1", move=False)
    assert {names.resolve(text) for text in ("set:1", snapshot.hex(), snapshot.hex()[:6], snapshot.hex().upper())} == {
        snapshot
    }


def test_short_and_unknown_prefixes_are_unknown(names: Names) -> None:
    snapshot = add(names, 1)
    for text in (snapshot.hex()[:5], "ffffffffffff", "set"):
        with pytest.raises(SnapshotUnknown):
            names.resolve(text)


def test_an_ambiguous_prefix_lists_the_candidates(names: Names) -> None:
    by_prefix: dict[str, list[SnapshotId]] = {}
    for seed in range(1, 40_000):
        identifier = snapshot_id(root(seed))
        group = by_prefix.setdefault(identifier.hex()[:6], [])
        group.append(identifier)
        if len(group) == 2:
            break
    else:
        pytest.fail("no two of these roots share six digits")
    first, second = group
    for seed in range(1, 40_000):
        if snapshot_id(root(seed)) in group:
            add(names, seed)
    with pytest.raises(SnapshotAmbiguous) as caught:
        names.resolve(first.hex()[:6])
    assert first.hex()[:20] in str(caught.value)
    assert second.hex()[:20] in str(caught.value)


def test_a_name_is_moved_only_on_purpose_and_remembers(names: Names) -> None:
    old, new = add(names, 1), add(names, 2)
    names.tag(old, "set", move=False)
    with pytest.raises(Refused, match="--move"):
        names.tag(new, "set", move=False)
    moved = names.tag(new, "set", move=True)
    assert moved.snapshot == new
    assert [value.snapshot for value in moved.history] == [old]


def test_a_named_snapshot_is_removed_only_by_force(names: Names) -> None:
    snapshot = add(names, 1)
    names.tag(snapshot, "set", move=False)
    with pytest.raises(Refused, match="set:latest"):
        names.remove(snapshot, force=False)
    assert names.remove(snapshot, force=True) == ["set:latest"]
    assert names.snapshots() == []
    assert names.refs() == []
    assert names.root(snapshot) is None


def test_what_was_removed_comes_back_when_published_again(names: Names, clock: Clock) -> None:
    snapshot = add(names, 1)
    names.remove(snapshot, force=False)
    clock.now += SECOND
    add(names, 1, created=clock.now)
    assert [record.id for record in names.snapshots()] == [snapshot]
    assert names.root(snapshot) == root(1)


def test_hearsay_does_not_bring_back_what_was_removed(names: Names) -> None:
    snapshot = add(names, 1)
    names.remove(snapshot, force=False)
    add(names, 1, created=1)
    assert names.snapshots() == []
    assert names.root(snapshot) is None


def test_two_nodes_that_tell_each_other_know_the_same(names: Names, other: Names, clock: Clock) -> None:
    shared, gone = add(names, 1), add(names, 2)
    names.tag(shared, "set", move=False)
    other.merge_snapshots(names.snapshot_records(), "a")
    other.merge_refs(names.ref_records(), "a")
    assert other.resolve("set") == shared
    assert other.root(shared) == root(1)
    clock.now += SECOND
    other.remove(gone, force=False)
    other.untag("set")
    names.merge_snapshots(other.snapshot_records(), "b")
    names.merge_refs(other.ref_records(), "b")
    assert [record.id for record in names.snapshots()] == [shared]
    assert names.refs() == []
    assert names.digests() == other.digests()


def test_names_outlive_a_restart(tmp_path: Path, clock: Clock) -> None:
    with Store.open(tmp_path / "d") as store:
        names = Names(store, ME, clock)
        snapshot = add(names, 1)
        names.tag(snapshot, "set", move=False)
        digests = names.digests()
    with Store.open(tmp_path / "d") as store:
        again = Names(store, ME, clock)
        assert again.resolve("set") == snapshot
        assert again.digests() == digests


@pytest.mark.expect_warnings
def test_an_update_from_the_future_is_refused(names: Names, other: Names, clock: Clock) -> None:
    snapshot = add(names, 1)
    clock.now += 61 * SECOND
    names.tag(snapshot, "set", move=False)
    clock.now -= 61 * SECOND
    assert other.merge_refs(names.ref_records(), "a") == 0
    assert other.refs() == []


@pytest.mark.expect_warnings
def test_garbage_from_a_peer_is_left_out_and_the_rest_is_taken(names: Names, other: Names) -> None:
    snapshot = add(names, 1)
    names.tag(snapshot, "set", move=False)
    (good,) = names.ref_records()
    bad: list[dict[str, Json]] = [
        {},
        {**good, "name": "../x"},
        {**good, "stamp": [1]},
        {**good, "snapshot": "zz"},
        {**good, "history": [1]},
    ]
    assert other.merge_refs([*bad, good], "a") == 1
    (record,) = names.snapshot_records()
    wrong_root = {**record, "id": "00" * 32}
    assert other.merge_snapshots([{}, {**record, "root": "!"}, wrong_root, {**record, "created": -1}, record], "a") == 1


def test_the_later_stamp_wins_and_ties_go_by_node() -> None:
    early = RefRecord("x:1", SnapshotId(b"a" * 32), Stamp(5, 0, ME))
    late = replace(early, snapshot=SnapshotId(b"b" * 32), stamp=Stamp(5, 0, OTHER))
    assert newer_ref(early, late) is not None
    assert newer_ref(late, early) is None
    assert newer_ref(early, early) is None


def test_merging_snapshot_records_ends_the_same_in_any_order() -> None:
    base = SnapshotRecord(SnapshotId(b"a" * 32), 10, 10, 2, False, 1, True, "", 0)
    removed = replace(base, removed=20)
    again = replace(base, created=30, replicas=3)

    def merged(*told: SnapshotRecord) -> SnapshotRecord:
        known: SnapshotRecord | None = None
        for record in told:
            known = newer_snapshot(known, record) or known
        assert known is not None
        return known

    results = {
        (record.created, record.removed, record.replicas)
        for record in (
            merged(base, removed, again),
            merged(again, removed, base),
            merged(removed, base, again),
            merged(again, base, removed),
        )
    }
    assert results == {(30, 0, 3)}
