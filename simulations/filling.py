"""Fill of a data set on many nodes at once: each chunk of each segment on its way from node to node.

Who asks whom is decided by `routes`, what is under way by `fill.window` (production code both). A node passes a chunk
on when it has it whole. A stream has one chunk on its way at a time; a node has many streams.
"""

from collections.abc import Callable
from dataclasses import dataclass, field

from hoard_p2p.fill.window import ASKED_SEGMENTS, Window, common_order
from hoard_p2p.ids import SnapshotId
from simulations.engine import Engine
from simulations.network import Network, Path, carry
from simulations.routes import ORIGIN, Routes

SET = SnapshotId(b"s" * 32)


@dataclass(frozen=True)
class Shape:
    """Of a data set, in bytes: `segments` of `chunks` chunks each. `window` segments and `window_bytes` of them are
    under way in a node at most, besides `asked` that others asked it for; with `asked` 0 these take places in the
    window when their turn comes, and there is no bound to them."""

    segments: int
    chunks: int
    chunk: int
    window: int
    window_bytes: int
    latency: float
    origin_latency: float
    asked: int = ASKED_SEGMENTS

    @property
    def size(self) -> int:
        return self.segments * self.chunks * self.chunk


@dataclass(eq=False, slots=True)
class Flight:
    """A segment on its way to a node. `own`: the node began it for itself; `joined`: for others, and its own turn came
    meanwhile. `mine`, `theirs`: what of each segment the node has, and its source; None: all. `bit`: the chunk that is
    being sent, 0: none; `over`: another flight took its place."""

    node: int
    segment: int
    own: bool
    mine: list[int]
    joined: bool = False
    source: int = ORIGIN
    theirs: list[int] | None = None
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
        self._chunk, self._latency = shape.chunk, shape.latency
        self._order = common_order(SET, shape.segments)
        self._asked = [0] * nodes
        self._outside: list[dict[int, list[Flight]]] = [{} for _ in range(nodes)]
        self._neighbours = [
            [other for other, rack in enumerate(network.racks) if rack == mine and other != node]
            if len(set(network.racks)) > 1
            else []
            for node, mine in enumerate(network.racks)
        ]

    # --- what a node does

    def begin(self, node: int) -> None:
        """Fill the whole set from now on."""
        shape = self.shape
        size = shape.chunks * shape.chunk
        self._windows[node] = Window(
            self._order, lambda _: size, most_bytes=shape.window_bytes, most_segments=shape.window
        )
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
        if flight is None:
            return
        del self.flights[node][segment]
        if not flight.own:
            self._asked[node] -= 1
            self._let_in(node)
        if flight.own or flight.joined:
            self._windows[node].done(segment)
            self._widen(node)

    def _let_in(self, node: int) -> None:
        """A segment that others asked for is here: there is room for the next one."""
        outside = self._outside[node]
        while outside and self._has_room(node):
            segment = next(iter(outside))
            for flight in outside.pop(segment):
                self._ask(flight)

    def _has_room(self, node: int) -> bool:
        return not self.shape.asked or self._asked[node] < self.shape.asked

    def _widen(self, node: int) -> None:
        window, flights, held = self._windows[node], self.flights[node], self.held[node]
        comes = flights.__contains__ if self.shape.asked else set[int]().__contains__
        while taken := window.take(comes):
            for segment in taken:
                if held[segment] == self.whole:
                    window.done(segment)
                elif segment in flights:
                    flights[segment].joined = True
                else:
                    self._start(node, segment, own=True)

    def _start(self, node: int, segment: int, *, own: bool) -> None:
        flight = Flight(node, segment, own, self.held[node])
        flights = self.flights[node]
        flights[segment] = flight
        self._asked[node] += not own
        self.most = max(self.most, len(flights))
        self._route(flight)
        for follower in self._outside[node].pop(segment, ()):
            self._ask(follower)

    def _route(self, flight: Flight) -> None:
        flight.source = source = self._source(flight.node, flight.segment)
        if source == ORIGIN:
            flight.theirs, flight.path = None, self.network.from_origin(flight.node)
            self.engine.after(self.shape.origin_latency, self._ask, flight)
        else:
            flight.theirs, flight.path = self.held[source], self.network.between(source, flight.node)
            self.engine.after(self.shape.latency, self._ask, flight)

    def _source(self, node: int, segment: int) -> int:
        """As the routes say, but for what a neighbour has whole: that does not come from another rack."""
        source, racks = self.routes.source(node, segment), self.network.racks
        if source == ORIGIN or racks[source] != racks[node]:
            for neighbour in self._neighbours[node]:
                if self.held[neighbour][segment] == self.whole and neighbour not in self.dead:
                    return neighbour
        return source

    def _ask(self, flight: Flight) -> None:
        """The question arrives: who is asked fetches the segment too, and passes on what lands."""
        source, segment = flight.source, flight.segment
        if flight.over:
            return
        if source != ORIGIN and source not in self.dead and self.held[source][segment] != self.whole:
            if segment not in self.flights[source]:
                if not self._has_room(source):
                    self._outside[source].setdefault(segment, []).append(flight)
                    return
                self._start(source, segment, own=False)
            self.flights[source][segment].followers.append(flight)
        self._send(flight)

    def _send(self, flight: Flight) -> None:
        """Send the next chunk, if nothing is on its way and there is one."""
        segment, theirs = flight.segment, flight.theirs
        wanted = (self.whole if theirs is None else theirs[segment]) & ~flight.mine[segment]
        if self.taken:
            wanted &= ~self.taken.get((flight.node, segment), 0)
        if not wanted or flight.bit or (self.dead and flight.source in self.dead):
            return
        flight.bit = wanted & -wanted
        landed = carry(self.engine.now, self._chunk, flight.path)
        self.engine.at(landed if theirs is None else landed + self._latency, self._landed, flight)

    def _landed(self, flight: Flight) -> None:
        if flight.over or (self.dead and (flight.source in self.dead or flight.node in self.dead)):
            return
        bit, flight.bit = flight.bit, 0
        mine, segment = flight.mine, flight.segment
        self.land(flight.node, segment, bit)
        has = mine[segment]
        if has != self.whole and (flight.theirs is None or flight.theirs[segment] & ~has):
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
                if flight.source in self.dead or flight.source != self._source(flight.node, flight.segment)
            ]
            for flight in moved:
                self._replace(flight)

    def _replace(self, flight: Flight) -> None:
        """Ask somebody else; what was on its way is lost."""
        flight.over = True
        new = Flight(flight.node, flight.segment, flight.own, flight.mine, flight.joined, followers=flight.followers)
        self.flights[flight.node][flight.segment] = new
        before = self.flights[flight.source].get(flight.segment) if flight.source != ORIGIN else None
        if before is not None and flight in before.followers:
            before.followers.remove(flight)
        self._route(new)
