"""A node, the processes of its publishes and its scrubs are killed -9 at random steps of what they do: publish, fetch
from a peer, evict, collect, scrub and heal, start. After each death the store is right, has what it had, and takes no
room that nobody can read; the next node goes on with it.

`HOARD_NODE_KILLS` says how many deaths (`make nightly`: 100), `HOARD_NODE_KILLS_SEED` which.
"""

import os
import random
import secrets
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from hoard_p2p.storage.freeing import try_lock
from hoard_p2p.storage.store import Store
from tests.fault.power_work import check_places, check_space
from tests.system import Machine, exported, machines, tree, wait_until

KILLS = int(os.environ.get("HOARD_NODE_KILLS", "2"))
SEED = int(os.environ.get("HOARD_NODE_KILLS_SEED", "5"))
PATH = os.pathsep.join(map(os.fspath, (Path(__file__).parent / "dying", Path(__file__).parents[2])))
STEPS = {
    "publish": {"node": 540, "leader": 80, "worker": 140},
    "fetch": {"node": 460},
    "forget": {"node": 600},
    "scrub": {"node": 260, "scrub": 180},
}
"""About how many each process makes in all, which for a node includes its start."""
LARGE = 9 << 20
STATUSES = (0, 1, 3, 4, 5, 6)
"""What a command may end with; anything else is a failure that nobody foresaw."""

pytestmark = pytest.mark.timeout(120 + 20 * KILLS)
NewDirectory = Callable[[str], Path]


@dataclass
class Deaths:
    """Two nodes, of which `victim` dies; it works between its deaths, and `peer` has what it fetches."""

    peer: Machine
    victim: Machine
    new_directory: NewDirectory
    draw: random.Random
    sources: dict[str, Path] = field(default_factory=dict)
    """Of the snapshots that the victim has promised to have."""
    listed: set[bytes] = field(default_factory=set)

    def one(self, action: str) -> None:
        role = self.draw.choice(list(STEPS[action]))
        step = self.draw.randrange(1, STEPS[action][role])
        prepared = getattr(self, f"{action}_what")()
        with self.dying(role, step):
            getattr(self, action)(prepared)
        try:
            self.look(action)
        except Exception as error:
            raise AssertionError(f"{role} was to die at step {step} of {action}") from error

    @contextmanager
    def dying(self, role: str, step: int) -> Iterator[None]:
        """The victim's node runs in the block, and dies or has a process that does; afterwards it is dead anyway."""
        self.victim.environment = {"PYTHONPATH": PATH, "HOARD_DIES": f"{role}:{step}"}
        try:
            self.try_to("up", "--detach", "--cluster", self.victim.cluster, "--name", "victim", "--listen",
                        "127.0.0.1:0", "--discovery", self.victim.discovery)  # fmt: skip
            yield
        finally:
            self.victim.environment = {}
            self.kill()

    def try_to(self, *arguments: str) -> int:
        done = self.victim.hoard(*arguments, check=False)
        assert done.returncode in STATUSES, done.stderr
        assert "Traceback" not in done.stderr, done.stderr
        return done.returncode

    def kill(self) -> None:
        for pid in processes_of(self.victim.data_dir):
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
        wait_until(lambda: is_free(self.victim.data_dir / "node-lock"), "the node lets go of its directory")
        wait_until(lambda: not processes_of(self.victim.data_dir), "all processes of the node end")

    # --- what it does

    def publish_what(self) -> Path:
        return self.a_tree()

    def publish(self, source: Path) -> None:
        done = self.victim.hoard("publish", os.fspath(source), check=False)
        assert done.returncode in STATUSES, done.stderr
        if done.returncode == 0:
            self.sources[done.stdout.splitlines()[-1]] = source

    def fetch_what(self) -> tuple[str, Path]:
        source = self.a_tree()
        return self.peer.publish(source), source

    def fetch(self, what: tuple[str, Path]) -> None:
        snapshot, source = what
        target = self.new_directory("e") / "out"
        if self.try_to("export", snapshot, os.fspath(target)) == 0:
            assert tree(target) == exported(tree(source))

    def forget_what(self) -> None:
        return None

    def forget(self, what: None) -> None:
        """All but the last of what was published is removed, and what was fetched dropped."""
        self.listed = set()
        for snapshot in list(self.sources)[:-1]:
            del self.sources[snapshot]
            self.try_to("rm", snapshot)
        for row in self.peer.json("status")["snapshots"]:
            self.try_to("evict", row["id"])
        self.try_to("gc")

    def scrub_what(self) -> None:
        """Some bytes rot."""
        slabs = sorted((self.victim.data_dir / "slabs").glob("*.slab"))
        for path in self.draw.sample(slabs, min(2, len(slabs))):
            with path.open("r+b") as slab:
                slab.seek(self.draw.randrange(max(1, path.stat().st_size)))
                slab.write(b"rot")

    def scrub(self, what: None) -> None:
        self.try_to("scrub")
        self.kill()
        self.victim.environment = {}
        self.victim.up()
        assert self.try_to("scrub") in (0, 6)
        self.listed = set()
        for source in self.sources.values():  # what no peer has
            self.victim.publish(source, "--rehash")
        assert self.try_to("scrub") == 0

    # --- what is looked at

    def look(self, action: str) -> None:
        """The node is dead; what its processes left is looked at by whoever opens the store next."""
        if not (self.victim.data_dir / "format").exists():
            return
        with Store.open(self.victim.data_dir) as store:
            listed = check_places(store)
            assert self.listed <= listed, "chunks were lost"
            check_space(store)
            assert check_places(store) == listed
        self.listed = listed

    def end(self) -> None:
        """What was promised is whole, and so is whatever is shown; the files of publishes that ended early are gone."""
        self.victim.up()
        shown = {row["id"] for row in self.victim.json("status")["snapshots"]}
        assert self.sources.keys() <= shown
        for snapshot in shown:
            target = self.new_directory("e") / "out"
            self.victim.hoard("export", snapshot, os.fspath(target))
            if snapshot in self.sources:
                assert tree(target) == exported(tree(self.sources[snapshot]))
        assert list(self.victim.data_dir.glob("tmp/*")) == []

    def a_tree(self) -> Path:
        source = self.new_directory("s")
        (source / "large").write_bytes(self.draw.randbytes(LARGE))
        for number in range(40):
            (source / f"small{number}").write_bytes(self.draw.randbytes(self.draw.choice((10, 4096, 30_000))))
        return source


