"""One tree twice: on the local disk, mounted read-only, and as the mount of a snapshot. Applications must not tell them
apart."""

import errno
import os
import secrets
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from tests.e2e.crews import crew_of
from tests.system import Machine, io_options, machines, wait_until

Seen = TypeVar("Seen")


@dataclass(frozen=True)
class Disks:
    """`local` and `mount` show the same tree; `scratch` is an empty directory that can be written, not on either."""

    local: Path
    mount: Path
    scratch: Path

    def same(self, look: Callable[[Path], Seen]) -> Seen:
        """What `look` says of the local disk, which it must say of the mount too."""
        local, mounted = look(self.local), look(self.mount)
        assert mounted == local
        return local

    def fresh(self) -> Path:
        """A new directory in `scratch`."""
        return Path(tempfile.mkdtemp(dir=self.scratch))


@contextmanager
def two_disks(fill: Callable[[Path], None], io: str, *, large: str) -> Iterator[Disks]:
    """Publish what `fill` writes, mount it with that kind of `io`, and show the source read-only beside it. `large`: a
    file that the kernel must be reading by itself before anything is tried on a passthrough mount."""
    options = io_options(io)
    with tempfile.TemporaryDirectory(prefix="a-", ignore_cleanup_errors=True) as name:
        top = Path(name)
        source, local, mount, scratch = (top / each for each in ("source", "local", "mount", "scratch"))
        for directory in (source, local, scratch):
            directory.mkdir()
        fill(source)
        machine = Machine(top / "n", f"test-{secrets.token_hex(4)}", "one", discovery="none", listen="127.0.0.1:0")
        with machines([machine]), _read_only(source, local):
            machine.mount(machine.publish(source), mount, *options)
            if io == "passthrough":
                wait_until(lambda: _is_backed(mount, large), f"{large} is verified, and read by the kernel itself")
            yield Disks(local, mount, scratch)


def _is_backed(mount: Path, name: str) -> bool:
    """Whether a file that is opened now has a backing file in the kernel."""
    with (mount / name).open("rb"), crew_of(mount) as crew:
        return crew.backed() > 0


@contextmanager
def _read_only(source: Path, local: Path) -> Iterator[None]:
    subprocess.run(["mount", "--bind", source, local], check=True)
    try:
        subprocess.run(["mount", "-o", "remount,bind,ro,nosuid,nodev", local], check=True)
        yield
    finally:
        subprocess.run(["umount", "--lazy", local], check=True)


def answer(call: Callable[[], Seen]) -> Seen | str:
    """What `call` returns, or the name of the errno that it fails with."""
    try:
        return call()
    except OSError as error:
        return errno.errorcode[error.errno or 0]


def ran(*argv: object, at: Path, within: Path | None = None, env: dict[str, str] | None = None) -> tuple[int, str, str]:
    """Status, output and messages of a command; `at`, the disk that it looks at, is called DISK in them. It runs in the
    directory `within`, or else in `at`."""
    done = subprocess.run(
        [os.fspath(each) if isinstance(each, os.PathLike) else str(each) for each in argv],
        cwd=within or at, env={**os.environ, **(env or {})}, stdin=subprocess.DEVNULL, capture_output=True,
        timeout=60, check=False,
    )  # fmt: skip
    output, errors = (os.fsdecode(text).replace(os.fspath(at), "DISK") for text in (done.stdout, done.stderr))
    return done.returncode, output, errors


def worked(*argv: object, at: Path, within: Path | None = None, env: dict[str, str] | None = None) -> str:
    """Output of a command that must end with status 0."""
    status, output, errors = ran(*argv, at=at, within=within, env=env)
    assert status == 0, f"{argv}: status {status}\n{output}{errors}"
    return output
