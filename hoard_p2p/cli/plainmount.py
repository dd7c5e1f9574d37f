"""`hoard mount` as jobs start it, without options: understood without the command line library.

Importing that library takes a quarter of the time from the command to the first byte. What is not plain goes through
it, and means the same.
"""

import gc
import os
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from hoard_p2p.config import DEFAULT_TIMEOUT, default_data_dir

_DATA_DIR = "--data-dir"


class PlainMount(NamedTuple):
    """`hoard mount SNAPSHOT MOUNTPOINT`, everything else left to its default."""

    snapshot: str
    mountpoint: Path
    data_dir: Path

    def run(self) -> int:
        """What `cli.mounting.mount` does; the exit status."""
        gc.disable()  # imports make no garbage, and looking for it takes 8 ms; the supervisor enables it
        from hoard_p2p.interfaces import MountOptions
        from hoard_p2p.node.mounting import mount_snapshot

        options = MountOptions(self.mountpoint.absolute(), 0, DEFAULT_TIMEOUT)
        return mount_snapshot(self.data_dir, self.snapshot, options, foreground=False)


def plain_mount(arguments: Sequence[str]) -> PlainMount | None:
    """The mount that `arguments` ask for; None if they are not plain, or anything is wrong with them."""
    command, *words = arguments or [""]
    data_dir: str | None = None
    if _DATA_DIR in words[:-1]:
        at = words.index(_DATA_DIR)
        data_dir = words[at + 1]
        del words[at : at + 2]
    plain = command == "mount" and len(words) == 2 and not any(word[:1] in ("", "-") for word in words)
    if not plain or "/" in words[0] or words[0].count(":") > 1 or words[0].endswith(":"):
        return None
    if data_dir is None:
        return PlainMount(words[0], Path(words[1]), default_data_dir())
    if data_dir[:1] in ("", "-") or os.path.isfile(data_dir):
        return None
    return PlainMount(words[0], Path(words[1]), Path(data_dir).absolute())
