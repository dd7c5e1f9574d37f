"""The addresses that discoveries found: when each is said hello to. Pure but for the clock that it is given."""

from collections.abc import Callable
from dataclasses import dataclass

from hoard_p2p.cluster.addresses import Address

MAX_ADDRESSES = 4096
"""Discovered addresses remembered at most."""
AGAIN_AFTER_ANSWER = 30.0
"""A discovered address that answered is asked again then: a clone may have come up behind it. Later if there are more
addresses than seconds, so that a long list makes no more than one question a second."""
AGAIN_FIRST = 1.0
AGAIN_MOST = 15.0
"""Longest back-off for a discovered address that does not answer."""
GIVE_UP_AFTER = 600.0
"""A discovered address that never answered for so long is forgotten until it is found again."""
MAX_DUE = 32
"""Addresses that are asked at a time, so that a long list costs no more at a time than a short one."""


@dataclass(slots=True)
class _Tried:
    found: float
    next_try: float
    failures: int = 0
    has_answered: bool = False


class Dialling:
    """For one owner, the event loop."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._tried: dict[Address, _Tried] = {}

    def found(self, address: Address) -> bool:
        """Whether the address is new, so due at once."""
        if address in self._tried or len(self._tried) >= MAX_ADDRESSES:
            return False
        now = self._clock()
        self._tried[address] = _Tried(now, now)
        return True

    def due(self) -> list[Address]:
        """The addresses whose time has come."""
        now, due = self._clock(), []
        for address, tried in list(self._tried.items()):
            if tried.failures and now - tried.found > GIVE_UP_AFTER:
                del self._tried[address]
            elif tried.next_try <= now:
                due.append(address)
        return due[:MAX_DUE]

    def answered(self, address: Address) -> None:
        if address in self._tried:
            now = self._clock()
            wait = max(AGAIN_AFTER_ANSWER, float(len(self._tried)))
            self._tried[address] = _Tried(now, now + wait, has_answered=True)

    def has_answered(self, address: Address) -> bool:
        """Whether somebody answered there when it was asked last."""
        tried = self._tried.get(address)
        return tried is not None and tried.has_answered

    def failed(self, address: Address) -> None:
        tried = self._tried.get(address)
        if tried is not None:
            tried.next_try = self._clock() + min(AGAIN_MOST, AGAIN_FIRST * 2.0 ** min(tried.failures, 10))
            tried.failures += 1
            tried.has_answered = False
