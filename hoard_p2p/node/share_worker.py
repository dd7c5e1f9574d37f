"""Computes rows of placement in a process of its own: a full plan of a large cluster takes seconds to minutes.

Input: one line of JSON ({"depth", "peers": [[id, rack, weight], ...]}), then the placement keys, 32 bytes each. Output:
for each key `depth` indexes into the peers as u32 in the machine's byte order, `NOBODY` where there are fewer.
"""

import json
import os
import sys
from array import array
from collections.abc import Sequence

from hoard_p2p.ids import ID_SIZE, ChunkId
from hoard_p2p.peer import Peer, parse_node_id
from hoard_p2p.placement import Row, rows

NOBODY = 0xFFFFFFFF
NICE = 10


def encode_task(peers: Sequence[Peer], keys: Sequence[ChunkId], depth: int) -> bytes:
    told = [[peer.node_id.hex(), peer.rack, peer.weight] for peer in peers]
    return json.dumps({"depth": depth, "peers": told}).encode() + b"\n" + b"".join(keys)


def decode_rows(answer: bytes, peers: Sequence[Peer], depth: int) -> list[Row]:
    indexes = array("I", answer)
    return [
        tuple(peers[index].node_id for index in indexes[at : at + depth] if index != NOBODY)
        for at in range(0, len(indexes), depth)
    ]


def answer_of(task: bytes) -> bytes:
    head, _, body = task.partition(b"\n")
    told = json.loads(head)
    depth = int(told["depth"])
    peers = [Peer(parse_node_id(node), 0, "", rack, "", 0, weight) for node, rack, weight in told["peers"]]
    keys = [ChunkId(body[at : at + ID_SIZE]) for at in range(0, len(body), ID_SIZE)]
    number = {peer.node_id: index for index, peer in enumerate(peers)}
    found = array("I")
    for row in rows(peers, keys, depth):
        found.extend([*(number[node] for node in row), *[NOBODY] * (depth - len(row))])
    return found.tobytes()


def main() -> None:
    os.nice(NICE)
    sys.stdout.buffer.write(answer_of(sys.stdin.buffer.read()))


if __name__ == "__main__":
    main()
