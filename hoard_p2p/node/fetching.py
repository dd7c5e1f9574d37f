"""The fetcher of a node, handed what it needs of the other rooms."""

import time
from typing import TYPE_CHECKING

from hoard_p2p.fetch.fetcher import Fetcher, Outlook
from hoard_p2p.fetch.sources import Sources
from hoard_p2p.fill.window import ASKED_SEGMENTS

if TYPE_CHECKING:
    from hoard_p2p.node.app import Node


def make_fetcher(node: "Node") -> Fetcher:
    """The fetcher of `node`, whose other rooms are there."""
    sources = Sources(
        view=node.agent.view,
        replicas=node.replicas,
        residency=node.control.residency,
        group=node.group,
        favour=node.favour,
        suspects=node.agent.suspects,
        clock=time.monotonic,
        course=node.courses.of,
        settled=lambda snapshot: not node.courses.unsettled(snapshot),
        origins=node.origins,
    )
    return Fetcher(
        group=node.group,
        executor=node.fetchers,
        fillers=node.fillers,
        keeper=node.keeper,
        peers=node.bulk,
        segments=node.bulk,
        sources=sources,
        favour=node.favour,
        failed=node.agent.report_failure,
        outlook=lambda: outlook(node),
        me=node.me.node_id,
        rack=node.me.rack,
        origins=node.origins,
        asked=ASKED_SEGMENTS,
    )


def outlook(node: "Node") -> Outlook:
    """Members that may hold data and do not answer now."""
    view = node.agent.view().by_id
    suspects = node.agent.suspects()
    away = [
        f"{member.peer.name} ({member.peer.host}:{member.peer.port})"
        for member in node.agent.members()
        if member.peer.node_id not in view or member.peer.node_id in suspects
    ]
    if node.lonely:
        away.append("peers that are not discovered yet")
    return Outlook(tuple(away))
