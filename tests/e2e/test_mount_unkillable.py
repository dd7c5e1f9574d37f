"""Nothing that is killed behind a mount, at any moment, is noticed by its readers: no failed read, no wrong byte."""

import json
import os
import random
import secrets
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from tests.e2e.checked_reader import KINDS, MIB, PACE, ReaderProcess, Report, lay_out
from tests.e2e.crews import Crew, crew_of, holders, mounted_at
from tests.system import Machine, io_options, machines, wait_until

pytestmark = [pytest.mark.root, pytest.mark.fuse]

NewDirectory = Callable[[str], Path]
PATIENCE = 60.0
"""Seconds that a reader may take for one round while everything dies around it."""


def _files(seconds: float) -> dict[str, int]:
    """Files by size, with enough of `absent/` that each of those seconds has reads of what is not here yet."""
    rng = random.Random(8)
    files = {f"large/{number}": 9 * MIB + 12_345 * number for number in range(3)}
    files |= {f"small/{number:04d}": rng.randrange(200, 90_000) for number in range(400)}
    return files | {f"absent/{number:04d}": 8 * MIB for number in range(int(seconds / PACE / 2))}


@dataclass
class Watched:
    """A mount under readers of every kind, on a node whose only peer has the data."""

    node: Machine
    mountpoint: Path
    crew: Crew
    readers: list[ReaderProcess]

    def look(self, after: str) -> list[Report]:
        """What the readers did so far. Nothing may have failed."""
        for reader in self.readers:
            reader.ask()
        told = [reader.told(PATIENCE) for reader in self.readers]
        bad = {r.kind: t for r, t in zip(self.readers, told, strict=True) if t.failed or t.wrong}
        assert not bad, f"after {after}: {bad}\n{self.logs()}"
        return told

    def goes_on(self, after: str) -> None:
        """Each reader reads at least a few more rounds."""
        before = self.look(after)

        def all_advanced() -> bool:
            return all(now.reads > then.reads + 3 for now, then in zip(self.look(after), before, strict=True))

        wait_until(all_advanced, f"all readers go on after {after}", PATIENCE)

    def kill_workers(self, seconds: float, rng: random.Random) -> int:
        """Kill one every 30 to 300 ms; how many died."""
        count, end = 0, time.monotonic() + seconds
        while time.monotonic() < end:
            time.sleep(rng.uniform(0.03, 0.3))  # the pace is the test
            count += self.crew.kill_a_worker(rng)
        return count

    def kill_supervisor(self) -> None:
        pid = self.crew.kill_supervisor()
        wait_until(lambda: self.crew.supervisor != pid and self.crew.is_whole(), "another takes its place", PATIENCE)

    def kill_everyone(self) -> None:
        self.crew.kill_everyone()
        wait_until(self.crew.is_whole, "the node revives the mount", PATIENCE)

    def end(self) -> None:
        """End the readers and the mount; nothing may be left of it."""
        for reader in self.readers:
            reader.close()
        self.node.umount(self.mountpoint)
        wait_until(lambda: not holders(self.crew.memory), "all processes of the mount end, and the node lets it go")
        assert mounted_at(self.mountpoint) == 0
        assert not os.listdir(self.mountpoint)
        wait_until(lambda: self.node.json("status")["mounts"] == [], "the node forgets the mount")

    def logs(self) -> str:
        lines = []
        for path in sorted((self.node.data_dir / "log").glob("*")):
            lines += [f"{path.name}: {line}" for line in path.read_text(errors="replace").splitlines()[-25:]]
        return "\n".join(lines)


@contextmanager
def watched(new_directory: NewDirectory, io: str, seconds: float) -> Iterator[Watched]:
    """Two nodes: `one` has the data; `two` has the mount, and at first nothing else."""
    options, files = io_options(io), _files(seconds)
    source, listed = new_directory("s"), new_directory("l") / "files"
    lay_out(source, files)
    listed.write_text(json.dumps(files))
    cluster = f"test-{secrets.token_hex(4)}"
    one = Machine(new_directory("n"), cluster, "one", discovery="none", listen="127.0.0.1:0")
    with machines([one]), ExitStack() as stack:
        snapshot = one.publish(source, "--replicas", "1")
        address = str(one.json("status")["node"]["url"]).removeprefix("http://")
        two = replace(one, data_dir=new_directory("n"), name="two", discovery=f"static:{address}", mounts=[])
        stack.enter_context(machines([two], others=1))
        mountpoint = two.mount(snapshot, new_directory("m"), *options)
        crew = stack.enter_context(crew_of(mountpoint))
        readers = []
        for seed, kind in enumerate(KINDS):
            readers.append(ReaderProcess(kind, mountpoint, listed, seed))
            stack.callback(readers[-1].close)
        yield Watched(two, mountpoint, crew, readers)


@pytest.mark.parametrize(
    "io, seconds",
    [
        pytest.param("no-open", 20.0, marks=pytest.mark.timeout(240)),
        pytest.param("passthrough", 8.0, marks=pytest.mark.timeout(240)),
        pytest.param("no-open", 180.0, marks=[pytest.mark.soak, pytest.mark.timeout(600)]),
        pytest.param("passthrough", 180.0, marks=[pytest.mark.soak, pytest.mark.timeout(600)]),
    ],
)
def test_no_death_behind_a_mount_reaches_its_readers(new_directory: NewDirectory, io: str, seconds: float) -> None:
    rng = random.Random(int(seconds))
    with watched(new_directory, io, seconds) as mount:
        mount.goes_on("the start")
        if io == "passthrough":
            wait_until(lambda: mount.crew.backed() > 0, "the kernel reads a large file by itself", PATIENCE)

        killed = mount.kill_workers(seconds, rng)
        mount.goes_on(f"{killed} deaths of workers")
        assert killed > seconds, "the workers came back each time"

        for _ in range(2):
            mount.kill_supervisor()
            mount.kill_workers(1.5, rng)
            mount.goes_on("the death of the supervisor, and then of workers")

        mount.node.kill()
        mount.kill_workers(1.5, rng)
        mount.node.up()
        mount.kill_workers(1.5, rng)
        mount.goes_on("the death of the node, and then of workers")

        mount.kill_everyone()
        mount.kill_workers(1.5, rng)
        mount.goes_on("the death of everyone behind the mount")

        told = mount.look("everything")
        mount.end()
        assert min(report.reads for report in told) > 20, told
        assert "Traceback" not in mount.logs()
