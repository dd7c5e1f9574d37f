"""Blocking work on behalf of the event loop, and waiting for a time that moves."""

import asyncio
from collections.abc import Callable
from concurrent.futures import Executor
from functools import partial
from typing import TypeVar

T = TypeVar("T")


async def in_executor(executor: Executor, work: Callable[..., T], *args: object) -> T:
    """Run `work` in a thread of `executor`; when cancelled, the thread goes on."""
    return await asyncio.get_running_loop().run_in_executor(executor, partial(work, *args))


async def sleep_while(left: Callable[[], float]) -> None:
    """Sleep until `left()` seconds are none: more may be left after each sleep."""
    seconds = left()
    while seconds > 0:
        await asyncio.sleep(seconds)
        seconds = left()
