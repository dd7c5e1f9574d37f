"""A small web server over a directory: pages that list folders, ETags, ranges, and faults on demand."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

Fault = Callable[["Handler"], bool]
"""Answers a request in its own way and returns true, or leaves it alone."""


class Handler(SimpleHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: "WebServer"

    def log_message(self, format: str, *args: object) -> None:
        return

    def do_HEAD(self) -> None:
        self._answer(send=False)

    def do_GET(self) -> None:
        self._answer(send=True)

    def _answer(self, *, send: bool) -> None:
        self.server.asked.append((self.command, self.path))
        if self.server.fault is not None and self.server.fault(self):
            return
        path = Path(self.translate_path(self.path))
        if not path.is_file():
            if send:
                super().do_GET()
            else:
                super().do_HEAD()
            return
        data, etag = path.read_bytes(), f'"{path.stat().st_mtime_ns:x}-{path.stat().st_size:x}"'
        if self.headers.get("If-Match") not in (None, etag):
            self.reply(412, b"changed")
            return
        start, stop = self._range(len(data))
        partial = (start, stop) != (0, len(data)) or "Range" in self.headers
        if start >= len(data) and "Range" in self.headers:
            self.reply(416, b"")
            return
        told = {"ETag": etag, "Last-Modified": self.date_time_string(path.stat().st_mtime)} | (
            {"Content-Range": f"bytes {start}-{stop - 1}/{len(data)}"} if partial else {}
        )
        self.reply(206 if partial else 200, data[start:stop], told, send=send)

    def _range(self, size: int) -> tuple[int, int]:
        asked = self.headers.get("Range")
        if asked is None:
            return 0, size
        first, _, last = asked.removeprefix("bytes=").partition("-")
        return int(first), min(size, int(last) + 1)

    def reply(self, status: int, data: bytes, headers: dict[str, str] | None = None, *, send: bool = True) -> None:
        self.send_response(status)
        for name, value in {"Content-Length": str(len(data)), **(headers or {})}.items():
            self.send_header(name, value)
        self.end_headers()
        if send:
            self.wfile.write(data)


class WebServer(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self, root: Path) -> None:
        super().__init__(("127.0.0.1", 0), lambda *args: Handler(*args, directory=str(root)))
        self.asked: list[tuple[str, str]] = []
        self.fault: Fault | None = None
        self.host = f"127.0.0.1:{self.server_address[1]}"
        self.url = f"http://{self.host}/"


@contextmanager
def web_server(root: Path) -> Iterator[WebServer]:
    with WebServer(root) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()
