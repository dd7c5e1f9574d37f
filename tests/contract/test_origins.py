"""What every `Origin` promises, whatever it reads."""

import os
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from random import Random

import pytest

from hoard_p2p.errors import ObjectChanged, OriginFailed
from hoard_p2p.objects import Kind, Listed, ObjectRange, Origin
from hoard_p2p.origin.s3 import S3Origin
from hoard_p2p.origin.s3url import parse_s3
from tests.origintrees import KINDS, open_tree, write_object, write_objects
from tests.s3servers import ENVIRONMENT, S3Server, moto_server, needs_weed, weed_server

OBJECTS = {
    b"a": b"alpha",
    b"empty": b"",
    b"deep/er/one": b"1" * 1000,
    b"deep/two": bytes(range(256)) * 4096,
    "grün/東京 +%2F?&=#.bin".encode(): b"unicode",
    b"spaces  in / names ": b"spaces",
}


@dataclass
class Case:
    """An origin, and how its objects are changed behind its back."""

    origin: Origin
    put: Callable[[bytes, bytes], None]
    remove: Callable[[bytes], None]

    def listed(self, path: bytes) -> Listed:
        return next(entry for entry in self.origin.listing() if entry.path == path)

    def read(self, entry: Listed, start: int = 0, stop: int = -1, *, version: bytes | None = None) -> bytes:
        stop = entry.size if stop < 0 else stop
        told = entry.version if version is None else version
        moved: list[int] = []
        into = bytearray(stop - start)
        self.origin.read(ObjectRange(entry.path, entry.size, told, start, stop), memoryview(into), moved.append)
        assert sum(moved) == stop - start
        return bytes(into)


@pytest.fixture(scope="session")
def moto() -> Iterator[S3Server]:
    with moto_server() as server:
        yield server


@pytest.fixture(scope="session")
def weed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    with weed_server(tmp_path_factory.mktemp("weed")) as server:
        yield server


def _on_s3(server: S3Server, objects: dict[bytes, bytes]) -> Case:
    bucket = f"b{os.urandom(6).hex()}"
    client = server.bucket(bucket, {f"set/{path.decode()}": data for path, data in objects.items()})
    client.put_object(Bucket=bucket, Key="setter/other", Body=b"of another set")
    return Case(
        S3Origin(parse_s3(server.url(f"{bucket}/set"))),
        lambda path, data: client.put_object(Bucket=bucket, Key=f"set/{path.decode()}", Body=data),
        lambda path: client.delete_object(Bucket=bucket, Key=f"set/{path.decode()}"),
    )


Made = Callable[[dict[bytes, bytes]], Case]


def _on_tree(kind: str, root: Path, objects: dict[bytes, bytes], stack: ExitStack) -> Case:
    write_objects(root / "set", objects)
    write_objects(root / "setter", {b"other": b"of another set"})
    return Case(
        stack.enter_context(open_tree(kind, root)),
        lambda path, data: write_object(root / "set", path, data),
        lambda path: (root / "set" / os.fsdecode(path)).unlink(),
    )


@pytest.fixture(params=["moto", pytest.param("weed", marks=needs_weed), *KINDS])
def made(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Made]:
    """Makes an origin that has these objects."""
    for name, value in ENVIRONMENT.items():
        monkeypatch.setenv(name, value)
    cases: list[Case] = []

    def make(objects: dict[bytes, bytes]) -> Case:
        if request.param in KINDS:
            cases.append(_on_tree(request.param, tmp_path / f"tree{len(cases)}", objects, stack))
        else:
            cases.append(_on_s3(request.getfixturevalue(request.param), objects))
        return cases[-1]

    with ExitStack() as stack:
        yield make
        for case in cases:
            case.origin.close()


