"""Whom a node believes about pieces of lazy snapshots."""

import asyncio
import logging
from collections.abc import Iterable

import pytest

from hoard_p2p.errors import ChunkCorrupt
from hoard_p2p.ids import ChunkId, chunk_id, origin_key
from hoard_p2p.node.namings import WAITING, Dispute, Disputes, Namings, Said
from hoard_p2p.peer import NodeId
from hoard_p2p.testing.network import a_peer

HONEST, LIAR, OTHER = a_peer(1), a_peer(2), a_peer(3)
KEY = origin_key(b"bucket/object", b"1", 0, 100)
TRUTH, LIE = chunk_id(b"truth"), chunk_id(b"lie")


class Here:
    """What a node knows, and the disputes that it heard of."""

    def __init__(self, known: dict[ChunkId, ChunkId] | None = None) -> None:
        self.known = known or {}
        self.disputes: list[Dispute] = []
        self.namings = Namings("me", self.known.get, self.disputes.append)


def test_the_first_word_on_a_piece_is_taken_and_the_same_from_others() -> None:
    here = Here()
    for peer in (HONEST, LIAR, HONEST):
        here.namings(peer, KEY, TRUTH)
    assert here.disputes == []


@pytest.mark.expect_warnings
def test_a_second_word_is_taken_from_nobody_and_both_nodes_are_named(caplog: pytest.LogCaptureFixture) -> None:
    here = Here()
    here.namings(LIAR, KEY, LIE)
    with pytest.raises(ChunkCorrupt, match=LIAR.name):
        here.namings(HONEST, KEY, TRUTH)
    (record,) = caplog.records
    assert record.levelno == logging.WARNING
    assert HONEST.name in record.getMessage() and LIAR.name in record.getMessage()
    first, second = Said(LIE, LIAR.node_id, LIAR.name), Said(TRUTH, HONEST.node_id, HONEST.name)
    assert here.disputes == [Dispute(KEY, first, second)]
    assert here.namings.disputes == 1


@pytest.mark.expect_warnings
def test_what_this_node_has_counts_as_its_own_word() -> None:
    here = Here({KEY: TRUTH})
    with pytest.raises(ChunkCorrupt, match="by me"):
        here.namings(LIAR, KEY, LIE)
    assert here.disputes == [Dispute(KEY, Said(TRUTH, None, "me"), Said(LIE, LIAR.node_id, LIAR.name))]
    here.namings(HONEST, KEY, TRUTH)


@pytest.mark.expect_warnings
def test_two_nodes_that_disagree_about_much_are_warned_of_once(caplog: pytest.LogCaptureFixture) -> None:
    here = Here()
    for part in range(50):
        key = origin_key(b"bucket/object", b"1", part, 100)
        here.namings(LIAR, key, LIE)
        with pytest.raises(ChunkCorrupt):
            here.namings(HONEST, key, TRUTH)
    assert sum(record.levelno == logging.WARNING for record in caplog.records) == 1
    assert here.namings.disputes == 50


@pytest.mark.expect_warnings
def test_what_was_decided_otherwise_is_open_again() -> None:
    here = Here({KEY: LIE})
    here.namings(LIAR, KEY, LIE)
    with pytest.raises(ChunkCorrupt):
        here.namings(HONEST, KEY, TRUTH)
    here.namings.forget(KEY)
    here.known[KEY] = TRUTH
    here.namings(HONEST, KEY, TRUTH)
    with pytest.raises(ChunkCorrupt):
        here.namings(LIAR, KEY, LIE)


def settled(disputes: Iterable[Dispute], truth: ChunkId | None) -> tuple[list[NodeId], list[ChunkId]]:
    """Who is asked last from then on, and about which keys the origin was asked."""
    shunned: list[NodeId] = []
    asked: list[ChunkId] = []

    async def decide(key: ChunkId) -> ChunkId | None:
        asked.append(key)
        await asyncio.sleep(0)
        return truth

    async def main() -> None:
        async with asyncio.timeout(10), asyncio.TaskGroup() as group:
            settling = Disputes(group, shunned.append, decide)
            for dispute in disputes:
                await asyncio.to_thread(settling.note, dispute)

    asyncio.run(main())
    return shunned, asked


A_DISPUTE = Dispute(KEY, Said(LIE, LIAR.node_id, LIAR.name), Said(TRUTH, HONEST.node_id, HONEST.name))


@pytest.mark.expect_warnings
def test_both_are_asked_last_and_the_origin_tells_who_was_wrong(caplog: pytest.LogCaptureFixture) -> None:
    assert settled([A_DISPUTE], TRUTH) == ([LIAR.node_id, HONEST.node_id], [KEY])
    (record,) = caplog.records
    assert f"{LIAR.name} was wrong" in record.getMessage()


def test_where_the_origin_cannot_be_read_nobody_is_judged(caplog: pytest.LogCaptureFixture) -> None:
    own = Dispute(KEY, Said(TRUTH, None, "me"), Said(LIE, LIAR.node_id, LIAR.name))
    assert settled([own], None) == ([LIAR.node_id], [KEY])
    assert caplog.records == []


def test_a_flood_of_disputes_is_not_kept() -> None:
    def about(part: int) -> Dispute:
        return A_DISPUTE._replace(key=origin_key(b"bucket/object", b"1", part, 100))

    asked: list[ChunkId] = []

    async def main() -> None:
        first = asyncio.Event()

        async def decide(key: ChunkId) -> None:
            asked.append(key)
            await first.wait()

        async with asyncio.timeout(10), asyncio.TaskGroup() as group:
            settling = Disputes(group, lambda _: None, decide)
            for part in range(1000):
                settling.note(about(part))
            await asyncio.sleep(0)
            first.set()

    asyncio.run(main())
    assert 0 < len(asked) <= WAITING + 1
