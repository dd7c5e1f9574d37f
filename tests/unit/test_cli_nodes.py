"""`status`, `peers`, `down`."""

import json
import subprocess
import sys

import pytest

from hoard_p2p.cli.doors import Body
from hoard_p2p.cli.main import run
from hoard_p2p.cli.nodes import status_text
from hoard_p2p.config import Json
from tests.unit.cli_fakes import FakeNode

STATUS: Body = {
    "node": {
        "id": "0123456789abcdef0123456789abcdef",
        "name": "gpu1",
        "rack": "r1",
        "url": "http://10.0.0.1:7440",
        "cluster": "lab",
        "pid": 4711,
        "version": "0.1.0",
        "data_dir": "/var/lib/hoard",
    },
    "peers": [{"id": "fe" * 16, "name": "gpu2", "rack": "r2", "url": "http://10.0.0.2:7440", "state": "alive"}],
    "snapshots": [
        {
            "id": "ab" * 32,
            "names": ["set:1"],
            "files": 12000,
            "bytes": 3 << 30,
            "lazy": False,
            "state": "shown",
            "segments": 400,
            "segments_here": 210,
            "under_replicated": 0,
        }
    ],
    "store": {"capacity": 100 << 30, "used": 5 << 30, "available": 60 << 30, "ghosts": 1 << 30, "chunks": 123456},
    "origins": [],
    "mounts": [
        {
            "mountpoint": "/mnt/\x1bset",
            "snapshot": "ab" * 32,
            "pid": 4712,
            "version": "0.1.0",
            "io": "no-open",
            "io_reason": "9,000 of 9,100 files are small",
            "workers": 2,
            "served": 123456,
            "parked": 3,
            "failed": 0,
        },
        {"mountpoint": "/mnt/old", "snapshot": "cd" * 32, "pid": 99, "io": "passthrough", "version": "0.0.9"},
    ],
}


def test_status_shows_everything_in_words(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["status"], FakeNode(status=STATUS).doors()) == 0
    shown = capsys.readouterr().out
    for part in (
        "gpu1 (0123456789ab), rack r1, cluster lab",
        "5.0 GiB used of 100.0 GiB, 60.0 GiB available, 1.0 GiB deleted and still open, 123,456 chunks",
        "gpu2",
        "alive",
        "set:1",
        "210 of 400",
    ):
        assert part in shown


def test_metrics_are_printed_as_they_are_and_alone(capsys: pytest.CaptureFixture[str]) -> None:
    doors = FakeNode(metrics={"text": "# TYPE hoard_peers gauge\nhoard_peers 2.0\n"}).doors()
    assert run(["status", "--metrics"], doors) == 0
    assert capsys.readouterr().out == "# TYPE hoard_peers gauge\nhoard_peers 2.0\n"
    assert run(["status", "--metrics", "--json"], doors) == 2


def test_status_escapes_what_others_named() -> None:
    assert "/mnt/\\x1bset" in status_text(STATUS)


def test_status_says_how_each_mount_is_served() -> None:
    lines = [" ".join(line.split()) for line in status_text(STATUS).splitlines()]
    assert lines[-2].endswith(" 4712 123,456 3 0 no-open: 9,000 of 9,100 files are small")
    assert lines[-1].endswith(" 99 ? ? ? passthrough; version 0.0.9"), "a mount whose memory cannot be read"


def test_status_lists_origins_and_why_one_cannot_be_read() -> None:
    away: dict[str, Json] = {
        "url": "dir:/mnt/\x1bx",
        "readable": False,
        "why": "it is away",
        "nodes": 2,
        "read": 0,
        "errors": 0,
    }
    here: dict[str, Json] = {
        "url": "dir:/mnt/set",
        "readable": True,
        "why": "",
        "nodes": 3,
        "read": 5 << 20,
        "errors": 1,
        "spared": 15 << 20,
        "rate": 1 << 20,
        "throttled": 2,
        "streams": 4,
        "limit_cluster": 8 << 20,
        "limit": 2 << 20,
        "bypassed": 4096,
        "bypass_left": 8192,
    }
    shown = status_text({**STATUS, "origins": [here, away]})
    lines = [" ".join(line.split()) for line in shown.splitlines()]
    assert "dir:/mnt/set yes 3 5.0 MiB 15.0 MiB (75%) 1.0 MiB/s 1" in lines
    assert "dir:/mnt/\\x1bx no 2 0 B 0 B 0 B/s 0" in lines
    assert (
        "dir:/mnt/set: at most 8.0 MiB/s of all nodes, 2.0 MiB/s of this one; asked to be asked less 2 times, now 4 "
        "streams; 4.0 KiB read past readers that were late, 8.0 KiB more may be" in lines
    )
    assert "it is away" in lines
    assert "ORIGIN" not in status_text(STATUS)


def test_status_json_is_the_answer_of_the_node(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["status", "--json"], FakeNode(status=STATUS).doors()) == 0
    assert json.loads(capsys.readouterr().out) == STATUS


def test_status_of_a_node_with_nothing_says_so() -> None:
    assert "no peers" in status_text({}) and "no snapshots" in status_text({})


def test_peers_lists_the_others(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["peers"], FakeNode(peers={"peers": STATUS["peers"]}).doors()) == 0
    assert "gpu2  fefefefefefe  r2    alive  http://10.0.0.2:7440" in capsys.readouterr().out


def test_down_returns_when_the_process_has_ended() -> None:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as node:
        assert node.stdin is not None

        def down(_: Body) -> Body:
            assert node.stdin is not None
            node.stdin.close()
            return {}

        assert run(["down"], FakeNode(ping={"pid": node.pid, "node": "x"}, down=down).doors()) == 0
        assert node.poll() is not None
