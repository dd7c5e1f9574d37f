"""`hoard mount` and `hoard umount`."""

import os
from pathlib import Path

import click

from hoard_p2p.cli.options import PATH, SNAPSHOT, data_dir_option
from hoard_p2p.cli.output import complain
from hoard_p2p.config import DEFAULT_TIMEOUT, default_workers
from hoard_p2p.printing import printable


@click.command()
@click.argument("snapshot", type=SNAPSHOT)
@click.argument("mountpoint", type=PATH)
@data_dir_option
@click.option(
    "--foreground",
    is_flag=True,
    help="Stay until it is unmounted. Ctrl-C unmounts, also while the mount is in use: open files then give errors.",
)
@click.option("--workers", type=click.IntRange(1, 64), default=None, help="Worker processes [default: 2 to 4].")
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
def mount(
    *,
    snapshot: str,
    mountpoint: Path,
    data_dir: Path,
    foreground: bool,
    workers: int | None,
    timeout: float,
    verify: str,
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

    options = MountOptions(
        mountpoint=mountpoint.absolute(), workers=workers or default_workers(), timeout=timeout, verify=verify
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

    del data_dir  # every command takes it; a mount is found by its mount point alone
    path = mountpoint.absolute()
    os.chdir("/")  # else this very process might keep the mount busy
    unmount(path, force=force)
