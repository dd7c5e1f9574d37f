"""`hoard scrub` and `hoard doctor --rebuild-index`, as an operator meets them."""

import json
import os
import secrets
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.system import Machine, exported, machines, make_tree, tree

pytestmark = pytest.mark.timeout(180)
LARGE = 9 << 20
NewDirectory = Callable[[str], Path]


def a_machine(new_directory: NewDirectory) -> Machine:
    return Machine(
        new_directory("n"), f"test-{secrets.token_hex(4)}", discovery="none", listen="127.0.0.1:0", name="one"
    )


def damage_large_file(machine: Machine) -> None:
    [largest] = [path for path in (machine.data_dir / "slabs").glob("F-*.slab") if path.stat().st_size == LARGE]
    with largest.open("r+b") as slab:
        slab.seek(largest.stat().st_size // 2)
        slab.write(b"damage")


def test_damage_ends_a_scrub_with_6_and_the_file_is_named_until_it_is_published_again(
    new_directory: NewDirectory,
) -> None:
    machine = a_machine(new_directory)
    source = make_tree(new_directory("s"), files=10, large=LARGE)
    with machines([machine]):
        snapshot = machine.publish(source, "--name", "set:1")
        assert "all right" in machine.hoard("scrub").stdout
        damage_large_file(machine)
        found = machine.hoard("scrub", check=False)
        assert found.returncode == 6, found.stderr
        assert f"damaged: {snapshot[:12]}: shard" in found.stderr
        assert "1 not healed" in found.stdout
        once_more = machine.hoard("scrub", "set:1", "--json", check=False)
        assert once_more.returncode == 6, "it is remembered"
        assert {"snapshot": snapshot, "path": "shard"} in json.loads(once_more.stdout)["files"]
        assert "1 DAMAGED chunks" in machine.hoard("status").stdout
        assert "1 chunks were found damaged" in machine.hoard("doctor", check=False).stdout
        assert machine.publish(source) == snapshot
        assert machine.json("scrub")["damaged"] == 0
        assert machine.hoard("scrub", "no-such-name", check=False).returncode == 3


def test_after_the_index_was_deleted_everything_that_was_published_is_back(new_directory: NewDirectory) -> None:
    machine = a_machine(new_directory)
    source = make_tree(new_directory("s"), files=10, large=LARGE)
    with machines([machine]):
        machine.publish(source, "--name", "set:1")
        node = machine.json("status")["node"]["id"]
        refused = machine.hoard("doctor", "--rebuild-index", check=False)
        assert refused.returncode == 1 and "hoard down" in refused.stderr
        machine.hoard("down")
        shutil.rmtree(machine.data_dir / "index")
        lost = machine.hoard("up", "--detach", "--discovery", "none", check=False)
        assert lost.returncode == 1 and "hoard doctor --rebuild-index" in lost.stderr, machine.log()
        checked = json.loads(machine.hoard("doctor", "--json", check=False).stdout)
        assert [line["verdict"] for line in checked["checks"] if line["name"] == "store"] == ["failed"]
        done = machine.json("doctor", "--rebuild-index")
        assert (done["snapshots"], done["refs"], done["wrong"], done["new_id"]) == (1, 1, 0, False)
        assert done["files"] == 2, "the slabs of the large files are known to be complete"
        machine.up()
        status = machine.json("status")
        assert status["node"]["id"] == node
        assert [row["state"] for row in status["snapshots"]] == ["whole"]
        target = new_directory("e") / "tree"
        machine.hoard("export", "set:1", os.fspath(target))
        assert tree(target) == exported(tree(source))
        assert machine.json("scrub")["damaged"] == 0
