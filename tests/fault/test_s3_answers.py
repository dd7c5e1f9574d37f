"""S3 servers, and what stands between, that answer badly: nothing but the bytes asked for is ever handed out."""

from collections.abc import Callable, Iterator

import pytest

from hoard_p2p.errors import ObjectChanged, OriginBusy, OriginFailed, OriginRefused
from hoard_p2p.objects import ObjectRange
from hoard_p2p.origin.s3 import S3Origin
from hoard_p2p.origin.s3url import parse_s3
from tests.oddserver import Asked, OddServer, Said, Script, a_page, a_part, an_error, etag, odd_server
from tests.s3servers import ENVIRONMENT

DATA = bytes(range(256)) * 400
VERSION = etag(DATA).strip('"').encode()
WANTED = ObjectRange(b"x", len(DATA), VERSION, 1000, 5000)

Opened = Callable[[Script], tuple[S3Origin, OddServer]]


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> Iterator[Opened]:
    for name, value in ENVIRONMENT.items():
        monkeypatch.setenv(name, value)
    doors, origins = [], list[S3Origin]()

    def make(script: Script) -> tuple[S3Origin, OddServer]:
        doors.append(odd_server(script))
        server = doors[-1].__enter__()
        origins.append(S3Origin(parse_s3(f"s3://bucket/set?endpoint={server.endpoint}"), silent=1, patience=0))
        return origins[-1], server

    yield make
    for origin in origins:
        origin.close()
    for door in doors:
        door.__exit__(None, None, None)


def _read(origin: S3Origin, wanted: ObjectRange = WANTED) -> bytes:
    into = bytearray(wanted.stop - wanted.start)
    origin.read(wanted, memoryview(into), lambda count: None)
    return bytes(into)


def _script(*answers: Said | Callable[[Asked], Said]) -> Script:
    """One after the other; the last one for good."""
    left = list(answers)

    def script(asked: Asked) -> Said:
        said = left.pop(0) if len(left) > 1 else left[0]
        return said if isinstance(said, Said) else said(asked)

    return script


def _good(asked: Asked) -> Said:
    return a_part(DATA, asked)


def _other(**headers: str) -> Callable[[Asked], Said]:
    return lambda asked: a_part(DATA, asked, **headers)


HTML = Said(200, {"Content-Type": "text/html"}, b"<html>Please log in</html>" * 400)


@pytest.mark.parametrize(
    ("said", "kind"),
    [
        (HTML, OriginFailed),
        (Said(206, {"Content-Type": "text/html"}, b"h" * 4000), OriginFailed),
        (Said(404, {"Content-Type": "text/html"}, b"<html>"), OriginFailed),
        (Said(302, {"Location": "http://portal.example/login"}), OriginFailed),
        (Said(200, {"ETag": etag(DATA)}, DATA), OriginFailed),
        (_other(Content_Range=f"bytes 0-3999/{len(DATA)}"), OriginFailed),
        (_other(Content_Range=f"bytes 1000-4999/{len(DATA) + 1}"), OriginFailed),
        (_other(Content_Length="3999"), OriginFailed),
        (_other(Content_Length="99999999999999999999"), OriginFailed),
        (_other(Content_Length="-1"), OriginFailed),
        (_other(ETag=""), OriginFailed),
        (_other(ETag='"another"'), ObjectChanged),
        (lambda asked: Said(206, dict(a_part(DATA, asked).headers), DATA[1000:3000], 4000, "close"), OriginFailed),
        (lambda asked: Said(206, dict(a_part(DATA, asked).headers), b"", 4000, "close"), OriginFailed),
        (lambda asked: Said(206, dict(a_part(DATA, asked).headers), DATA[1000:3000], 4000, "hang"), OriginBusy),
        (Said(head=b"HTTP/1.1 206", then="hang"), OriginBusy),
        (Said(head=b"\0\1\2 garbage\r\n\r\n", then="close"), OriginFailed),
        (Said(head=b"HTTP/1.1 206 OK\r\n" + b"a: b\r\n" * 20000, then="close"), OriginFailed),
        (Said(head=b"HTTP/1.1 206 OK\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n", then="close"), OriginFailed),
        (an_error(412, "PreconditionFailed"), ObjectChanged),
        (an_error(416, "InvalidRange"), ObjectChanged),
        (an_error(404, "NoSuchKey"), ObjectChanged),
        (an_error(404, "NoSuchBucket"), OriginFailed),
        (an_error(403, "AccessDenied"), OriginRefused),
        (an_error(403, "InvalidAccessKeyId"), OriginRefused),
        (an_error(400, "ExpiredToken"), OriginRefused),
        (an_error(403, "RequestTimeTooSkewed"), OriginRefused),
        (an_error(403, "InvalidObjectState"), OriginFailed),
        (an_error(503, "SlowDown"), OriginBusy),
        (Said(429), OriginBusy),
        (an_error(400, "RequestTimeout"), OriginBusy),
        (an_error(500, "InternalError"), OriginFailed),
        (Said(502, {"Content-Type": "text/html"}, b"<html>Bad gateway"), OriginFailed),
    ],
)  # fmt: skip
def test_an_answer_that_is_not_what_was_asked_for_is_a_failure_of_its_kind(
    opened: Opened, said: Said | Callable[[Asked], Said], kind: type[OriginFailed]
) -> None:
    origin, _ = opened(_script(said))
    with pytest.raises(OriginFailed) as caught:
        _read(origin)
    assert type(caught.value) is kind
    assert str(caught.value).startswith("s3://bucket/set/x")
    assert str(caught.value).isprintable()


