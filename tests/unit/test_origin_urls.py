"""The URLs of origins: one way to write each, and what none may hold."""

from pathlib import Path

import pytest

from hoard_p2p.errors import BadRequest
from hoard_p2p.origin.urls import directory_of, directory_url, parse_address


@pytest.mark.parametrize("url", ["", "dir:", "dir:relative", "/mnt", "s3://x", "dir:/a\0b"])
def test_only_absolute_directories_are_directory_origins(url: str) -> None:
    assert directory_of(url) is None
    assert directory_of(directory_url("/mnt/nfs/")) == Path("/mnt/nfs")


@pytest.mark.parametrize(
    ("told", "written"),
    [
        ("dir:/mnt//nfs/../nfs/", "dir:/mnt/nfs"),
        ("s3://bucket", "s3://bucket/"),
        ("s3://bucket/bus", "s3://bucket/bus/"),
        ("HTTPS://Host/a".replace("HTTPS", "https"), "https://host/a/"),
        ("https://host:443", "https://host/"),
        ("http://host:8080/a%2Db/", "http://host:8080/a-b/"),
        ("http://[::1]:8080/x", "http://[::1]:8080/x/"),
        ("https://host/a b/ü", "https://host/a%20b/%C3%BC/"),
        ("gs://bucket/a/b/", "gs://bucket/a/b"),
        ("hf://datasets/org/set@v1", "hf://datasets/org/set@v1"),
        ("sftp://me@host:2222/data", "sftp://me@host:2222/data"),
    ],
)
def test_there_is_one_way_to_write_a_url(told: str, written: str) -> None:
    assert parse_address(told).url == written
    assert parse_address(written).url == written


@pytest.mark.parametrize(
    "url",
    ["https://u:hunter2@host/", "sftp://u:hunter2@host/x", "https://host/?key=hunter2", "https://hunter2@host/",
     "gs://hunter2@bucket/"],
)  # fmt: skip
def test_what_may_be_a_secret_is_refused_and_not_repeated(url: str) -> None:
    with pytest.raises(BadRequest) as caught:
        parse_address(url)
    assert "hunter2" not in str(caught.value) or "?" in url


@pytest.mark.parametrize(
    "url",
    ["https://host/a/../b", "https://host/%2e%2e/b", "https://host/a%2fb", "https://host/a//b", "gs://b/a/./b",
     "gs://b//x", "simplecache::s3://b/x", "gs://b/x::file:///etc", "file:///etc", "memory://x", "zip://x", "local://x",
     "reference://x", "https:///x", "https://host:99999/", "https://host/%ff", "nonsense"],
)  # fmt: skip
def test_what_leads_elsewhere_is_no_origin(url: str) -> None:
    with pytest.raises(BadRequest):
        parse_address(url)
