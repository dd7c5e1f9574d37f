"""The process that lists an origin: `publish.build_lazy` between the origin and slabs that the node made.

Exec'ed by `node.lazy_ingest`. A process of its own, since listing millions of entries takes a core for minutes. Its
environment is the node's, where credentials are looked for.
"""

import base64
import os
import signal
import socket
import sys
import threading
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import asdict
from pathlib import Path

from hoard_p2p.config import Json
from hoard_p2p.errors import HoardError, Refused
from hoard_p2p.node import framing
from hoard_p2p.node.client import ENDLESS, NodeClient
from hoard_p2p.node.ingest_main import NodeBroker, begin, sink_into, tell_failure
from hoard_p2p.objects import Origin
from hoard_p2p.origin.opening import open_origin
from hoard_p2p.origin.urls import parse_address
from hoard_p2p.publish.lazy import LazyOptions, LazyProgress, LazyResult, build_lazy
from hoard_p2p.storage.claims import Claims


def _options(body: Mapping[str, Json], data_dir: Path, scratch: Path) -> LazyOptions:
    return LazyOptions(
        temp_dir=scratch,
        exclude=tuple(map(os.fsencode, _texts(body.get("exclude")))),
        preserve_owner=body.get("preserve_owner") is True,
        reproducible=body.get("reproducible") is True,
        skip_unmappable=body.get("skip_unmappable") is True,
        own_data=_own_data(str(body["origin"]), data_dir),
    )


def _own_data(url: str, data_dir: Path) -> bytes:
    """Where the data directory lies in a directory origin; empty if it does not. Raises Refused if it is that."""
    directory, own = parse_address(url).directory, data_dir.resolve()
    if directory is None or not own.is_relative_to(root := directory.resolve()):
        return b""
    if own == root:
        raise Refused("this is the data directory of a node; publish something else")
    return os.fsencode(own.relative_to(root))


def _open(body: Mapping[str, Json], fds: Sequence[int]) -> Origin:
    return open_origin(
        str(body["origin"]),
        directory=fds[0] if fds else None,
        as_owner=body.get("as_owner") is True,
        trusted=frozenset(_texts(body.get("trusted"))),
    )


def _texts(value: Json) -> list[str]:
    return [str(item) for item in value] if isinstance(value, list) else []


def _progress(progress: LazyProgress) -> dict[str, Json]:
    return {
        "phase": progress.phase.value,
        "entries": progress.entries,
        "bytes": progress.bytes,
        "done": progress.done,
        "unmappable": progress.unmappable,
    }


def _summary(result: LazyResult) -> dict[str, Json]:
    totals: dict[str, Json] = dict(asdict(result.totals))
    return {
        "totals": totals,
        "stored": result.stored,
        "unmappable": list(result.unmappable.first),
        "unmappable_count": result.unmappable.count,
        "skipped_special": list(result.special.first),
        "skipped_special_count": result.special.count,
        "own_data": list(result.own_data.first),
        "own_data_count": result.own_data.count,
        "excluded": result.excluded,
        "unmatched_excludes": [os.fsdecode(pattern) for pattern in result.unmatched_excludes],
    }


def _run(
    data_dir: Path,
    scratch: Path,
    claims: Claims,
    *,
    broker: NodeBroker,
    body: Mapping[str, Json],
    fds: Sequence[int],
) -> None:
    stopping = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stopping.set())

    def report(progress: LazyProgress) -> None:
        broker.call("progress", _progress(progress))

    with closing(_open(body, fds)) as origin, sink_into(data_dir, broker, claims) as sink:
        result = build_lazy(origin, _options(body, data_dir, scratch), sink, report=report, stop=stopping.is_set)
    broker.call("finished", {"root": base64.b64encode(result.root).decode(), "summary": _summary(result)})


def main(argv: Sequence[str]) -> int:
    """Arguments: data directory, scratch folder, memfd of the claims, descriptor of the socket to the node."""
    begin()
    line = socket.socket(fileno=int(argv[3]))
    first = framing.receive(line)
    if first is None:
        return 1
    broker = NodeBroker(NodeClient(line, ENDLESS))
    try:
        _run(Path(argv[0]), Path(argv[1]), Claims(int(argv[2])), broker=broker, body=first.body, fds=first.fds)
    except HoardError as error:
        tell_failure(broker, error)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
