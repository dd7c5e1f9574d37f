"""Key files, and what is derived from keys."""

from pathlib import Path

import pytest

from hoard_p2p.errors import BadRequest, Refused
from hoard_p2p.transfer.keys import ClusterKey, new_key, parse_keys, read_key_file, write_key_file

ONE = ClusterKey(bytes(range(32)))
TWO = ClusterKey(bytes(range(1, 33)))


def a_file(tmp_path: Path, text: str, mode: int = 0o600) -> Path:
    path = tmp_path / "cluster.key"
    path.write_text(text)
    path.chmod(mode)
    return path


def test_a_new_key_file_is_read_back_and_only_its_owner_may_read_it(tmp_path: Path) -> None:
    path, line = tmp_path / "cluster.key", new_key()
    write_key_file(path, line)
    assert path.stat().st_mode & 0o777 == 0o600
    assert read_key_file(path) == (ClusterKey(bytes.fromhex(line)),)


def test_a_new_key_overwrites_no_file(tmp_path: Path) -> None:
    path = a_file(tmp_path, "mine")
    with pytest.raises(Refused, match="there already"):
        write_key_file(path, new_key())
    assert path.read_text() == "mine"


def test_keys_keep_their_order_and_comments_are_skipped(tmp_path: Path) -> None:
    text = f"# new\n\n{TWO.secret.hex()}\n  {ONE.secret.hex().upper()}\n{TWO.secret.hex()}\n"
    assert read_key_file(a_file(tmp_path, text)) == (TWO, ONE)


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o660, 0o601])
def test_a_key_file_that_others_may_use_is_refused_with_the_remedy(tmp_path: Path, mode: int) -> None:
    path = a_file(tmp_path, new_key(), mode)
    with pytest.raises(Refused, match=f"chmod 600 {path}"):
        read_key_file(path)


@pytest.mark.parametrize(
    "text",
    ["", "# nothing\n", "abc", "g" * 64, "0" * 64, ONE.secret.hex() + "00", f"{ONE.secret.hex()} x", "0x" + "1" * 62],
)
def test_what_is_no_key_is_refused_and_never_shown(text: str) -> None:
    with pytest.raises(BadRequest) as caught:
        parse_keys(text, "file")
    assert "file" in str(caught.value)
    assert ONE.secret.hex() not in str(caught.value)


def test_too_many_keys_and_too_long_a_file_are_refused(tmp_path: Path) -> None:
    with pytest.raises(BadRequest, match="17 keys"):
        parse_keys("\n".join(new_key() for _ in range(17)), "file")
    with pytest.raises(BadRequest, match="no key file"):
        read_key_file(a_file(tmp_path, "#" * 10_000))


def test_a_directory_and_a_missing_file_are_no_key_files(tmp_path: Path) -> None:
    for path in (tmp_path, tmp_path / "missing"):
        with pytest.raises(BadRequest):
            read_key_file(path)


def test_fingerprints_tell_keys_apart_and_a_key_is_never_shown() -> None:
    assert ONE.fingerprint != TWO.fingerprint
    assert len(ONE.fingerprint) == 8
    assert ONE.fingerprint not in ONE.secret
    assert ONE.secret.hex() not in repr(ONE) and repr(ONE.secret) not in repr(ONE)


def test_what_is_derived_for_one_purpose_is_of_no_use_for_another() -> None:
    assert ONE.derive("one", b"x") != ONE.derive("two", b"x")
    assert ONE.derive("one", b"x") != ONE.derive("one", b"y")
