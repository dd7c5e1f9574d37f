"""What a node does about a mount whose descriptors it keeps copies of: pure decisions, event in, step out."""

from dataclasses import dataclass
from enum import Enum

GRACE = 1.0
"""Seconds that a mount's own processes have to find a new supervisor before the node starts one."""
MOST_FAILURES = 5
"""Supervisors that the node starts in vain, one after another, before it gives a mount up: after GRACE, and then twice
as long each time, half a minute in all."""


class Step(Enum):
    KEEP = "keep"
    RELEASE = "release"
    REVIVE = "revive"
    TAKE_OVER = "take over"
    GIVE_UP = "give up"


@dataclass(frozen=True, slots=True)
class Facts:
    """One mount at one moment. `alive`: the kernel serves it; `ending`: its processes end it on purpose; `attached`:
    its supervisor's line is open; `supervised`: some process holds the supervisor's lock; `starting`: a supervisor of
    ours is on its way; `outdated`: its processes are of an older version, and were not asked to give way yet;
    `lonely`: seconds since it was attached last, or since the last supervisor of ours failed."""

    alive: bool
    ending: bool
    attached: bool
    supervised: bool
    starting: bool
    outdated: bool
    lonely: float
    failures: int


def is_newer(version: str, than: str) -> bool:
    """Whether a dotted version is newer than another; False where one of them is no row of numbers."""
    try:
        ours, theirs = ([int(part) for part in text.split(".")] for text in (version, than))
    except ValueError:
        return False
    length = max(len(ours), len(theirs))
    return ours + [0] * (length - len(ours)) > theirs + [0] * (length - len(theirs))


def next_step(facts: Facts) -> Step:
    """What to do now."""
    if not facts.alive or facts.ending:
        return Step.RELEASE
    if facts.starting:
        return Step.KEEP
    if facts.attached:
        return Step.TAKE_OVER if facts.outdated else Step.KEEP
    if facts.supervised:
        return Step.KEEP
    if facts.failures >= MOST_FAILURES:
        return Step.GIVE_UP
    return Step.KEEP if facts.lonely < GRACE * 2**facts.failures else Step.REVIVE