@pytest.mark.parametrize("code", ["NoSuchBucket", "InvalidObjectState"])
def test_what_no_retry_helps_says_so(opened: Opened, code: str) -> None:
    origin, _ = opened(_script(an_error(404, code)))
    with pytest.raises(OriginFailed) as caught:
        _read(origin)
    assert not caught.value.again


def test_after_a_failure_the_next_read_is_right(opened: Opened) -> None:
    origin, _ = opened(_script(HTML, an_error(503, "SlowDown"), _other(Content_Length="9"), _good))
    for _ in range(3):
        with pytest.raises(OriginFailed):
            _read(origin)
    assert _read(origin) == DATA[1000:5000]


def test_one_connection_serves_many_reads(opened: Opened) -> None:
    origin, server = opened(_good)
    for _ in range(10):
        _read(origin)
    assert server.connections == 1


def test_a_kept_connection_that_the_server_closed_is_no_failure(opened: Opened) -> None:
    def closing(asked: Asked) -> Said:
        said = a_part(DATA, asked)
        return Said(206, said.headers, said.body, then="close")  # without saying so

    origin, server = opened(closing)
    for _ in range(5):
        assert _read(origin) == DATA[1000:5000]
    assert server.connections == 5


def test_what_changed_is_named_with_both_versions(opened: Opened) -> None:
    def script(asked: Asked) -> Said:
        return an_error(412, "PreconditionFailed") if asked.method == "GET" else a_part(DATA, asked, ETag='"newer"')

    origin, _ = opened(script)
    with pytest.raises(ObjectChanged, match=rf"set/x has changed.*{VERSION.decode()} then, newer now; publish again"):
        _read(origin)


def test_questions_name_the_version_and_the_exact_range(opened: Opened) -> None:
    origin, server = opened(_good)
    _read(origin)
    asked = server.asked[0]
    assert (asked.method, asked.target) == ("GET", "/bucket/set/x")
    assert asked.headers["range"] == "bytes=1000-4999"
    assert asked.headers["if-match"] == etag(DATA)
    assert asked.headers["accept-encoding"] == "identity"
    assert ENVIRONMENT["AWS_SECRET_ACCESS_KEY"] not in str(asked)


def test_a_key_is_asked_for_as_it_is(opened: Opened) -> None:
    origin, server = opened(_good)
    _read(origin, WANTED._replace(path="a//b/../c/./ü +%?#\n".encode()))
    assert server.asked[0].target == "/bucket/set/a//b/../c/./%C3%BC%20%2B%25%3F%23%0A"


def test_an_object_of_5_tb_is_read_at_its_end(opened: Opened) -> None:
    size = 5 * 1000**4
    headers = {"ETag": '"big"', "Content-Range": f"bytes {size - 10}-{size - 1}/{size}"}
    origin, server = opened(_script(Said(206, headers, b"the end..!")))
    assert _read(origin, ObjectRange(b"x", size, b"big", size - 10, size)) == b"the end..!"
    assert server.asked[0].headers["range"] == f"bytes={size - 10}-{size - 1}"


def test_the_region_of_a_bucket_is_learned_once(opened: Opened) -> None:
    def script(asked: Asked) -> Said:
        if "/eu-north-1/s3/" in asked.headers["authorization"]:
            return a_part(DATA, asked)
        return an_error(400, "AuthorizationHeaderMalformed", Region="eu-north-1")

    origin, server = opened(script)
    assert _read(origin) == _read(origin) == DATA[1000:5000]
    assert len(server.asked) == 3


