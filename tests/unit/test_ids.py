"""Ids as text."""

import pytest

from hoard_p2p.ids import SNAPSHOT_CONTEXT, chunk_id, parse_snapshot_id, short, snapshot_id
from hoard_p2p.peer import Peer, is_near, parse_node_id


def test_ids_come_back_from_their_hex_digits() -> None:
    identifier = snapshot_id(b"root")
    assert parse_snapshot_id(identifier.hex()) == identifier
    assert parse_node_id("0f" * 16) == b"\x0f" * 16
    assert short(identifier) == identifier.hex()[:12]


@pytest.mark.parametrize("text", ["", "ab", "g" * 64, "ab" * 33, "ab " * 21 + "a", " " * 64])
def test_other_text_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="64 hex digits"):
        parse_snapshot_id(text)


def test_a_snapshot_id_is_no_chunk_id_of_the_same_bytes() -> None:
    assert snapshot_id(b"same").hex() != chunk_id(b"same").hex()
    assert "snapshot id" in SNAPSHOT_CONTEXT


def test_the_chunk_id_is_plain_blake3() -> None:
    # the test vector for empty input, https://github.com/BLAKE3-team/BLAKE3 test_vectors.json
    assert chunk_id(b"").hex() == "af1349b9f5f9a1a6a0404dea36dcc9499bcb25c9adc112b7cc9a93cae41f3262"


def test_a_v6_address_gets_brackets_in_a_url() -> None:
    peer = Peer(parse_node_id("00" * 16), 1, "n", "", "fe80::1", 80, 1)
    assert peer.url == "[fe80::1]:80"


@pytest.mark.parametrize(
    "host",
    [
        "127.0.0.1",
        "10.1.2.3",
        "192.168.0.1",
        "172.31.0.1",
        "100.64.0.9",
        "::1",
        "fe80::1%eth0",
        "fd00::1",
        "::ffff:10.0.0.1",
        "169.254.1.1",
    ],
)
def test_private_addresses_are_near(host: str) -> None:
    assert is_near(host)


@pytest.mark.parametrize(
    "host", ["8.8.8.8", "172.32.0.1", "100.128.0.1", "2001:4860::1", "::ffff:8.8.8.8", "example.org", ""]
)
def test_public_addresses_and_names_are_not(host: str) -> None:
    assert not is_near(host)
