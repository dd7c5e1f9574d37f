"""Real nodes and an S3 server over HTTP: published by all together, mounted, sealed; and what real stores do to one."""

import json
import os
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from random import Random
from threading import Event, Lock
from urllib.parse import quote, unquote

import pytest

from hoard_p2p.cli.answers import Fields
from hoard_p2p.cli.localcluster import LocalCluster, LocalNode, Where, wait_for
from hoard_p2p.errors import HoardError
from hoard_p2p.node.client import NodeClient
from tests.oddserver import Asked, Said, a_page, a_part, an_error, odd_server
from tests.s3servers import ENVIRONMENT, S3Server, moto_server

pytestmark = [pytest.mark.timeout(240), pytest.mark.fuse]

MIB = 1 << 20
WITHOUT = ("env", *(part for name in ENVIRONMENT for part in ("-u", name)), "AWS_EC2_METADATA_DISABLED=true")
"""Begins the command of a node that has no credentials."""


@pytest.fixture(scope="module")
def store() -> Iterator[S3Server]:
    with moto_server() as server:
        yield server


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> Iterator[LocalCluster]:
    for name, value in ENVIRONMENT.items():
        monkeypatch.setenv(name, value)
    for name in ("AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3", "AWS_REGION", "AWS_DEFAULT_REGION", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    with LocalCluster("hoard-s3") as cluster:
        yield cluster


def objects(prefix: str = "p/", large: int = 2, small: int = 60) -> dict[str, bytes]:
    """A data set: small objects, an empty one, two that are equal, and some of several pieces."""
    draw = Random(6)
    found = {f"{prefix}dir/{number:03d}": draw.randbytes(40_000 + number) for number in range(small)}
    found |= {f"{prefix}shard-{number}": draw.randbytes(9 * MIB + number) for number in range(large)}
    return found | {f"{prefix}empty": b"", f"{prefix}twin": found[f"{prefix}dir/000"]}


def start(cluster: LocalCluster, count: int, *options: str) -> list[LocalNode]:
    nodes = [cluster.start(f"n{number}", options=options) for number in range(count)]
    cluster.wait_met()
    return nodes


def same(mounted: Path, expected: dict[str, bytes], prefix: str = "p/") -> bool:
    return all((mounted / key.removeprefix(prefix)).read_bytes() == data for key, data in expected.items())


def origin(node: LocalNode) -> Fields:
    with NodeClient.connect(node.data_dir) as client:
        return next(iter(Fields(client.call("origins", {}).body).rows("origins")), Fields({}))


def snapshots(node: LocalNode) -> list[Fields]:
    with NodeClient.connect(node.data_dir) as client:
        return list(Fields(client.call("snapshots", {}).body).rows("snapshots"))


def named(node: LocalNode, name: str) -> Fields | None:
    return next((one for one in snapshots(node) if name in one.texts("names")), None)


# --- all together


def test_a_set_published_from_s3_is_mounted_elsewhere_while_the_store_is_down(cluster: LocalCluster) -> None:
    data = objects()
    with moto_server() as server:
        server.bucket("set", data)
        a, b = start(cluster, 2, "--allow-origin", f"s3://set/p?endpoint={server.endpoint}")
        snapshot = cluster.hoard(a, "publish", server.url("set/p"), "--name", "set:1").split()[-1]
    found = named(a, "set:1")
    assert found is not None and found.text("id") == snapshot and not found.flag("lazy")
    wait_for("the other node to know the name", lambda: named(b, "set:1") is not None, 30)
    point, _ = cluster.mount(b, "set:1")
    assert same(point, data)


def test_nodes_read_their_shares_side_by_side_and_each_byte_once(cluster: LocalCluster, store: S3Server) -> None:
    data = objects(large=6)
    store.bucket("shares", data)
    nodes = start(cluster, 3, "--allow-origin", f"s3://shares?endpoint={store.endpoint}")
    cluster.hoard(nodes[0], "publish", store.url("shares/p"))
    read = [origin(node).number("read") for node in nodes]
    size = sum(map(len, data.values()))
    assert sum(read) <= 1.01 * size + 32 * 4 * MIB, read  # sealing reads some of it again
    assert sum(count > 0 for count in read) >= 2, read


def test_published_again_only_what_changed_is_read(cluster: LocalCluster, store: S3Server) -> None:
    data = objects()
    client = store.bucket("again", data)
    (node,) = start(cluster, 1)
    url = store.url("again/p")
    first = Fields(json.loads(cluster.hoard(node, "publish", "--json", url, "--replicas", "1")))
    client.put_object(Bucket="again", Key="p/dir/007", Body=b"other")
    again = Fields(json.loads(cluster.hoard(node, "publish", "--json", url, "--replicas", "1")))
    assert first.text("snapshot") != again.text("snapshot")
    assert (again.number("read"), again.number("stored")) == (1, 5)
    point, _ = cluster.mount(node, again.text("snapshot"))
    assert same(point, {**data, "p/dir/007": b"other"})


def test_a_node_without_credentials_is_served_by_those_that_have_them(cluster: LocalCluster, store: S3Server) -> None:
    data = objects()
    store.bucket("poor", data)
    rich = cluster.start("rich")
    poor = cluster.start(
        "poor",
        where=Where(inside=WITHOUT),
        options=["--allow-origin", f"s3://poor?endpoint={store.endpoint}"],
    )
    cluster.wait_met()
    snapshot = cluster.hoard(rich, "publish", store.url("poor/p"), "--replicas", "2").split()[-1]
    assert origin(poor).number("read") == 0
    wait_for("the other node to know it", lambda: snapshot in {one.text("id") for one in snapshots(poor)}, 30)
    told = origin(poor)
    assert not told.flag("readable") and "credentials" in told.text("why")
    point, _ = cluster.mount(poor, snapshot)
    assert same(point, data)


def test_an_origin_that_nobody_allowed_is_not_read_on_a_peers_word(cluster: LocalCluster, store: S3Server) -> None:
    data = objects()
    store.bucket("private", data)
    teller, told = start(cluster, 2)
    snapshot = cluster.hoard(teller, "publish", store.url("private/p"), "--lazy").split()[-1]
    wait_for("the other node to know it", lambda: bool(snapshots(told)), 30)
    wait_for("it to have looked", lambda: bool(origin(told).text("why")), 30)
    assert "--allow-origin" in origin(told).text("why")
    point, _ = cluster.mount(told, snapshot)
    assert same(point, data), "the other node reads for it"
    assert origin(told).number("read") == 0


# --- lazily


def test_a_lazy_mount_serves_while_it_is_read_and_is_sealed_once_all_is_here(
    cluster: LocalCluster, store: S3Server
) -> None:
    data = objects()
    store.bucket("lazy", data)
    (node,) = start(cluster, 1)
    lazy = cluster.hoard(node, "publish", store.url("lazy/p"), "--lazy", "--name", "lazy:1").split()[-1]
    point, _ = cluster.mount(node, "lazy:1")
    assert same(point, data)
    cluster.hoard(node, "warm", lazy)
    wait_for("the name to be the sealed one's", lambda: _is_sealed(node, "lazy:1"), 60)
    assert same(point, data), "its mount goes on"
    again = cluster.hoard(node, "publish", store.url("lazy/p"), "--replicas", "1").split()[-1]
    sealed = named(node, "lazy:1")
    assert sealed is not None and sealed.text("id") == again


def test_a_lazy_snapshot_is_sealed_when_a_user_says_so(cluster: LocalCluster, store: S3Server) -> None:
    data = objects()
    store.bucket("now", data)
    a, b = start(cluster, 2, "--allow-origin", f"s3://now?endpoint={store.endpoint}")
    cluster.hoard(a, "publish", store.url("now/p"), "--lazy", "--name", "now:1")
    wait_for("the other node to know it", lambda: named(b, "now:1") is not None, 30)
    sealed = cluster.hoard(b, "seal", "now:1").split()[-1]
    assert _is_sealed(b, "now:1")
    assert sealed == cluster.hoard(a, "publish", store.url("now/p")).split()[-1]


def test_an_object_that_changed_is_an_error_that_names_it(cluster: LocalCluster, store: S3Server) -> None:
    data = objects()
    client = store.bucket("changed", data)
    (node,) = start(cluster, 1)
    snapshot = cluster.hoard(node, "publish", store.url("changed/p"), "--lazy").split()[-1]
    client.put_object(Bucket="changed", Key="p/dir/003", Body=b"x" * 40_003)
    client.delete_object(Bucket="changed", Key="p/shard-0")
    point, _ = cluster.mount(node, snapshot)
    for gone in ("dir/003", "shard-0"):
        with pytest.raises(OSError, match="Input/output error"):
            (point / gone).read_bytes()
    log = node.log.read_text()
    assert "p/dir/003" in log and "changed" in log


def test_an_object_that_changed_spoils_no_other(cluster: LocalCluster, store: S3Server) -> None:
    data = objects()
    client = store.bucket("spoilt", data)
    (node,) = start(cluster, 1)
    snapshot = cluster.hoard(node, "publish", store.url("spoilt/p"), "--lazy").split()[-1]
    client.put_object(Bucket="spoilt", Key="p/dir/003", Body=b"x" * 40_003)
    client.delete_object(Bucket="spoilt", Key="p/shard-0")
    point, _ = cluster.mount(node, snapshot)
    for gone in ("dir/003", "shard-0"):
        with pytest.raises(OSError, match="Input/output error"):
            (point / gone).read_bytes()
    assert (point / "dir" / "004").read_bytes() == data["p/dir/004"]


def test_objects_that_are_overwritten_meanwhile_are_one_version_or_refused(
    cluster: LocalCluster, store: S3Server
) -> None:
    client = store.bucket("busy", {"p/obj": b"A" * (4 * MIB)})
    (node,) = start(cluster, 1)
    over = Event()

    def overwrite() -> None:
        for number in range(1, 1000):
            if over.is_set():
                return
            client.put_object(Bucket="busy", Key="p/obj", Body=bytes([65 + number % 26]) * (4 * MIB))
            time.sleep(0.1)

    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(overwrite)
        fine = 0
        for _ in range(3):
            with suppress(HoardError):
                snapshot = cluster.hoard(node, "publish", store.url("busy/p"), "--replicas", "1").split()[-1]
                bytes_seen = cluster.hoard(node, "cat", f"{snapshot}:obj")
                assert len(bytes_seen) == 4 * MIB and len(set(bytes_seen)) == 1
                fine += 1
        over.set()
        running.result(60)
    snapshot = cluster.hoard(node, "publish", store.url("busy/p"), "--replicas", "1").split()[-1]
    assert len(set(cluster.hoard(node, "cat", f"{snapshot}:obj"))) == 1


# --- names


AWKWARD = {
    "bus/dir/": b"",
    "bus/dir/a": b"a",
    "bus/ünï/ço∂é.txt": b"unicode",
    "bus/with space & sign?#%": b"signs",
    "bus/zero": b"",
    "bush/other": b"not below bus",
}
"""Keys that are files beneath `bus`, or nothing of it."""

UNMAPPABLE = {
    "bus/out": b"a file",
    "bus/a//b": b"an empty part",
    "bus/../up": b"up",
    "bus/./dot": b"dot",
    "bus/marker/": b"with data",
}


def test_what_cannot_be_a_file_is_named_and_refused_and_left_out_on_request(
    cluster: LocalCluster, store: S3Server
) -> None:
    many = {f"bus/many/{number:05d}": b"%d" % number for number in range(1100)}  # more than one page of a listing
    store.bucket("awkward", {**AWKWARD, **UNMAPPABLE, "bus/out/x": b"below a file", **many})
    (node,) = start(cluster, 1)
    url = store.url("awkward/bus")
    with pytest.raises(HoardError, match="status 1") as refused:
        cluster.hoard(node, "publish", url, "--replicas", "1")
    for key in UNMAPPABLE:
        assert key.removeprefix("bus/") in str(refused.value), key
    assert snapshots(node) == []
    snapshot = cluster.hoard(node, "publish", url, "--replicas", "1", "--skip-unmappable").split()[-1]
    point, _ = cluster.mount(node, snapshot)
    expected = {key: data for key, data in AWKWARD.items() if key.startswith("bus/") and not key.endswith("/")}
    assert same(point, {**expected, "bus/out/x": b"below a file", **many}, "bus/")
    assert sorted(os.listdir(point)) == ["dir", "many", "out", "with space & sign?#%", "zero", "ünï"]


# --- stores that behave badly


class Nasty:
    """Answers every question for bytes wrong a few times before it answers right."""

    def __init__(self, data: dict[str, bytes]) -> None:
        self._data = data
        self._lock = Lock()
        self._asked: dict[str, int] = {}
        self.wrong = 0

    def __call__(self, asked: Asked) -> Said:
        path, _, query = asked.target.partition("?")
        if "list-type=2" in query:
            return a_page({quote(key): data for key, data in self._data.items()})
        key = unquote(path).split("/", 2)[2]
        right = a_part(self._data[key], asked)
        if asked.method == "HEAD":
            return right
        with self._lock:
            turn = self._asked[key] = self._asked.get(key, -1) + 1
            self.wrong += turn < 3
        if turn == 0:
            return an_error(503, "SlowDown", Message="Please reduce your request rate.")
        if turn == 1:
            return Said(right.status, right.headers, right.body[: len(right.body) // 2], len(right.body), then="close")
        if turn == 2:
            return Said(200, {"Content-Type": "text/html"}, b"<html>please log in</html>")
        return right


def test_throttling_truncation_and_pages_of_html_cost_time_and_no_wrong_byte(cluster: LocalCluster) -> None:
    data = {key: value for key, value in objects(large=1, small=12).items() if value}
    nasty = Nasty(data)
    with odd_server(nasty) as server:
        (node,) = start(cluster, 1)
        url = f"s3://set/p?endpoint={server.endpoint}&style=path"
        snapshot = cluster.hoard(node, "publish", url, "--replicas", "1").split()[-1]
        assert nasty.wrong >= len(data)
    point, _ = cluster.mount(node, snapshot)
    assert same(point, data)


def test_a_store_that_goes_on_refusing_every_third_question_is_published_and_sealed(cluster: LocalCluster) -> None:
    data = {key: value for key, value in objects(large=1, small=40).items() if value}
    draw, lock = Random(3), Lock()

    def script(asked: Asked) -> Said:
        path, _, query = asked.target.partition("?")
        with lock:
            if draw.random() < 1 / 3:
                return an_error(503, "SlowDown", Message="Please reduce your request rate.")
        if "list-type=2" in query:
            return a_page({quote(key): value for key, value in data.items()})
        return a_part(data[unquote(path).split("/", 2)[2]], asked)

    with odd_server(script) as server:
        (node,) = start(cluster, 1)
        snapshot = cluster.hoard(
            node, "publish", f"s3://set/p?endpoint={server.endpoint}&style=path", "--replicas", "1"
        ).split()[-1]
    point, _ = cluster.mount(node, snapshot)
    assert same(point, data)


def test_who_warms_or_seals_what_may_not_be_read_any_more_is_told_why(cluster: LocalCluster) -> None:
    data = {key: value for key, value in objects(large=1, small=8).items() if value}
    refusing = Event()

    def script(asked: Asked) -> Said:
        path, _, query = asked.target.partition("?")
        if refusing.is_set():
            return an_error(403, "AccessDenied", Message="no")
        if "list-type=2" in query:
            return a_page({quote(key): value for key, value in data.items()})
        return a_part(data[unquote(path).split("/", 2)[2]], asked)

    with odd_server(script) as server:
        (node,) = start(cluster, 1)
        cluster.hoard(node, "publish", f"s3://set/p?endpoint={server.endpoint}&style=path", "--lazy", "--name", "set:1")
        refusing.set()
        for command in ("seal", "warm", "warm", "seal"):  # the later ones when the node does not even ask any more
            with pytest.raises(HoardError, match="may not read it: allow s3:ListBucket"):
                cluster.hoard(node, command, "set:1")
        refusing.clear()
        assert not _is_sealed(node, "set:1")


def _is_sealed(node: LocalNode, name: str) -> bool:
    found = named(node, name)
    return found is not None and not found.flag("lazy")
