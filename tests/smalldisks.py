"""Disks of their own for tests, small enough to be filled and to be hurt. All need root."""

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

EXT4 = Path("/sys/fs/ext4")


@contextmanager
def memory_disk(directory: Path, size: int) -> Iterator[Path]:
    """A tmpfs of `size` bytes, mounted on `directory`, which is made."""
    directory.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size}", "hoard-test", directory], check=True)
    try:
        yield directory
    finally:
        subprocess.run(["umount", "-l", directory], check=True)


@contextmanager
def loop_disk(directory: Path, size: int) -> Iterator[Path]:
    """An ext4 on a file, mounted on `directory`, which is made; read-only for good after its first error."""
    image = directory.with_suffix(".img")
    with image.open("wb") as file:
        file.truncate(size)
    subprocess.run(["mkfs.ext4", "-q", "-F", "-m", "0", image], check=True)
    directory.mkdir()
    subprocess.run(["mount", "-o", "loop,errors=remount-ro", image, directory], check=True)
    try:
        yield directory
    finally:
        subprocess.run(["umount", "-l", directory], check=True)
        image.unlink()


def device_of(directory: Path) -> str:
    """The name of the block device that is mounted there: `loop3`."""
    lines = (line.split() for line in Path("/proc/mounts").read_text().splitlines())
    return next(Path(source).name for source, point, *_ in lines if point == str(directory))


def hurt(directory: Path) -> None:
    """An error of the file system of `loop_disk`: the kernel makes it read-only at once."""
    (EXT4 / device_of(directory) / "trigger_fs_error").write_text("1")


def fill(path: Path) -> None:
    """Write a file until the disk has no room for one more block."""
    step = 1 << 20
    with path.open("wb", buffering=0) as file:
        while step >= 4096:
            try:
                file.write(bytes(step))
            except OSError:
                step //= 2
