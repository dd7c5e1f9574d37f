"""Refs and snapshots: what wins, what a text means, what peers may tell."""

import base64
import sys
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from random import Random

import pytest
from blake3 import blake3
from hypothesis import given
from hypothesis import strategies as st

from hoard_p2p.config import Json
from hoard_p2p.errors import BadRequest, CatalogCorrupt, Refused, SnapshotAmbiguous, SnapshotUnknown
from hoard_p2p.ids import SnapshotId, snapshot_id
from hoard_p2p.node.merging import Refs, Snapshots, newer_ref, newer_snapshot
from hoard_p2p.node.names import DEFAULT_KEEP, Names, ref_name
from hoard_p2p.node.names_wire import label, ref_json, snapshot_json
from hoard_p2p.peer import NodeId
from hoard_p2p.storage.records import NEVER, PastValue, RefRecord, SnapshotRecord, Stamp
from hoard_p2p.storage.store import Store
from tests.unit.node_roots import a_root

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


def add(names: Names, seed: int, created: int = SECOND) -> SnapshotId:
    encoded = a_root(seed)
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


@pytest.mark.parametrize("text", ["facade", "DEADBEEF", "ab" * 32, "123456:1", "abcdef:latest"])
def test_a_new_name_that_looks_like_an_id_is_refused(names: Names, text: str) -> None:
    with pytest.raises(BadRequest, match="looks like a snapshot id"):
        names.tag(add(names, 1), text, move=False)


@pytest.mark.parametrize("text", ["abcde", "ab" * 33, "facade-1", "imagenet", "team/facade"])
def test_a_name_that_only_resembles_an_id_is_none(names: Names, text: str) -> None:
    snapshot = add(names, 1)
    names.tag(snapshot, text, move=False)
    assert names.resolve(text) == snapshot


def test_an_unknown_tag_is_told_with_those_that_are_there(names: Names) -> None:
    snapshot = add(names, 1)
    for text in ("imagenet:2012", "imagenet:2013", "other:latest"):
        names.tag(snapshot, text, move=False)
    with pytest.raises(
        SnapshotUnknown, match="no ref is named imagenet:latest; there is imagenet:2012, imagenet:2013;"
    ):
        names.resolve("imagenet")
    with pytest.raises(SnapshotUnknown, match="no ref is named nothing:latest; hoard ls"):
        names.resolve("nothing")


def test_short_and_unknown_prefixes_are_unknown(names: Names) -> None:
    snapshot = add(names, 1)
    for text in (snapshot.hex()[:5], "ffffffffffff", "set"):
        with pytest.raises(SnapshotUnknown):
            names.resolve(text)


def test_a_prefix_that_is_too_short_is_told_how_long_it_must_be(names: Names) -> None:
    with pytest.raises(SnapshotUnknown, match="an id prefix needs at least 6 digits"):
        names.resolve(add(names, 1).hex()[:4])
    with pytest.raises(SnapshotUnknown) as caught:
        names.resolve("set")
    assert "prefix" not in str(caught.value)


def test_an_ambiguous_prefix_lists_the_candidates(names: Names) -> None:
    by_prefix: dict[str, list[SnapshotId]] = {}
    for seed in range(1, 40_000):
        identifier = snapshot_id(a_root(seed))
        group = by_prefix.setdefault(identifier.hex()[:6], [])
        group.append(identifier)
        if len(group) == 2:
            break
    else:
        pytest.fail("no two of these roots share six digits")
    first, second = group
    for seed in range(1, 40_000):
        if snapshot_id(a_root(seed)) in group:
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
    assert names.root(snapshot) == a_root(1)


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
    assert other.root(shared) == a_root(1)
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
    assert newer_ref(early, late) == newer_ref(late, early)
    merged = newer_ref(early, late)
    assert merged is not None
    assert (merged.snapshot, merged.history) == (late.snapshot, (PastValue(SnapshotId(b"a" * 32), early.stamp),))
    assert newer_ref(merged, early) is None
    assert newer_ref(early, early) is None


