"""One mount's connection to the kernel, as its supervisor holds it: mounting, the INIT handshake, clones, RESEND."""

import fcntl
import logging
import os
import select
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from hoard_p2p.errors import MountBusy, MountFailed
from hoard_p2p.mount import kernel
from hoard_p2p.mount.attach import attach, detach, detach_lazily, open_device
from hoard_p2p.mount.kernel import Can
from hoard_p2p.mount.mountinfo import SOURCE, MountInfo, mount_at
from hoard_p2p.mount.mountpoint import Life, life_of

log = logging.getLogger(__name__)

INIT_DEADLINE = 10.0
MAX_READAHEAD = kernel.MAX_READ


class Connection:
    """The kernel's end of one mount, from `open` until `close`. Owns the first descriptor and every clone."""

    def __init__(self, device_fd: int, mount: MountInfo, features: Can) -> None:
        self.device_fd = device_fd
        self.mount = mount
        self.features = features
        self._clones: list[int] = []

    @classmethod
    def open(
        cls, snapshot: str, mountpoint: Path, wanted: Can = kernel.NO_OPEN, needed: Can = kernel.NEEDED
    ) -> "Connection":
        """Mount snapshot `snapshot` (12 hex digits) on `mountpoint` and agree with the kernel on the protocol.

        Without passthrough in the kernel it becomes a no-open mount, unless `needed` has it. Requests wait in the
        kernel from now on. Raises MountFailed; nothing is mounted then.
        """
        device_fd = attach(SOURCE + snapshot, mountpoint)
        try:
            mount = mount_at(mountpoint)
            if mount is None:
                raise MountFailed(f"{mountpoint} was unmounted while it was being mounted")
            features = shake_hands(device_fd, wanted, needed)
        except BaseException:
            os.close(device_fd)  # ends the connection: who waits already gets an error
            with suppress(MountFailed):
                detach_lazily(mountpoint)
            raise
        _raise_readahead(mount)
        return cls(device_fd, mount, features)

    @classmethod
    def adopt(cls, mount: MountInfo, features: Can, devices: Sequence[int]) -> "Connection":
        """Take over a mount that has been served by others: `devices` are descriptors of it, at least one."""
        first, *others = dict.fromkeys(devices)
        connection = cls(first, mount, features)
        connection._clones = others
        if not connection.resends and (own := connection.clone()) != first:  # all others may have to be dropped
            connection.device_fd, connection._clones = own, [first, *others]
        return connection

    @property
    def resends(self) -> bool:
        """Whether the kernel can send a dead worker's requests again (Linux 6.9)."""
        return Can.HAS_RESEND in self.features

    @property
    def passthrough(self) -> bool:
        """Whether each OPEN is to be answered, with a backing file where there is one."""
        return Can.PASSTHROUGH in self.features

    @property
    def alive(self) -> bool:
        """Whether the kernel still sends requests: not unmounted, not aborted."""
        poll = select.poll()
        poll.register(self.device_fd, 0)
        return not poll.poll(0)

    def clone(self) -> int:
        """A descriptor of its own for one worker; the common one where /dev/fuse may not be opened. Stays ours."""
        try:
            clone_fd = open_device()
        except OSError as error:
            log.debug("workers share one descriptor, /dev/fuse cannot be opened: %s", error.strerror)
            return self.device_fd
        self._clones.append(clone_fd)
        fcntl.ioctl(clone_fd, kernel.DEV_CLONE, self.device_fd.to_bytes(4, "little"))
        return clone_fd

    def drop(self, clone_fd: int) -> None:
        """Close a clone, which ends the requests that were read from it with an error (if nobody else holds it)."""
        self._clones.remove(clone_fd)
        os.close(clone_fd)

    @property
    def descriptors(self) -> tuple[int, ...]:
        return (self.device_fd, *self._clones)

    def resend(self) -> None:
        """Have every request that was read and not answered sent again."""
        try:
            os.write(self.device_fd, kernel.RESEND)
        except OSError as error:
            log.debug("no resend, the mount is gone: %s", error.strerror)

    def answer_error(self, device_fd: int, unique: int, number: int) -> None:
        """Answer a request that was read from `device_fd` in a worker's place; nothing happens if it is not there."""
        for known_as in (unique, unique | kernel.RESENT):
            try:
                os.write(device_fd, kernel.OUT_HEADER.pack(kernel.OUT_HEADER.size, -number, known_as))
            except OSError as error:
                log.debug("request %d was not there: %s", unique, error.strerror)

    def detach(self) -> None:
        """Unmount, if it is still ours to unmount. Raises MountBusy, MountFailed."""
        if self._on_top():
            detach(self.mount.mountpoint)

    def detach_anyhow(self) -> None:
        """Unmount, lazily if it has users; never raises."""
        with suppress(MountFailed):
            try:
                self.detach()
            except MountBusy as error:
                log.warning("%s; detached all the same, its users get errors from now on", error)
                if self._on_top():
                    detach_lazily(self.mount.mountpoint)

    def close(self) -> None:
        """Close our descriptors. Once no worker holds one either, whoever waits for an answer gets an error."""
        for device_fd in self.descriptors:
            os.close(device_fd)

    def leave(self) -> None:
        """Unmount and close."""
        self.detach_anyhow()
        self.close()

    def _on_top(self) -> bool:
        """Whether ours is what is mounted there. The kernel gives the numbers of a mount that is gone to the next one,
        so where ours is gone only a dead one can be ours (it was aborted, not unmounted)."""
        top = mount_at(self.mount.mountpoint)
        if top is None or (top.mount_id, top.device) != (self.mount.mount_id, self.mount.device):
            return False
        return self.alive or life_of(top.mountpoint) is Life.DEAD


