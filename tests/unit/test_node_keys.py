"""Real nodes with keys: those with one key are a cluster, and others are not even asked."""

import asyncio
import logging
import os
from pathlib import Path
from random import Random

import pytest

from hoard_p2p.cluster.discovery import Address
from hoard_p2p.config import NodeSettings
from hoard_p2p.errors import BadRequest, Refused
from hoard_p2p.ids import parse_snapshot_id
from hoard_p2p.node import operations
from hoard_p2p.node.local import LocalRequest
from hoard_p2p.node.publishing import publish
from hoard_p2p.node.securing import security_of
from hoard_p2p.peer import NodeId
from hoard_p2p.transfer.keys import OPEN, new_key, write_key_file
from tests.unit.node_cluster import run, running, until


def a_key(path: Path, *lines: str) -> str:
    write_key_file(path, "\n".join(lines or (new_key(),)))
    return os.fspath(path)


@pytest.mark.parametrize("encrypt", [False, True], ids=["keyed", "encrypted"])
def test_nodes_with_one_key_publish_to_each_other(tmp_path: Path, encrypt: bool) -> None:
    key = a_key(tmp_path / "key")
    source = tmp_path / "set"
    source.mkdir()
    (source / "file").write_bytes(Random(5).randbytes(300_000))

    async def main() -> None:
        async with (
            running(tmp_path / "n", key_file=key, encrypt=encrypt) as node,
            running(tmp_path / "m", node, key_file=key, encrypt=encrypt) as home,
        ):
            fd = os.open(source, os.O_RDONLY | os.O_DIRECTORY)
            try:
                told = await publish(node, fd, {"source": os.fspath(source), "replicas": 2, "name": "set:1"}, report)
            finally:
                os.close(fd)
            assert told["under_replicated"] == 0
            snapshot = parse_snapshot_id(str(told["snapshot"]))
            await until(lambda: home.names.ref("set:1") is not None)
            residency = await home.residency(snapshot)
            assert residency is not None and residency.bits == b"\1"

    async def report(body: object) -> None:
        return

    run(main)


def test_nodes_with_other_keys_or_none_are_left_alone_and_it_is_said(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    one, other = a_key(tmp_path / "one"), a_key(tmp_path / "other")

    async def main() -> None:
        async with (
            running(tmp_path / "n", key_file=one) as node,
            running(tmp_path / "m", key_file=other) as stranger,
            running(tmp_path / "o") as open_node,
        ):
            for asker in (node, stranger, open_node):
                for asked in (node, stranger, open_node):
                    if asked is not asker:
                        asker.agent.found(Address(asked.me.host, asked.me.port))
            said = ("signs with the key", "has no key and is left alone", "has a key and this node has none")
            await until(lambda: all(words in caplog.text for words in said))
            await asyncio.sleep(0)
            assert all(len(one.agent.view().peers) == 1 for one in (node, stranger, open_node))

    run(main)


@pytest.mark.parametrize("same_key", [True, False], ids=["one-encrypts", "other-key"])
def test_a_node_that_cannot_talk_to_those_it_finds_says_why(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, same_key: bool
) -> None:
    caplog.set_level(logging.INFO)
    key = a_key(tmp_path / "key")
    other = key if same_key else a_key(tmp_path / "other")

    async def main() -> None:
        async with (
            running(tmp_path / "n", key_file=key, encrypt=True) as node,
            running(tmp_path / "m", key_file=other, encrypt=not same_key) as stranger,
        ):
            for asker, asked in ((node, stranger), (stranger, node)):
                asker.agent.found(Address(asked.me.host, asked.me.port))
                await until(lambda asked=asked: f"port {asked.me.port} is left alone" in caplog.text)  # type: ignore[misc]
            assert "--cluster-key-file and --encrypt must be" in caplog.text
            assert all(len(one.agent.view().peers) == 1 for one in (node, stranger))

    run(main)


def test_a_key_is_rotated_while_the_nodes_see_each_other(tmp_path: Path) -> None:
    old, new = new_key(), new_key()
    files = [a_key(tmp_path / f"k{n}", *lines) for n, lines in enumerate([(old,), (old, new), (new, old), (new,)])]

    async def main() -> None:
        for step in range(3):
            async with (
                running(tmp_path / "n", key_file=files[step]) as node,
                running(tmp_path / "m", node, key_file=files[step + 1]),
            ):
                assert len(node.agent.view().peers) == 2

    run(main)


def settings(**more: object) -> NodeSettings:
    return NodeSettings(Path("/x"), "127.0.0.1", 0, "c", "n", "", None, ())._replace(**more)  # type: ignore[arg-type]


def test_encryption_needs_a_key_and_no_key_is_open_mode() -> None:
    assert security_of(settings(), NodeId(bytes(16))) == OPEN
    with pytest.raises(BadRequest, match="needs a key"):
        security_of(settings(encrypt=True), NodeId(bytes(16)))


def test_a_key_file_that_others_can_read_keeps_the_node_from_starting(tmp_path: Path) -> None:
    key = a_key(tmp_path / "key")
    Path(key).chmod(0o644)
    with pytest.raises(Refused, match="chmod 600"):
        security_of(settings(cluster_key_file=key), NodeId(bytes(16)))


def test_who_may_use_the_unix_socket_has_the_counters_and_the_true_address_of_a_node_with_a_key(tmp_path: Path) -> None:
    key = a_key(tmp_path / "key")

    async def main() -> None:
        async with running(tmp_path / "n", key_file=key, encrypt=True) as node:
            reply = await operations.handle(node, LocalRequest("metrics", {}, [], 1, report))
            assert "hoard_peers 0.0" in str(reply.body["text"])
            reply = await operations.handle(node, LocalRequest("ping", {}, [], 1, report))
            assert reply.body["url"] == f"https://127.0.0.1:{node.me.port}"

    async def report(body: object) -> None:
        return

    run(main)