TIMES = st.integers(1, 6)
IDENTIFIER = SnapshotId(b"a" * 32)


@st.composite
def told_snapshots(draw: st.DrawFn) -> SnapshotRecord:
    created, removed = draw(TIMES), draw(st.sampled_from([0, 0, 2, 4]))
    source, replicas = draw(st.sampled_from(["", "x", "y"])), draw(st.integers(1, 3))
    stamp = Stamp(draw(st.integers(1, 2)), 0, draw(st.sampled_from([ME, OTHER])))
    pinned, stamp = draw(st.sampled_from([(False, NEVER), (False, stamp), (True, stamp)]))
    record = SnapshotRecord(IDENTIFIER, created, created, replicas, pinned, 1, draw(st.booleans()), source, 0, stamp)
    record = replace(record, origin=draw(st.sampled_from(["", "dir:/a", "dir:/b"])))
    return replace(record, removed=removed) if removed >= created else record


@st.composite
def told_refs(draw: st.DrawFn) -> RefRecord:
    def stamp(most: int) -> Stamp:
        return Stamp(draw(st.integers(1, most)), draw(st.integers(0, 1)), draw(st.sampled_from([ME, OTHER])))

    snapshots = st.sampled_from([SnapshotId(b"a" * 32), SnapshotId(b"b" * 32)])
    past = tuple(PastValue(draw(snapshots), stamp(3)) for _ in range(draw(st.integers(0, 3))))
    return RefRecord("x:1", draw(st.none() | snapshots), stamp(6), past)


@given(st.lists(told_snapshots(), min_size=1, max_size=6), st.randoms(use_true_random=False))
def test_snapshot_records_end_the_same_in_any_order(told: list[SnapshotRecord], random: Random) -> None:
    def known_after(records: list[SnapshotRecord]) -> bytes:
        known: SnapshotRecord | None = None
        for record in records:
            known = newer_snapshot(known, record) or known
            assert known is not None
            assert newer_snapshot(known, record) is None
        assert known is not None
        return Snapshots({IDENTIFIER: known}).digest

    told = [replace(record, shown=True) if not record.removed else record for record in told]
    assert known_after(told) == known_after(random.sample(told, len(told)))


@given(st.lists(told_refs(), min_size=1, max_size=6), st.randoms(use_true_random=False))
def test_refs_and_their_histories_end_the_same_in_any_order(told: list[RefRecord], random: Random) -> None:
    def known_after(refs: list[RefRecord]) -> RefRecord | None:
        known: RefRecord | None = None
        for ref in refs:
            known = newer_ref(known, ref) or known
            assert newer_ref(known, ref) is None
        return known

    assert known_after(told) == known_after(random.sample(told, len(told)))


@given(st.lists(told_snapshots(), min_size=1, max_size=6))
def test_a_digest_covers_exactly_what_is_told(records: list[SnapshotRecord]) -> None:
    known: list[tuple[bytes, str]] = []
    for record in records:
        merged = newer_snapshot(None, record)
        assert merged is not None
        snapshots = Snapshots({IDENTIFIER: merged})
        known.append((snapshots.digest, repr([snapshot_json(told, b"") for told in snapshots.told])))
    assert len({digest for digest, _ in known}) == len(set(known)) == len({told for _, told in known})


@given(st.lists(told_refs(), min_size=2, max_size=6))
def test_a_digest_of_refs_covers_exactly_what_is_told(refs: list[RefRecord]) -> None:
    known = {(Refs({ref.name: ref}).digest, repr(ref_json(ref))) for ref in refs}
    assert len({digest for digest, _ in known}) == len(known) == len({told for _, told in known})


def test_the_last_to_set_a_pin_wins_wherever_it_was_set(names: Names, other: Names, clock: Clock) -> None:
    snapshot = add(names, 1)
    other.merge_snapshots(names.snapshot_records(), "names")
    assert names.pin(snapshot, pinned=True)
    assert not names.pin(snapshot, pinned=True), "it is pinned already"
    before = other.digests()
    other.merge_snapshots(names.snapshot_records(), "names")
    assert other.digests() == names.digests() != before
    assert other.pin(snapshot, pinned=False), "within the same clock tick"
    names.merge_snapshots(other.snapshot_records(), "other")
    other.merge_snapshots(names.snapshot_records(), "names")
    assert [known.pinned for one in (names, other) for known in one.snapshots()] == [False, False]
    assert names.digests() == other.digests()