def shake_hands(device_fd: int, wanted: Can, needed: Can = kernel.NEEDED) -> Can:
    """Answer the kernel's INIT; the flags that both sides have. Raises MountFailed if the kernel is too old."""
    poll = select.poll()
    poll.register(device_fd, select.POLLIN)
    if not poll.poll(INIT_DEADLINE * 1000):
        raise MountFailed(f"the kernel sent no INIT within {INIT_DEADLINE:.0f} s")
    request = os.read(device_fd, kernel.READ_BUFFER)
    _, opcode, unique, *_ = kernel.IN_HEADER.unpack_from(request)
    major, minor, readahead, low, high = kernel.INIT_IN.unpack_from(
        request.ljust(kernel.IN_HEADER.size + kernel.INIT_IN.size, b"\0"), kernel.IN_HEADER.size
    )
    offered = Can(low | (high << 32 if low & Can.INIT_EXT else 0))
    if (opcode, major) != (kernel.Op.INIT, kernel.MAJOR) or minor < kernel.OLDEST_MINOR or kernel.NEEDED & ~offered:
        raise MountFailed(f"the kernel's FUSE protocol is {major}.{minor}; Linux 5.4 or newer is needed")
    features = _agree(wanted, needed, offered)
    reply = kernel.INIT_OUT.pack(
        kernel.MAJOR,
        min(minor, kernel.MINOR),
        min(readahead, MAX_READAHEAD),
        features & 0xFFFF_FFFF,
        kernel.MAX_BACKGROUND,
        kernel.MAX_BACKGROUND,
        kernel.MAX_WRITE,
        1,  # time_gran: nanoseconds
        kernel.MAX_PAGES,
        0,
        features >> 32,
        kernel.MAX_STACK_DEPTH if Can.PASSTHROUGH in features else 0,
    )
    os.write(device_fd, kernel.OUT_HEADER.pack(kernel.OUT_HEADER.size + len(reply), 0, unique) + reply)
    return features


def _agree(wanted: Can, needed: Can, offered: Can) -> Can:
    """What to ask for: of what is wanted, what the kernel has. Raises MountFailed."""
    if Can.PASSTHROUGH in wanted & ~offered:
        if Can.PASSTHROUGH in needed:
            raise MountFailed(
                "this kernel has no FUSE passthrough (Linux 6.9 with CONFIG_FUSE_PASSTHROUGH); mount with --io no-open"
            )
        wanted = kernel.NO_OPEN
    return wanted & offered


def _raise_readahead(mount: MountInfo) -> None:
    """The kernel offers 128 KiB at INIT whatever is asked for; root can raise it afterwards."""
    setting = Path("/sys/class/bdi", mount.device, "read_ahead_kb")
    try:
        setting.write_text(str(MAX_READAHEAD >> 10))
    except OSError as error:
        log.debug("read-ahead of %s stays as it is: %s", mount.mountpoint, error.strerror)
