"""Which nodes are homes of a segment: weighted rendezvous hashing with racks, in integers only.

Every machine plans alike from the same view (I7), so there is no floating point. The exact arithmetic and its error are
in docs/formats.md, "Placement". Pure.
"""

from collections.abc import Iterable, Sequence
from functools import lru_cache
from math import isqrt

from hoard_p2p.ids import ChunkId
from hoard_p2p.peer import NodeId, Peer

_MASK = (1 << 64) - 1
_MIX_1 = 0xBF58476D1CE4E5B9  # splitmix64's finalizer: Stafford's variant 13 of the MurmurHash3 one
_MIX_2 = 0x94D049BB133111EB

_SERIES = (0x2E2A8ECA5705FC2, 0x0F6384EE1D01FEB, 0x093BB62877CDFF3)
"""2 / ln 2 divided by 1, 3 and 5, with 56 bits of fraction, rounded down: the series of log2 around a table entry."""

# fmt: off
_LOG2 = (
    0x02DFCA16DDE10A, 0x088E68EA899A09, 0x0E26FD5C8555AF, 0x13AA2FDD27F1C2,
    0x1918A16E46335A, 0x1E72EC117FA5B2, 0x23B9A32EAA56F6, 0x28ED53F307EE9A,
    0x2E0E85A9DE04FE, 0x331DBA0EFCE1BE, 0x381B6D9BB29BDC, 0x3D0817CE9CD499,
    0x41E42B6EC0C025, 0x46B016CA47C1C1, 0x4B6C43F1366ABD, 0x501918EC6C1125,
    0x54B6F7F1325ACD, 0x59463F919DEE9B, 0x5DC74AE9FBECEF, 0x623A71CB82C896,
    0x66A008E4788CBC, 0x6AF861E5FC7D23, 0x6F43CBA79E40C2, 0x73829248E961F3,
    0x77B4FF5108D931, 0x7BDB59CCA38881, 0x7FF5E66A0FFE6A, 0x8404E793FB81EA,
    0x88089D8A9E4753, 0x8C01467B94BB52, 0x8FEF1E98740932, 0x93D2602C2E5FC0,
    0x97AB43AF59F930, 0x9B79FFDB6C8B12, 0x9F3EC9BCFB80B3, 0xA2F9D4C51039C5,
    0xA6AB52D99E7622, 0xAA5374652A1C6D, 0xADF26865A8A1A5, 0xB1885C7AA98242,
    0xB5157CF2D07850, 0xB899F4D8AB63DF, 0xBC15EDFEED32BB, 0xBF89910C1678AE,
    0xC2F5058593D930, 0xC65871DA59DDED, 0xC9B3FB6D055974, 0xCD07C69D87027E,
    0xD053F6D2608967, 0xD398AE8179063D, 0xD6D60F388E4196, 0xDA0C39A548045E,
    0xDD3B4D9CF24B20, 0xE0636A23E2EE9B, 0xE384AD748F0E3B, 0xE69F3506544836,
    0xE9B31D93F98EA9, 0xECC08321EB30A6, 0xEFC78104357962, 0xF2C831E4411672,
    0xF5C2AFC65447D8, 0xF8B7140EDBB181, 0xFBA577877D7D6E, 0xFE8DF263F957CA,
)
# fmt: on
"""log2(1 + (2 i + 1) / 128) for i = 0 ... 63 with 56 bits of fraction, rounded down."""

_SCORE_BITS = 40
"""Bits by which a logarithm is lengthened before it is divided by a weight (2**36 is a PiB)."""


def mix64(key: bytes, node: bytes) -> int:
    """A number below 2**64 that looks random: from bytes 16 - 23 of `key` (a chunk id or another digest of 32 bytes)
    and the 16 bytes of a node id. (Bytes 8 - 15 of the id decided that the segment ends: they are not random here.)"""
    mixed = _finalize(int.from_bytes(key[16:24], "little") ^ int.from_bytes(node[:8], "little"))
    return _finalize(mixed ^ int.from_bytes(node[8:16], "little"))


