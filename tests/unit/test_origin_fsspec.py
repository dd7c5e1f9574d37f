"""Origins that fsspec reaches, over its own stores of this machine."""

from datetime import UTC, datetime
from pathlib import Path

import fsspec
import pytest

from hoard_p2p.errors import ObjectChanged, OriginBusy, OriginFailed, OriginRefused, Unavailable
from hoard_p2p.objects import Kind, Listed, ObjectRange
from hoard_p2p.origin.fsspec_origin import FsspecOrigin, open_fsspec, version_of
from hoard_p2p.origin.urls import parse_address


@pytest.fixture
def origin(tmp_path: Path) -> FsspecOrigin:
    (tmp_path / "set/sub").mkdir(parents=True)
    (tmp_path / "set/a").write_bytes(bytes(range(100)))
    (tmp_path / "set/empty").write_bytes(b"")
    (tmp_path / "set/sub/ü").write_bytes(b"deep")
    (tmp_path / "setting").write_bytes(b"no part of it")
    return FsspecOrigin("gs://bucket/set", fsspec.filesystem("file"), f"{tmp_path}/set")


def files(origin: FsspecOrigin) -> dict[bytes, Listed]:
    return {entry.path: entry for entry in origin.listing() if entry.kind is Kind.FILE}


def read(origin: FsspecOrigin, entry: Listed, start: int, stop: int) -> bytes:
    into = bytearray(stop - start)
    origin.read(ObjectRange(entry.path, entry.size, entry.version, start, stop), memoryview(into), lambda _: None)
    return bytes(into)


def test_everything_below_the_folder_is_listed(origin: FsspecOrigin) -> None:
    origin.check()
    assert {entry.path: entry.size for entry in files(origin).values()} == {b"a": 100, b"empty": 0, "sub/ü".encode(): 4}
    assert [entry.path for entry in origin.listing() if entry.kind is Kind.DIRECTORY] == [b"sub"]
    assert origin.identity(b"a") == b"gs://bucket/set/a"


def test_exact_ranges_are_read(origin: FsspecOrigin) -> None:
    entries = files(origin)
    assert read(origin, entries[b"a"], 7, 9) == bytes([7, 8])
    assert read(origin, entries["sub/ü".encode()], 0, 4) == b"deep"
    assert read(origin, entries[b"empty"], 0, 0) == b""


def test_a_changed_object_is_told_with_both_versions(origin: FsspecOrigin, tmp_path: Path) -> None:
    entry = files(origin)[b"a"]
    (tmp_path / "set/a").write_bytes(b"shorter")
    with pytest.raises(ObjectChanged, match=r"a: changed .* now 7 bytes.* then 100 bytes"):
        read(origin, entry, 0, 5)
    (tmp_path / "set/a").unlink()
    with pytest.raises(ObjectChanged, match="gone"):
        read(origin, entry, 0, 5)


def test_an_object_is_no_folder_and_one_that_is_not_there_is_told(tmp_path: Path) -> None:
    (tmp_path / "one").write_bytes(b"x")
    store = fsspec.filesystem("file")
    with pytest.raises(OriginFailed):
        FsspecOrigin("gs://bucket/one", store, f"{tmp_path}/one").check()
    with pytest.raises(OriginFailed):
        FsspecOrigin("gs://bucket/none", store, f"{tmp_path}/none").check()


class OddStore:
    """Answers what it is told to."""

    def __init__(self, told: dict[str, object], failure: Exception | None = None) -> None:
        self.told = told
        self.failure = failure

    def ls(self, path: str, detail: bool) -> list[dict[str, object]]:
        return [{"name": "root/x", "size": 3, "type": "file", **self.told}, {"name": "root", "type": "directory"}]

    def info(self, path: str) -> dict[str, object]:
        return {"name": path, "size": 3, "type": "file", **self.told}

    def cat_file(self, path: str, start: int, end: int) -> bytes:
        if self.failure is not None:
            raise self.failure
        return b"ab"


def test_an_object_without_a_version_is_no_part_of_a_data_set() -> None:
    (entry,) = FsspecOrigin("gs://b", OddStore({}), "root").listing()
    assert (entry.path, entry.kind) == (b"x", Kind.UNREADABLE)


def test_an_answer_of_another_length_is_a_failure() -> None:
    origin = FsspecOrigin("gs://b", OddStore({"etag": "1"}), "root")
    (entry,) = origin.listing()
    with pytest.raises(OriginFailed, match="2 bytes came, not 3"):
        read(origin, entry, 0, 3)


class HttpError(Exception):
    def __init__(self, code: int | str) -> None:
        super().__init__(f"status {code}")
        self.code = code


@pytest.mark.parametrize(
    ("failure", "kind"),
    [
        (HttpError(429), OriginBusy),
        (HttpError("503"), OriginBusy),
        (HttpError(403), OriginRefused),
        (PermissionError("no"), OriginRefused),
        (ValueError("Anonymous caller: no credentials"), OriginRefused),
        (TimeoutError(), OriginFailed),
    ],
)
def test_a_failure_of_a_package_says_what_is_worth_a_retry(failure: Exception, kind: type[OriginFailed]) -> None:
    origin = FsspecOrigin("gs://b", OddStore({"etag": "1"}, failure), "root")
    (entry,) = origin.listing()
    with pytest.raises(kind) as caught:
        read(origin, entry, 0, 3)
    assert caught.type is kind


def test_a_version_is_what_changes_with_the_bytes_else_the_time() -> None:
    when = datetime(2026, 1, 2, tzinfo=UTC)
    assert version_of({"generation": "7", "md5Hash": "x", "mtime": when}) == b"generation=7 md5Hash=x"
    assert version_of({"lfs": {"sha256": "ab"}, "blob_id": "cd", "size": 3}) == b"blob_id=cd sha256=ab"
    assert version_of({"LastModified": when, "size": 3}) == b"LastModified=2026-01-02T00:00:00+00:00 size=3"
    assert version_of({"name": "x", "size": 3}) == b""
    assert version_of({"etag": "x" * 300}) == b""


def test_what_to_install_is_told() -> None:
    with pytest.raises(Unavailable, match=r"pip install 'hoard-p2p\[fsspec\]' gcsfs"):
        open_fsspec(parse_address("gs://bucket/x"))
