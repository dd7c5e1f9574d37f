"""The node's counters in the Prometheus text format. No names of data."""

from collections.abc import Iterator

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from hoard_p2p.fetch.tally import Way
from hoard_p2p.node.app import Node


class Metrics(Collector):
    """Reads the node's own counters when asked; keeps none."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self._registry = CollectorRegistry(auto_describe=False)
        self._registry.register(self)

    def describe(self) -> Iterator[Metric]:
        return iter(())

    def collect(self) -> Iterator[Metric]:
        node, counters = self._node, self._node.counters
        yield GaugeMetricFamily("hoard_peers", "Peers in this node's view", len(node.agent.view().others))
        yield GaugeMetricFamily("hoard_snapshots", "Snapshots known here", len(node.names.snapshots()))
        yield GaugeMetricFamily("hoard_mounts", "Mounts attached", len(node.mounts.records))
        yield GaugeMetricFamily("hoard_store_capacity_bytes", "Bytes the store may use", node.store.capacity() or 0)
        yield CounterMetricFamily("hoard_peer_received_bytes", "Bytes received from peers", node.fetcher.received)
        told = node.fetcher.tally.told()
        came = CounterMetricFamily("hoard_came_bytes", "Bytes that came here, by where they came from", labels=["way"])
        for way in Way:
            came.add_metric([way], told[way])
        yield came
        yield CounterMetricFamily("hoard_other_racks_bytes", "Those of them from other racks", told["other_racks"])
        yield CounterMetricFamily("hoard_came_again_bytes", "Those of them that were here already", told["again"])
        yield CounterMetricFamily("hoard_peer_sent_bytes", "Chunk bytes sent to peers", counters.bytes_sent)
        yield CounterMetricFamily("hoard_peer_sent_chunks", "Chunks sent to peers", counters.chunks_sent)
        yield CounterMetricFamily("hoard_misses", "Chunks that readers here waited for", counters.misses)
        yield CounterMetricFamily("hoard_quarantined_chunks", "Places found damaged", counters.quarantined)
        wrong = sum(node.favour.counted.values())
        yield CounterMetricFamily("hoard_wrong_chunks", "Chunks from peers that did not match their id", wrong)
        disputes = node.namings.disputes
        yield CounterMetricFamily("hoard_disputed_pieces", "Pieces that peers said to be something else", disputes)

    def text(self) -> bytes:
        return generate_latest(self._registry)
