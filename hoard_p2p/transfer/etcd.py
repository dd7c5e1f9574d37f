"""A small client of etcd's version 3 API, over its JSON gateway (etcd 3.4 or later): `registry.Registry`.

The members of an etcd are asked in turn: whoever answered last is asked first. Every call has a deadline and a bound.
"""

import asyncio
import base64
import json
import ssl
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from typing import Self

import aiohttp

from hoard_p2p.config import Json
from hoard_p2p.errors import BadRequest, Unavailable
from hoard_p2p.registry import Change, Entry, Listing, RegistryAddress

CALL_TIME = 3.0
"""Seconds for one call to one member."""
QUIET_TIME = 60.0
"""A watch that hears nothing for so long is begun anew where it was: its connection may be dead."""
PAGE = 1000
"""Entries of one answer."""
MAX_BODY = 16 << 20
MAX_LINE = 8 << 20
_ELSEWHERE = frozenset({4, 14})
"""gRPC codes after which another member is asked: too late, unavailable."""
_LOG_IN = 16


class _Failed(Exception):
    """A member answered with an error: its gRPC code and message."""

    def __init__(self, code: int, message: str) -> None:
        super().__init__(message)
        self.code = code


class EtcdClient:
    """An async context manager around one HTTP session."""

    _session: aiohttp.ClientSession

    def __init__(self, address: RegistryAddress) -> None:
        self._address = address
        self._urls = list(address.urls)
        self._token = ""

    async def __aenter__(self) -> Self:
        secure = _context(self._address) if any(url.startswith("https") for url in self._urls) else True
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(ssl=secure, limit=8, use_dns_cache=False),
            cookie_jar=aiohttp.DummyCookieJar(),
            timeout=aiohttp.ClientTimeout(total=None),
            read_bufsize=MAX_LINE // 2,
        )
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self._session.close()

    # --- Registry

    async def list(self, prefix: str) -> Listing:
        start, revision, entries = prefix.encode(), 0, list[Entry]()
        while True:
            body: dict[str, Json] = {"key": _b64(start), "range_end": _b64(_after(prefix)), "limit": PAGE}
            answer = await self._call("kv/range", {**body, "revision": revision} if revision else body)
            page = [_entry(pair) for pair in _objects(answer.get("kvs"))]
            entries += page
            revision = revision or _revision(answer)
            if answer.get("more") is not True or not page:
                return Listing(tuple(entries), revision)
            start = page[-1].key.encode() + b"\0"

    async def get(self, key: str) -> Entry | None:
        answer = await self._call("kv/range", {"key": _b64(key.encode())})
        found = [_entry(pair) for pair in _objects(answer.get("kvs"))]
        return found[0] if found else None

    async def put(self, key: str, value: bytes, *, lease: int = 0) -> None:
        await self._call("kv/put", {"key": _b64(key.encode()), "value": _b64(value), "lease": lease})

    async def put_if(self, key: str, value: bytes, *, revision: int) -> bool:
        name = _b64(key.encode())
        seen: Json = {"key": name, "target": "MOD", "result": "EQUAL", "mod_revision": revision}
        body: dict[str, Json] = {"compare": [seen], "success": [{"request_put": {"key": name, "value": _b64(value)}}]}
        return (await self._call("kv/txn", body)).get("succeeded") is True

    async def grant(self, seconds: int) -> int:
        return _whole((await self._call("lease/grant", {"TTL": seconds})).get("ID"))

    async def keep_alive(self, lease: int) -> bool:
        result = (await self._call("lease/keepalive", {"ID": lease})).get("result")
        return isinstance(result, dict) and _whole(result.get("TTL", 0)) > 0

    async def revoke(self, lease: int) -> None:
        await self._call("lease/revoke", {"ID": lease})

    async def watch(self, prefix: str, revision: int) -> AsyncGenerator[Sequence[Change], None]:
        while True:
            url = self._urls[0]
            try:
                async with aclosing(self._watch_once(url, prefix, revision)) as told:
                    async for changes, reached in told:
                        if not reached:
                            return
                        revision = reached + 1
                        if changes:
                            yield changes
            except TimeoutError:  # nothing happened for a while
                continue
            except (aiohttp.ClientError, OSError, ValueError) as error:
                self._blame(url)
                raise Unavailable(f"{self._address.name} ended the watch of {prefix}: {_reason(error)}") from error
            except _Failed as error:
                self._token = ""
                raise Unavailable(f"{self._address.name} refuses to watch {prefix}: {error}") from error
            self._blame(url)
            raise Unavailable(f"{self._address.name} ended the watch of {prefix}")

    # --- steps

    async def _watch_once(
        self, url: str, prefix: str, revision: int
    ) -> AsyncGenerator[tuple[Sequence[Change], int], None]:
        """Changes, and the revision that they reach up to; 0: the asked one is compacted away."""
        await self._log_in(url)
        wanted: Json = {"key": _b64(prefix.encode()), "range_end": _b64(_after(prefix)), "start_revision": revision}
        request = self._session.post(
            f"{url}/v3/watch",
            data=json.dumps({"create_request": wanted}),
            headers=self._headers(),
            allow_redirects=False,
            timeout=aiohttp.ClientTimeout(sock_connect=CALL_TIME, sock_read=QUIET_TIME),
        )
        async with request as response:
            if response.status != 200:
                raise _failed(response.status, await response.content.read(1 << 16))
            reached = revision - 1
            while line := await response.content.readline():  # ValueError if it is too long
                result = _watched(line)
                if result.get("canceled") is True:
                    if "compact_revision" not in result:
                        raise ValueError(f"the watch was ended: {str(result.get('cancel_reason', ''))[:200]}")
                    yield (), 0
                    return
                changes = [_change(event) for event in _objects(result.get("events"))]
                reached = max([reached, *(change.revision for change in changes)])
                yield changes, reached

    async def _call(self, path: str, body: dict[str, Json]) -> dict[str, Json]:
        """The answer of the first member that gives one. Raises Unavailable."""
        why = ""
        for url in tuple(self._urls):
            try:
                return await self._ask_again(url, path, body)
            except _Failed as error:
                if error.code not in _ELSEWHERE:
                    raise Unavailable(f"{url} refuses {path}: {error}") from error
                why = str(error)
            except TimeoutError:
                why = f"no answer in {CALL_TIME:.0f} s"
            except (aiohttp.ClientError, OSError, ValueError) as error:
                why = _reason(error)
            self._blame(url)
        raise Unavailable(f"{self._address.name} is unavailable, try again later: {why}")

    async def _ask_again(self, url: str, path: str, body: dict[str, Json]) -> dict[str, Json]:
        """Log in anew if that was too long ago."""
        try:
            return await self._ask(url, path, body)
        except _Failed as error:
            if error.code != _LOG_IN or not self._address.user:
                raise
            self._token = ""
            return await self._ask(url, path, body)

    async def _ask(self, url: str, path: str, body: dict[str, Json]) -> dict[str, Json]:
        await self._log_in(url)
        return await self._post(url, path, body)

    async def _log_in(self, url: str) -> None:
        if self._address.user and not self._token:
            login: dict[str, Json] = {"name": self._address.user, "password": self._address.password}
            answer = await self._post(url, "auth/authenticate", login)
            self._token = str(answer.get("token", ""))

    async def _post(self, url: str, path: str, body: dict[str, Json]) -> dict[str, Json]:
        async with (
            asyncio.timeout(CALL_TIME),
            self._session.post(
                f"{url}/v3/{path}", data=json.dumps(body), headers=self._headers(), allow_redirects=False
            ) as response,
        ):
            answer = bytearray()
            async for part in response.content.iter_any():
                answer += part
                if len(answer) > MAX_BODY:
                    raise ValueError(f"an answer of more than {MAX_BODY} bytes")
            if response.status != 200:
                raise _failed(response.status, bytes(answer))
            return _object(json.loads(answer))

    def _headers(self) -> dict[str, str]:
        return {"Authorization": self._token} if self._token else {}

    def _blame(self, url: str) -> None:
        """Ask that member last."""
        if self._urls[0] == url:
            self._urls.append(self._urls.pop(0))
        self._token = ""


