"""URLs of origins from anybody: refused or written in one way, and allowed by prefixes of themselves alone."""

from contextlib import suppress

from hypothesis import example, given
from hypothesis import strategies as st

from hoard_p2p.errors import BadRequest
from hoard_p2p.origin.allowed import allows, parse_prefix
from hoard_p2p.origin.urls import PACKAGES, Address, parse_address

SCHEMES = ["dir:/", "s3://", "http://", "https://", *(f"{scheme}://" for scheme in PACKAGES)]
ODD = ["/", "a", "bkt", "..", ".", "%2e", "%2F", "?", "#", "@", ":", "[", "]", "::", "%"]
PIECES = st.lists(st.one_of(st.sampled_from(ODD), st.text(max_size=4)), max_size=8)
URLS = st.one_of(
    st.text(max_size=40), st.builds(lambda scheme, rest: scheme + "".join(rest), st.sampled_from(SCHEMES), PIECES)
)


def address_of(url: str) -> Address | None:
    with suppress(BadRequest):
        return parse_address(url)
    return None


@given(URLS)
@example("https://[")
@example("https://host/\udc80")
@example("gs://b/\udc80")
@example("https://host:port/")
def test_a_url_is_refused_or_has_one_way_to_be_written(url: str) -> None:
    address = address_of(url)
    if address is not None:
        assert parse_address(address.url) == address
        assert ".." not in address.parts or address.scheme == "s3"


@given(URLS, URLS)
def test_only_prefixes_of_a_url_allow_it(one: str, other: str) -> None:
    first, second = address_of(one), address_of(other)
    if first is None or second is None or "dir" in (first.scheme, second.scheme):
        return
    prefix = parse_prefix(first.url)
    assert allows(prefix, first, first.s3.endpoint if first.s3 else "")
    if allows(prefix, second):
        assert (first.scheme, first.host) == (second.scheme, second.host)
        assert second.parts[: len(first.parts)] == first.parts