def test_the_last_to_set_the_replicas_wins_until_the_set_is_published_again(
    names: Names, other: Names, clock: Clock
) -> None:
    snapshot = add(names, 1)
    first = names.snapshots()[0].replicas
    other.merge_snapshots(names.snapshot_records(), "names")
    assert names.set_replicas(snapshot, first + 2)
    assert not names.set_replicas(snapshot, first + 2), "so many it has already"
    before = other.digests()
    other.merge_snapshots(names.snapshot_records(), "names")
    assert other.digests() == names.digests() != before
    assert other.set_replicas(snapshot, first + 1), "within the same clock tick"
    names.merge_snapshots(other.snapshot_records(), "other")
    other.merge_snapshots(names.snapshot_records(), "names")
    assert [known.replicas for one in (names, other) for known in one.snapshots()] == [first + 1, first + 1]
    assert names.digests() == other.digests()
    with pytest.raises(SnapshotUnknown):
        names.set_replicas(SnapshotId(bytes(32)), 2)


@pytest.mark.expect_warnings
@pytest.mark.parametrize("stamp", [1, [1], [1 << 62, 0, "00" * 16], [1, 0, "xx"]])
def test_replicas_whose_stamp_makes_no_sense_or_is_ahead_of_time_are_left_out(
    names: Names, other: Names, stamp: Json
) -> None:
    add(names, 1)
    told = [{**record, "replicas_stamp": stamp} for record in names.snapshot_records()]
    assert other.merge_snapshots(told, "names") == 0


def test_a_record_without_a_pin_is_one_that_was_never_pinned(names: Names, other: Names) -> None:
    snapshot = add(names, 1)
    assert all("pin" not in record for record in names.snapshot_records())
    other.merge_snapshots(names.snapshot_records(), "names")
    assert not other.snapshots()[0].pinned
    names.pin(snapshot, pinned=True)
    old = [{key: value for key, value in record.items() if key != "pin"} for record in names.snapshot_records()]
    names.merge_snapshots(old, "a node that knows no pins")
    assert names.snapshots()[0].pinned


def test_the_origin_of_the_last_publish_is_told_and_covered_by_the_digest(names: Names, other: Names) -> None:
    add(names, 1)
    other.merge_snapshots(names.snapshot_records(), "names")
    assert other.snapshots()[0].origin == ""
    assert all("origin" not in record for record in names.snapshot_records())
    before = other.digests()
    told = [
        {**record, "created": int(str(record["created"])) + 1, "origin": "dir:/mnt/set"}
        for record in names.snapshot_records()
    ]
    other.merge_snapshots(told, "a publisher")
    assert other.snapshots()[0].origin == "dir:/mnt/set"
    assert other.digests() != before
    names.merge_snapshots(other.snapshot_records(), "other")
    assert names.digests() == other.digests()


@pytest.mark.expect_warnings
@pytest.mark.parametrize("origin", [7, ["dir:/x"], "dir:/\n", "dir:/" + "x" * 4096, "dir:/\ud800"])
def test_an_origin_that_is_no_text_of_a_line_is_left_out(names: Names, other: Names, origin: Json) -> None:
    add(names, 1)
    told = [{**record, "origin": origin} for record in names.snapshot_records()]
    assert other.merge_snapshots(told, "names") == 0
    assert other.snapshots() == []


@pytest.mark.expect_warnings
@pytest.mark.parametrize("pin", [7, [], [True], [1, [1, 0, "00" * 16]], [True, [1 << 62, 0, "00" * 16]], [True, None]])
def test_a_pin_that_makes_no_sense_or_is_ahead_of_time_is_left_out(names: Names, other: Names, pin: Json) -> None:
    add(names, 1)
    assert other.merge_snapshots([{**record, "pin": pin} for record in names.snapshot_records()], "names") == 0


