"""`replicas`, `where`, `down --drain`, and how the status tells of copies."""

import json
import subprocess
import sys
from typing import Any

import pytest

from hoard_p2p.cli.doors import Body
from hoard_p2p.cli.main import run
from hoard_p2p.cli.nodes import status_text
from hoard_p2p.errors import Unavailable
from tests.unit.cli_fakes import FakeNode

ID = "ab" * 32
WHERE: Body = {
    "snapshot": ID,
    "segments": 4,
    "bytes": 4 << 20,
    "held_anywhere": 3 << 20,
    "nodes": [
        {"id": "01" * 16, "name": "a", "rack": "r1", "answers": True, "held": 3 << 20, "missing": 1 << 20, "score": 75},
        {"id": "02" * 16, "name": "b", "rack": "r2", "answers": False, "held": 0, "missing": 4 << 20, "score": 7},
    ],
    "racks": [
        {"rack": "r1", "nodes": 1, "held": 3 << 20, "missing": 1 << 20},
        {"rack": "r2", "nodes": 1, "held": 0, "missing": 4 << 20},
    ],
}


def test_where_says_which_origin_has_what_no_node_has(capsys: pytest.CaptureFixture[str]) -> None:
    run(["where", "ababab"], FakeNode(where={**WHERE, "origin": "s3://bucket/set/"}).doors())
    assert "on no node that answers, and are read at s3://bucket/set/ when" in capsys.readouterr().out


def test_where_lists_nodes_and_racks_and_what_is_on_none(capsys: pytest.CaptureFixture[str]) -> None:
    node = FakeNode(where=WHERE)
    assert run(["where", "ababab"], node.doors()) == 0
    assert node.asked == [("where", {"snapshot": "ababab"})]
    told = capsys.readouterr().out
    assert "4.0 MiB in 4 segments; 1.0 MiB are on no node that answers" in told
    assert ["a", "010101010101", "r1", "3.0", "MiB", "1.0", "MiB", "75%", "75"] in [
        x.split() for x in told.splitlines()
    ]
    assert ["b", "020202020202", "r2", "?", "?", "?", "7"] in [line.split() for line in told.splitlines()]
    assert ["r2", "1", "0", "B", "4.0", "MiB", "0%"] in [line.split() for line in told.splitlines()]


def test_where_as_json_is_what_the_node_said(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["where", "ababab", "--json"], FakeNode(where=WHERE).doors()) == 0
    assert json.loads(capsys.readouterr().out) == WHERE


def test_replicas_are_asked_for_and_the_id_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    node = FakeNode(replicas={"snapshot": ID, "replicas": 3, "changed": False})
    assert run(["replicas", "ababab", "3"], node.doors()) == 0
    assert node.asked == [("replicas", {"snapshot": "ababab", "replicas": 3})]
    told = capsys.readouterr()
    assert (told.out, "already" in told.err) == (ID + "\n", True)
    assert run(["replicas", "ababab", "0"], node.doors()) == 2


def test_more_replicas_than_nodes_are_told_of_and_no_more_than_16_are_taken(capsys: pytest.CaptureFixture[str]) -> None:
    node = FakeNode(replicas={"snapshot": ID, "replicas": 3, "changed": True, "nodes": 2})
    assert run(["replicas", "ababab", "3"], node.doors()) == 0
    assert "there are 2 nodes now" in capsys.readouterr().err
    assert run(["replicas", "ababab", "17"], node.doors()) == 2


@pytest.mark.parametrize(
    ("command", "op", "said"),
    [
        (["down", "--drain"], "drain", "the node was not stopped"),
        (["warm", "ababab"], "warm", "what came stays"),
    ],
)
def test_ctrl_c_says_what_it_leaves(command: list[str], op: str, said: str, capsys: pytest.CaptureFixture[str]) -> None:
    def interrupted(_: Body) -> Body:
        raise KeyboardInterrupt

    assert run(command, FakeNode(**{op: interrupted}).doors()) == 130
    assert "interrupted" in (told := capsys.readouterr().err) and said in told


def test_a_node_that_cannot_be_drained_is_not_stopped(capsys: pytest.CaptureFixture[str]) -> None:
    node = FakeNode(drain=Unavailable("it is not safe to remove this node: 3 MiB are not held by enough others"))
    assert run(["down", "--drain", "--timeout", "7"], node.doors()) == 5
    assert node.asked == [("drain", {"stall": 7.0})]
    assert "not safe" in capsys.readouterr().err


def test_a_node_that_drained_is_stopped(capsys: pytest.CaptureFixture[str]) -> None:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:

        def down(_: Body) -> Body:
            process.terminate()
            process.wait()
            return {}

        node = FakeNode(
            drain={"safe": True, "bytes": 3 << 20, "snapshots": 2}, ping={"pid": process.pid, "node": "x"}, down=down
        )
        node.progress = [{"phase": "draining", "bytes": 10, "bytes_done": 5}]
        assert run(["down", "--drain", "--json"], node.doors()) == 0
    told = capsys.readouterr()
    assert json.loads(told.out) == {"running": True, "drained": True, "bytes": 3 << 20, "snapshots": 2}
    assert "3.0 MiB are kept by others" in told.err


def test_the_status_says_what_lacks_copies_and_which_racks_keep_more(
    capsys: pytest.CaptureFixture[str],
) -> None:
    body: Any = {
        "node": {"name": "a", "id": "00", "rack": "", "cluster": "c", "pid": 1, "version": "1", "url": "u"},
        "store": {},
        "under_replicated_bytes": 5 << 20,
        "repair": {"working": True, "waiting_bytes": 2 << 20, "full": True},
        "racks": [{"rack": "r1", "load": 0.67}, {"rack": "r2", "load": 2.0}],
    }
    told = status_text(body)
    assert "5.0 MiB have too few copies, 2.0 MiB are to be copied here; this node has no room for more" in told
    assert "nodes there keep more: r2 2 x" in told
    calm = status_text({**body, "under_replicated_bytes": 0, "repair": {"waiting_bytes": 0}, "racks": []})
    assert "copies" not in calm and "racks" not in calm