def test_a_listing_names_every_object_once_with_its_size_and_a_version(made: Made) -> None:
    case = made(OBJECTS)
    case.origin.check()
    entries = [entry for entry in case.origin.listing() if entry.kind is Kind.FILE]
    assert {entry.path: entry.size for entry in entries} == {path: len(data) for path, data in OBJECTS.items()}
    assert len(entries) == len(OBJECTS)
    assert all(0 < len(entry.version) <= 255 and entry.mtime > 0 for entry in entries)


def test_every_object_reads_back_whole(made: Made) -> None:
    case = made(OBJECTS)
    for entry in case.origin.listing():
        if entry.kind is Kind.FILE:
            assert case.read(entry) == OBJECTS[entry.path]
            assert case.read(entry, version=b"") == OBJECTS[entry.path]


def test_a_range_is_exactly_what_was_asked_for(made: Made) -> None:
    data = Random(1).randbytes(300_000)
    case = made({b"x": data})
    entry = case.listed(b"x")
    for start, stop in [(0, 1), (299_999, 300_000), (4096, 8192), (1, 299_999), (77, 77)]:
        assert case.read(entry, start, stop) == data[start:stop]


def test_threads_read_at_once(made: Made) -> None:
    data = Random(2).randbytes(1 << 20)
    case = made({b"x": data})
    entry = case.listed(b"x")
    starts = [Random(3).randrange(len(data) - 5000) for _ in range(40)]
    with ThreadPoolExecutor(8) as pool:
        got = list(pool.map(lambda start: case.read(entry, start, start + 5000), starts))
    assert got == [data[start : start + 5000] for start in starts]


def test_an_object_that_was_replaced_by_one_of_the_same_length_has_changed(made: Made) -> None:
    case = made({b"x": b"old" * 100, b"y": b"y"})
    entry = case.listed(b"x")
    case.put(b"x", b"new" * 100)
    with pytest.raises(ObjectChanged, match=r"x.*publish again") as caught:
        case.read(entry, 10, 20)
    assert not caught.value.again
    assert case.read(case.listed(b"x"), 0, 3) == b"new"


def test_an_object_of_another_length_has_changed_whatever_version_is_good_enough(made: Made) -> None:
    case = made({b"x": b"old" * 100})
    entry = case.listed(b"x")
    for data in (b"longer" * 100, b"short"):
        case.put(b"x", data)
        with pytest.raises(ObjectChanged):
            case.read(entry, 10, 20, version=b"")


def test_an_object_that_is_gone_has_changed(made: Made) -> None:
    case = made({b"x": b"old", b"y": b"y"})
    entry = case.listed(b"x")
    case.remove(b"x")
    with pytest.raises(ObjectChanged, match="x"):
        case.read(entry)


def test_an_empty_object_is_compared_too(made: Made) -> None:
    case = made({b"x": b""})
    entry = case.listed(b"x")
    assert case.read(entry) == b""
    case.put(b"x", b"something")
    with pytest.raises(ObjectChanged):
        case.read(entry)


def test_what_moved_raises_ends_the_reading(made: Made) -> None:
    case = made({b"x": bytes(3 << 20)})
    entry = case.listed(b"x")

    def enough(count: int) -> None:
        raise OriginFailed("enough")

    with pytest.raises(OriginFailed, match="enough"):
        case.origin.read(
            ObjectRange(b"x", entry.size, entry.version, 0, entry.size), memoryview(bytearray(3 << 20)), enough
        )
    assert case.read(entry, 5, 6) == b"\0"


def test_identities_differ_where_objects_do(made: Made) -> None:
    one, other = made({b"x": b""}), made({b"x": b""})
    assert one.origin.identity(b"x") != one.origin.identity(b"y")
    assert one.origin.identity(b"x") != other.origin.identity(b"x")


def test_many_pages_are_listed_to_the_end(made: Made) -> None:
    case = made({})
    names = [f"n{number:04d}".encode() for number in range(1101)]
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda name: case.put(name, name), names))
    assert sorted(entry.path for entry in case.origin.listing() if entry.kind is Kind.FILE) == names
