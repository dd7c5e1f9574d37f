"""What the node gives an ingest process to remember by: descriptors beside its first message."""

import mmap
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager

from hoard_p2p.catalog.reader import Catalog
from hoard_p2p.config import Json
from hoard_p2p.errors import CatalogCorrupt
from hoard_p2p.publish import PublishResult
from hoard_p2p.publish.stamps import Known, Remembering, StampFile

Describe = Callable[[PublishResult], Mapping[str, Json]]


@contextmanager
def remembering(fds: Sequence[int], describe: Describe) -> Iterator[Remembering | None]:
    """From the descriptors of the file for the new stamps and, if the source was published before, of the last stamps
    and of their catalog. Closes the descriptors at the end."""
    with ExitStack() as stack:
        files = [stack.enter_context(open(fd, "r+b" if at == 0 else "rb", buffering=0)) for at, fd in enumerate(fds)]
        if not files:
            yield None
            return
        known = _known(files[1].fileno(), files[2].fileno(), stack) if len(files) == 3 else None
        yield Remembering(files[0], describe, known)


def _known(stamps_fd: int, catalog_fd: int, stack: ExitStack) -> Known | None:
    """None if anything is wrong with it: then everything is read."""
    try:
        stamps = StampFile(stamps_fd)
        stack.callback(stamps.close)
        if not stamps.is_whole():
            return None
        catalog = Catalog(mmap.mmap(catalog_fd, 0, prot=mmap.PROT_READ, flags=mmap.MAP_SHARED))
    except (ValueError, OSError, CatalogCorrupt):
        return None
    return Known(stamps, catalog)
