"""Weights, scores and homes: literals, and the arithmetic of docs/formats.md, "Placement", once more."""

from decimal import ROUND_FLOOR, Decimal, localcontext

import pytest
from blake3 import blake3

from hoard_p2p.peer import NodeId, Peer
from hoard_p2p.placement import homes, mix64, negative_log2, rank, score, weight_of

GIB = 1 << 30
KEY = bytes(range(32))


def peer(number: int, *, rack: str = "", weight: int = 1 << 26) -> Peer:
    node_id = NodeId(blake3(b"node %d" % number).digest(length=16))
    return Peer(node_id, 1, f"n{number}", rack, "10.0.0.1", 7000 + number, weight)


def finalize(x: int) -> int:
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9 % 2**64
    x = (x ^ (x >> 27)) * 0x94D049BB133111EB % 2**64
    return x ^ (x >> 31)


def test_the_mix_is_the_one_of_the_format() -> None:
    node = peer(1).node_id
    first = finalize(int.from_bytes(KEY[16:24], "little") ^ int.from_bytes(node[:8], "little"))
    assert mix64(KEY, node) == finalize(first ^ int.from_bytes(node[8:], "little")) == 0x852F615BBD894E04


def test_the_logarithm_is_the_one_of_the_format() -> None:
    with localcontext() as context:
        context.prec = 60
        ln2 = Decimal(2).ln()

        def floor(value: Decimal) -> int:
            return int((value * 2**56).to_integral_value(rounding=ROUND_FLOOR))

        table = [floor((1 + Decimal(2 * i + 1) / 128).ln() / ln2) for i in range(64)]
        k1, k3, k5 = (floor(2 / ln2 / k) for k in (1, 3, 5))
        for mixed in (0, 1, 2**32, 2**63 - 1, 2**63, 2**64 - 2, *(mix64(KEY, peer(n).node_id) for n in range(200))):
            x = 2 * mixed + 1
            bits = x.bit_length()
            m = x << (65 - bits)
            i = (m >> 58) & 63
            c = (128 + 2 * i + 1) << 57
            s = (m - c) * 2**56 // (m + c)
            q = s * s >> 56
            series = k1 + (q * (k3 + (q * k5 >> 56)) >> 56)
            expected = ((66 - bits) << 56) - table[i] - (s * series >> 56)
            assert negative_log2(mixed) == max(1, expected)
            assert abs(negative_log2(mixed) + (Decimal(x) / 2**65).ln() / ln2 * 2**56) < 8


@pytest.mark.parametrize(
    ("mixed", "expected"),
    [(0, 4683743612465315840), (2**63, 72057594037927936), (2**64 - 1, 1), (0x0123456789ABCDEF, 563042272977914218)],
)
def test_logarithms_never_change(mixed: int, expected: int) -> None:
    assert negative_log2(mixed) == expected


def test_scores_never_change() -> None:
    assert [score(KEY, peer(n, weight=w)) for n, w in ((0, 1), (1, 65536), (2, 92681), (3, 1 << 36))] == [
        42480433117220943198039310336,
        1139668083479845219074048,
        317526045598178660781664,
        763138108569459008,
    ]


def test_a_score_is_the_logarithm_over_the_weight() -> None:
    for number in range(50):
        member = peer(number, weight=weight_of(GIB << (number % 20)))
        assert score(KEY, member) == 2**40 * negative_log2(mix64(KEY, member.node_id)) // member.weight


def test_the_best_score_comes_first() -> None:
    ranked = rank([peer(n) for n in range(8)], KEY)
    assert [member.name for member in ranked] == ["n4", "n2", "n0", "n3", "n1", "n5", "n7", "n6"]


def test_homes_are_in_distinct_racks_in_the_order_of_their_best_nodes() -> None:
    members = [peer(n, rack="ab"[n % 2] if n < 6 else "c") for n in range(8)]
    assert [home.name for home in homes(members, KEY, 8)] == ["n4", "n3", "n7", "n2", "n0", "n1", "n5", "n6"]


@pytest.mark.parametrize(
    ("capacity", "weight"),
    [
        (0, 1),
        (1 << 14, 1),
        (GIB - 1, 46340),  # 2**15.5
        (GIB, 65536),
        (GIB * 1414 // 1000, 65536),
        (GIB * 1415 // 1000, 92681),  # 2**16.5
        (1 << 40, 1 << 26),
        (1 << 50, 1 << 36),
    ],
)
def test_weights_are_powers_of_the_square_root_of_two(capacity: int, weight: int) -> None:
    assert weight_of(capacity) == weight
