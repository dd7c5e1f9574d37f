"""Fill of a data set on many nodes at once: each chunk of each segment on its way from node to node.

Who asks whom is decided by `routes`, what is under way by `fill.window` (production code both). A node passes a chunk
on when it has it whole. A stream has one chunk on its way at a time; a node has many streams.
"""

from collections.abc import Callable
from dataclasses import dataclass, field

from hoard_p2p.fill.window import Window, common_order
from hoard_p2p.ids import SnapshotId
from simulations.engine import Engine
from simulations.network import Network, Path, carry
from simulations.routes import ORIGIN, Routes

SET = SnapshotId(b"s" * 32)


@dataclass(frozen=True)
class Shape:
    """Of a data set, in bytes: `segments` of `chunks` chunks each. `window` segments and `window_bytes` of them are
    under way in a node at most, besides those that it was asked for; these count too when their turn comes, if
    `count_asked`."""

    segments: int
    chunks: int
    chunk: int
    window: int
    window_bytes: int
    latency: float
    origin_latency: float
    count_asked: bool = True

    @property
    def size(self) -> int:
        return self.segments * self.chunks * self.chunk


@dataclass(eq=False, slots=True)
class Flight:
    """A segment on its way to a node. `bit`: the chunk that is being sent, 0: none; `over`: another one took its
    place."""

    node: int
    segment: int
    own: bool
    source: int = ORIGIN
    path: Path = ()
    bit: int = 0
    over: bool = False
    followers: "list[Flight]" = field(default_factory=list)


class Filling:
    """The state of all nodes. `held[n][s]`: the chunks of segment s that node n has, a bit each; `taken[n, s]`: those
    that come to it some other way; `on_landed` is told (node, segment, new bits); `most`: flights that one node had at
    a time, at most."""

    def __init__(self, engine: Engine, network: Network, shape: Shape, routes: Routes) -> None:
        nodes = len(network.racks)
        self.engine, self.network, self.shape, self.routes = engine, network, shape, routes
        self.whole = (1 << shape.chunks) - 1
        self.held = [[0] * shape.segments for _ in range(nodes)]
        self.flights: list[dict[int, Flight]] = [{} for _ in range(nodes)]
        self.left = [shape.segments] * nodes
        self.done = [float("inf")] * nodes
        self.dead: set[int] = set()
        self.most = 0
        self.on_landed: Callable[[int, int, int], None] | None = None
        self.taken: dict[tuple[int, int], int] = {}
        self._windows: dict[int, Window] = {}

    # --- what a node does

    def begin(self, node: int) -> None:
        """Fill the whole set from now on."""
        shape = self.shape
        size, order = shape.chunks * shape.chunk, common_order(SET, shape.segments)
        self._windows[node] = Window(order, lambda _: size, most_bytes=shape.window_bytes, most_segments=shape.window)
        self._widen(node)

    def land(self, node: int, segment: int, bits: int) -> None:
        """Chunks of a segment are on the node, whichever way they came."""
        held = self.held[node]
        new = bits & ~held[segment]
        if not new:
            return
        held[segment] |= new
        if self.on_landed is not None:
            self.on_landed(node, segment, new)
        flight = self.flights[node].get(segment)
        if flight is not None:
            for follower in flight.followers:
                if not follower.bit:
                    self._send(follower)
        if held[segment] == self.whole:
            self._complete(node, segment, flight)

    def _complete(self, node: int, segment: int, flight: Flight | None) -> None:
        self.left[node] -= 1
        if not self.left[node]:
            self.done[node] = self.engine.now
        if flight is not None:
            del self.flights[node][segment]
            if flight.own:
                self._windows[node].done(segment)
                self._widen(node)

    def _widen(self, node: int) -> None:
        window = self._windows[node]
        while taken := window.take():
            for segment in taken:
                if self.held[node][segment] == self.whole:
                    window.done(segment)
                elif segment not in self.flights[node]:
                    self._start(node, segment, own=True)
                elif self.shape.count_asked:
                    self.flights[node][segment].own = True
                else:
                    window.done(segment)

    def _start(self, node: int, segment: int, *, own: bool) -> None:
        flight = Flight(node, segment, own)
        self.flights[node][segment] = flight
        self.most = max(self.most, len(self.flights[node]))
        self._route(flight)

    def _route(self, flight: Flight) -> None:
        flight.source = self.routes.source(flight.node, flight.segment)
        if flight.source == ORIGIN:
            flight.path = self.network.from_origin(flight.node)
            self.engine.after(self.shape.origin_latency, self._ask, flight)
        else:
            flight.path = self.network.between(flight.source, flight.node)
            self.engine.after(self.shape.latency, self._ask, flight)

    def _ask(self, flight: Flight) -> None:
        """The question arrives: who is asked fetches the segment too, and passes on what lands."""
        source, segment = flight.source, flight.segment
        if flight.over:
            return
        if source != ORIGIN and source not in self.dead and self.held[source][segment] != self.whole:
            if segment not in self.flights[source]:
                self._start(source, segment, own=False)
            self.flights[source][segment].followers.append(flight)
        self._send(flight)

    def _send(self, flight: Flight) -> None:
        """Send the next chunk, if nothing is on its way and there is one."""
        source, segment = flight.source, flight.segment
        wanted = self.whole & ~self.held[flight.node][segment]
        if source != ORIGIN:
            wanted &= self.held[source][segment]
        if self.taken:
            wanted &= ~self.taken.get((flight.node, segment), 0)
        if flight.bit or not wanted or source in self.dead:
            return
        flight.bit = wanted & -wanted
        engine = self.engine
        landed = carry(engine.now, self.shape.chunk, flight.path)
        engine.at(landed if source == ORIGIN else landed + self.shape.latency, self._landed, flight)

    def _landed(self, flight: Flight) -> None:
        if flight.over or flight.source in self.dead or flight.node in self.dead:
            return
        bit, flight.bit = flight.bit, 0
        self.land(flight.node, flight.segment, bit)
        if self.held[flight.node][flight.segment] != self.whole:
            self._send(flight)

    # --- deaths

    def kill(self, node: int, notice: float) -> None:
        """The node is gone; the others plan without it after `notice` seconds."""
        self.dead.add(node)
        self.engine.after(notice, self._plan_without, node)

    def _plan_without(self, node: int) -> None:
        self.routes.without(node)
        for flights in (flights for n, flights in enumerate(self.flights) if n not in self.dead):
            moved = [
                flight
                for flight in flights.values()
                if flight.source in self.dead or flight.source != self.routes.source(flight.node, flight.segment)
            ]
            for flight in moved:
                self._replace(flight)

    def _replace(self, flight: Flight) -> None:
        """Ask somebody else; what was on its way is lost."""
        flight.over = True
        new = Flight(flight.node, flight.segment, flight.own, followers=flight.followers)
        self.flights[flight.node][flight.segment] = new
        before = self.flights[flight.source].get(flight.segment) if flight.source != ORIGIN else None
        if before is not None and flight in before.followers:
            before.followers.remove(flight)
        self._route(new)