def test_what_users_never_saw_can_be_forgotten(names: Names) -> None:
    shown = add(names, 1)
    encoded = a_root(2)
    hidden = snapshot_id(encoded)
    names.add_snapshot(encoded, SnapshotRecord(hidden, SECOND, SECOND, 2, False, 1, False, "", 0))
    assert not names.forget(shown)
    assert names.forget(hidden)
    assert names.snapshot(hidden) is None
    assert names.root(hidden) is None
    assert [record.id for record in names.known()] == [shown]


def test_merging_keeps_what_the_later_creation_said() -> None:
    first = SnapshotRecord(IDENTIFIER, 1, 1, 2, False, 1, False, "", 0)
    told = SnapshotRecord(IDENTIFIER, 10, 10, 3, False, 77, True, "/data", 0)
    for one, two in ((first, told), (told, first)):
        merged = newer_snapshot(one, two) or one
        assert (merged.replicas, merged.keep, merged.source, merged.shown) == (3, 77, "/data", True)


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


@pytest.mark.expect_warnings
@pytest.mark.parametrize(
    "change",
    [
        {"source": "\ud800"},
        {"source": "\udc80"},
        {"source": "a\nb"},
        {"source": "\x1b[2J"},
        {"source": "\u202egnp"},
        {"source": "x" * 1001},
        {"source": 7},
        {"replicas": 0},
        {"replicas": 1 << 16},
        {"replicas": True},
        {"keep": 1 << 63},
        {"created": 0},
        {"root": "AAAA"},
        {"root": None},
        {"id": "\ud800" * 64},
        {"created": {"\ud800": 1}},
    ],
)
def test_a_snapshot_record_that_cannot_be_kept_is_left_out(
    names: Names, other: Names, change: dict[str, Json], caplog: pytest.LogCaptureFixture
) -> None:
    add(names, 1)
    (good,) = names.snapshot_records()
    assert other.merge_snapshots([{**good, **change}] * 3, "peer\n\ud800") == 0
    assert other.snapshots() == []
    (warning,) = [record for record in caplog.records if record.levelname == "WARNING"]
    warning.getMessage().encode()
    assert "\n" not in warning.getMessage()
    assert other.merge_snapshots([good], "a") == 1


def test_what_a_user_calls_the_source_is_kept_fit_to_be_told(names: Names, other: Names) -> None:
    encoded = a_root(1)
    source = "/d\udcff\nx" + "y" * 2000
    names.add_snapshot(encoded, SnapshotRecord(snapshot_id(encoded), 1, 1, 2, False, 1, True, source, 0))
    assert other.merge_snapshots(names.snapshot_records(), "a") == 1
    assert names.digests() == other.digests()
    assert other.snapshots()[0].source == label(source)
    assert other.snapshots()[0].source.startswith("/d\ufffd\ufffdxyyy")


@pytest.mark.expect_warnings
def test_a_root_that_matches_its_id_and_is_none_is_refused(names: Names, other: Names) -> None:
    add(names, 1)
    (good,) = names.snapshot_records()
    bad = b"no root at all"
    told: dict[str, Json] = {**good, "id": snapshot_id(bad).hex(), "root": base64.b64encode(bad).decode()}
    assert other.merge_snapshots([told], "a") == 0
    with pytest.raises(CatalogCorrupt):
        other.add_snapshot(bad, SnapshotRecord(snapshot_id(bad), 1, 1, 2, False, 1, False, "", 0))


@pytest.mark.expect_warnings
@pytest.mark.parametrize("field", ["created", "removed"])
def test_times_far_ahead_of_the_clock_are_refused(names: Names, other: Names, clock: Clock, field: str) -> None:
    snapshot = add(names, 1)
    (good,) = names.snapshot_records()
    other.merge_snapshots([good], "a")
    for ahead in (2**63 - 1, clock.now + 61 * SECOND):
        assert other.merge_snapshots([{**good, field: ahead}], "a") == 0
    assert [record.id for record in other.snapshots()] == [snapshot]
    assert other.merge_snapshots([{**good, field: clock.now + 59 * SECOND}], "a") == 1


