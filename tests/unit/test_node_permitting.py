"""Origins on the web over real nodes: who may read them, and what a status says of it."""

import json
from functools import partial
from pathlib import Path

import pytest

from hoard_p2p.errors import BadRequest, OriginFailed, Refused, Unavailable
from hoard_p2p.ids import snapshot_id
from hoard_p2p.node.app import Node
from hoard_p2p.node.permitting import NAMED, Permissions
from hoard_p2p.peer import origin_id
from hoard_p2p.storage.records import SnapshotRecord
from tests.unit.node_cluster import run, running, until
from tests.unit.node_roots import a_root
from tests.webserver import Handler, web_server


def a_site(path: Path) -> Path:
    (path / "set").mkdir(parents=True)
    (path / "set/file").write_bytes(b"data")
    return path


def answered(status: int, handler: Handler) -> bool:
    handler.reply(status, b"")
    return True


def told(node: Node, url: str) -> None:
    """A snapshot that names this origin came to be known."""
    root = a_root(sum(url.encode()))
    record = SnapshotRecord(snapshot_id(root), 1, 1, 1, False, 0, True, "a set", origin=url)
    node.names.add_snapshot(root, record)


def why(node: Node, url: str) -> str | None:
    rows = [row for row in node.known_origins.body(lambda _: 0) if isinstance(row, dict) and row["url"] == url]
    return str(rows[0]["why"]) if rows else None


async def looked_at(node: Node, url: str) -> str:
    node.known_origins.soon()
    await until(lambda: why(node, url) is not None)
    return why(node, url) or ""


def test_what_a_user_named_is_read_and_remembered_and_told(tmp_path: Path) -> None:
    async def main() -> None:
        with web_server(a_site(tmp_path / "site")) as server:
            async with running(tmp_path / "n") as node:
                url = await node.known_origins.name(f"{server.url}set")
                assert url == f"{server.url}set/"
                assert node.known_origins.is_open(url)
                assert node.me.node_id in node.agent.reading(origin_id(url))
                assert node.known_origins.opened(url).url == url
            async with running(tmp_path / "n") as node:
                assert node.known_origins.named() == [url]
                assert (await node.known_origins.grant(url)).trusted == {server.host}
                with pytest.raises(Refused, match=r"--allow-origin http://.*/set/sub/"):
                    await node.known_origins.grant(f"{url}sub/")

    run(main)


def test_what_cannot_be_read_is_not_remembered(tmp_path: Path) -> None:
    async def main() -> None:
        with web_server(a_site(tmp_path / "site")) as server:
            async with running(tmp_path / "n") as node:
                with pytest.raises(OriginFailed):
                    await node.known_origins.name(f"{server.url}none")
                for source in ("memory://x", "https://u:p@host/", "relative", "dir:/mnt"):
                    with pytest.raises(BadRequest):
                        await node.known_origins.name(source)
                assert node.known_origins.named() == []

    run(main)


def allowed_by(tmp_path: Path, node: Node, *prefixes: str) -> Permissions:
    return Permissions(node.store, prefixes)


def test_a_peers_word_opens_nothing_and_a_prefix_does(tmp_path: Path) -> None:
    async def main() -> None:
        with web_server(a_site(tmp_path / "site")) as server:
            url = f"{server.url}set/"
            async with running(tmp_path / "n") as node:
                permissions = allowed_by(tmp_path, node, server.url, "s3://bkt", "/mnt")
                assert permissions.may_look(url)
                assert permissions.check(url).trusted == {server.host}
                assert not permissions.check("s3://bkt/x/").trusted
                for other in ("https://127.0.0.1/", "s3://other/", "s3://bkt/?endpoint=http://evil", "dir:/etc", "x:y"):
                    assert not permissions.may_look(other)
                for other in ("https://127.0.0.1/", "s3://other/", "s3://bkt/?endpoint=http://evil", "dir:/etc"):
                    with pytest.raises(Refused, match="allow it with"):
                        permissions.check(other)
                assert server.asked == []

    run(main)


@pytest.mark.expect_warnings
def test_a_status_says_why_an_origin_is_not_read_until_it_is(tmp_path: Path) -> None:
    async def main() -> None:
        with web_server(a_site(tmp_path / "site")) as server:
            async with running(tmp_path / "n") as node:
                url = await node.known_origins.name(f"{server.url}set")
                await node.blocking(told, node, url)
                other = "https://169.254.169.254/latest/"
                await node.blocking(told, node, other)
                assert "may not be read by this node" in await looked_at(node, other)
                assert why(node, url) == ""
                server.fault = partial(answered, 403)
                node.known_origins.soon()
                await until(lambda: "403" in (why(node, url) or ""))
                assert node.me.node_id not in node.agent.reading(origin_id(url))
                server.fault = None
                node.known_origins.soon()
                await until(lambda: why(node, url) == "")
                assert node.me.node_id in node.agent.reading(origin_id(url))

    run(main)


def test_a_store_that_is_busy_is_there(tmp_path: Path) -> None:
    async def main() -> None:
        with web_server(a_site(tmp_path / "site")) as server:
            async with running(tmp_path / "n") as node:
                url = await node.known_origins.name(f"{server.url}set")
                await node.blocking(told, node, url)
                server.fault = partial(answered, 503)
                await node.known_origins.look()
                assert node.known_origins.is_open(url)

    run(main)


@pytest.mark.expect_warnings
def test_a_node_that_turned_out_not_to_be_allowed_is_no_reader_until_it_looks_again(tmp_path: Path) -> None:
    async def main() -> None:
        with web_server(a_site(tmp_path / "site")) as server:
            async with running(tmp_path / "n") as node:
                url = await node.known_origins.name(f"{server.url}set")
                await node.blocking(told, node, url)
                await node.known_origins.look()
                await node.blocking(node.known_origins.refused, url, "expired")
                await until(lambda: not node.known_origins.is_open(url))
                with pytest.raises(Unavailable, match="expired"):
                    node.known_origins.opened(url)
                await node.known_origins.look()
                assert node.known_origins.is_open(url)

    run(main)


def test_what_an_older_node_remembered_is_still_named(tmp_path: Path) -> None:
    async def main() -> None:
        async with running(tmp_path / "n") as node:
            await node.blocking(node.store.choose, NAMED, json.dumps([str(tmp_path)]).encode())
            grant = await node.known_origins.grant(f"dir:{tmp_path}")
            assert not grant.as_owner

    run(main)
