"""What a reader waits for: its own node's memory and disk, the gateway of its rack, homes, holders, the origin.

The order is the production one (`fill.chain.gateways`, `placement.rank`); the origin is read by the segment's reader
alone, which keeps the chunk and passes it on. Fill runs beside it and leaves out what a reader waits for already.
"""

from collections import OrderedDict
from collections.abc import Callable
from functools import partial
from typing import NamedTuple

from hoard_p2p.fill.chain import gateways
from hoard_p2p.origin.budget import Budget, late_after
from hoard_p2p.placement import rank
from simulations.filling import Filling
from simulations.network import Path, carry
from simulations.routes import ChainRoutes

Then = Callable[[], None]


class _Sources(NamedTuple):
    gateway: int | None
    others: tuple[int, ...]


class PageCache:
    """The memory of one node: what was used longest ago goes, as in the kernel."""

    def __init__(self, chunks: int) -> None:
        self._room, self._pages = chunks, OrderedDict[int, None]()

    def hit(self, chunk: int) -> bool:
        """Whether it was there; it is now."""
        if chunk in self._pages:
            self._pages.move_to_end(chunk)
            return True
        self._pages[chunk] = None
        if len(self._pages) > self._room:
            self._pages.popitem(last=False)
        return False


class Demand:
    """Reads of single chunks, numbered through the set. `room[n]`: chunks that node n may still store."""

    def __init__(self, filling: Filling, routes: ChainRoutes, room: list[int]) -> None:
        self.filling, self.routes, self.room = filling, routes, room
        self.engine, self.network, self.shape = filling.engine, filling.network, filling.shape
        self._waiting: dict[tuple[int, int, int], list[Then]] = {}
        self._asked: dict[tuple[int, int], _Sources] = {}
        self._wanted_by = 0
        self._budgets = [Budget() for _ in room]
        filling.on_landed = self._landed

    def read(self, node: int, chunk: int, then: Then) -> None:
        """`then` is called when the node has the chunk in memory."""
        segment, place = divmod(chunk, self.shape.chunks)
        if self.filling.held[node][segment] >> place & 1:
            self.engine.at(carry(self.engine.now, self.shape.chunk, [self.network.disk[node]]), lambda _: then())
        else:
            self._want(node, segment, 1 << place, then)

    def _want(self, node: int, segment: int, bit: int, then: Then) -> None:
        if self.filling.held[node][segment] & bit:
            then()
            return
        key = (node, segment, bit)
        if key in self._waiting:
            self._waiting[key].append(then)
            return
        self._waiting[key] = [then]
        flight = self.filling.flights[node].get(segment)
        if flight is None or flight.bit != bit:
            self.filling.taken[node, segment] = self.filling.taken.get((node, segment), 0) | bit
            self._fetch(node, segment, bit)

    def _fetch(self, node: int, segment: int, bit: int) -> None:
        gate, holders = self._sources(node, segment)
        if gate is not None and self.routes.reader(segment) != node:
            # It fetches what it does not have, so that the chunk enters the rack once. The reader does not ask it: it
            # would ask the reader in turn, and both would wait.
            self._want(gate, segment, bit, partial(self._send, gate, node, segment, bit))
            return
        for source in holders:
            if self.filling.held[source][segment] & bit:
                self._send(source, node, segment, bit)
                return
        reader = self.routes.reader(segment)
        if reader == node:
            self._read_origin(node, segment, bit)
            return
        self._want(reader, segment, bit, partial(self._send, reader, node, segment, bit))
        self.engine.after(late_after(self.shape.origin_latency), self._late, (node, segment, bit))

    def _read_origin(self, node: int, segment: int, bit: int) -> None:
        path = self._stored(self.network.from_origin(node), node)
        landed = carry(self.engine.now, self.shape.chunk, path)
        self.engine.at(landed + self.shape.origin_latency, self._arrived, (node, segment, bit))

    def _late(self, what: tuple[int, int, int]) -> None:
        """The reader has not sent it yet: it may be read past it, within the budget."""
        median, size = self.shape.origin_latency, self.shape.chunk
        budget = self._budgets[what[0]]
        if what in self._waiting and budget.may_bypass(size, late_after(median), median):
            budget.bypassed(size)
            self._read_origin(*what)

    def _send(self, source: int, node: int, segment: int, bit: int) -> None:
        path = self._stored(self.network.between(source, node), node)
        landed = carry(self.engine.now, self.shape.chunk, path) + 2 * self.shape.latency
        self.engine.at(landed, self._arrived, (node, segment, bit))

    def _stored(self, path: Path, node: int) -> Path:
        return path if self.room[node] > 0 else self.network.unstored(path)

    def _sources(self, node: int, segment: int) -> "_Sources":
        """The gateway, if that is another node, and all others in the segment's order: those of its rack first, since
        what a neighbour holds does not come from another rack."""
        if self._wanted_by != len(self.routes.wants):
            self._wanted_by = len(self.routes.wants)
            self._asked.clear()
        known = self._asked.get((node, segment))
        if known is None:
            known = self._asked[node, segment] = self._find_sources(node, segment)
        return known

    def _find_sources(self, node: int, segment: int) -> "_Sources":
        routes, racks = self.routes, self.network.racks
        asked = gateways(routes.chain(segment), routes.peers[node].node_id, routes.peers, 1)
        ranked = (routes.numbers[peer.node_id] for peer in rank(routes.peers, routes.keys[segment]))
        others = sorted((one for one in ranked if one != node), key=lambda one: racks[one] != racks[node])
        return _Sources(routes.numbers[asked[0].node_id] if asked else None, tuple(others))

    def _arrived(self, what: tuple[int, int, int]) -> None:
        node, segment, bit = what
        if what not in self._waiting:
            return  # it came another way
        self._budgets[node].received(self.shape.chunk)
        left = self.filling.taken.get((node, segment), 0) & ~bit
        if left:
            self.filling.taken[node, segment] = left
        else:
            self.filling.taken.pop((node, segment), None)
        if self.room[node] > 0:
            self.filling.land(node, segment, bit)
        else:
            self._wake(node, segment, bit)

    def _landed(self, node: int, segment: int, bits: int) -> None:
        self.room[node] -= bits.bit_count()
        while bits:
            bit = bits & -bits
            bits ^= bit
            self._wake(node, segment, bit)

    def _wake(self, node: int, segment: int, bit: int) -> None:
        for then in self._waiting.pop((node, segment, bit), ()):
            then()
