"""`hoard demo`: the whole path on one machine, with real nodes, real discovery and a real mount."""

import contextlib
import json
import os
import shlex
import shutil
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import click

from hoard_p2p.cli.answers import Fields
from hoard_p2p.cli.options import NotEmpty
from hoard_p2p.cli.output import seconds_text
from hoard_p2p.errors import HoardError
from hoard_p2p.printing import printable, size_text

if TYPE_CHECKING:
    from hoard_p2p.cli.localcluster import LocalCluster, LocalNode
    from hoard_p2p.cli.treecheck import Tree

ROOM = 3
"""Disk space needed, in multiples of the data set: two copies, and what the reading nodes keep."""


class Demo:
    """The steps, each with its time, and the figures for the table at the end."""

    def __init__(self, cluster: "LocalCluster", why_no_mount: str) -> None:
        self._cluster = cluster
        self._why_no_mount = why_no_mount
        self._figures: list[tuple[str, str]] = []

    # --- the story

    def run(self, dataset: Path | None) -> None:
        """All of it. Raises HoardError if a step fails or a byte differs."""
        source = dataset or self._make_data()
        first, second, third = self._start()
        with self._step("read the source directory"):
            expected = self._read(source)
        self._check_room(expected)
        snapshot = self._publish(first, source, expected)
        if self._why_no_mount:
            self._export(third, snapshot, expected, "read through hoard export")
        else:
            self._mount(third, snapshot, expected)
        with self._step(f"killed {first.name}, which had published it (kill -9)"):
            self._cluster.kill(first)
        if self._why_no_mount:
            self._export(second, snapshot, expected, "read again on node-2, through hoard export")
        else:
            self._after_kill(second, third, snapshot, expected)
        self._print_table(expected)

    def _make_data(self) -> Path:
        from hoard_p2p.cli import demodata

        source = self._cluster.root / "data"
        with self._step("made a data set: Python's own library in variants, and one large shard"):
            demodata.make(source)
        return source

    def _start(self) -> "tuple[LocalNode, LocalNode, LocalNode]":
        with self._step("started three nodes in two racks"):
            nodes = (
                self._cluster.start("node-1", rack="rack-a"),
                self._cluster.start("node-2", rack="rack-b"),
                self._cluster.start("node-3", rack="rack-b"),
            )
        with self._step("they found each other by mDNS"):
            self._cluster.wait_met()
        return nodes

    def _publish(self, node: "LocalNode", source: Path, expected: "Tree") -> str:
        with self._step(f"published it on {node.name}, two copies of everything"):
            began = time.perf_counter()
            answer = Fields(json.loads(self._cluster.hoard(node, "publish", "--json", str(source), show=True)))
            seconds = time.perf_counter() - began
        snapshot = answer.text("snapshot")
        print(f"    snapshot {snapshot}")
        if short := answer.number("under_replicated"):
            raise HoardError(f"{short} segments have fewer than two copies, so no node can be spared")
        links = answer.fields("totals").number("hard_links")
        self._figure("files", f"{expected.files:,}" + (f", {links:,} of them hard links" if links else ""))
        self._figure("bytes", size_text(expected.bytes))
        self._figure("deduplicated", size_text(answer.number("deduplicated")))
        self._figure("publish, two copies", f"{size_text(expected.bytes / seconds)}/s")
        return snapshot

    def _mount(self, node: "LocalNode", snapshot: str, expected: "Tree") -> None:
        with self._step(f"mounted it on {node.name} by that hash"):
            point, seconds = self._cluster.mount(node, snapshot)
        self._figure("mount, until it can be listed", seconds_text(seconds))
        with self._step("read it all for the first time, compared every byte"):
            cold = self._compared(point, expected)
        with self._step("read it all again, compared every byte"):
            warm = self._compared(point, expected)
        self._figure_rate("read, source directory", expected, expected)
        self._figure_rate("read through the mount, first time", cold, expected)
        self._figure_rate("read through the mount, again", warm, expected)

    def _after_kill(self, second: "LocalNode", third: "LocalNode", snapshot: str, expected: "Tree") -> None:
        with self._step(f"read it all again on {third.name}, compared every byte"):
            self._compared(self._cluster.root / f"mnt-{third.name}", expected)
        with self._step(f"mounted it on {second.name}, read it all there, compared every byte"):
            point, _ = self._cluster.mount(second, snapshot)
            found = self._compared(point, expected)
        self._figure_rate(f"first time on {second.name}, with a node dead", found, expected)

    def _export(self, node: "LocalNode", snapshot: str, expected: "Tree", what: str) -> None:
        from hoard_p2p.cli.treecheck import without_owners

        target = self._cluster.root / f"export-{node.name}"
        with self._step(f"{what}, compared every byte"):
            began = time.perf_counter()
            self._cluster.hoard(node, "export", snapshot, str(target))
            seconds = time.perf_counter() - began
            self._compared(target, without_owners(expected))
        self._figure(f"export on {node.name}", f"{size_text(expected.bytes / seconds)}/s")

    # --- its parts

    @contextlib.contextmanager
    def _step(self, text: str) -> Iterator[None]:
        """Prints the step and its time at its end."""
        began = time.perf_counter()
        yield
        print(f"  {text} {'.' * max(2, 76 - len(text))} {seconds_text(time.perf_counter() - began)}", flush=True)

    @staticmethod
    def _read(root: Path) -> "Tree":
        from hoard_p2p.cli.treecheck import read_tree

        return read_tree(root)

    def _compared(self, root: Path, expected: "Tree") -> "Tree":
        from hoard_p2p.cli.treecheck import differences

        found = self._read(root)
        if lines := differences(expected, found):
            raise HoardError("\n".join(["the trees are not equal:", *lines]))
        return found

    def _check_room(self, tree: "Tree") -> None:
        free, needed = shutil.disk_usage(self._cluster.root).free, ROOM * tree.bytes
        if free < needed:
            raise HoardError(
                f"the demo needs {size_text(needed)} of free disk below {self._cluster.root.parent}, "
                f"there are {size_text(free)}; choose another place with TMPDIR"
            )

    def _figure(self, what: str, value: str) -> None:
        self._figures.append((what, value))

    def _figure_rate(self, what: str, tree: "Tree", native: "Tree") -> None:
        ratio = "" if tree is native else f"  ({native.seconds / tree.seconds:.2f} x the source directory)"
        self._figure(what, f"{size_text(tree.rate)}/s, {tree.file_rate:,.0f} files/s{ratio}")

    def _print_table(self, expected: "Tree") -> None:
        width = max(len(what) for what, _ in self._figures)
        print()
        for what, value in self._figures:
            print(f"  {what.ljust(width)}  {value}")
        print(f"\n  every byte of {expected.files:,} files was equal, before and after a node was killed")


