"""A client in a process of its own that asks a node for its status all the time: how long it waits.

`python -m benchmarks.asking HOST PORT` asks until its standard input closes, then prints all latencies in seconds.
"""

import http.client
import json
import statistics
import subprocess
import sys
import threading
import time
from types import TracebackType
from urllib.parse import urlsplit

PAUSE = 0.005


class Asking:
    """Runs the client while it is entered; `p99` afterwards, in milliseconds."""

    def __init__(self, url: str) -> None:
        place = urlsplit(url)
        self._command = [sys.executable, "-m", "benchmarks.asking", place.hostname or "", str(place.port)]
        self.p99 = 0.0

    def __enter__(self) -> "Asking":
        self._client = subprocess.Popen(self._command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        out, _ = self._client.communicate()
        waits = json.loads(out)
        if len(waits) > 1:
            self.p99 = statistics.quantiles(waits, n=100)[98] * 1000


def _wait_for_end(over: threading.Event) -> None:
    sys.stdin.read()
    over.set()


def main(host: str, port: int) -> None:
    over = threading.Event()
    threading.Thread(target=_wait_for_end, args=(over,), daemon=True).start()
    line = http.client.HTTPConnection(host, port, timeout=30)
    waits = []
    while not over.wait(PAUSE):
        began = time.perf_counter()
        line.request("GET", "/v1/status")
        line.getresponse().read()
        waits.append(time.perf_counter() - began)
    print(json.dumps(waits))


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
