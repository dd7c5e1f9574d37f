"""What came is counted by where it came from."""

from dataclasses import replace

from hoard_p2p.fetch.fetcher import Fetcher
from hoard_p2p.fetch.tally import Tally, Way, way_of
from hoard_p2p.interfaces import AskMode
from hoard_p2p.peer import ClusterView
from tests.unit.fetch_cluster import DATA, ME, SEGMENT, Cluster, everywhere

SIZE = sum(map(len, DATA))


def test_bytes_are_counted_by_way_and_those_of_other_racks_and_those_that_came_again_once_more() -> None:
    tally = Tally()
    tally.note(Way.CHAIN, 5, far=True, again=False)
    tally.note(Way.CHAIN, 3, far=False, again=True)
    tally.note(Way.ORIGIN, 2, far=False, again=False)
    told = tally.told()
    assert {name: size for name, size in told.items() if size} == {
        "chain": 8, "origin": 2, "other_racks": 5, "again": 3,
    }  # fmt: skip
    assert tally.total == 10
    assert set(told) == {"gateway", "chain", "reader", "holder", "origin", "other_racks", "again"}


def test_every_way_of_asking_has_a_name() -> None:
    assert {way_of(mode) for mode in (None, *AskMode)} == {Way.HOLDER, Way.GATEWAY, Way.CHAIN, Way.READER}


def test_what_a_peer_of_another_rack_had_counts_as_from_there() -> None:
    cluster, told = Cluster(everywhere()), dict[str, int]()
    cluster.view = ClusterView(ME.node_id, (ME, *(replace(peer, rack="there") for peer in cluster.peers)))

    async def scenario(fetcher: Fetcher) -> None:
        await fetcher.whole(SEGMENT, timeout=5)
        told.update(fetcher.tally.told())
        assert fetcher.received == SIZE

    cluster.run(scenario)
    assert (told["holder"], told["other_racks"], told["again"]) == (SIZE, SIZE, 0)