def test_what_was_removed_a_little_ahead_of_our_clock_can_be_published_again(names: Names, clock: Clock) -> None:
    snapshot = add(names, 1)
    (record,) = names.snapshot_records()
    names.merge_snapshots([{**record, "removed": clock.now + 30 * SECOND}], "a")
    assert names.snapshots() == []
    now = names.creation_time(snapshot)
    assert now > clock.now + 30 * SECOND
    hidden = SnapshotRecord(snapshot, now, now, 2, False, 1, False, "", 0)
    names.add_snapshot(a_root(1), hidden)
    assert names.root(snapshot) == a_root(1)
    names.show(a_root(1), hidden)
    assert [record.id for record in names.snapshots()] == [snapshot]


def test_a_snapshot_that_was_removed_is_shown_again_only_by_show(tmp_path: Path, clock: Clock) -> None:
    with Store.open(tmp_path / "d") as store:
        names = Names(store, ME, clock)
        snapshot = add(names, 1)
        names.remove(snapshot, force=False)
        tombstone, digests = names.snapshot_records(), names.digests()
        now = names.creation_time(snapshot)
        hidden = SnapshotRecord(snapshot, now, now, 2, False, 1, False, "", 0)
        names.add_snapshot(a_root(1), hidden)
    with Store.open(tmp_path / "d") as store:
        again = Names(store, ME, clock)
        assert again.snapshots() == []
        assert again.root(snapshot) == a_root(1), "its homes may ask for it"
        known = again.snapshot(snapshot)
        assert known is not None
        assert not known.removed
        assert again.snapshot_records() == tombstone, "peers are told what they know"
        assert again.digests() == digests
        again.show(a_root(1), hidden)
        assert [record.id for record in again.snapshots()] == [snapshot]
        assert again.digests() != digests


def test_hidden_snapshots_are_neither_told_nor_part_of_the_digest(names: Names, other: Names) -> None:
    encoded = a_root(1)
    names.add_snapshot(encoded, SnapshotRecord(snapshot_id(encoded), 5, 5, 2, False, 1, False, "", 0))
    assert names.snapshot_records() == []
    assert names.snapshot_record(snapshot_id(encoded)) is None
    assert names.digests() == other.digests()


def test_what_was_removed_while_it_was_published_is_shown_in_the_end(names: Names, clock: Clock) -> None:
    snapshot = snapshot_id(a_root(1))
    now = names.creation_time(snapshot)
    hidden = SnapshotRecord(snapshot, now, now, 2, False, 1, False, "", 0)
    names.add_snapshot(a_root(1), hidden)
    clock.now += SECOND
    names.remove(snapshot, force=False)
    assert names.root(snapshot) is None
    names.show(a_root(1), hidden)
    assert names.root(snapshot) == a_root(1)
    assert [record.id for record in names.snapshots()] == [snapshot]


