"""Training jobs that read a set in shuffled epochs at the speed of their accelerators, directly or through Hoard."""

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from random import Random

from hoard_p2p.fill.quiet import QUIET_SECONDS
from hoard_p2p.fill.window import WINDOW_BYTES, WINDOW_SEGMENTS
from simulations.cluster import keys, peers
from simulations.engine import Engine
from simulations.filling import Filling, Shape
from simulations.network import Network, Pipe, carry
from simulations.reading import Demand, PageCache
from simulations.routes import ChainRoutes

SETTLE = QUIET_SECONDS
"""After a mount, in which nobody fills."""


@dataclass(frozen=True)
class JobPlan:
    """A job on a node: from when it reads, and how many epochs."""

    node: int
    start: float
    epochs: int


@dataclass(frozen=True)
class Setting:
    """Nodes in racks and a set. `batch`: bytes that are read at once, some dozens of records; `appetite`: bytes a
    second that a job's accelerators take; `ahead`: batches that its loaders read ahead; `memory` and `room` of a node
    in bytes; `warm`: nodes that have the whole set before."""

    racks: tuple[int, ...]
    size: int
    batch: int
    segment: int
    appetite: float
    ahead: int
    memory: float
    room: tuple[float, ...]
    node_rate: float
    uplink_rate: float
    origin_rate: float
    disk_rate: float
    warm: tuple[int, ...] = ()
    streams: int = 8
    seed: int = 1

    @property
    def shape(self) -> Shape:
        chunks = self.segment // self.batch
        segments = max(1, int(self.size // self.segment))
        return Shape(segments, chunks, self.batch, WINDOW_SEGMENTS, WINDOW_BYTES, 0.0005, 0.005)


@dataclass
class Ran:
    """What came of the jobs: seconds of each epoch of each, in the order of the plans; bytes over the bytes of the
    set."""

    epochs: list[list[float]]
    origin: float
    into_racks: tuple[float, ...]

    def mean_epoch(self, number: int) -> float:
        """Over all jobs."""
        return sum(job[number] for job in self.epochs) / len(self.epochs)


Read = Callable[[int, int, Callable[[], None]], None]


@dataclass(eq=False)
class Job:
    """One running job; it starts to read when `begin` is called."""

    plan: JobPlan
    engine: Engine
    read: Read
    random: Random
    gpu: Pipe
    batch: int
    ahead: int
    batches: int
    seconds: list[float] = field(default_factory=list)

    def begin(self, _: object = None) -> None:
        self._began = self.engine.now
        self._order = list(range(self.batches))
        self.random.shuffle(self._order)
        self._consumed = 0
        for _ in range(min(self.ahead, self.batches)):
            self._next()

    def _next(self) -> None:
        if self._order:
            self.read(self.plan.node, self._order.pop(), self._arrived)

    def _arrived(self) -> None:
        self.engine.at(carry(self.engine.now, self.batch, [self.gpu]), self._used)

    def _used(self, _: object) -> None:
        self._consumed += 1
        self._next()
        if self._consumed == self.batches:
            self.seconds.append(self.engine.now - self._began)
            if len(self.seconds) < self.plan.epochs:
                self.begin()


def train(setting: Setting, plans: list[JobPlan], *, hoard: bool, fill: bool = True) -> Ran:
    """Run all jobs to their ends. `fill`: nodes with room for the whole set fetch what was not read yet meanwhile."""
    engine, shape = Engine(), setting.shape
    network = Network(
        setting.racks,
        node_rate=setting.node_rate,
        uplink_rate=setting.uplink_rate,
        origin_rate=setting.origin_rate,
        disk_rate=setting.disk_rate,
    )
    source = _through_hoard(setting, engine, network, plans, fill=fill) if hoard else _direct(engine, network, shape)
    read = _cached(setting, engine, source)
    batches = shape.segments * shape.chunks
    jobs = []
    for number, plan in enumerate(plans):
        random = Random(f"job {number} {setting.seed}")
        gpu = Pipe("accelerators", setting.appetite)
        jobs.append(Job(plan, engine, read, random, gpu, shape.chunk, setting.ahead, batches))
        engine.at(plan.start, jobs[-1].begin)
    engine.run()
    assert all(len(job.seconds) == job.plan.epochs for job in jobs), "a job waits for ever"
    into = tuple(pipe.carried / shape.size for pipe in network.into)
    return Ran([job.seconds for job in jobs], network.origin.carried / shape.size, into)


def _cached(setting: Setting, engine: Engine, read: Read) -> Read:
    caches = [PageCache(int(setting.memory // setting.batch)) for _ in setting.racks]

    def through(node: int, chunk: int, then: Callable[[], None]) -> None:
        if caches[node].hit(chunk):
            engine.after(0.0, lambda _: then())
        else:
            read(node, chunk, then)

    return through


def _direct(engine: Engine, network: Network, shape: Shape) -> Read:
    def read(node: int, chunk: int, then: Callable[[], None]) -> None:
        done = carry(engine.now, shape.chunk, network.unstored(network.from_origin(node)))
        engine.at(done + shape.origin_latency, lambda _: then())

    return read


def _through_hoard(setting: Setting, engine: Engine, network: Network, plans: list[JobPlan], *, fill: bool) -> Read:
    shape = setting.shape
    placed = keys(shape.segments, setting.seed)
    routes = ChainRoutes(
        peers(setting.racks, setting.seed), placed, replicas=1, streams=setting.streams, warm=setting.warm
    )
    filling = Filling(engine, network, shape, routes)
    for node in setting.warm:
        filling.held[node] = [filling.whole] * shape.segments
    demand = Demand(filling, routes, [int(room // setting.batch) for room in setting.room])
    routes.take_part(())
    for plan in sorted(plans, key=lambda plan: plan.start):
        engine.at(plan.start, partial(_mount, routes), plan.node)
        if fill and setting.room[plan.node] >= shape.size:
            engine.at(plan.start + SETTLE, partial(_fill, filling), plan.node)
    return demand.read


def _mount(routes: ChainRoutes, node: int) -> None:
    routes.take_part({*(routes.numbers[known] for known in routes.wants), node})


def _fill(filling: Filling, node: int) -> None:
    filling.begin(node)
