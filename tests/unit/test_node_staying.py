"""A long question to a peer ends when the peer leaves the view."""

import asyncio
from dataclasses import replace

import pytest

from hoard_p2p.errors import Unavailable
from hoard_p2p.node.staying import while_member
from hoard_p2p.peer import ClusterView
from hoard_p2p.testing.network import a_peer

ME, OTHER = a_peer(1), a_peer(2)
BOTH = ClusterView(ME.node_id, (ME, OTHER))


def test_an_answer_comes_through_and_nothing_is_left_running() -> None:
    async def main() -> str:
        async def answer() -> str:
            await asyncio.sleep(0)
            return "yes"

        async with asyncio.TaskGroup() as group:
            return await while_member(group, lambda: BOTH, OTHER, answer())

    assert asyncio.run(main()) == "yes"


def test_a_peer_that_leaves_the_view_is_not_waited_for() -> None:
    views = [BOTH, replace(BOTH, peers=(ME,))]

    async def main() -> None:
        async with asyncio.TaskGroup() as group:
            with pytest.raises(Unavailable, match="left the cluster"):
                await while_member(
                    group, lambda: views.pop(0) if len(views) > 1 else views[0], OTHER, asyncio.Event().wait()
                )

    asyncio.run(main())


def test_what_the_question_raises_is_raised() -> None:
    async def main() -> None:
        async def fail() -> None:
            raise Unavailable("no")

        async with asyncio.TaskGroup() as group:
            with pytest.raises(Unavailable, match="no"):
                await while_member(group, lambda: BOTH, OTHER, fail())

    asyncio.run(main())
