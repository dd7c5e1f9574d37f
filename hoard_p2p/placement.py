"""Which nodes are homes of a segment: weighted rendezvous hashing with racks, in integers only.

Every machine plans alike from the same view (I7), so there is no floating point. The exact arithmetic and its error are
in docs/formats.md, "Placement". Pure.
"""

from collections.abc import Iterable
from math import isqrt

from hoard_p2p.peer import Peer

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
    scored = sorted((score(key, peer), peer.node_id, peer) for peer in peers if peer.weight > 0)
    return [peer for _, _, peer in scored]


def draw(peers: Iterable[Peer], key: bytes) -> list[Peer]:
    """All peers, whatever their weights, in the order in which `key` prefers them: rendezvous hashing where each node
    counts the same. A third of the cost of `rank`."""
    return sorted(peers, key=lambda peer: (-mix64(key, peer.node_id), peer.node_id))


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
