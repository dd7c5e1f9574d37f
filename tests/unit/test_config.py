"""Settings as users write them."""

from pathlib import Path

import pytest

from hoard_p2p.config import default_data_dir, parse_listen, parse_size
from hoard_p2p.errors import BadRequest


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("0", 0),
        ("4096", 4096),
        ("10k", 10240),
        ("1KiB", 1024),
        ("1.5G", 3 << 29),
        ("2TB", 2 << 40),
        (" 7 mib ", 7 << 20),
        ("9b", 9),
    ],
)
def test_sizes_are_powers_of_1024(text: str, size: int) -> None:
    assert parse_size(text) == size


@pytest.mark.parametrize("text", ["", "x", "-1", "1X", "1..2G", "G"])
def test_what_is_no_size_is_refused(text: str) -> None:
    with pytest.raises(BadRequest):
        parse_size(text)


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("127.0.0.1:80", ("127.0.0.1", 80)),
        (":7", ("0.0.0.0", 7)),
        ("[::1]:0", ("::1", 0)),
        ("host:65535", ("host", 65535)),
    ],
)
def test_listen_addresses(text: str, address: tuple[str, int]) -> None:
    assert parse_listen(text) == address


@pytest.mark.parametrize("text", ["", "80", "host", "host:", "host:65536", "host:x"])
def test_what_is_no_address_is_refused(text: str) -> None:
    with pytest.raises(BadRequest):
        parse_listen(text)


def test_the_data_directory_is_what_the_environment_says(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOARD_DATA_DIR", "/srv/h")
    assert default_data_dir() == Path("/srv/h")
