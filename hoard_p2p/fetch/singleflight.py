"""One load per key: callers of the same key share it.

A cancelled caller leaves and the others keep the load; the last one out cancels it.
"""

import asyncio
from collections.abc import Awaitable, Callable, Hashable
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


class _Failed:
    """An exception as a value: raised in the task it would end the whole group."""

    def __init__(self, error: Exception) -> None:
        self.error = error


class _Flight(Generic[V]):
    def __init__(self, task: "asyncio.Task[V | _Failed]") -> None:
        self.task = task
        self.callers = 0


class SingleFlight(Generic[K, V]):
    """Loads run in the TaskGroup that is handed in; a failed load fails all its callers and not the group."""

    def __init__(self, group: asyncio.TaskGroup) -> None:
        self._group = group
        self._flights: dict[K, _Flight[V]] = {}

    async def do(self, key: K, load: Callable[[], Awaitable[V]]) -> V:
        """The value of `load()`, which runs once however many callers wait for `key` at the same time."""
        flight = self._flights.get(key) or self._start(key, load)
        flight.callers += 1
        try:
            outcome = await asyncio.shield(flight.task)
        finally:
            flight.callers -= 1
            if flight.callers == 0 and not flight.task.done():
                self._forget(key, flight)
                flight.task.cancel()
        if isinstance(outcome, _Failed):
            raise outcome.error
        return outcome

    def _start(self, key: K, load: Callable[[], Awaitable[V]]) -> _Flight[V]:
        flight = _Flight(self._group.create_task(_guard(load)))
        self._flights[key] = flight
        flight.task.add_done_callback(lambda _: self._forget(key, flight))
        return flight

    def _forget(self, key: K, flight: _Flight[V]) -> None:
        """Only if it is still the one of its key: a new one may have begun after a cancelled one."""
        if self._flights.get(key) is flight:
            del self._flights[key]


async def _guard(load: Callable[[], Awaitable[V]]) -> V | _Failed:
    try:
        return await load()
    except Exception as error:  # noqa: BLE001 - raised again in every caller of `do`
        return _Failed(error)
