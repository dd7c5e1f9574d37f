"""Real nodes on one network that are to stay apart, and others that are to meet though nothing tells them of each other
by itself: other clusters, other keys, no multicast, an etcd that goes and comes back."""

import os
import secrets
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from hoard_p2p.transfer.keys import new_key, write_key_file
from tests.cluster.netns import Host, network
from tests.realetcd import needs_etcd
from tests.system import Machine, exported, machines, make_tree, tree, wait_until

pytestmark = [pytest.mark.netns, pytest.mark.timeout(240)]
NewDirectory = Callable[[str], Path]

PORT = 7440
LONG = 60.0


@pytest.fixture
def hosts() -> Iterator[list[Host]]:
    with network(3) as hosts:
        yield hosts


def machine_on(host: Host, data_dir: Path, name: str, cluster: str, *options: str, discovery: str = "mdns") -> Machine:
    prefix = ("nsenter", f"--net=/run/netns/{host.namespace}")
    port = PORT if name == "m0" else 0
    return Machine(data_dir, cluster, name, name, prefix, discovery, options, f"0.0.0.0:{port}")


def check_read(machine: Machine, snapshot: str, source: Path, target: Path) -> None:
    machine.hoard("export", snapshot, os.fspath(target / "tree"))
    assert tree(target / "tree") == exported(tree(source))


def others_of(machine: Machine) -> list[str]:
    return [peer["name"] for peer in machine.json("peers")["peers"]]


def test_another_cluster_another_key_and_none_see_and_get_nothing(
    hosts: list[Host], new_directory: NewDirectory
) -> None:
    cluster, keys = f"test-{secrets.token_hex(4)}", new_directory("k")
    for name in ("right", "wrong"):
        write_key_file(keys / name, new_key())
    right, wrong = (("--cluster-key-file", os.fspath(keys / name)) for name in ("right", "wrong"))
    met = [machine_on(hosts[n], new_directory("n"), f"m{n}", cluster, *right) for n in range(2)]
    told = ("--discovery", f"static:{hosts[0].address}:{PORT}")
    strangers = [
        machine_on(hosts[1], new_directory("n"), "elsewhere", f"{cluster}-b", *right, *told),
        machine_on(hosts[2], new_directory("n"), "wrong", cluster, *wrong, *told),
        machine_on(hosts[2], new_directory("n"), "open", cluster, *told),
    ]
    source = make_tree(new_directory("s"))
    with machines(met):
        snapshot = met[0].publish(source, "--name", "set:1")
        try:
            for stranger in strangers:
                stranger.up()
            for stranger in strangers[1:]:
                wait_until(lambda stranger=stranger: "key" in stranger.log(), f"{stranger.name} says why", LONG)  # type: ignore[misc]  # bound now
            check_read(met[1], snapshot, source, new_directory("e"))
            for stranger in strangers:
                assert others_of(stranger) == []
                refused = stranger.hoard("export", snapshot, os.fspath(new_directory("e") / "tree"), check=False)
                assert refused.returncode == 3, refused.stderr
            assert [others_of(machine) for machine in met] == [["m1"], ["m0"]]
            # they are a cluster of their own
            own = strangers[1].publish(source)
            check_read(strangers[1], own, source, new_directory("e"))
        finally:
            for stranger in strangers:
                stranger.close()


def test_without_multicast_nodes_that_are_told_of_one_meet_all_and_read_from_them(
    hosts: list[Host], new_directory: NewDirectory
) -> None:
    cluster = f"test-{secrets.token_hex(4)}"
    for host in hosts:
        host.run(["ip", "link", "set", "eth0", "multicast", "off"])
    told = f"static:{hosts[0].address}:{PORT}"
    made = [machine_on(host, new_directory("n"), f"m{n}", cluster, discovery=told) for n, host in enumerate(hosts)]
    source = make_tree(new_directory("s"), large=20 << 20)
    with machines(made):
        snapshot = made[2].publish(source, "--name", "set:1")
        wait_until(lambda: "set:1" in made[1].hoard("refs").stdout, "the name is known", LONG)
        check_read(made[1], "set:1", source, new_directory("e"))
        made[0].kill()  # the only one that was told of: whoever has met goes on
        check_read(made[1], snapshot, source, new_directory("e"))
        check_read(made[2], made[1].publish(source), source, new_directory("e"))


@needs_etcd
def test_nodes_that_meet_by_etcd_read_and_name_on_when_it_was_restarted(
    hosts: list[Host], new_directory: NewDirectory
) -> None:
    cluster, directory = f"test-{secrets.token_hex(4)}", new_directory("etcd")
    etcd = start_etcd(hosts[0], directory)
    way = f"etcd:{hosts[0].address}:2379"
    made = [machine_on(host, new_directory("n"), f"m{n}", cluster, discovery=way) for n, host in enumerate(hosts)]
    source, other = make_tree(new_directory("s"), large=20 << 20), make_tree(new_directory("s"), seed=2)
    with machines(made):
        made[0].publish(source, "--name", "set:1")
        etcd.kill()
        etcd.wait(10)
        wait_until(lambda: "set:1" in made[2].hoard("refs").stdout, "the name was known before", LONG)
        check_read(made[1], "set:1", source, new_directory("e"))
        assert sorted(others_of(made[1])) == ["m0", "m2"]
        refused = made[2].hoard("publish", os.fspath(other), "--name", "set:2", check=False)
        assert (refused.returncode, "etcd" in refused.stderr) == (5, True), refused.stderr
        start_etcd(hosts[0], directory)
        wait_until(
            lambda: made[2].hoard("publish", os.fspath(other), "--name", "set:2", check=False).returncode == 0,
            "names can be set again", LONG,
        )  # fmt: skip
        wait_until(lambda: "set:2" in made[1].hoard("refs").stdout, "the name is known", LONG)
        check_read(made[1], "set:2", other, new_directory("e"))
        assert sorted(others_of(made[1])) == ["m0", "m2"]


def start_etcd(host: Host, directory: Path) -> "subprocess.Popen[str]":
    peers = f"http://{host.address}:2380"
    log = (directory / "log").open("a")
    argv = ["etcd", "--data-dir", os.fspath(directory / "data"), "--initial-cluster", f"default={peers}"]
    argv += [
        "--listen-client-urls",
        f"http://{host.address}:2379",
        "--advertise-client-urls",
        f"http://{host.address}:2379",
    ]
    argv += ["--listen-peer-urls", peers, "--initial-advertise-peer-urls", peers]
    with log:
        return host.start(["sh", "-c", 'exec "$0" "$@" 2>&1', *argv], stdout=log)
