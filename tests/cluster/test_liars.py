"""A member that lies when it is asked for chunks: readers get the right bytes all the same, and soon, and the liar is
named. It is home, gateway, predecessor in chains, and reader of an origin."""

import os
import secrets
import shutil
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.cluster.liar import LIES, Liar
from tests.cluster.netns import Host, network
from tests.system import Machine, exported, machines, make_tree, tree

pytestmark = [pytest.mark.netns, pytest.mark.fuse, pytest.mark.timeout(240)]

BOUND = 40.0
"""Seconds for a command that needs what the liar should give. A loaded machine needs many of them for itself."""


@dataclass
class Town:
    """An honest node in one rack; a liar, and the next reader, in the other. Both have two sets whole."""

    honest: Machine
    liar: Liar
    place: Host
    directory: Path
    read: Path
    warmed: Path
    sets: tuple[str, str]
    readers: int = 0

    def reader(self) -> Machine:
        """A new machine that has nothing, and is home of nearly nothing."""
        self.readers += 1
        data_dir = self.directory / f"r{self.readers}"
        data_dir.mkdir()
        return machine_on(self.place, data_dir, self.honest.cluster, f"reader{self.readers}", "r1")


def machine_on(host: Host, data_dir: Path, cluster: str, name: str, rack: str, *options: str) -> Machine:
    prefix = ("nsenter", f"--net=/run/netns/{host.namespace}")
    options = options or ("--capacity", "1GiB")
    return Machine(data_dir, cluster, name, rack, prefix, listen=f"{host.address}:0", options=options)


@pytest.fixture(scope="module")
def town() -> Iterator[Town]:
    cluster, directory = f"test-{secrets.token_hex(4)}", Path(tempfile.mkdtemp(prefix="liars-"))
    try:
        with network(3) as hosts:
            for name in ("n0", "n1", "read", "warmed"):
                (directory / name).mkdir()
            read = make_tree(directory / "read", large=40 << 20, seed=1)
            warmed = make_tree(directory / "warmed", large=40 << 20, seed=2)
            honest = machine_on(hosts[0], directory / "n0", cluster, "honest", "r0", "--capacity", "64GiB")
            prefix = ("nsenter", f"--net=/run/netns/{hosts[1].namespace}")
            liar = Liar(directory / "n1", cluster, "liar", "r1", prefix, listen=f"{hosts[1].address}:0")
            with machines([honest, liar]):
                sets = honest.publish(read), honest.publish(warmed)
                for snapshot in sets:
                    assert all(node["missing"] == 0 for node in liar.json("where", snapshot)["nodes"])
                yield Town(honest, liar, hosts[2], directory, read, warmed, sets)
    finally:
        shutil.rmtree(directory)


@pytest.mark.parametrize("lie", LIES)
def test_readers_beside_a_liar_get_the_right_bytes_and_it_is_named(town: Town, lie: str) -> None:
    reader, mountpoint = town.reader(), town.directory / f"m-{lie}"
    town.liar.lie("honest")
    with machines([reader], others=2):
        town.liar.lie(lie)
        mounted = reader.mount(town.sets[0], mountpoint)
        assert tree(mounted) == tree(town.read)
        reader.hoard("warm", town.sets[1], seconds=BOUND)
        reader.hoard("export", town.sets[1], os.fspath(town.directory / f"e-{lie}"))
        assert tree(town.directory / f"e-{lie}") == exported(tree(town.warmed))
        named = [line for line in reader.log().splitlines() if "peer liar" in line]
        assert named or lie in {"denies", "pending"}, reader.log()
        (liar,) = [peer for peer in reader.json("peers")["peers"] if peer["name"] == "liar"]
        assert (liar["state"], liar["wrong_chunks"] > 0) == ("alive", lie in {"wrong", "cut", "endless"})
        reader.umount(mountpoint)
