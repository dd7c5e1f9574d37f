"""URLs of S3 origins."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hoard_p2p.errors import BadRequest
from hoard_p2p.origin.s3url import S3Address, parse_s3


@pytest.mark.parametrize(
    ("told", "url"),
    [
        ("s3://bucket", "s3://bucket/"),
        ("s3://bucket/", "s3://bucket/"),
        ("s3://bucket/bus", "s3://bucket/bus/"),
        ("s3://bucket/a/b//", "s3://bucket/a/b//"),
        ("s3://bucket/a b%3F", "s3://bucket/a%20b%3F/"),
        ("s3://bucket/grün/東京", "s3://bucket/grün/東京/"),
        ("s3://bucket/p?endpoint=HTTP://Host:8333/", "s3://bucket/p/?endpoint=http://host:8333"),
        ("s3://bucket/p?endpoint=https://host:443", "s3://bucket/p/?endpoint=https://host"),
        ("s3://bucket/p?endpoint=http://[::1]:80", "s3://bucket/p/?endpoint=http://[::1]"),
        ("s3://bucket/p?endpoint=https://host/storage/s3", "s3://bucket/p/?endpoint=https://host/storage/s3"),
        ("s3://bucket/p?endpoint=https%3A%2F%2Fhost%3A9000", "s3://bucket/p/?endpoint=https://host:9000"),
        ("s3://bucket/p?endpoint=https://s3.amazonaws.com", "s3://bucket/p/"),
        ("s3://bucket/p?endpoint=https://s3.eu-west-1.amazonaws.com", "s3://bucket/p/?region=eu-west-1"),
        ("s3://bucket/p?style=path&anonymous=1&requester_pays=0&region=r", "s3://bucket/p/?region=r&style=path&anonymous=1"),
    ],
)  # fmt: skip
def test_an_address_has_one_url(told: str, url: str) -> None:
    assert parse_s3(told).url == url
    assert parse_s3(url) == parse_s3(told)


@pytest.mark.parametrize(
    "told",
    [
        "s3:bucket", "s3://", "s3:///key", "s3://b", "s3://b@d/p", "s3://bucket/p?endpoint=ftp://h",
        "s3://bucket/p?endpoint=http://u:secret@host", "s3://bucket/p?endpoint=http://host/a?b", "s3://bucket/p?colour=red",
        "s3://bucket/p?style=odd", "s3://bucket/p?region=EU 1", "s3://bucket/p?anonymous=yes", "s3://bucket/%ff",
        "s3://bucket/p?region=a&region=b", "s3://bucket/%00", "s3://bucket/" + "k" * 1025,
        "s3://bucket/p?endpoint=http://host:port", "s3://bucket/p?endpoint=http://ho st",
    ],
)  # fmt: skip
def test_what_is_no_address_is_refused_with_an_example_or_a_reason(told: str) -> None:
    with pytest.raises(BadRequest):
        parse_s3(told)


def test_keys_in_a_url_are_not_repeated() -> None:
    for url in ("s3://id:secret@bucket/p", "s3://bucket/p?endpoint=https://id:secret@host"):
        with pytest.raises(BadRequest) as caught:
            parse_s3(url)
        assert "secret" not in str(caught.value)


@given(st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=60), st.booleans())
def test_every_prefix_comes_back(prefix: str, pays: bool) -> None:
    address = S3Address("bucket", prefix + "/" if prefix else "", "http://host:1", "r-1", pays, style="path")
    assert parse_s3(address.url) == address
    assert address.url.isprintable() and " " not in address.url


def test_an_object_has_the_same_name_whatever_the_prefix() -> None:
    whole, part = parse_s3("s3://bucket/a"), parse_s3("s3://bucket/a/b?anonymous=1")
    assert whole.identity(b"a/b/c") == part.identity(b"a/b/c")
    assert whole.identity(b"c") != parse_s3("s3://bucket/a?endpoint=http://host").identity(b"c")
