"""Origins that fsspec reaches: Google, Azure, Hugging Face, SFTP and more (`pip install hoard-p2p[fsspec]`, and the
package of the store). Credentials come from where the store's own package takes them.

An object's version is whatever the store tells that changes with its bytes. fsspec cannot ask for a version, so it is
compared after the bytes came: it was the same before, when it was listed.
"""

import posixpath
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from datetime import datetime
from typing import Any

from hoard_p2p.errors import ObjectChanged, OriginBusy, OriginFailed, OriginRefused, Unavailable
from hoard_p2p.objects import Kind, Listed, ObjectRange
from hoard_p2p.origin.urls import PACKAGES, Address
from hoard_p2p.printing import printable

CERTAIN = (
    "generation", "versionId", "version_id", "etag", "ETag", "e_tag", "md5Hash", "crc32c", "content_md5", "md5",
    "checksum", "blob_id", "sha256",
)  # fmt: skip
"""Fields of an entry that change when its bytes do; they are its version, all that are there."""

TIMES = ("mtime", "updated", "LastModified", "last_modified", "modified", "modificationTime", "timeModified", "created")
"""Where there are none of these: when it was written, with its size. The first that is there is its time."""

MODE = 0o644
MAX_VERSION = 255
AGAIN = "publish again"
_BUSY = frozenset({429, 503})
_REFUSED = frozenset({401, 403})


def open_fsspec(address: Address) -> "FsspecOrigin":
    """Blocking. Raises Unavailable with the package to install, OriginRefused."""
    package = PACKAGES[address.scheme]
    packages = " ".join(("'hoard-p2p[fsspec]'", *([package] if package else [])))
    try:
        import fsspec

        store, root = fsspec.core.url_to_fs(address.url, skip_instance_cache=True, use_listings_cache=False)
    except ImportError as error:
        raise Unavailable(
            f"{printable(address.url)} needs more packages where this node runs: pip install {packages} ({error})"
        ) from error
    except Exception as error:
        raise _failure(address.url, error) from error
    return FsspecOrigin(address.url, store, str(root))


