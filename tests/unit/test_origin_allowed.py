"""Which origins a node may read."""

from pathlib import Path

import pytest

from hoard_p2p.errors import BadRequest
from hoard_p2p.origin.allowed import directory_of, directory_url, is_beneath, may_look, parse_prefix


def test_a_prefix_allows_itself_and_what_is_beneath_by_whole_components() -> None:
    prefixes = [Path("/mnt/data")]
    assert is_beneath(Path("/mnt/data"), prefixes)
    assert is_beneath(Path("/mnt/data/set"), prefixes)
    assert not is_beneath(Path("/mnt/data2"), prefixes)
    assert not is_beneath(Path("/mnt"), prefixes)


@pytest.mark.parametrize("text", ["/mnt/nfs", "dir:/mnt/nfs", "file:///mnt/nfs"])
def test_a_prefix_may_be_a_path_or_a_url(text: str) -> None:
    assert parse_prefix(text) == Path("/mnt/nfs")


@pytest.mark.parametrize("text", ["relative", "", "s3://bucket", "https://host/x", "file://host"])
def test_what_can_be_no_prefix_is_refused(text: str) -> None:
    with pytest.raises(BadRequest, match="--allow-origin"):
        parse_prefix(text)


@pytest.mark.parametrize("url", ["", "dir:", "dir:relative", "/mnt", "s3://x", "dir:/a\0b"])
def test_only_absolute_directories_are_directory_origins(url: str) -> None:
    assert directory_of(url) is None
    assert directory_of(directory_url("/mnt/nfs/")) == Path("/mnt/nfs")


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
