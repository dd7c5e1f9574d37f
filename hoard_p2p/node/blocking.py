"""Blocking work on behalf of the event loop."""

import asyncio
from collections.abc import Callable
from concurrent.futures import Executor
from functools import partial
from typing import TypeVar

T = TypeVar("T")


async def in_executor(executor: Executor, work: Callable[..., T], *args: object) -> T:
    """Run `work` in a thread of `executor`; when cancelled, the thread goes on."""
    return await asyncio.get_running_loop().run_in_executor(executor, partial(work, *args))
