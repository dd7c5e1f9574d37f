"""Long work in threads tells how far it is, and rests where it should be gentle."""

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from hoard_p2p.config import Json
from hoard_p2p.errors import StoreFailed
from hoard_p2p.node.course import ROUND, Course


def test_who_waits_is_told_how_far_it_is_and_gets_what_the_work_comes_to() -> None:
    told: list[dict[str, Json]] = []
    heard = threading.Event()

    async def report(body: dict[str, Json]) -> None:
        told.append(body)
        heard.set()

    def work() -> str:
        course.begin("looking", 100)
        for _ in range(ROUND):
            course.passed(bytes([128, *range(31)]))
        assert heard.wait(20)
        return "done"

    course = Course(report)
    with ThreadPoolExecutor(1) as pool:
        assert asyncio.run(course.follow(pool, work)) == "done"
    assert told[0] == {"phase": "looking", "done": 50, "total": 100}


def test_what_the_work_fails_with_is_raised() -> None:
    def work() -> None:
        raise StoreFailed("the disk is full")

    with ThreadPoolExecutor(1) as pool, pytest.raises(StoreFailed, match="disk is full"):
        asyncio.run(Course().follow(pool, work))


def test_it_asks_at_each_step_whether_to_be_gentle() -> None:
    asked: list[int] = []

    def gently() -> bool:
        asked.append(1)
        return len(asked) == 2

    course = Course(gently=gently)
    for done in range(3):
        course.rest(done)
    assert len(asked) == 3
    assert course.told()["done"] == 2
