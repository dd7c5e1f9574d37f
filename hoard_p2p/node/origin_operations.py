"""Origins: operations of the unix socket (`node.operations`)."""

import asyncio
import os
from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import asdict

from hoard_p2p.config import Json
from hoard_p2p.errors import BadRequest, HoardError, Unavailable
from hoard_p2p.node.app import Node
from hoard_p2p.node.asking import Operation, text_of
from hoard_p2p.node.local import LocalReply, LocalRequest
from hoard_p2p.node.names_wire import MAX_ORIGIN, fits_line
from hoard_p2p.objects import Listed, Origin
from hoard_p2p.origin.allowed import command_to_allow
from hoard_p2p.origin.checkup import Checkup, check_up
from hoard_p2p.origin.opening import open_origin
from hoard_p2p.origin.urls import Address, directory_url, parse_address
from hoard_p2p.peer import origin_id
from hoard_p2p.printing import printable
from hoard_p2p.publish.listing import Unmappable, mapped

CHECK_SECONDS = 300.0
REPORT_SECONDS = 1.0


def origins_body(node: Node) -> list[Json]:
    """What a status shows of them."""
    rows = node.known_origins.body(lambda origin: len(node.agent.reading(origin)))
    return [{**row, **node.origins.told(str(row["url"]))} for row in rows if isinstance(row, dict)]


async def _origins(node: Node, request: LocalRequest) -> LocalReply:
    """As in a status, which counts much else."""
    return LocalReply({"origins": origins_body(node)})


async def _check(node: Node, request: LocalRequest) -> LocalReply:
    """Look at an origin as this node sees it: on the word of a local user, who allows nothing by that."""
    source = text_of(request.args, "source")
    address = parse_address(directory_url(source) if source.startswith("/") else source)
    if not fits_line(address.url) or len(address.url.encode()) > MAX_ORIGIN:
        raise BadRequest(f"{printable(address.url)} can be no origin: it is no text of at most {MAX_ORIGIN:,} bytes")
    directory = os.dup(request.fds[0]) if request.fds else None
    entries = 0

    def report(count: int) -> None:
        nonlocal entries
        entries = count

    async with asyncio.TaskGroup() as group:
        telling = group.create_task(_tell(request, lambda: entries))
        try:
            async with asyncio.timeout(CHECK_SECONDS):
                seen = await asyncio.to_thread(_checked, address, directory, report)
        except TimeoutError:
            seen = Checkup(address.url, why=f"the origin {printable(address.url)} does not answer")
        finally:
            telling.cancel()
    return LocalReply(await _check_body(node, address, seen))


async def _tell(request: LocalRequest, entries: Callable[[], int]) -> None:
    while True:
        await asyncio.sleep(REPORT_SECONDS)
        await request.report({"phase": "listing", "entries": entries()})


def _checked(address: Address, directory: int | None, report: Callable[[int], None]) -> Checkup:
    """Blocking."""
    try:
        origin: Origin = open_origin(address.url, directory=directory, trusted=frozenset([address.host]))
    except Unavailable as error:
        return Checkup(address.url, why=str(error))
    finally:
        if directory is not None:
            os.close(directory)
    with closing(origin):
        return check_up(origin, _unmappable, report)


def _unmappable(entry: Listed) -> str:
    found = mapped(entry)
    return found.why if isinstance(found, Unmappable) else ""


async def _check_body(node: Node, address: Address, seen: Checkup) -> dict[str, Json]:
    try:
        await node.known_origins.grant(address.url)
        allowed, why = True, ""
    except HoardError as error:
        allowed, why = False, str(error)
    return {
        **asdict(seen),
        "allowed": allowed,
        "not_allowed_why": why,
        "allow_command": command_to_allow(address),
        "nodes": len(node.agent.reading(origin_id(address.url))),
    }


OPERATIONS: Mapping[str, Operation] = {"origins": _origins, "origin_check": _check}
