"""Where and when figures were taken."""

import os
import platform
import time
from pathlib import Path

from hoard_p2p.mount import mountinfo
from hoard_p2p.printing import size_text


def describe(place: Path | None = None) -> list[str]:
    """Lines for the head of a table: processor, memory, kernel, file system of `place`, Python, date."""
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    system = file_system(place or Path(os.environ.get("TMPDIR", "/var/tmp")))
    return [
        f"{time.strftime('%Y-%m-%d %H:%M', time.gmtime())} UTC",
        f"{os.cpu_count()} x {_processor()}, {size_text(memory)} of memory",
        f"{platform.system()} {platform.release()}, {system}, Python {platform.python_version()}",
    ]


def file_system(place: Path) -> str:
    """The type of the file system that `place` lies on."""
    mounts = [line for line in mountinfo.lines() if place.resolve().is_relative_to(line.mountpoint)]
    return max(mounts, key=lambda line: (len(line.mountpoint.parts), line.mount_id)).file_system


def _processor() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()