def negative_log2(mixed: int) -> int:
    """-log2((2 mixed + 1) / 2**65) in fixed point with 56 bits of fraction, within 2**-53; at least 1."""
    odd = 2 * mixed + 1
    bits = odd.bit_length()
    mantissa = odd << (65 - bits)  # 2**64 <= mantissa < 2**65: the number is mantissa / 2**64 * 2**(bits - 66)
    entry = mantissa >> 58 & 63
    centre = (128 + 2 * entry + 1) << 57
    s = ((mantissa - centre) << 56) // (mantissa + centre)
    square = s * s >> 56
    series = _SERIES[0] + (square * (_SERIES[1] + (square * _SERIES[2] >> 56)) >> 56)
    return max(1, ((66 - bits) << 56) - _LOG2[entry] - (s * series >> 56))


def score(key: bytes, peer: Peer) -> int:
    """How far `peer` is from `key`, smallest is best: in proportion to -log2(u) / weight, u uniform in (0, 1)."""
    return (negative_log2(mix64(key, peer.node_id)) << _SCORE_BITS) // peer.weight


def rank(peers: Iterable[Peer], key: bytes) -> list[Peer]:
    """The peers that have a weight, best score first, whatever their racks; ties go by node id."""
    able = [peer for peer in peers if peer.weight > 0]
    mixed = _mixed(able, key)
    scored = sorted(
        ((negative_log2(x) << _SCORE_BITS) // peer.weight, peer.node_id, peer)
        for x, peer in zip(mixed, able, strict=True)
    )
    return [peer for _, _, peer in scored]


def draw(peers: Iterable[Peer], key: bytes) -> list[Peer]:
    """All peers, whatever their weights, in the order in which `key` prefers them: rendezvous hashing where each node
    counts the same. A third of the cost of `rank`."""
    peers = tuple(peers)
    drawn = sorted((-x, peer.node_id, peer) for x, peer in zip(_mixed(peers, key), peers, strict=True))
    return [peer for _, _, peer in drawn]


def _mixed(peers: Iterable[Peer], key: bytes) -> list[int]:
    """`mix64` of each peer's id, without calls: for 1,000 peers they would cost as much as all the rest."""
    lot, found = int.from_bytes(key[16:24], "little"), []
    for peer in peers:
        first, second = _halves(peer.node_id)
        x = lot ^ first
        x = (x ^ x >> 30) * _MIX_1 & _MASK
        x = (x ^ x >> 27) * _MIX_2 & _MASK
        x ^= x >> 31 ^ second
        x = (x ^ x >> 30) * _MIX_1 & _MASK
        x = (x ^ x >> 27) * _MIX_2 & _MASK
        found.append(x ^ x >> 31)
    return found


def homes(peers: Iterable[Peer], key: bytes, replicas: int) -> tuple[Peer, ...]:
    """The first `replicas` peers (fewer if there are fewer) in the order of preference for what `key` places.

    The best node of each rack stands for it; these come first, best score first, then all other nodes by score. So
    copies lie in distinct racks while there are racks. With `replicas=len(peers)` the result is the whole order: who
    takes the copy of a home that has no room. Peers of weight 0 are never homes.
    """
    leaders: dict[str, Peer] = {}
    others: list[Peer] = []
    for peer in rank(peers, key):
        if leaders.setdefault(peer.rack, peer) is not peer:
            others.append(peer)
    return (*leaders.values(), *others)[:replicas]


def first_homes(peers: Sequence[Peer], key: bytes, replicas: int) -> tuple[Peer, ...]:
    """`homes`, for a few of many peers in a part of its time."""
    able = _able(peers)
    if len(able) <= max(FEW_PEERS, 2 * CANDIDATES * replicas):
        return homes(peers, key, replicas)
    return _row(able, min(replicas, len({peer.rack for peer, *_ in able})), key, replicas)


def candidates(peers: Sequence[Peer], key: bytes) -> list[Peer]:
    """All peers in the order in which to look for a copy: homes first, and behind all others those without weight,
    which drain: they are no homes, but may still have the only copy."""
    draining = draw((peer for peer in peers if peer.weight == 0), key)
    return [*homes(peers, key, len(peers)), *draining]


Row = tuple[NodeId, ...]
"""The first nodes in one segment's order."""


FEW_PEERS = 64
"""So many are simply all scored; of more, those that cannot be in the row are told by a bound first."""

CANDIDATES = 8
"""Peers that are scored for each place of the row."""


def rows(peers: Sequence[Peer], keys: Sequence[ChunkId], depth: int) -> list[Row]:
    """The first `depth` nodes in the order of each key: about 1 us for each pair of key and peer."""
    able = _able(peers)
    if len(able) <= max(FEW_PEERS, 2 * CANDIDATES * depth):
        return [tuple(peer.node_id for peer in homes(peers, key, depth)) for key in keys]
    racks = min(depth, len({peer.rack for peer, *_ in able}))
    return [tuple(peer.node_id for peer in _row(able, racks, key, depth)) for key in keys]


def _able(peers: Iterable[Peer]) -> list[tuple[Peer, int, int, int]]:
    return [(peer, *_halves(peer.node_id), peer.weight) for peer in peers if peer.weight > 0]


def _row(able: Sequence[tuple[Peer, int, int, int]], racks: int, key: bytes, depth: int) -> tuple[Peer, ...]:
    """`homes`, from the peers with the lowest bounds if no other can be among them: none with a worse score than the
    worst of the row is, if there are as many racks in the row as there can be."""
    bounds = _bounds(able, int.from_bytes(key[16:24], "little"))
    limit = sorted(bounds)[CANDIDATES * depth]
    row = homes((one[0] for one, bound in zip(able, bounds, strict=True) if bound < limit), key, depth)
    full = len(row) == depth and len({peer.rack for peer in row}) == racks
    if full and max(score(key, peer) for peer in row) < limit:
        return row
    return homes((one[0] for one in able), key, depth)


def _bounds(able: Sequence[tuple[Peer, int, int, int]], lot: int) -> list[int]:
    """For each peer a number that its score is above: -log2(u) > 1 - u. The difference is a third of the score at
    least, the error of fixed point 2**-53."""
    found = []
    for _, first, second, weight in able:
        x = lot ^ first
        x = (x ^ x >> 30) * _MIX_1 & _MASK
        x = (x ^ x >> 27) * _MIX_2 & _MASK
        x ^= x >> 31 ^ second
        x = (x ^ x >> 30) * _MIX_1 & _MASK
        x = (x ^ x >> 27) * _MIX_2 & _MASK
        found.append((((x ^ x >> 31) ^ _MASK) >> 8 << _SCORE_BITS) // weight)
    return found


class Shares:
    """The rows of many segments, kept up as nodes come and go: a node that joins is scored once for each segment, one
    that leaves costs a new row for each segment that it was in. Always what `rows` gives for the same peers."""

    def __init__(self, peers: Sequence[Peer], keys: Sequence[ChunkId], depth: int, known: list[Row] | None = None):
        """`known`: the rows, if they were computed elsewhere."""
        self._peers = {peer.node_id: peer for peer in peers}
        self._keys = keys
        self._depth = depth
        self.rows = rows(peers, keys, depth) if known is None else known
        self._lots = [int.from_bytes(key[16:24], "little") for key in keys]
        self._worst = [self._worst_of(number) for number in range(len(keys))]

    def follow(self, peers: Sequence[Peer]) -> None:
        """These are the peers now."""
        after = {peer.node_id: peer for peer in peers}
        before = self._peers
        gone = [node for node, peer in before.items() if node not in after or not _placed_alike(peer, after[node])]
        come = [peer for node, peer in after.items() if node not in before or not _placed_alike(before[node], peer)]
        self._leave(frozenset(gone))
        for peer in come:
            self._join(peer)
        self._peers = after

    def changes(self, peers: Sequence[Peer]) -> int:
        """How many nodes came, went or weigh otherwise among `peers`."""
        after = {peer.node_id: peer for peer in peers}
        both = self._peers.keys() & after.keys()
        moved = sum(not _placed_alike(self._peers[node], after[node]) for node in both)
        return len(self._peers.keys() ^ after.keys()) + moved

    def _leave(self, nodes: frozenset[NodeId]) -> None:
        if not nodes:
            return
        for node in nodes:
            del self._peers[node]
        lost = [number for number, row in enumerate(self.rows) if not nodes.isdisjoint(row)]
        anew = rows(tuple(self._peers.values()), [self._keys[number] for number in lost], self._depth)
        for number, row in zip(lost, anew, strict=True):
            self._put(number, row)

    def _join(self, peer: Peer) -> None:
        """Only segments for which the node scores better than the last of the row, or that lack a row of full length,
        can change: unless it has a rack of its own and there are few racks."""
        racks = {known.rack for known in self._peers.values() if known.weight > 0}
        self._peers[peer.node_id] = peer
        if peer.weight == 0:
            return
        always = peer.rack not in racks and len(racks) < self._depth
        for number in range(len(self.rows)) if always else self._better(peer):
            known = (*(self._peers[node] for node in self.rows[number]), peer)
            self._put(number, tuple(home.node_id for home in homes(known, self._keys[number], self._depth)))

    def _better(self, peer: Peer) -> list[int]:
        """Segments for which the score of `peer` may be below that of the last in the row; the bound is that of
        `_bounds`, so most are told without a logarithm."""
        first, second = _halves(peer.node_id)
        weight = peer.weight
        found = []
        for number, (lot, worst) in enumerate(zip(self._lots, self._worst, strict=True)):
            x = lot ^ first
            x = (x ^ x >> 30) * _MIX_1 & _MASK
            x = (x ^ x >> 27) * _MIX_2 & _MASK
            x ^= x >> 31 ^ second
            x = (x ^ x >> 30) * _MIX_1 & _MASK
            x = (x ^ x >> 27) * _MIX_2 & _MASK
            if ((x ^ x >> 31) ^ _MASK) >> 8 <= worst * weight >> _SCORE_BITS:
                found.append(number)
        return found

    def _put(self, number: int, row: Row) -> None:
        self.rows[number] = row
        self._worst[number] = self._worst_of(number)

    def _worst_of(self, number: int) -> int:
        """No score above this one enters the row."""
        row = self.rows[number]
        if len(row) < self._depth:
            return 1 << 200
        return max(score(self._keys[number], self._peers[node]) for node in row)


def _placed_alike(one: Peer, other: Peer) -> bool:
    return one.rack == other.rack and one.weight == other.weight


@lru_cache(maxsize=16384)
def _halves(node: bytes) -> tuple[int, int]:
    return int.from_bytes(node[:8], "little"), int.from_bytes(node[8:16], "little")


def skew(peers: Iterable[Peer], replicas: int) -> dict[str, float]:
    """For each rack how much its nodes keep of their share by weight: 1.0 where copies follow weights.

    Distinct racks win over weights, so a rack that is light among few keeps more. Floating point, for people only: a
    rack's best score is exponential with the rack's weight as rate, so the chance to be among the first racks is an
    integral over the time at which it comes, of the chance that fewer than `replicas` others came before.
    """
    weights: dict[str, int] = {}
    for peer in peers:
        if peer.weight > 0:
            weights[peer.rack] = weights.get(peer.rack, 0) + peer.weight
    total = sum(weights.values())
    if not total or replicas < 1:
        return {}
    shares = {rack: weight / total for rack, weight in weights.items()}
    if len(shares) <= replicas:  # one copy in each rack, the others by weight
        extra = replicas - len(shares)
        return {rack: (1 + extra * share) / (replicas * share) for rack, share in shares.items()}
    return {
        rack: _among_first(share, [other for name, other in shares.items() if name != rack], replicas)
        / (replicas * share)
        for rack, share in shares.items()
    }


STEPS = 64


def _among_first(share: float, others: Sequence[float], places: int) -> float:
    """The chance that fewer than `places` of `others` come before this one, each at its own rate (midpoint rule over
    the quantiles of its time)."""
    chance = 0.0
    for step in range(STEPS):
        survived = 1 - (step + 0.5) / STEPS  # exp(-share * time)
        came = [1.0] + [0.0] * (places - 1)
        for other in others:
            late = survived ** (other / share)
            came = [late * one + ((1 - late) * came[number - 1] if number else 0.0) for number, one in enumerate(came)]
        chance += sum(came) / STEPS
    return chance


def weight_of(capacity: int) -> int:
    """The weight of a node that gives `capacity` bytes: the largest power of sqrt(2) GiB not above it (rounded down
    to an integer) in units of 2**-16 GiB; 1 at least."""
    units = max(1, capacity >> 14)
    exponent = units.bit_length() - 1
    between = isqrt(1 << (2 * exponent + 1))  # 2**(exponent + 1/2)
    return between if between <= units else 1 << exponent


def _finalize(number: int) -> int:
    number = (number ^ number >> 30) * _MIX_1 & _MASK
    number = (number ^ number >> 27) * _MIX_2 & _MASK
    return number ^ number >> 31
