"""A real etcd of one member for tests, on loopback, in a directory of its own."""

import shutil
import socket
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest

needs_etcd = pytest.mark.skipif(shutil.which("etcd") is None, reason="no etcd here (Debian: etcd-server)")


def _free_ports(count: int) -> list[int]:
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [int(one.getsockname()[1]) for one in sockets]
    for one in sockets:
        one.close()
    return ports


@dataclass
class RealEtcd:
    """May be stopped and started again, with what it knew or without."""

    directory: Path
    ports: list[int] = field(default_factory=lambda: _free_ports(2))
    process: "subprocess.Popen[bytes] | None" = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.ports[0]}"

    def start(self, *, empty: bool = False) -> None:
        if empty:
            shutil.rmtree(self.directory / "data", ignore_errors=True)
        peers = f"http://127.0.0.1:{self.ports[1]}"
        told = {
            "data-dir": self.directory / "data",
            "listen-client-urls": self.url,
            "advertise-client-urls": self.url,
            "listen-peer-urls": peers,
            "initial-advertise-peer-urls": peers,
            "initial-cluster": f"default={peers}",
        }
        with (self.directory / "log").open("ab") as log:
            argv = ["etcd", *(part for name, value in told.items() for part in (f"--{name}", str(value)))]
            self.process = subprocess.Popen(argv, stdout=log, stderr=log)
        self._wait()

    def _wait(self) -> None:
        end = time.monotonic() + 20
        while time.monotonic() < end:
            try:
                with urllib.request.urlopen(f"{self.url}/health", timeout=1) as answer:
                    if b"true" in answer.read():
                        return
            except OSError:
                time.sleep(0.05)
        raise RuntimeError((self.directory / "log").read_text()[-2000:])

    def stop(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.wait(10)
            self.process = None


@contextmanager
def real_etcd(directory: Path) -> Iterator[RealEtcd]:
    etcd = RealEtcd(directory)
    try:
        etcd.start()
        yield etcd
    finally:
        etcd.stop()
