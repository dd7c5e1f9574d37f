"""Nodes that were away for longer than removals are remembered, and removals that are forgotten."""

import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hoard_p2p.ids import snapshot_id
from hoard_p2p.node import gossip, presence
from hoard_p2p.node.absence import AWAY_MS, MARGIN_MS, Contact, decode_contact, encode_contact
from hoard_p2p.node.app import Node
from hoard_p2p.node.merging import DAY_NS, tombstone_limit
from hoard_p2p.node.names import DEFAULT_KEEP, Names
from hoard_p2p.node.names_wire import Record, ref_json, snapshot_json
from hoard_p2p.peer import NodeId
from hoard_p2p.storage.chronicle import Chronicle
from hoard_p2p.storage.journal import scan
from hoard_p2p.storage.layout import DataDir
from hoard_p2p.storage.records import RefRecord, SnapshotRecord, Stamp
from hoard_p2p.storage.store import Store
from tests.unit.node_cluster import meet, run, running, until
from tests.unit.node_roots import a_root

DAY_MS = DAY_NS // 1_000_000
TIMES = st.integers(0, 1 << 50)


def ago(days: float) -> int:
    """Nanoseconds since the epoch."""
    return time.time_ns() - int(days * DAY_NS)


def known_since(data_dir: Path, contact: Contact, **published: float) -> None:
    """A store that knows snapshots, published and named so many days ago, and has that contact."""
    with Store.open(data_dir) as store:
        for name, days in published.items():
            root = a_root(sum(name.encode()))
            names = Names(store, store.node_id, lambda days=days: ago(days))  # type: ignore[misc]
            made = SnapshotRecord(snapshot_id(root), ago(days), ago(0), 2, False, DEFAULT_KEEP, True, name)
            names.add_snapshot(root, made)
            names.tag(made.id, name, move=False)
        store.note({presence.CONTACT: encode_contact(contact)})