def test_a_counter_at_its_end_does_not_stop_tagging(names: Names, other: Names, clock: Clock) -> None:
    snapshot = add(names, 1)
    names.tag(snapshot, "set", move=False)
    (told,) = names.ref_records()
    at_end: dict[str, Json] = {**told, "stamp": [clock.now // 1_000_000 + 1000, 2**32 - 1, OTHER.hex()]}
    assert names.merge_refs([at_end], "a") == 1
    names.untag("set")
    assert names.refs() == []
    assert other.merge_refs(names.ref_records(), "b") == 1


@pytest.mark.expect_warnings
def test_more_records_than_can_be_kept_are_refused_with_one_warning(
    names: Names, clock: Clock, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("hoard_p2p.node.names.MAX_TOLD", 5)
    tombstones: list[dict[str, Json]] = [
        snapshot_json(SnapshotRecord(SnapshotId(bytes([n]) * 32), 0, 0, 0, False, 0, False, "", clock()), b"")
        for n in range(9)
    ]
    assert names.merge_snapshots(tombstones, "a") == 5
    assert names.merge_snapshots(tombstones, "a") == 0
    refs = [ref_json(RefRecord(f"x:{n}", None, Stamp(clock() // 1_000_000, n, OTHER))) for n in range(9)]
    assert names.merge_refs(refs, "a") == 5
    assert len([record for record in caplog.records if record.levelname == "WARNING"]) == 1
    add(names, 1, created=clock.now)
    assert len(names.snapshots()) == 1, "what is published here is kept all the same"


def test_names_can_be_read_while_others_write(names: Names) -> None:
    snapshots = [add(names, seed) for seed in range(1, 4)]
    done = threading.Event()
    failures: list[BaseException] = []

    def read() -> None:
        try:
            while not done.is_set():
                names.refs(), names.snapshots(), names.ref_records(), names.names_of(snapshots[0])
                names.digests()
        except BaseException as error:  # noqa: BLE001 - told by the test
            failures.append(error)

    readers = [threading.Thread(target=read) for _ in range(2)]
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        for reader in readers:
            reader.start()
        for number in range(300):
            names.merge_refs([ref_json(RefRecord(f"r{number}:1", snapshots[0], Stamp(1, number, OTHER)))], "a")
            gone = SnapshotRecord(SnapshotId(number.to_bytes(32, "big")), 0, 0, 0, False, 0, False, "", 9)
            names.merge_snapshots([snapshot_json(gone, b"")], "a")
    finally:
        done.set()
        for reader in readers:
            reader.join(10)
        sys.setswitchinterval(interval)
    assert failures == []
    assert names.digests()[1] == Refs({ref.name: ref for ref in names.refs()}).digest


class WatchedStore(Store):
    """Calls `watch` after each ref that it kept."""

    def watch(self) -> None:
        return

    def put_ref(self, ref: RefRecord) -> None:
        super().put_ref(ref)
        self.watch()


def test_a_change_becomes_known_as_a_whole(tmp_path: Path, clock: Clock) -> None:
    with WatchedStore.open(tmp_path / "d") as store:
        assert isinstance(store, WatchedStore)
        names = Names(store, ME, clock)
        told = [RefRecord(f"r{n}:1", SnapshotId(b"s" * 32), Stamp(1, n, OTHER)) for n in range(3)]
        seen: list[tuple[int, tuple[bytes, bytes]]] = []

        def look() -> None:
            seen.append((sum(names.ref(ref.name) is not None for ref in told), names.digests()))

        before = names.digests()
        store.watch = look  # type: ignore[method-assign]  # a hook
        names.merge_refs([ref_json(ref) for ref in told], "a")
        assert seen == [(0, before)] * 3
        assert names.refs() == told
        assert names.digests() != before


def test_digests_are_over_the_bytes_that_the_wire_document_gives() -> None:
    shown = SnapshotRecord(SnapshotId(b"s" * 32), 0x0102, 5, 3, True, 7, True, "é", 0)
    gone = SnapshotRecord(SnapshotId(b"g" * 32), 0, 0, 0, False, 0, False, "", 9)
    told = (
        b"g" * 32 + bytes(8) + b"\x09" + bytes(7) + bytes(2 + 8 + 2)
        + b"s" * 32 + b"\x02\x01" + bytes(6) + bytes(8) + b"\x03\x00" + b"\x07" + bytes(7) + b"\x02\x00" + b"\xc3\xa9"
    )  # fmt: skip
    assert Snapshots({shown.id: shown, gone.id: gone}).digest == blake3(told).digest()
    ref = RefRecord("x:1", None, Stamp(4, 5, ME), (PastValue(SnapshotId(b"p" * 32), Stamp(2, 3, OTHER)),))
    told = (
        b"\x04" + bytes(7) + b"\x05\x00\x00\x00" + b"m" * 16 + b"\x00" + bytes(32) + b"\x01" + b"\x03" + b"x:1"
        + b"p" * 32 + b"\x02" + bytes(7) + b"\x03\x00\x00\x00" + b"o" * 16
    )  # fmt: skip
    assert Refs({ref.name: ref}).digest == blake3(told).digest()
