"""The room of the store: its capacity and its floor: operations of the unix socket (`node.operations`)."""

import asyncio
import logging
from collections.abc import Mapping
from dataclasses import replace

from hoard_p2p.config import Floor, Json, check_capacity, parse_floor
from hoard_p2p.errors import StoreFailed
from hoard_p2p.node.app import Node
from hoard_p2p.node.asking import Operation, number_of, text_of
from hoard_p2p.node.local import Body, LocalReply, LocalRequest
from hoard_p2p.node.meeting import weight_here
from hoard_p2p.storage.condition import State
from hoard_p2p.storage.room import UNLIMITED

log = logging.getLogger(__name__)

COUNT_SECONDS = 60.0
"""How often the disk space of all slabs is looked at, to put right what was counted."""


def room_body(node: Node) -> Body:
    """What `hoard capacity` and `hoard status` show. Blocking. A disk that does not answer is shown as full."""
    floor, room = node.store.floor(), node.store.room
    try:
        figures: dict[str, Json] = {**room.figures()._asdict()}
    except OSError as error:
        log.warning("the data directory cannot be looked at: %s", error)
        figures = {"capacity": room.capacity, "used": room.used, "promised": room.promised, "available": 0}
    if figures["capacity"] == UNLIMITED:
        figures["capacity"] = 0
    state, why = node.store.condition.look()
    if state in (State.READ_ONLY, State.FAILING):
        figures["available"] = 0
    return {**figures, "floor_setting": str(floor), "state": state.value, "state_reason": why}


async def _capacity(node: Node, request: LocalRequest) -> LocalReply:
    """Change the capacity (`size`) and the floor (`floor`) if they are given; how things are then."""
    if "size" in request.args:
        await _set_capacity(node, number_of(request.args, "size"))
    if "floor" in request.args:
        await _set_floor(node, parse_floor(text_of(request.args, "floor")))
    return LocalReply(await node.blocking(room_body, node))


async def _set_capacity(node: Node, size: int) -> None:
    await node.blocking(node.store.set_capacity, check_capacity(size))
    log.info("the capacity is %d bytes now", size)
    if node.me.weight:  # one that drains gets it when it stops to
        node.me = replace(node.me, weight=weight_here(node.store))
        node.agent.renew(node.me)


async def _set_floor(node: Node, floor: Floor) -> None:
    await node.blocking(node.store.set_floor, floor)
    log.info("the floor is %s now", floor)


async def keep_count(node: Node) -> None:
    """Put the count of used space right, for ever."""
    ill = ""
    while True:
        await asyncio.sleep(COUNT_SECONDS)
        try:
            await node.blocking(node.store.room.measure)
            ill = ""
        except (OSError, StoreFailed) as error:
            if str(error) != ill:
                log.warning("the space that the store takes cannot be counted: %s", error)
            ill = str(error)


OPERATIONS: Mapping[str, Operation] = {"capacity": _capacity}
