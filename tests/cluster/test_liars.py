"""A member that lies when it is asked for chunks: readers get the right bytes all the same, and soon, and the liar is
named. It is home, gateway, predecessor in chains, and reader of an origin."""

import os
import secrets
import shutil
import tempfile
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from tests.cluster.liar import LIES, Liar
from tests.cluster.netns import Host, network
from tests.system import Machine, exported, machines, make_tree, tree, wait_until

pytestmark = [pytest.mark.netns, pytest.mark.fuse, pytest.mark.timeout(240)]

BOUND = 60.0
"""Seconds for a command that needs what the liar should give. A loaded machine needs many of them for itself."""


@dataclass
class Town:
    """An honest node in one rack; a liar, and the next reader, in the other. Both have the sets `passed` and `homed`
    whole, and may read the origin of the set `cold`; the reader may not."""

    honest: Machine
    liar: Liar
    place: Host
    directory: Path
    ids: dict[str, str] = field(default_factory=dict)
    trees: dict[str, dict[bytes, tuple[object, ...]]] = field(default_factory=dict)
    readers: int = 0
    pool: ThreadPoolExecutor = field(default_factory=lambda: ThreadPoolExecutor(1))
    coming: Future[Machine] | None = None

    def publish(self, name: str, seed: int, *options: str) -> None:
        source = self.directory / name
        source.mkdir()
        self.ids[name] = self.honest.publish(make_tree(source, large=24 << 20, seed=seed), *options)
        self.trees[name] = tree(source)

    def forget(self) -> None:
        """Nobody has anything of the cold set any more."""
        for machine in (self.honest, self.liar):
            machine.hoard("evict", self.ids["cold"])

    @contextmanager
    def reader(self) -> Iterator[Machine]:
        """A new machine that has nothing, is home of nearly nothing, and has met the others. The next one comes up
        meanwhile, which takes as long as a case."""
        reader = (self.coming or self.pool.submit(self._new_reader)).result()
        self.coming = self.pool.submit(self._new_reader) if self.readers < len(LIES) else None
        try:
            yield reader
        finally:
            reader.close()

    def _new_reader(self) -> Machine:
        self.readers += 1
        data_dir = self.directory / f"r{self.readers}"
        data_dir.mkdir()
        reader = machine_on(self.place, data_dir, self.honest.cluster, f"reader{self.readers}", "r1")
        try:
            reader.up()
            wait_until(lambda: {"honest", "liar"} <= alive(reader), f"{reader.name} sees the others")
        except BaseException:
            reader.close()
            raise
        return reader

    def close(self) -> None:
        if self.coming is not None:
            self.coming.result().close()
        self.pool.shutdown()


def machine_on(host: Host, data_dir: Path, cluster: str, name: str, rack: str, *options: str) -> Machine:
    prefix = ("nsenter", f"--net=/run/netns/{host.namespace}")
    options = options or ("--capacity", "1GiB")
    return Machine(data_dir, cluster, name, rack, prefix, listen=f"{host.address}:0", options=options)


@pytest.fixture(scope="module")
def town() -> Iterator[Town]:
    cluster, directory = f"test-{secrets.token_hex(4)}", Path(tempfile.mkdtemp(prefix="liars-"))
    try:
        with network(3) as hosts:
            for name in ("n0", "n1"):
                (directory / name).mkdir()
            honest = machine_on(hosts[0], directory / "n0", cluster, "honest", "r0", "--capacity", "64GiB")
            origins = os.fspath(directory)
            prefix = ("nsenter", f"--net=/run/netns/{hosts[1].namespace}")
            liar = Liar(
                directory / "n1", cluster, "liar", "r1", prefix, listen=f"{hosts[1].address}:0", origins=(origins,)
            )
            with machines([honest, liar]):
                town = Town(honest, liar, hosts[2], directory)
                town.publish("passed", 1)
                town.publish("homed", 2)
                town.publish("cold", 3, "--shared-origin", "--chunker", "fastcdc")
                for name in ("passed", "homed"):
                    assert all(node["missing"] == 0 for node in liar.json("where", town.ids[name])["nodes"])
                wait_until(lambda: readers_of_origin(liar) == 2, "both say that they read the origin")
                try:
                    yield town
                finally:
                    town.close()
    finally:
        shutil.rmtree(directory)


def alive(machine: Machine) -> set[str]:
    """The names of the others that it sees."""
    return {peer["name"] for peer in machine.json("peers")["peers"] if peer["state"] == "alive"}


def readers_of_origin(machine: Machine) -> int:
    origins = machine.json("status")["origins"]  # none before the news of the snapshot has come
    return sum(origin["nodes"] for origin in origins)


@pytest.mark.parametrize("lie", LIES)
def test_readers_beside_a_liar_get_the_right_bytes_and_it_is_named(town: Town, lie: str) -> None:
    place = town.directory / f"of-{lie}"
    place.mkdir()
    town.liar.lie("honest")
    town.forget()
    with town.reader() as reader:
        town.liar.lie(lie)
        # it is gateway of the rack and comes before the reader in the chain; it is home; it reads the origin
        mounted = reader.mount(town.ids["passed"], place / "passed")
        assert tree(mounted) == town.trees["passed"]
        for name in ("homed", "cold"):
            if name == "cold":
                reader.hoard("warm", town.ids[name], seconds=BOUND)
            reader.hoard("export", town.ids[name], os.fspath(place / name), seconds=BOUND)
            assert tree(place / name) == exported(town.trees[name])
        named = [line for line in reader.log().splitlines() if "peer liar" in line]
        assert named or lie in {"denies", "pending"}, reader.log()
        (liar,) = [peer for peer in reader.json("peers")["peers"] if peer["name"] == "liar"]
        assert (liar["state"], liar["wrong_chunks"] > 0) == ("alive", lie in {"wrong", "cut", "endless"})
        reader.umount(mounted)