def test_a_bucket_that_is_always_elsewhere_is_a_failure(opened: Opened) -> None:
    regions = iter(range(100))

    def script(asked: Asked) -> Said:
        return Said(301, {"x-amz-bucket-region": f"r-{next(regions)}"})

    origin, server = opened(script)
    with pytest.raises(OriginFailed, match="from one place to another"):
        _read(origin)
    assert len(server.asked) == 4


def test_nobody_else_is_asked_because_of_a_redirect(opened: Opened) -> None:
    _, other = opened(_good)
    origin, _ = opened(_script(Said(307, {"Location": f"{other.endpoint}/bucket/set/x"})))
    with pytest.raises(OriginFailed, match="elsewhere"):
        _read(origin)
    assert not other.asked


def test_credentials_that_expired_are_looked_for_anew(opened: Opened, monkeypatch: pytest.MonkeyPatch) -> None:
    def script(asked: Asked) -> Said:
        if "Credential=newkey/" in asked.headers["authorization"]:
            return a_part(DATA, asked)
        monkeypatch.setenv("AWS_ACCESS_KEY_ID", "newkey")
        return an_error(403, "ExpiredToken")

    origin, server = opened(script)
    assert _read(origin) == DATA[1000:5000]
    assert len(server.asked) == 2


def test_a_node_without_credentials_says_what_to_do(
    opened: Opened, monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory
) -> None:
    origin, server = opened(_good)
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path_factory.mktemp("home")))
    with pytest.raises(OriginRefused, match="no AWS credentials on this node; give this node credentials"):
        _read(origin)
    assert not server.asked


def test_an_anonymous_question_is_not_signed(opened: Opened) -> None:
    _, server = opened(_good)
    origin = S3Origin(parse_s3(f"s3://bucket/set?endpoint={server.endpoint}&anonymous=1&requester_pays=1"))
    assert _read(origin) == DATA[1000:5000]
    assert "authorization" not in server.asked[0].headers
    assert server.asked[0].headers["x-amz-request-payer"] == "requester"
    origin.close()


def test_an_origin_that_was_closed_reads_nothing(opened: Opened) -> None:
    origin, _ = opened(_good)
    _read(origin)
    origin.close()
    with pytest.raises(OriginFailed, match="no longer read"):
        _read(origin)


# --- listings


def test_names_are_decoded_as_they_were_quoted(opened: Opened) -> None:
    keys = {"set/a+b%2Bc%20d%25": b"", "set/%E6%9D%B1": b"", "set/%01%0A": b"", "set/%FF": b""}
    origin, _ = opened(_script(a_page(keys)))
    assert [entry.path for entry in origin.listing()] == [b"a b+c d%", "東".encode(), b"\x01\n", b"\xff"]
    plain, _ = opened(_script(a_page({"set/a+b%20": b""}, quoted=False)))
    assert [entry.path for entry in plain.listing()] == [b"a+b%20"]


def test_keys_in_any_order_and_odd_ones_come_through(opened: Opened) -> None:
    pages = [a_page({"set/z": b"", "set/d/": b"", "set/": b""}, token="t&1"), a_page({"set/a": b"1", "set//b": b"2"})]
    origin, server = opened(_script(*pages))
    assert [(entry.path, entry.size) for entry in origin.listing()] == [
        (b"z", 0), (b"d/", 0), (b"a", 1), (b"/b", 1),
    ]  # fmt: skip
    assert "continuation-token=t%261" in server.asked[1].target
    assert all("prefix=set%2F" in asked.target and "fetch-owner" not in asked.target for asked in server.asked)


def test_a_page_that_fails_for_now_is_asked_for_again(opened: Opened) -> None:
    last = a_page({"set/b": b""})
    origin, _ = opened(
        _script(an_error(503, "SlowDown"), a_page({"set/a": b""}, token="t"), Said(200, {}, last.body[:200]), last)
    )
    assert [entry.path for entry in origin.listing()] == [b"a", b"b"]


@pytest.mark.parametrize(
    ("page", "why"),
    [
        (a_page({"set/a": b""}, truncated=True), "does not say how"),
        (a_page({"other/a": b""}), "not beneath"),
        (an_error(403, "AccessDenied"), "s3:ListBucket"),
        (a_page({"set/a": b""}, token="same"), "circle"),
        (a_page({}), "no objects"),
    ],
)
def test_a_listing_is_complete_or_fails(opened: Opened, page: Said, why: str) -> None:
    origin, _ = opened(lambda asked: page if "list-type" in asked.target else an_error(404, "NoSuchKey"))
    with pytest.raises(OriginFailed, match=why):
        list(origin.listing())