@contextlib.contextmanager
def _ended_by_signals() -> Iterator[None]:
    """SIGTERM and SIGHUP end the demo like Ctrl-C, so that it cleans up."""

    def interrupt(number: int, _frame: object) -> None:
        raise KeyboardInterrupt(f"signal {number}")

    before = {number: signal.signal(number, interrupt) for number in (signal.SIGTERM, signal.SIGHUP)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def command_name(python: str = sys.executable) -> str:
    """How this shell calls the command that was installed for `python`: by name if that is found, else by its path."""
    here = Path(python).parent / "hoard"
    if shutil.which("hoard") or not here.exists():
        return "hoard"
    return shlex.quote(str(here.relative_to(Path.cwd()) if here.is_relative_to(Path.cwd()) else here))


@click.command()
@click.argument("dataset", required=False, type=NotEmpty(click.Path(path_type=Path, exists=True, file_okay=False)))
def demo(dataset: Path | None) -> None:
    """Show everything on this machine, in one or two minutes: three nodes in two racks find each other, one publishes
    DATASET, another mounts it by its hash, every byte is compared; a node is killed, and every byte is compared again.

    Without DATASET, one is made of Python's own library: 10,000 files and a 256 MiB shard. Everything lies in a
    temporary directory below $TMPDIR (or /var/tmp) and is removed at the end, also after Ctrl-C.

    \b
    Examples:
      hoard demo
      hoard demo /data/my-set
    """
    from hoard_p2p.cli.localcluster import LocalCluster
    from hoard_p2p.mount.attach import obstacle

    why = obstacle()
    if why:
        print(f"Nothing can be mounted here: {why}.\nThe demo reads through `hoard export` instead.")
    with _ended_by_signals(), LocalCluster("hoard-demo") as cluster:
        print(f"Hoard demo: three nodes on this machine, in {printable(os.fsencode(cluster.root))}", flush=True)
        try:
            Demo(cluster, why).run(dataset and dataset.absolute())
        finally:
            print("  cleaning up", flush=True)
    hoard = command_name()
    print(
        f"\nNext: run `{hoard} up --detach` on each of your machines, then `{hoard} publish DIRECTORY` on one of them, "
        f"and `{hoard} mount ID /mnt/set` wherever it is read."
    )
