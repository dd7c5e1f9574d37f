"""Putting a FUSE file system into the tree and taking it out: `mount(2)` as root, `fusermount3` for everyone else.

Nothing here follows a path into a mount, so nothing here can hang on one.
"""

import array
import ctypes
import errno
import os
import socket
from pathlib import Path

from hoard_p2p.errors import MountBusy, MountFailed
from hoard_p2p.mount.kernel import MAX_READ
from hoard_p2p.mount.mountinfo import FILE_SYSTEM

DEVICE = "/dev/fuse"
HELPER_TIMEOUT = 30.0
_MS_RDONLY, _MS_NOSUID, _MS_NODEV = 1, 2, 4
_MNT_FORCE, _MNT_DETACH, _UMOUNT_NOFOLLOW = 1, 2, 8
_ADVICE = {
    errno.ENOENT: "there is no /dev/fuse; run modprobe fuse, or start the container with --device /dev/fuse",
    errno.ENXIO: "the fuse module is not loaded; run modprobe fuse",
    errno.ENODEV: "the kernel has no fuse; run modprobe fuse",
    errno.EACCES: "/dev/fuse may not be opened; start the container with --device /dev/fuse",
    errno.EPERM: "mounting is not permitted here; start the container with --cap-add SYS_ADMIN --device /dev/fuse",
}


def obstacle() -> str:
    """Empty where this user can probably mount; else what is missing and what to do."""
    if not Path(DEVICE).exists():
        return f"there is no {DEVICE}: load the kernel module (modprobe fuse), in a container add --device {DEVICE}"
    if os.geteuid() != 0 and _helper() is None:
        return "fusermount3 is not installed: apt install fuse3 (or dnf install fuse3), or be root"
    try:  # fusermount3 too opens it with the rights of its user
        os.close(os.open(DEVICE, os.O_RDWR | os.O_CLOEXEC))
    except OSError as error:
        return (
            f"{DEVICE} cannot be opened ({error.strerror}): it needs mode 0666, as usual (chmod 666 {DEVICE}); "
            f"in a container add --device {DEVICE}"
        )
    return ""


def _helper() -> str | None:
    import shutil  # here, since root mounts without it, and its import is a tenth of a start

    return shutil.which("fusermount3") or shutil.which("fusermount")


def attach(source: str, mountpoint: Path) -> int:
    """Mount read-only on the folder `mountpoint`; the descriptor that the kernel's requests come from, non-blocking.

    The kernel's first request, INIT, waits on it. Raises MountFailed saying what to do.
    """
    device_fd = _attach_directly(source, mountpoint) if os.geteuid() == 0 else _attach_by_helper(source, mountpoint)
    os.set_blocking(device_fd, False)
    return device_fd


def detach(mountpoint: Path) -> None:
    """Unmount what is on top at `mountpoint`. Raises MountBusy if it has users, MountFailed."""
    if os.geteuid() == 0:
        _umount(mountpoint, _UMOUNT_NOFOLLOW)
    else:
        _run_helper(["-u", "--", str(mountpoint)], mountpoint)


def detach_lazily(mountpoint: Path) -> None:
    """Take the mount out of the tree even if it has users; it lives on for them while it is served."""
    if os.geteuid() == 0:
        _umount(mountpoint, _UMOUNT_NOFOLLOW | _MNT_DETACH)
    else:
        _run_helper(["-u", "-z", "--", str(mountpoint)], mountpoint)


def detach_aborting(mountpoint: Path) -> None:
    """The same; as root everyone who waits for an answer gets an error at once (others: end the mount's processes)."""
    if os.geteuid() == 0:
        _umount(mountpoint, _UMOUNT_NOFOLLOW | _MNT_DETACH | _MNT_FORCE)
    else:
        detach_lazily(mountpoint)


def open_device() -> int:
    """A fresh descriptor of /dev/fuse, non-blocking. Raises OSError."""
    return os.open(DEVICE, os.O_RDWR | os.O_CLOEXEC | os.O_NONBLOCK)


def _attach_directly(source: str, mountpoint: Path) -> int:
    device_fd = -1
    try:
        device_fd = open_device()
        options = (
            f"fd={device_fd},rootmode=40000,user_id={os.getuid()},group_id={os.getgid()},"
            f"allow_other,default_permissions,max_read={MAX_READ}"
        )
        _mount(source, mountpoint, options)
    except OSError as error:
        if device_fd >= 0:
            os.close(device_fd)
        advice = _ADVICE.get(error.errno or 0, "see dmesg")
        raise MountFailed(f"cannot mount on {mountpoint}: {error.strerror}; {advice}") from error
    return device_fd


def _mount(source: str, mountpoint: Path, options: str) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    flags = ctypes.c_ulong(_MS_RDONLY | _MS_NOSUID | _MS_NODEV)
    target = os.fsencode(mountpoint)
    if libc.mount(source.encode(), target, FILE_SYSTEM.encode(), flags, options.encode()):
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


def _umount(mountpoint: Path, flags: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.umount2(os.fsencode(mountpoint), flags):
        number = ctypes.get_errno()
        if number == errno.EBUSY:
            raise MountBusy(f"{mountpoint} has users")
        raise MountFailed(f"cannot unmount {mountpoint}: {os.strerror(number)}")


def _attach_by_helper(source: str, mountpoint: Path) -> int:
    """fusermount3 (fusermount3(1)) mounts and sends the descriptor over the socket that _FUSE_COMMFD names."""
    if why := obstacle():
        raise MountFailed(f"cannot mount on {mountpoint}: {why}")
    if not os.access(mountpoint, os.W_OK):
        raise MountFailed(
            f"cannot mount on {mountpoint}: you may not write to it, and only root may mount on such a directory; "
            "mount on a directory of your own, for instance in your home"
        )
    options = f"ro,nosuid,nodev,default_permissions,max_read={MAX_READ},fsname={source},subtype=hoard"
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
    with ours, theirs:
        _run_helper(["-o", options, "--", str(mountpoint)], mountpoint, theirs.fileno())
        ours.setblocking(False)  # the helper has ended: the message is there or will never be
        return _receive_descriptor(ours, mountpoint)


def _receive_descriptor(channel: socket.socket, mountpoint: Path) -> int:
    try:
        _, ancillary, _, _ = channel.recvmsg(1, socket.CMSG_SPACE(4))
    except BlockingIOError:
        ancillary = []
    for level, kind, data in ancillary:
        if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
            device_fd = array.array("i", data)[0]
            os.set_inheritable(device_fd, False)
            return int(device_fd)
    raise MountFailed(f"cannot mount on {mountpoint}: fusermount3 sent no descriptor; it may be too old, see fuse3")


def _run_helper(arguments: list[str], mountpoint: Path, channel_fd: int | None = None) -> None:
    import subprocess

    helper = _helper()
    if helper is None:
        raise MountFailed(
            f"cannot mount or unmount {mountpoint} without root or fusermount3; install the package fuse3"
        )
    environment = {**os.environ, "LC_ALL": "C"}
    descriptors = () if channel_fd is None else (channel_fd,)
    if channel_fd is not None:
        environment["_FUSE_COMMFD"] = str(channel_fd)
    try:
        ended = subprocess.run(
            [helper, *arguments],
            env=environment,
            pass_fds=descriptors,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=HELPER_TIMEOUT,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise MountFailed(f"{helper} did not end within {HELPER_TIMEOUT:.0f} s on {mountpoint}") from error
    if ended.returncode:
        said = os.fsdecode(ended.stderr).strip() or f"exit status {ended.returncode}"
        raise (MountBusy if "busy" in said else MountFailed)(f"{mountpoint}: {said}")
