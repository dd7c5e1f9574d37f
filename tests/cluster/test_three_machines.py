"""One hash, several machines: nodes in network namespaces that find each other by real mDNS, with no configuration."""

import os
import secrets
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.cluster.netns import network
from tests.system import Machine, exported, machines, make_tree, space_of, tree, wait_until

pytestmark = [pytest.mark.netns, pytest.mark.fuse, pytest.mark.timeout(240)]


LOCALES = (
    {"LC_ALL": "C.UTF-8"},
    {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"},
    {"LC_ALL": "xx_YY.KOI8-R"},
)
"""One for each machine: UTF-8, plain ASCII, and one that its system does not have."""


@pytest.fixture
def three(new_directory: Callable[[str], Path]) -> Iterator[list[Machine]]:
    """Three nodes in two racks, each in a namespace and a locale of its own."""
    cluster = f"test-{secrets.token_hex(4)}"
    with network(3) as hosts:
        made = [
            Machine(
                data_dir=new_directory("n"),
                cluster=cluster,
                name=f"m{number}",
                rack=f"r{number % 2}",
                prefix=("nsenter", f"--net=/run/netns/{host.namespace}"),
                environment=LOCALES[number],
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
    target = new_directory("e")
    second.hoard("export", snapshot, os.fspath(target / "tree"))
    assert tree(target / "tree") == exported(expected)


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


def encoding_of(pid: int) -> str:
    """What the locale of a process makes Python encode file names with."""
    entries = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    environment = {name: value for name, _, value in (entry.partition(b"=") for entry in entries) if name}
    ask = "import locale, sys; print(sys.getfilesystemencoding(), locale.getpreferredencoding(False))"
    return subprocess.run([sys.executable, "-c", ask], env=environment, capture_output=True, check=True).stdout.decode()


def settled_store(machine: Machine) -> dict[str, int]:
    """The figures of the store once writers that ended have given back the space they had reserved."""
    seen: list[dict[str, int]] = []

    def is_settled() -> bool:
        figures = {name: machine.json("status")["store"][name] for name in ("chunks", "used")}
        slabs = space_of(machine.data_dir / "slabs")
        seen.append({**figures, "slabs": slabs})
        return len(seen) > 3 and seen[-1] == seen[-2] == seen[-3]

    wait_until(is_settled, "the store stops to change")
    return seen[-1]


def test_the_same_tree_has_one_id_on_every_machine_and_in_every_locale(
    three: list[Machine], new_directory: Callable[[str], Path]
) -> None:
    source = make_tree(new_directory("s"))
    encodings = {encoding_of(machine.pid) for machine in three}
    assert len(encodings) > 1, "the nodes differ in what this test is about"
    ids = {machine.publish(source) for machine in three}
    assert len(ids) == 1
    before = settled_store(three[0])
    assert three[0].publish(source) in ids
    after = settled_store(three[0])
    assert after["chunks"] == before["chunks"], "publishing again stores nothing new"
    assert after["slabs"] <= before["slabs"], "and takes no space (what a writer had reserved may go meanwhile)"
    grown = after["used"] - before["used"]
    assert grown <= 64 << 10, "but for a few pages of the index, which is written all the time"


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
