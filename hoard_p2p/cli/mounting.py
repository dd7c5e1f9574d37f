"""`hoard mount` and `hoard umount`."""

import contextlib
import os
from pathlib import Path

import click

from hoard_p2p.cli.options import PATH, SNAPSHOT, data_dir_option
from hoard_p2p.cli.output import complain
from hoard_p2p.config import DEFAULT_TIMEOUT
from hoard_p2p.printing import printable

RELEASE_SECONDS = 2.0
"""What a node may take to let go of a mount that is being unmounted by force."""


@click.command()
@click.argument("snapshot", type=SNAPSHOT)
@click.argument("mountpoint", type=PATH)
@data_dir_option
@click.option(
    "--foreground",
    is_flag=True,
    help="Stay until it is unmounted. Ctrl-C unmounts, also while the mount is in use: open files then give errors.",
)
@click.option(
    "--workers",
    type=click.IntRange(1, 64),
    default=None,
    help="Worker processes of a no-open mount [default: 2 to 4]; a passthrough mount has one.",
)
@click.option(
    "--timeout",
    type=click.FloatRange(0.1, 86400),
    default=DEFAULT_TIMEOUT,
    show_default=True,
    metavar="SECONDS",
    help="How long a read waits for missing data before it fails.",
)
@click.option(
    "--verify",
    type=click.Choice(("first", "arrival", "always")),
    default="first",
    show_default=True,
    help="Check bytes against their hash the first time they are read under this mount, only when they arrived on "
    "this machine, or at every read.",
)
@click.option(
    "--io",
    type=click.Choice(("auto", "passthrough", "no-open")),
    default="auto",
    show_default=True,
    help="passthrough: the kernel reads large files (over 8 MiB) that are here by itself, at the speed of the disk, "
    "but each open is a question to the mount; needs root. no-open: the kernel opens files by itself, which suits many "
    "small ones. auto: what suits the snapshot and can be here; hoard status tells why.",
)
@click.option("--no-fill", is_flag=True, help="Just look: fetch what is read, and nothing ahead of the readers.")
def mount(
    *,
    snapshot: str,
    mountpoint: Path,
    data_dir: Path,
    foreground: bool,
    workers: int | None,
    timeout: float,
    verify: str,
    io: str,
    no_fill: bool,
) -> int:
    """Mount SNAPSHOT read-only on the existing directory MOUNTPOINT.

    SNAPSHOT is a snapshot id, a unique prefix of at least 6 hex digits, or a name. Without --foreground the command
    returns when the mount answers.

    \b
    Examples:
      hoard mount imagenet:2012 /mnt/imagenet
      hoard mount 3f9a1c07 /mnt/set --foreground
    """
    from hoard_p2p.interfaces import MountOptions
    from hoard_p2p.node.mounting import mount_snapshot

    if io == "passthrough" and verify == "always":
        raise click.UsageError(
            "--verify always hashes at each read, and with --io passthrough reads do not come here; choose one of them"
        )
    options = MountOptions(
        mountpoint=mountpoint.absolute(),
        workers=workers or 0,
        timeout=timeout,
        verify=verify,
        io=io,
        fill=not no_fill,
    )

    def tell(identifier: str) -> None:
        complain(f"mounted {identifier[:12]} on {printable(os.fsencode(mountpoint))}; Ctrl-C unmounts")

    return mount_snapshot(data_dir, snapshot, options, foreground=foreground, answers=tell)


@click.command()
@click.argument("mountpoint", type=PATH)
@data_dir_option
@click.option("--force", is_flag=True, help="Unmount also while in use; open files then give errors.")
def umount(mountpoint: Path, data_dir: Path, force: bool) -> None:
    """Unmount MOUNTPOINT. A busy mount is left alone, and its users are named (status 1).

    \b
    Examples:
      hoard umount /mnt/imagenet
      hoard umount --force /mnt/imagenet
    """
    from hoard_p2p.mount.unmount import unmount

    path = mountpoint.absolute()
    os.chdir("/")  # else this very process might keep the mount busy
    if force:
        _release(data_dir, path)
    unmount(path, force=force)


def _release(data_dir: Path, path: Path) -> None:
    """Have the node let go of the mount's descriptors now; without us it sees the end of the mount a moment later."""
    from hoard_p2p.errors import HoardError
    from hoard_p2p.mount.mountinfo import locate, mount_at
    from hoard_p2p.node.client import NodeClient, Patience

    mount = mount_at(locate(path))
    if mount is None:
        return
    with contextlib.suppress(HoardError), NodeClient.connect(data_dir, Patience(quick=RELEASE_SECONDS)) as node:
        node.call("release_mount", {"device": mount.device})
