"""Publishing: from a directory to chunks, catalog and root.

Knows a `ChunkSink` and an open directory; not the store behind the one, nor who asked. Runs in a process of its own,
of the node's user; the directory was opened by whoever asked.
"""

from hoard_p2p.publish.crew import Crew
from hoard_p2p.publish.ingest import publish_directory
from hoard_p2p.publish.outcome import (
    Named,
    NotKept,
    Phase,
    Progress,
    PublishOptions,
    PublishResult,
    Skipped,
)

__all__ = [
    "Crew",
    "Named",
    "NotKept",
    "Phase",
    "Progress",
    "PublishOptions",
    "PublishResult",
    "Skipped",
    "publish_directory",
]
