"""A server that lists any number of made-up keys, as fast as it is asked: what a listing of millions is measured with.

`python -m benchmarks.s3keys ADDRESS PORT KEYS`. It knows ListObjectsV2 (of one bucket, whatever its name) and nothing
else: no object can be read. A thousand keys to a page, a thousand keys to a folder; pages are made as they are asked.
"""

import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, urlsplit

PAGE = 1000
_HEAD = '<?xml version="1.0" encoding="UTF-8"?>\n<ListBucketResult xmlns="http://s3.amazonaws.com/doc/2006-03-01/">'
_ENTRY = (
    "<Contents><Key>%s%05d/%09d.jpg</Key><LastModified>2026-01-02T03:04:05.000Z</LastModified>"
    "<ETag>&quot;%032x&quot;</ETag><Size>110000</Size><StorageClass>STANDARD</StorageClass></Contents>"
)


def page(prefix: str, start: int, most: int, total: int) -> bytes:
    """The keys from `start` on, and where the next page begins."""
    stop = min(total, start + most)
    rows = [_ENTRY % (prefix, number // PAGE, number, number) for number in range(start, stop)]
    cut = stop < total
    more = f"<NextContinuationToken>{stop}</NextContinuationToken>" if cut else ""
    told = f"<Name>bench</Name><Prefix>{prefix}</Prefix><KeyCount>{len(rows)}</KeyCount><MaxKeys>{most}</MaxKeys>"
    told += f"<EncodingType>url</EncodingType><IsTruncated>{str(cut).lower()}</IsTruncated>{more}"
    return "".join([_HEAD, told, *rows, "</ListBucketResult>"]).encode()


class Lister(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    total = 0

    def do_GET(self) -> None:
        asked = {name: values[0] for name, values in parse_qs(urlsplit(self.path).query).items()}
        if asked.get("list-type") != "2":
            self._answer(404, b"<Error><Code>NoSuchKey</Code><Message>no objects here</Message></Error>")
            return
        most = min(PAGE, int(asked.get("max-keys", PAGE)))
        start = int(asked.get("continuation-token", 0))
        self._answer(200, page(asked.get("prefix", ""), start, most, self.total))

    def do_HEAD(self) -> None:
        self.send_response(200)
        self.send_header("Content-Length", "110000")
        self.end_headers()

    def _answer(self, status: int, body: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Type", "application/xml")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Nothing is logged."""


def main() -> None:
    address, port, Lister.total = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    ThreadingHTTPServer((address, port), Lister).serve_forever()


if __name__ == "__main__":
    main()