def _reason(error: Exception) -> str:
    """Why a member could not be asked, in few words."""
    cause = error.os_error if isinstance(error, aiohttp.ClientConnectorError) else error
    return getattr(cause, "strerror", None) or str(cause) or repr(cause)


def _context(address: RegistryAddress) -> ssl.SSLContext:
    """Raises BadRequest for files that are none such."""
    try:
        context = ssl.create_default_context(cafile=address.ca or None)
        if address.cert:
            context.load_cert_chain(address.cert, address.key or None)
    except (OSError, ValueError) as error:  # ssl.SSLError is an OSError
        raise BadRequest(f"the ca, cert or key of {address.name} cannot be used: {error}") from error
    return context


def _after(prefix: str) -> bytes:
    """The first key behind all that begin with `prefix`, which ends with a slash."""
    raw = prefix.encode()
    return raw[:-1] + bytes([raw[-1] + 1])


def _b64(value: bytes) -> str:
    return base64.b64encode(value).decode()


def _failed(status: int, body: bytes) -> _Failed:
    """What an answer with an error status tells."""
    try:
        told = _object(json.loads(body))
        return _Failed(_whole(told.get("code", 0)), str(told.get("message", told.get("error", "")))[:300])
    except ValueError:
        return _Failed(14 if status >= 500 else 0, f"status {status}, as no etcd 3.4 or later gives")


def _watched(line: bytes) -> dict[str, Json]:
    told = _object(json.loads(line))
    if "error" in told:
        error = told["error"]
        raise ValueError(str(error.get("message") if isinstance(error, dict) else error)[:300])
    return _object(told.get("result"))


def _entry(pair: dict[str, Json]) -> Entry:
    return Entry(_text(pair.get("key")).decode(), _text(pair.get("value", "")), _whole(pair.get("mod_revision", 0)))


def _change(event: dict[str, Json]) -> Change:
    entry = _entry(_object(event.get("kv")))
    return Change(entry.key, None if event.get("type") == "DELETE" else entry.value, entry.revision)


def _revision(answer: dict[str, Json]) -> int:
    return _whole(_object(answer.get("header")).get("revision", 0))


def _object(value: Json) -> dict[str, Json]:
    if not isinstance(value, dict):
        raise ValueError(f"an object was expected, not {str(value)[:80]!r}")
    return value


def _objects(value: Json) -> list[dict[str, Json]]:
    if value is None:
        return []
    if not isinstance(value, list):
        raise ValueError(f"a list was expected, not {str(value)[:80]!r}")
    return [_object(item) for item in value]


def _text(value: Json) -> bytes:
    if not isinstance(value, str):
        raise ValueError(f"base64 was expected, not {str(value)[:80]!r}")
    return base64.b64decode(value, validate=True)


def _whole(value: Json) -> int:
    """64-bit numbers are texts in this JSON."""
    if isinstance(value, bool) or not isinstance(value, int | str):
        raise ValueError(f"a number was expected, not {str(value)[:80]!r}")
    return int(value)