class FsspecOrigin:
    """An `Origin`."""

    def __init__(self, url: str, store: Any, root: str) -> None:
        """`store`: an `fsspec.AbstractFileSystem`; `root`: the path of the origin in it."""
        self._url = url
        self._store = store
        self._root = root.rstrip("/")

    @property
    def url(self) -> str:
        return self._url

    def identity(self, path: bytes) -> bytes:
        """See `Origin`."""
        return self._url.encode().rstrip(b"/") + b"/" + path

    def close(self) -> None:
        """See `Origin`: fsspec keeps its connections for itself."""

    def check(self) -> None:
        """See `Origin`."""
        try:
            listing = self._store.ls(self._root, detail=False)
        except Exception as error:
            raise _failure(self._url, error) from error
        if listing == [self._root] and not self._store.isdir(self._root):
            raise OriginFailed(f"{printable(self._url)} is one object: name the folder that it is in")

    def listing(self) -> Iterator[Listed]:
        """See `Origin`. Memory grows with the largest folder, and with the folders that wait."""
        folders = [self._root]
        while folders:
            folder = folders.pop()
            try:
                found = self._store.ls(folder, detail=True)
            except FileNotFoundError as error:
                if folder == self._root:
                    raise _failure(self._url, error) from error
                continue  # gone meanwhile
            except Exception as error:
                raise _failure(self._url, error) from error
            for told in found:
                entry = self._listed(told, folder)
                if entry is not None:
                    if entry.kind is Kind.DIRECTORY:
                        folders.append(str(told["name"]).rstrip("/"))
                    yield entry

    def _listed(self, told: Mapping[str, Any], folder: str) -> Listed | None:
        """None: the folder itself, which some stores list in itself."""
        name, size = str(told["name"]), told.get("size")
        path = self._relative(name)
        if name.rstrip("/") == folder or not path:
            return None
        if told.get("type") == "directory":
            return Listed(path, Kind.DIRECTORY, 0, 0, 0o755, b"")
        version = version_of(told)
        if told.get("type") not in ("file", None) or not isinstance(size, int):
            return Listed(path, Kind.SPECIAL, 0, 0, 0, b"", target=b"no plain file, or of unknown length")
        if not version:
            why = b"the store tells no version, checksum or time of it: a change could not be noticed"
            return Listed(path, Kind.UNREADABLE, 0, 0, 0, b"", target=why)
        return Listed(path, Kind.FILE, size, _mtime(told), MODE, version)

    def _relative(self, name: str) -> bytes:
        inner = name.rstrip("/") if name.rstrip("/") == self._root else name
        path = inner.removeprefix(self._root + "/") if inner != self._root else ""
        return path.encode("utf-8", "surrogateescape")

    def _path(self, path: bytes) -> str:
        return posixpath.join(self._root, path.decode("utf-8", "surrogateescape"))

    def read(self, wanted: ObjectRange, into: memoryview, moved: Callable[[int], None]) -> None:
        """See `Origin`."""
        path, name = self._path(wanted.path), f"{printable(self._url)}/{printable(wanted.path)}"
        try:
            data = self._store.cat_file(path, start=wanted.start, end=wanted.stop) if len(into) else b""
            moved(len(data))
            told = self._store.info(path)
        except FileNotFoundError as error:
            raise ObjectChanged(f"{name} is gone since it was listed; {AGAIN}") from error
        except Exception as error:
            raise _failure(name, error) from error
        size, version = told.get("size"), version_of(told)
        if size != wanted.size or (wanted.version and version != wanted.version):
            now, then = f"{size} bytes, {printable(version)}", f"{wanted.size} bytes, {printable(wanted.version)}"
            raise ObjectChanged(f"{name}: changed since it was listed: now {now}; then {then}; {AGAIN}")
        if len(data) != len(into):
            raise OriginFailed(f"{name}: {len(data):,} bytes came, not {len(into):,}")
        into[:] = data


def version_of(told: Mapping[str, Any]) -> bytes:
    """What fsspec tells of an object that changes when its bytes do; empty if that is nothing."""
    lfs = told.get("lfs")
    fields = {**(lfs if isinstance(lfs, Mapping) else {}), **told}
    certain = [f"{name}={_text(fields[name])}" for name in CERTAIN if fields.get(name)]
    if not certain:
        certain = [f"{name}={_text(fields[name])} size={fields.get('size')}" for name in TIMES if fields.get(name)][:1]
    version = " ".join(certain).encode("utf-8", "replace")
    return version if len(version) <= MAX_VERSION else b""


def _text(value: Any) -> str:
    return value.isoformat() if isinstance(value, datetime) else str(value)


def _mtime(told: Mapping[str, Any]) -> int:
    """In ns; 0 if it is not told."""
    value = next((told[name] for name in TIMES if told.get(name)), 0)
    with suppress(ValueError, TypeError, OverflowError, OSError):
        if isinstance(value, str):
            value = datetime.fromisoformat(value)
        seconds = value.timestamp() if isinstance(value, datetime) else float(value)
        return max(0, int(seconds)) * 10**9
    return 0


def _failure(what: str, error: Exception) -> OriginFailed:
    """What an exception of whatever package means. Its text is for people, and may be long."""
    text = f"{printable(what)}: {printable(str(error)[:300] or type(error).__name__)}"
    codes = [str(getattr(error, name, "")) for name in ("code", "status", "status_code")]
    status = next((int(code) for code in codes if code.isdigit()), 0)
    if status in _BUSY:
        return OriginBusy(text)
    credentials = isinstance(error, PermissionError) or "credential" in f"{type(error).__name__} {error}".lower()
    if status in _REFUSED or credentials:
        return OriginRefused(f"{text}; give this node credentials where the store's own tools look for them")
    return OriginFailed(text)
