"""A folder of a web server as a data set: published by one node, read by one that may not ask the server."""

import subprocess
from collections.abc import Iterator
from pathlib import Path
from random import Random

import pytest

from hoard_p2p.cli.localcluster import LocalCluster
from hoard_p2p.errors import HoardError
from tests.webserver import web_server

pytestmark = pytest.mark.timeout(240)


@pytest.fixture
def cluster() -> Iterator[LocalCluster]:
    with LocalCluster("hoard-web") as cluster:
        yield cluster


def a_folder(path: Path) -> Path:
    draw = Random(7)
    (path / "set/deep").mkdir(parents=True)
    (path / "set/large").write_bytes(draw.randbytes(9 << 20))
    (path / "set/deep/ä b#%.bin").write_bytes(draw.randbytes(100_000))
    (path / "set/empty").write_bytes(b"")
    (path / "outside").write_bytes(b"no part of it")
    return path


def same(left: Path, right: Path) -> bool:
    return subprocess.run(["diff", "-r", left, right], check=False).returncode == 0


def test_a_folder_of_the_web_is_exported_elsewhere_while_its_server_is_away(
    cluster: LocalCluster, tmp_path: Path
) -> None:
    site = a_folder(tmp_path / "site")
    first, second = cluster.start("first"), cluster.start("second")
    cluster.wait_met()
    with web_server(site) as server:
        snapshot = cluster.hoard(first, "publish", f"{server.url}set", "--name", "web:1").split()[-1]
        asked = len(server.asked)
    assert asked > 0
    out = tmp_path / "out"
    cluster.hoard(second, "export", snapshot, str(out))
    assert same(out, site / "set")


def test_a_lazy_snapshot_of_the_web_names_the_file_that_changed(cluster: LocalCluster, tmp_path: Path) -> None:
    site = a_folder(tmp_path / "site")
    node = cluster.start("node")
    with web_server(site) as server:
        snapshot = cluster.hoard(node, "publish", f"{server.url}set", "--lazy").split()[-1]
        (site / "set/large").write_bytes(bytes(9 << 20))
        with pytest.raises(HoardError, match="large"):
            cluster.hoard(node, "export", snapshot, str(tmp_path / "out"))
