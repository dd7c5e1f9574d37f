"""The records by which nodes compare what they know: both ways, and what is refused."""

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hoard_p2p.errors import BadRequest
from hoard_p2p.peer import NodeId
from hoard_p2p.transfer import wire_names
from hoard_p2p.transfer.wire import Announcement, decode_announcement, encode_announcement
from hoard_p2p.transfer.wire_names import MARK, Comparison, Differences, Kind, Lack, Supply

NODE = NodeId(b"n" * 16)
MARKS = st.lists(st.binary(min_size=MARK, max_size=MARK), max_size=4).map(b"".join)
DIGESTS = st.sampled_from([b"", b"d" * wire_names.DIGESTS])


@given(st.binary(min_size=32, max_size=32), st.booleans(), DIGESTS, DIGESTS, st.integers(0, (1 << 63) - 1))
def test_comparisons_and_differences_are_decoded_as_they_were_encoded(
    digest: bytes, again: bool, snapshots: bytes, refs: bytes, since: int
) -> None:
    asked = Comparison(NODE, digest, digest[::-1], again)
    assert wire_names.decode_comparison(wire_names.encode_comparison(asked)) == asked
    told = Differences(snapshots, refs, since, since // 2)
    assert wire_names.decode_differences(wire_names.encode_differences(told)) == told
    assert (told.of(Kind.SNAPSHOTS), told.of(Kind.REFS)) == (snapshots, refs)


@given(st.sampled_from(Kind), st.dictionaries(st.integers(0, 255), MARKS), st.integers(0, 1 << 20), st.booleans())
def test_lacks_and_supplies_are_decoded_as_they_were_encoded(
    kind: Kind, parts: dict[int, bytes], skip: int, more: bool
) -> None:
    lack = Lack(kind, tuple(parts.items()), skip)
    assert wire_names.decode_lack(wire_names.encode_lack(lack)) == lack
    supply = Supply(({"name": "x"}, {}), more)
    assert wire_names.decode_supply(wire_names.encode_supply(supply)) == supply


@pytest.mark.parametrize(
    ("decode", "body"),
    [
        (wire_names.decode_comparison, b"{}"),
        (wire_names.decode_comparison, wire_names.encode_comparison(Comparison(NODE, b"short", bytes(32)))),
        (wire_names.decode_differences, b'{"snapshots":"","refs":"AAAA"}'),
        (wire_names.decode_differences, b'{"snapshots":"?","refs":""}'),
        (wire_names.decode_differences, '{"snapshots":"\u00e9","refs":""}'.encode()),
        (wire_names.decode_differences, b'{"snapshots":"","refs":"","since":-1}'),
        (wire_names.decode_lack, b'{"kind":"pins","parts":[],"skip":0}'),
        (wire_names.decode_lack, b'{"kind":"refs","parts":[[256,""]],"skip":0}'),
        (wire_names.decode_lack, b'{"kind":"refs","parts":[[1,"AAAA"]],"skip":0}'),
        (wire_names.decode_lack, b'{"kind":"refs","parts":[[1,""],[1,""]],"skip":0}'),
        (wire_names.decode_lack, b'{"kind":"refs","parts":[1],"skip":0}'),
        (wire_names.decode_lack, b'{"kind":"refs","parts":[],"skip":-1}'),
        (wire_names.decode_supply, b'{"records":[1],"more":false}'),
        (wire_names.decode_supply, b'{"records":[],"more":1}'),
        (wire_names.decode_supply, b"[]"),
    ],
)
def test_what_is_no_such_record_is_refused(decode: Callable[[bytes], object], body: bytes) -> None:
    with pytest.raises(BadRequest):
        decode(body)


def test_an_announcement_of_an_older_node_is_not_passed_on() -> None:
    assert decode_announcement(b'{"snapshots":[],"refs":[]}') == Announcement()
    news = Announcement(refs=({"name": "x"},), node=NODE, pass_on=True)
    assert decode_announcement(encode_announcement(news)) == news
