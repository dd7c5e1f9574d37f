"""A client that draws all chunks of a snapshot from one node and hashes them, storing nothing.

`python -m benchmarks.drawing HOST PORT SNAPSHOT` prints the seconds from the first chunk asked for to the last hashed,
then the bytes and chunks; the segments are asked for one after the other, by as many threads as `--threads` says.
"""

import argparse
import json
import threading
import time
import urllib.request
from collections.abc import Iterator, Sequence

from hoard_p2p.catalog.reader import Catalog
from hoard_p2p.catalog.root import decode, decode_list
from hoard_p2p.ids import HOLE, ChunkId
from hoard_p2p.peer import NodeId, Peer
from hoard_p2p.transfer.bulk import BulkClient

TIMEOUT = 30.0


def chunks_of(client: BulkClient, peer: Peer, wanted: Sequence[tuple[ChunkId, int]]) -> bytes:
    """The chunks one after the other; holes are zeros."""
    got: dict[int, bytes] = {}
    there = [index for index, (one, _) in enumerate(wanted) if one != HOLE]

    def deliver(index: int, data: memoryview) -> None:
        got[there[index]] = bytes(data)

    client.fetch(peer, [wanted[index] for index in there], deliver, timeout=TIMEOUT)
    return b"".join(got.get(index, bytes(length)) for index, (_, length) in enumerate(wanted))


def catalog_of(client: BulkClient, peer: Peer, snapshot: str) -> Catalog:
    with urllib.request.urlopen(f"http://{peer.url}/v1/root/{snapshot}", timeout=TIMEOUT) as answer:
        root = decode(answer.read())
    runs = root.catalog_runs
    if root.catalog_list is not None:
        runs = decode_list(chunks_of(client, peer, [root.catalog_list]), root)
    return Catalog(memoryview(chunks_of(client, peer, [(run.chunk_id, run.length) for run in runs])))


def draw(client: BulkClient, peer: Peer, segments: Iterator[list[tuple[ChunkId, int]]], lock: threading.Lock) -> None:
    while True:
        with lock:
            segment = next(segments, None)
        if segment is None:
            return
        client.fetch(peer, segment, lambda index, data: None, timeout=TIMEOUT)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("host")
    parser.add_argument("port", type=int)
    parser.add_argument("snapshot")
    parser.add_argument("--threads", type=int, default=1)
    options = parser.parse_args()
    peer = Peer(NodeId(bytes(16)), 1, "drawn", "", options.host, options.port, 1)
    with BulkClient() as client:
        catalog = catalog_of(client, peer, options.snapshot)
        segments = [
            [(chunk_id, length) for _, chunk_id, length in catalog.segment_chunks(number)]
            for number in range(catalog.segments)
        ]
        todo, lock = iter(segments), threading.Lock()
        threads = [threading.Thread(target=draw, args=(client, peer, todo, lock)) for _ in range(options.threads)]
        began = time.perf_counter()
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        seconds = time.perf_counter() - began
    size = sum(length for segment in segments for _, length in segment)
    print(json.dumps({"seconds": seconds, "bytes": size, "chunks": sum(map(len, segments))}))


if __name__ == "__main__":
    main()
