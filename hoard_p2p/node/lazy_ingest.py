"""The node's side of a process that lists an origin (`node.lazy_main`)."""

from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import Executor
from pathlib import Path

from hoard_p2p.interfaces import SlabBroker
from hoard_p2p.node.ingest import Body, Fits, Ingested, Process, Session, run
from hoard_p2p.storage.claims import Claims


async def list_lazily(
    options: Body,
    *,
    data_dir: Path,
    broker: SlabBroker,
    claims: Claims,
    executor: Executor,
    report: Callable[[Body], Awaitable[None]],
    fits: Fits,
    fds: Sequence[int] = (),
) -> Ingested:
    """List an origin in a process of its own, to its end; the root is that of a lazy snapshot, whose catalog is stored.

    `options`: `origin`, its URL; `as_owner` and `trusted`, see `origin.opening.open_origin`; `exclude`,
    `preserve_owner`, `reproducible`, `skip_unmappable`, see `publish.lazy.LazyOptions`. `fds`: for a directory, its
    descriptor, which stays the caller's. The rest as for `ingest`. Raises what the process failed with.
    """
    session = Session(broker, executor, report, fits)
    process = Process("hoard_p2p.node.lazy_main")
    return await run(process, session, options, data_dir=data_dir, claims=claims, fds=fds)
