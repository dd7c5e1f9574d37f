"""Which processes of a mount hang. Pure: told what was seen and when, decides, does nothing."""

STOPPED = 2.0
"""Seconds until a process that was stopped by a signal is taken for hanging."""
STILL = 10.0
"""The same for any other whose slot does not move: its loop goes round once a second."""
IN_DISK = 30.0
"""The same for one that waits for a disk, which a successor would have to do as well."""
_LONGEST_STEP = 2.0


def allowance(state: str) -> float:
    """Seconds that a process may not move, in a state of proc_pid_stat(5)."""
    return {"T": STOPPED, "D": IN_DISK}.get(state, STILL)


class Stillness:
    """How long each slot of a mount has not moved, as far as this process was awake to see it: when all processes were
    stopped together (a machine that was suspended), none of them hangs."""

    def __init__(self) -> None:
        self._seen: dict[int, tuple[object, float, float]] = {}

    def idle(self, number: int, mark: object, now: float) -> float:
        """Seconds that a slot's content has been `mark`. To be asked about once a second."""
        before, last, idle = self._seen.get(number, (None, now, 0.0))
        idle = idle + min(now - last, _LONGEST_STEP) if before == mark else 0.0
        self._seen[number] = mark, now, idle
        return idle
