"""One hash, several machines: nodes in network namespaces that find each other by real mDNS, with no configuration."""

import os
import secrets
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.cluster.netns import network
from tests.system import Machine, machines, make_tree, tree, wait_until

pytestmark = [pytest.mark.netns, pytest.mark.fuse, pytest.mark.timeout(240)]


@pytest.fixture
def three(new_directory: Callable[[str], Path]) -> Iterator[list[Machine]]:
    """Three nodes in two racks, each in a namespace of its own."""
    cluster = f"test-{secrets.token_hex(4)}"
    with network(3) as hosts:
        made = [
            Machine(
                data_dir=new_directory("n"),
                cluster=cluster,
                name=f"m{number}",
                rack=f"r{number % 2}",
                prefix=("nsenter", f"--net=/run/netns/{host.namespace}"),
            )
            for number, host in enumerate(hosts)
        ]
        with machines(made):
            yield made


def test_a_set_published_on_one_is_equal_on_the_others_and_outlives_its_publisher(
    three: list[Machine], new_directory: Callable[[str], Path]
) -> None:
    first, second, third = three
    source = make_tree(new_directory("s"))
    expected = tree(source)
    snapshot = first.publish(source, "--name", "set:1")

    mounted = second.mount(snapshot, new_directory("m"))
    assert tree(mounted) == expected
    assert os.stat(mounted / "shard").st_ino == os.stat(mounted / "deep" / "again").st_ino
    wait_until(lambda: third.hoard("refs").stdout.find("set:1") >= 0, "the name reaches the third node")
    assert tree(third.mount("set:1", new_directory("m"))) == expected

    first.kill()
    fresh = third.mount(snapshot[:12], new_directory("m"))
    assert tree(fresh) == expected
    exported = new_directory("e")
    second.hoard("export", snapshot, os.fspath(exported / "tree"))
    assert tree(exported / "tree") == expected


def test_every_segment_is_on_two_nodes_and_in_both_racks_when_it_is_shown(
    three: list[Machine], new_directory: Callable[[str], Path]
) -> None:
    source = make_tree(new_directory("s"), large=40 << 20)
    snapshot = three[0].publish(source)
    (listed,) = three[0].json("status")["snapshots"]
    assert listed["id"] == snapshot
    assert listed["segments"] > 3
    assert listed["under_replicated"] == 0
    held = [machine.json("status")["snapshots"][0]["segments_here"] for machine in three]
    assert held[0] == listed["segments"]
    assert held[1] == listed["segments"], "the only node of the second rack is a home of everything"


def test_the_same_tree_has_one_id_on_every_machine_and_in_every_locale(
    three: list[Machine], new_directory: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    source = make_tree(new_directory("s"))
    ids = {machine.publish(source) for machine in three}
    monkeypatch.setenv("LC_ALL", "C")
    monkeypatch.setenv("PYTHONUTF8", "0")
    ids.add(three[0].publish(source))
    assert len(ids) == 1
    before = three[0].json("status")["store"]
    three[0].publish(source)
    after = three[0].json("status")["store"]
    assert after["chunks"] == before["chunks"], "publishing again stores nothing new"


def test_what_is_removed_is_gone_everywhere(three: list[Machine], new_directory: Callable[[str], Path]) -> None:
    source = make_tree(new_directory("s"), files=5, large=1000)
    snapshot = three[0].publish(source, "--name", "gone")
    refused = three[1].hoard("rm", snapshot, check=False)
    assert (refused.returncode, "gone:latest" in refused.stderr) == (1, True)
    three[1].hoard("untag", "gone")
    three[1].hoard("rm", snapshot)
    for machine in three:
        assert machine.json("ls")["snapshots"] == []
        missing = machine.hoard("mount", snapshot, os.fspath(new_directory("m")), check=False)
        assert missing.returncode == 3, missing.stderr
