"""Which origins a node may read."""

from pathlib import Path

import pytest

from hoard_p2p.errors import BadRequest
from hoard_p2p.origin.allowed import allows, command_to_allow, is_beneath, may_look, parse_prefix
from hoard_p2p.origin.urls import parse_address


def test_a_prefix_allows_itself_and_what_is_beneath_by_whole_components() -> None:
    prefixes = [Path("/mnt/data")]
    assert is_beneath(Path("/mnt/data"), prefixes)
    assert is_beneath(Path("/mnt/data/set"), prefixes)
    assert not is_beneath(Path("/mnt/data2"), prefixes)
    assert not is_beneath(Path("/mnt"), prefixes)


@pytest.mark.parametrize("text", ["/mnt/nfs", "dir:/mnt/nfs", "file:///mnt/nfs"])
def test_a_prefix_may_be_a_path_or_a_url(text: str) -> None:
    assert parse_prefix(text).directory == Path("/mnt/nfs")


@pytest.mark.parametrize(
    "text",
    ["relative", "", "file://host", "https://", "http:", "sftp://", "ftp://", "abfs://", "memory://x", "zip://a", "s3:",
     "https://user:secret@host/", "https://host/?token=secret", "https://host/a/../b", "gs://user@bucket", "s3://bkt?x=1",
     "gs://bucket/x::file:///etc", "az://container@account.example/x", "local://x", "dir:relative"],
)  # fmt: skip
def test_what_can_be_no_prefix_is_refused(text: str) -> None:
    with pytest.raises(BadRequest, match="--allow-origin"):
        parse_prefix(text)


@pytest.mark.parametrize(
    ("prefix", "url", "allowed"),
    [
        ("s3://", "s3://bucket/any/thing", True),
        ("s3://bucket", "s3://bucket/a", True),
        ("s3://bucket", "s3://bucket2/a", False),
        ("s3://bucket/bus", "s3://bucket/bus/1", True),
        ("s3://bucket/bus/", "s3://bucket/bus", True),
        ("s3://bucket/bus", "s3://bucket/bush", False),
        ("s3://bucket/bus", "s3://bucket/", False),
        ("s3://bucket/bus", "s3://bucket/%62us/1", True),
        ("s3://bucket/a", "gs://bucket/a", False),
        ("gs://", "gs://bucket/a", True),
        ("gs://bucket/a", "gs://bucket/a/b", True),
        ("gs://bucket/a", "gs://bucket/ab", False),
        ("https://host/a", "https://host/a/b/", True),
        ("https://host/a", "https://HOST:443/a/b", True),
        ("https://host/a", "https://host/ab", False),
        ("https://host/a", "https://host.evil/a", False),
        ("https://host/a", "https://host:8443/a", False),
        ("https://host/a", "http://host/a", False),
        ("https://host/a%20b", "https://host/a b/c", True),
        ("sftp://host/data", "sftp://host/data/x", True),
        ("sftp://host/data", "sftp://other/data/x", False),
        ("/mnt", "s3://mnt/a", False),
    ],
)
def test_urls_are_allowed_by_whole_parts_of_the_same_kind(prefix: str, url: str, allowed: bool) -> None:
    assert allows(parse_prefix(prefix), parse_address(url)) is allowed


MINE, EVIL = "http://store:9000", "http://evil.example"


@pytest.mark.parametrize(
    ("prefix", "url", "default", "allowed"),
    [
        ("s3://", f"s3://bkt/x?endpoint={EVIL}", "", False),
        ("s3://bkt", f"s3://bkt/x?endpoint={EVIL}", MINE, False),
        ("s3://bkt", f"s3://bkt/x?endpoint={MINE}", MINE, True),
        ("s3://bkt", "s3://bkt/x", MINE, True),
        (f"s3://bkt?endpoint={MINE}", f"s3://bkt/x?endpoint={MINE}", "", True),
        (f"s3://bkt?endpoint={MINE}", "s3://bkt/x", "", False),
        (f"s3://bkt?endpoint={MINE}", "s3://bkt/x", MINE, True),
        (f"s3://?endpoint={MINE}", f"s3://any/x?endpoint={MINE}", "", True),
        (f"s3://?endpoint={MINE}", f"s3://any/x?endpoint={EVIL}", "", False),
        ("s3://bkt", "s3://bkt/x?endpoint=https://s3.eu-central-1.amazonaws.com", "", True),
        ("s3://bkt", "s3://bkt/x?requester_pays=1", "", False),
        ("s3://bkt?requester_pays=1", "s3://bkt/x?requester_pays=1", "", True),
        ("s3://bkt?requester_pays=1", "s3://bkt/x", "", True),
    ],
)
def test_no_peer_chooses_who_gets_signed_requests_or_that_this_node_pays(
    prefix: str, url: str, default: str, allowed: bool
) -> None:
    assert allows(parse_prefix(prefix), parse_address(url), default) is allowed


def test_the_command_that_allows_an_origin_does() -> None:
    for url in ("s3://bucket/a b?endpoint=http://h:1&requester_pays=1", "https://host/x/", "dir:/mnt/my set"):
        address = parse_address(url)
        command = command_to_allow(address)
        assert command.startswith("hoard up --allow-origin ")
        told = command.removeprefix("hoard up --allow-origin ").strip("'")
        prefix = parse_prefix(told)
        assert prefix.directory == address.directory
        assert address.directory or allows(prefix, address)


@pytest.mark.parametrize(
    ("path", "look"),
    [
        ("/mnt/data/set", True),
        ("/mnt/data/../data/set", True),
        ("/mnt/data/../secret", False),
        ("/net/evil/share", False),
        ("/home/me/set", True),
        ("/home/me/set/sub", False),
    ],
)
def test_what_a_peer_tells_is_looked_at_only_if_it_is_written_like_what_is_allowed(path: str, look: bool) -> None:
    assert may_look(Path(path), ["/home/me/set"], [Path("/mnt/data")]) is look