def days(last: float, since: float) -> Contact:
    return Contact(ago(last) // 1_000_000, ago(since) // 1_000_000)


def named(node: Node) -> set[str]:
    """Empty while it knows only one of a name and its snapshot."""
    if {ref.snapshot for ref in node.names.refs()} != {record.id for record in node.names.snapshots()}:
        return set()
    return {ref.name.removesuffix(":latest") for ref in node.names.refs()}


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(presence, "RETURN_SECONDS", 0.5)
    monkeypatch.setattr(gossip, "SYNC_SECONDS", 0.1)


@pytest.mark.expect_warnings
def test_what_was_removed_while_a_node_was_away_for_long_does_not_come_back_with_it(tmp_path: Path) -> None:
    known_since(tmp_path / "there", days(0, 100), kept=60)
    known_since(tmp_path / "back", days(45, 100), kept=60, removed=60, made_alone=40)

    async def main() -> None:
        async with running(tmp_path / "there") as there, running(tmp_path / "back", there) as back:
            await until(lambda: named(back) == named(there) == {"kept", "made_alone"})
            await until(lambda: back.names.drop_tombstones() == 0 and back.names.digests() == there.names.digests())

    run(main)


def test_a_node_that_is_new_does_not_make_one_forget_that_was_away(tmp_path: Path) -> None:
    known_since(tmp_path / "back", days(45, 100), old=60)
    known_since(tmp_path / "new", days(0, 44))

    async def main() -> None:
        async with running(tmp_path / "new") as new, running(tmp_path / "back", new) as back:
            await until(lambda: named(back) == named(new) == {"old"})

    run(main)


@pytest.mark.expect_warnings
def test_a_node_that_learned_all_from_one_that_was_there_can_say_what_was_removed(tmp_path: Path) -> None:
    known_since(tmp_path / "there", days(0, 100), kept=60)
    known_since(tmp_path / "back", days(45, 100), kept=60, removed=60)

    async def main() -> None:
        async with running(tmp_path / "new") as new:
            async with running(tmp_path / "there", new):
                await until(lambda: new.gossip.exchange.telling.since < ago(99) // 1_000_000)
            async with running(tmp_path / "back", new) as back:
                await until(lambda: named(back) == {"kept"})
                assert named(new) == {"kept"}

    run(main)


def test_two_clusters_that_never_met_keep_what_both_know(tmp_path: Path) -> None:
    known_since(tmp_path / "one", Contact(0, ago(100) // 1_000_000), a=60)
    known_since(tmp_path / "two", Contact(0, ago(200) // 1_000_000), b=150)

    async def main() -> None:
        async with running(tmp_path / "one") as one, running(tmp_path / "two", one) as two:
            await until(lambda: named(one) == named(two) == {"a", "b"})

    run(main)


def test_a_cluster_that_was_switched_off_for_long_forgets_nothing(tmp_path: Path) -> None:
    known_since(tmp_path / "one", days(50, 100), a=60)
    known_since(tmp_path / "two", days(50, 100), b=60)

    async def main() -> None:
        async with running(tmp_path / "one") as one, running(tmp_path / "two", one) as two:
            await until(lambda: named(one) == named(two) == {"a", "b"})

    run(main)


def test_a_node_that_is_away_tells_nothing_before_it_has_asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(presence, "RETURN_SECONDS", 3600.0)
    known_since(tmp_path / "back", days(45, 100), old=60)

    async def main() -> None:
        async with running(tmp_path / "back") as back, running(tmp_path / "new", back) as new:
            await new.ask_names()
            assert await new.control.snapshots(back.me) == await new.control.refs(back.me) == ()
            assert not named(new)
            assert named(back) == {"old"}

    run(main)


def test_a_contact_is_kept_over_restarts(tmp_path: Path) -> None:
    async def main() -> None:
        async with running(tmp_path / "a") as first, running(tmp_path / "b") as second:
            await meet(first, second)
            await until(lambda: bool(first.store.meta(presence.CONTACT)) and _last(first) > 0)

    run(main)
    with Store.open(tmp_path / "a") as store, ThreadPoolExecutor(1) as pool:
        names = Names(store, store.node_id, time.time_ns)
        assert not presence.Presence(store, names, pool).away
        assert presence.Presence(store, names, pool, lambda: ago(-40)).away


def _last(node: Node) -> int:
    return decode_contact(node.store.meta(presence.CONTACT), 0).last


# --- removals that are forgotten


class Clock:
    def __init__(self) -> None:
        self.now = 20_000 * DAY_NS

    def __call__(self) -> int:
        return self.now


def removal(now: int) -> tuple[Record, Record]:
    snapshot = snapshot_id(a_root(1))
    gone = SnapshotRecord(snapshot, 0, 0, 0, False, 0, False, "", now)
    ref = RefRecord("set:latest", None, Stamp(now // 1_000_000, 0, NodeId(b"x" * 16)))
    return snapshot_json(gone, b""), ref_json(ref)


def test_removals_are_forgotten_after_30_days_also_by_a_rebuilt_index(tmp_path: Path) -> None:
    clock, root = Clock(), a_root(1)
    with Store.open(tmp_path / "a") as store:
        names = Names(store, store.node_id, clock)
        record = SnapshotRecord(snapshot_id(root), clock(), clock(), 2, False, DEFAULT_KEEP, True, "here")
        names.add_snapshot(root, record)
        names.tag(record.id, "set", move=False)
        names.remove(record.id, force=True)
        clock.now += 30 * DAY_NS - 1
        assert names.drop_tombstones() == 0
        clock.now += DAY_NS + 1
        assert names.drop_tombstones() == 2
        assert names.snapshot(record.id) is None
        assert names.digests() == Names(store, store.node_id, clock).digests()
        assert not store.refs()
        assert not store.snapshots()
        journal = DataDir(tmp_path / "a").journal
        told = Chronicle.of_journal(scan(journal))  # what a rebuilt index would have
        assert not told.refs
        assert not told.snapshots


def test_a_forgotten_removal_is_not_taken_again(tmp_path: Path) -> None:
    clock = Clock()
    with Store.open(tmp_path / "a") as store:
        names = Names(store, store.node_id, clock)
        snapshot_told, ref_told = removal(tombstone_limit(clock()) - 1)
        assert names.merge_snapshots([snapshot_told], "x") == names.merge_refs([ref_told], "x") == 0
        snapshot_told, ref_told = removal(tombstone_limit(clock()) + 1_000_000)
        assert names.merge_snapshots([snapshot_told], "x") == names.merge_refs([ref_told], "x") == 1


def test_an_old_removal_still_removes_what_is_known(tmp_path: Path) -> None:
    clock, root = Clock(), a_root(1)
    with Store.open(tmp_path / "a") as store:
        names = Names(store, store.node_id, clock)
        old = clock() - 50 * DAY_NS
        record = SnapshotRecord(snapshot_id(root), old, old, 2, False, DEFAULT_KEEP, True, "here")
        names.add_snapshot(root, record)
        told, _ = removal(old + DAY_NS)
        assert names.merge_snapshots([told], "x") == 1
        assert not names.snapshots()
        assert names.drop_tombstones() == 1


# --- clocks


def test_what_was_set_while_the_clock_was_ahead_is_taken_by_others_once_it_is_right(tmp_path: Path) -> None:
    clock, right = Clock(), Clock()
    with Store.open(tmp_path / "a") as store, Store.open(tmp_path / "b") as second:
        names, other = Names(store, store.node_id, clock), Names(second, second.node_id, right)
        first, later = (snapshot_id(a_root(seed)) for seed in (1, 2))
        for each in (names, other):
            made = SnapshotRecord(first, right(), right(), 2, False, DEFAULT_KEEP, True, "here")
            each.add_snapshot(a_root(1), made)
        clock.now += 365 * DAY_NS
        names.add_snapshot(a_root(2), SnapshotRecord(later, clock(), clock(), 2, False, DEFAULT_KEEP, True, "here"))
        names.tag(later, "set", move=False)
        names.tag(first, "gone", move=False)
        names.remove(first, force=True)
        names.pin(later, pinned=True)
        clock.now = right.now = right() + DAY_NS
        assert names.mend_times() == 4
        assert names.mend_times() == 0
        names.tag(later, "more", move=False)
        assert other.merge_snapshots(names.snapshot_records(), "a") == 2
        assert other.merge_refs(names.ref_records(), "a") == 3
        assert other.digests() == names.digests()
        assert {ref.name for ref in other.refs()} == {"set:latest", "more:latest"}
        assert [record.pinned for record in other.snapshots()] == [True]
        assert names.digests() == Names(store, store.node_id, clock).digests()


@pytest.mark.expect_warnings
def test_a_node_with_another_clock_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def main() -> None:
        async with running(tmp_path / "a") as first, running(tmp_path / "b") as second:
            telling = first.gossip.exchange.telling
            assert isinstance(telling, presence.Presence)
            monkeypatch.setattr(telling, "_wall_ns", lambda: time.time_ns() + 600 * 1_000_000_000)
            await meet(first, second)
            await until(lambda: "600 s ahead of" in caplog.text or "599 s ahead of" in caplog.text)

    run(main)


# --- decisions


@given(TIMES, TIMES, TIMES, TIMES)
def test_who_was_not_there_is_no_witness_and_learning_never_makes_one_of_it_too_early(
    last: int, since: int, now: int, told: int
) -> None:
    contact = Contact(last, since)
    assert not contact.testifies(last + 1)
    assert not contact.testifies(0)
    met = contact.met(now, told)
    assert met.since in (since, told)
    assert met.last == max(last, now)
    assert contact.returned(now, 0) == Contact(now, now)


@given(st.integers(1, 1 << 50), TIMES)
def test_a_node_is_away_when_it_was_not_in_touch_for_29_days_and_never_if_it_met_nobody(last: int, since: int) -> None:
    contact = Contact(last, since)
    assert not contact.is_away(last + AWAY_MS)
    assert contact.is_away(last + AWAY_MS + 1)
    assert not Contact(0, since).is_away(last)
    assert contact.shared_until == max(0, last - MARGIN_MS) * 1_000_000
    assert decode_contact(encode_contact(contact), 5) == contact
    assert decode_contact(None, 5) == decode_contact(b"x", 5) == Contact(0, 5)
