"""Keys of a cluster: `key new`, `key show`."""

from pathlib import Path

import click

from hoard_p2p.cli.options import TEXT
from hoard_p2p.cli.output import table


@click.group()
def key() -> None:
    """Make and look at the keys of a cluster.

    Only nodes whose --cluster-key-file has the same key meet. A file has one key a line: the first signs, all are
    accepted, so keys can be replaced while the cluster works (docs/security.md).

    \b
    Example:
      hoard key new /etc/hoard/cluster.key
      hoard up --cluster-key-file /etc/hoard/cluster.key
    """


@key.command()
@click.argument("file", type=TEXT, required=False)
def new(file: str | None) -> None:
    """Draw a new key: into FILE, which only you may read then, or to the standard output.

    \b
    Examples:
      hoard key new cluster.key
      hoard key new >> cluster.key      # add a key, for rotation
    """
    from hoard_p2p.transfer.keys import ClusterKey, new_key, write_key_file

    line = new_key()
    if file is None:
        print(line)
        return
    write_key_file(Path(file), line)
    print(f"{file} has a new key, {ClusterKey(bytes.fromhex(line)).fingerprint.hex()}; copy it to every node")


@key.command()
@click.argument("file", type=TEXT)
def show(file: str) -> None:
    """List the fingerprints of the keys in FILE, which say nothing about the keys but which they are.

    \b
    Example:
      hoard key show cluster.key
    """
    from hoard_p2p.transfer.keys import read_key_file

    keys = read_key_file(Path(file))
    rows = [(one.fingerprint.hex(), "accepts" if number else "signs, accepts") for number, one in enumerate(keys)]
    print(table(("KEY", "USE"), rows))
