"""A brake on log lines: a damaged catalog or a lost peer must not fill the disk with one line per read."""

import logging
import time


class Brake:
    """Lets a few lines a second through and counts the rest. Single-threaded."""

    def __init__(self, log: logging.Logger, per_second: int = 5) -> None:
        self._log = log
        self._per_second = per_second
        self._window = 0
        self._lines = 0

    def line(self, level: int, message: str, *values: object) -> None:
        """Log, unless this second had its lines already; the next second then starts with how many were left out."""
        window = int(time.monotonic())
        if window != self._window:
            left_out = self._lines - self._per_second
            self._window, self._lines = window, 0
            if left_out > 0:
                self._log.log(level, "%d more lines like these were left out", left_out)
        self._lines += 1
        if self._lines <= self._per_second:
            self._log.log(level, message, *values)
