"""A mount against the native file system, and against other systems, on the same data (`make bench-mount`).

One run prints one table. The data is in this machine's store (the network is not part of it). Every figure has its
native counterpart from right before; the ratio is void if the native figures of a line moved more than twofold. The
large and the small files are a snapshot each. See docs/benchmarks.md.
"""

import argparse
import compileall
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack, suppress
from pathlib import Path

import hoard_p2p
from benchmarks import machine, million
from benchmarks.figures import SMALL_FILE, make_shards, make_small
from benchmarks.phases import LARGE, SMALL, Effort, compare, names_of
from benchmarks.readers import ReaderFailed
from benchmarks.sheet import LINES, Sheet, markdown, plain
from benchmarks.subjects import Hoard, Rival, SubjectFailed
from hoard_p2p.cli.localcluster import LocalCluster
from hoard_p2p.errors import HoardError
from hoard_p2p.printing import size_text

RIVAL_CAP = 2.0
"""Seconds of a rival's pass; its rates stay valid, and warm passes keep to the files that the first one read."""


def options_of(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shards", type=int, default=8, help="large files [8]")
    parser.add_argument("--shard-size", type=int, default=128, metavar="MIB", help="size of a large file [128]")
    parser.add_argument("--small", type=int, default=10_000, help="files of 110 KB [10000]")
    parser.add_argument("--runs", type=int, default=3, help="samples of each line [3]")
    parser.add_argument("--only", default="", metavar="PREFIX,...", help="lines to measure; the keys are: " + _keys())
    parser.add_argument("--source", type=Path, help="directory with shards/ and small/, instead of seeded data")
    parser.add_argument("--million", action="store_true", help="also the lines with a million files (slow)")
    parser.add_argument("--files", type=int, default=1_000_000, help="how many files a million is [1000000]")
    parser.add_argument("--rivals", type=Path, metavar="DIR", help="folder of peer_NAME.sh scripts")
    parser.add_argument("--with", dest="names", default="", metavar="NAME,...", help="which of them")
    parser.add_argument("--rival-runs", type=int, default=2, help="samples of each line of a rival [2]")
    parser.add_argument("--markdown", action="store_true", help="print the table as Markdown")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all samples")
    options = parser.parse_args(arguments)
    if bool(options.rivals) != bool(options.names):
        parser.error("--rivals and --with belong together")
    wanted = chosen(options.only)
    options.million |= bool(options.only) and any(wanted(line.key) for line in LINES if line.key.startswith("million"))
    options.shards *= any(wanted(line.key) for line in LINES if line.key.startswith(("large", "start-large")))
    options.small *= any(wanted(line.key) for line in LINES if line.key.startswith(("small", "walk", "start-small")))
    return options


def _keys() -> str:
    return ", ".join(line.key for line in LINES)


def chosen(only: str) -> Callable[[str], bool]:
    """Whether a line was asked for: its key begins with one of the words, or there are none."""
    words = tuple(word for word in only.split(",") if word)
    return lambda key: not words or key.startswith(words)


def tell(text: str) -> None:
    print(f"{time.strftime('%H:%M:%S')} {text}", file=sys.stderr, flush=True)


def source_of(options: argparse.Namespace, root: Path) -> Path:
    """The directory with the data: made here, or that of the rivals, so that all read the same."""
    if options.source:
        return Path(options.source)
    if options.rivals:
        return Rival(options.rivals, "native").directory().resolve()
    source = root / "source"
    tell("making the data")
    if options.shards:
        make_shards(source / LARGE, options.shards, options.shard_size << 20)
    if options.small:
        make_small(source / SMALL, options.small, SMALL_FILE)
    return source


def shape_of(source: Path, options: argparse.Namespace) -> str:
    told = []
    for kind, limit in limits(options).items():
        names = names_of(source / kind, limit) if limit else []
        told.append(
            f"{kind}: {len(names):,} files, {size_text(sum((source / kind / name).stat().st_size for name in names))}"
        )
    return f"{'; '.join(told)}; {options.runs} runs"


def measure_hoard(options: argparse.Namespace, cluster: LocalCluster, source: Path, sheet: Sheet) -> None:
    node = cluster.start("node")
    hoard = Hoard(cluster, node)
    for kind, limit in ((LARGE, options.shards), (SMALL, options.small)):
        if limit:
            tell(f"publishing {kind}")
            hoard.publish(kind, source / kind)
    os.sync()
    effort = Effort(60.0, 3, options.runs, max(5, options.runs), chosen(options.only))
    tell("measuring Hoard")
    compare(hoard, source, effort, sheet, limits(options))
    sheet.notes += [f"{kind}: mounted {io}" for kind, io in hoard.kinds.items()]
    cluster.discard(node)


def limits(options: argparse.Namespace) -> dict[str, int | None]:
    return {LARGE: options.shards, SMALL: options.small}


def measure_rivals(options: argparse.Namespace, source: Path, sheet: Sheet) -> None:
    """One that does not work leaves a note, and what it did measure. What they run ends with the last of them, since
    several may read from one server."""
    with ExitStack() as stack:
        for name in options.names.split(",") if options.names else ():
            rival = Rival(options.rivals, name)
            stack.callback(rival.end)
            try:
                measure_rival(options, rival, source, sheet)
            except (SubjectFailed, ReaderFailed, OSError, subprocess.SubprocessError) as error:
                sheet.notes.append(f"{name}: {error}")


def measure_rival(options: argparse.Namespace, rival: Rival, source: Path, sheet: Sheet) -> None:
    runs = options.rival_runs
    try:
        tell(f"preparing {rival.name}")
        rival.prepare()
        tell(f"measuring {rival.name}")
        compare(rival, source, Effort(RIVAL_CAP, 1, runs, runs, chosen(options.only)), sheet, limits(options))
    finally:
        with suppress(SubjectFailed):
            rival.stop()


def compile_package() -> bool:
    """As an installer does; whether commands find compiled files."""
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    return bool(compileall.compile_dir(os.path.dirname(hoard_p2p.__file__), quiet=2))


def report(options: argparse.Namespace, sheet: Sheet) -> None:
    about = machine.describe()
    table = markdown(sheet.rows()) if options.markdown else plain(sheet.rows())
    lines = [*about, *sheet.notes]
    print("\n" + "\n".join(f"- {line}" if options.markdown else line for line in lines) + f"\n\n{table}")
    if options.json:
        told = {"about": about, "notes": sheet.notes, "lines": sheet.json()}
        options.json.write_text(json.dumps(told, indent=1))


def main(arguments: list[str] | None = None) -> None:
    options = options_of(arguments)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # so that everything is cleaned up
    sheet, failed = Sheet(), False
    if not compile_package():
        sheet.notes.append("Hoard's files could not be compiled: each start of a command compiles them again")
    with LocalCluster("hoard-bench", discovery=["none"]) as cluster:
        try:
            source = source_of(options, cluster.root)
            sheet.notes.append(shape_of(source, options))
            os.sync()
            measure_hoard(options, cluster, source, sheet)
            measure_rivals(options, source, sheet)
            if options.million:
                tell("a million files")
                million.measure(cluster, options.files, chosen(options.only), sheet)
        except (HoardError, SubjectFailed, ReaderFailed) as error:
            before = error.__context__
            sheet.notes.append(f"failed: {error}" + (f" (after: {before})" if isinstance(before, ReaderFailed) else ""))
            failed = True
        except (KeyboardInterrupt, SystemExit) as error:
            sheet.notes.append(f"interrupted: {error!r}")
            failed = True
    report(options, sheet)
    sys.exit(failed)


if __name__ == "__main__":
    main()