def processes_of(data_dir: Path) -> list[int]:
    """Every process that has the directory in its command line, but for commands that ask the node."""
    found = []
    for entry in Path("/proc").iterdir():
        try:
            words = (entry / "cmdline").read_bytes() if entry.name.isdigit() else b""
        except OSError:
            continue
        if os.fsencode(data_dir) in words and b"hoard_p2p.node." in words:
            found.append(int(entry.name))
    return found


def is_free(path: Path) -> bool:
    """Whether nobody holds the lock; who just dies may, when he cannot be seen any more."""
    with suppress(FileNotFoundError), path.open("rb") as file:
        return try_lock(file.fileno())
    return True


def test_whenever_a_process_of_a_node_dies_the_store_is_right_and_the_next_node_goes_on(
    new_directory: NewDirectory,
) -> None:
    draw = random.Random(SEED)
    cluster = f"test-{secrets.token_hex(4)}"
    peer = Machine(new_directory("n"), cluster, "peer", discovery="none", listen="127.0.0.1:0")
    with machines([peer]):
        address = peer.json("status")["node"]["url"].removeprefix("http://")
        victim = Machine(new_directory("n"), cluster, "victim", discovery=f"static:{address}", listen="127.0.0.1:0")
        deaths = Deaths(peer, victim, new_directory, draw)
        try:
            actions = list(STEPS)
            for number in range(KILLS):
                deaths.one(actions[number % len(actions)])
            deaths.end()
        finally:
            victim.close()
            deaths.kill()
