"""The process that lists an origin, run by a real node over a real directory."""

import os
import socket
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path

import pytest

from hoard_p2p.catalog import root as roots
from hoard_p2p.catalog.reader import Catalog
from hoard_p2p.config import Json
from hoard_p2p.errors import HoardError, OriginFailed, Refused
from hoard_p2p.node import framing
from hoard_p2p.node.app import Node
from hoard_p2p.node.ingest import SCRATCH, Ingested
from hoard_p2p.node.lazy_ingest import list_lazily
from hoard_p2p.storage.claims import Claims
from tests.unit.node_cluster import run, running

Body = dict[str, Json]


async def listed(node: Node, origin: Path, reports: list[Body] | None = None, **options: Json) -> Ingested:
    async def report(body: Body) -> None:
        if reports is not None:
            reports.append(body)

    with ExitStack() as held:
        claims = held.enter_context(node.store.reclaimer.new_claims())
        return await list_lazily(
            {"origin": f"dir:{origin}", **options},
            data_dir=node.settings.data_dir,
            broker=node.store,
            claims=claims,
            executor=node.executor,
            report=report,
            fits=lambda size: None,
        )


def catalog_of(node: Node, ingested: Ingested) -> Catalog:
    record = roots.decode(ingested.root)
    data = bytearray(record.catalog_length)
    offset = 0
    with node.store.reader() as reader:
        for run_ in record.catalog_runs:
            assert reader.read_into(run_.chunk_id, 0, memoryview(data)[offset : offset + run_.length])
            offset += run_.length
    catalog = Catalog(memoryview(bytes(data)))
    roots.check(record, catalog)
    catalog.validate()
    return catalog


def a_tree(path: Path) -> Path:
    (path / "sub").mkdir(parents=True)
    (path / "sub" / "one").write_bytes(b"1" * 10)
    (path / "sub" / "two").hardlink_to(path / "sub" / "one")
    (path / "link").symlink_to("sub/one")
    return path


def test_a_directory_is_listed_into_a_lazy_snapshot_that_this_node_has(tmp_path: Path) -> None:
    async def main() -> None:
        async with running(tmp_path / "n") as node:
            reports: list[Body] = []
            ingested = await listed(node, a_tree(tmp_path / "set"), reports)
            catalog = catalog_of(node, ingested)
            paths = [catalog.path_of(inode) for inode in range(1, catalog.inodes)]
            assert paths == [b"link", b"sub", b"sub/one", b"sub/two"]
            assert catalog.is_lazy and catalog.version(catalog.find(b"sub/one"))
            assert catalog.resolve(catalog.find(b"sub/two")) == catalog.find(b"sub/one")
            assert [report["phase"] for report in reports][-2:] == ["catalog", "sync"]
            assert reports[-1]["done"] == 3
            assert os.listdir(node.settings.data_dir / SCRATCH) == []

    run(main)


def test_what_is_left_out_is_in_the_summary(tmp_path: Path) -> None:
    async def main() -> None:
        async with running(tmp_path / "n") as node:
            tree = a_tree(tmp_path / "set")
            os.mkfifo(tree / "pipe")
            ingested = await listed(node, tree, exclude=["sub/", "nothing"])
            summary = ingested.summary
            assert (summary["skipped_special_count"], summary["unmatched_excludes"]) == (1, ["nothing"])
            assert summary["excluded"] == 3
            assert len(catalog_of(node, ingested).children(0)) == 1

    run(main)


def test_the_data_directory_of_the_node_is_left_out_and_told(tmp_path: Path) -> None:
    async def main() -> None:
        async with running(tmp_path / "set" / "n") as node:
            tree = a_tree(tmp_path / "set" / "tree").parent
            ingested = await listed(node, tree)
            catalog = catalog_of(node, ingested)
            assert [catalog.name(inode) for inode in catalog.children(0)] == [b"tree"]
            assert ingested.summary["own_data"] == ["n: this node's own data"]
            with pytest.raises(Refused, match="data directory"):
                await listed(node, node.settings.data_dir)

    run(main)


def test_an_origin_that_is_not_there_and_one_with_impossible_names_fail_with_the_reason(tmp_path: Path) -> None:
    async def main() -> None:
        async with running(tmp_path / "n") as node:
            with pytest.raises(OriginFailed, match="is not there"):
                await listed(node, tmp_path / "missing")
            deep = tmp_path / "deep"
            here = deep
            here.mkdir()
            fd = os.open(here, os.O_RDONLY)
            for _ in range(20):
                os.mkdir("d" * 250, dir_fd=fd)
                inner = os.open("d" * 250, os.O_RDONLY, dir_fd=fd)
                os.close(fd)
                fd = inner
            os.close(fd)
            with pytest.raises(HoardError, match="longer than 4095 bytes"):
                await listed(node, deep)

    run(main)


def test_a_process_whose_node_is_gone_ends_without_a_word(tmp_path: Path) -> None:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with ours, theirs, ExitStack() as held:
        claims = Claims()
        held.callback(claims.close)
        framing.send(ours, {"origin": f"dir:{a_tree(tmp_path / 'set')}"})
        ours.close()
        fds = (claims.fd, theirs.fileno())
        command = (sys.executable, "-m", "hoard_p2p.node.lazy_main", str(tmp_path), str(tmp_path), *map(str, fds))
        ended = subprocess.run(command, pass_fds=fds, capture_output=True, text=True, timeout=60, check=False)
    assert (ended.returncode, ended.stdout, ended.stderr) == (1, "", "")
