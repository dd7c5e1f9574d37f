"""Tools that take a tree in, each timed alike: source cold, `sync` of the store included."""

import os
import resource
import shutil
import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from benchmarks.figures import drop_pages, seconds_of

_ENVIRONMENT = {
    "RESTIC_PASSWORD": "x",
    "BORG_UNKNOWN_UNENCRYPTED_REPO_ACCESS_IS_OK": "yes",
    "BORG_RELOCATED_REPO_ACCESS_IS_OK": "yes",
}


@dataclass(frozen=True, slots=True)
class Cost:
    """What one ingest took. `cpu`: with all that it started. `stored`: disk space that it takes more afterwards."""

    seconds: float
    cpu: float
    stored: int


@dataclass(frozen=True, slots=True)
class Ingester:
    """Shell lines; $STORE is an empty directory to be, $SOURCE the tree, $NAME its version, v1 or v2."""

    name: str
    needs: str
    prepare: str
    add: str


RIVALS = (
    Ingester("rsync", "rsync", 'mkdir "$STORE"', 'rsync -a --whole-file "$SOURCE/" "$STORE/$NAME/"'),
    Ingester(
        "casync", "casync", 'mkdir "$STORE"', 'casync make --store="$STORE/st.castr" "$STORE/$NAME.caidx" "$SOURCE"'
    ),
    Ingester("borg", "borg", 'borg init -e none "$STORE"', 'cd "$SOURCE" && borg create -C none "$STORE::$NAME" .'),
    Ingester("restic", "restic", 'restic -q -r "$STORE" init', 'restic -q -r "$STORE" backup "$SOURCE"'),
)
BASELINE = Ingester(
    "cp + b3sum", "b3sum", 'mkdir "$STORE"',
    'cp -r "$SOURCE" "$STORE/$NAME" && find "$SOURCE" -type f -print0 | xargs -0 b3sum >/dev/null',
)  # fmt: skip


def absent(ingester: Ingester) -> bool:
    return shutil.which(ingester.needs) is None


def prepare(ingester: Ingester, store: Path) -> None:
    shutil.rmtree(store, ignore_errors=True)
    _shell(ingester.prepare, store, store, "")


def ingest(ingester: Ingester, store: Path, source: Path, name: str) -> Cost:
    """Add `source` to a prepared store. Raises CalledProcessError."""
    drop_pages(source)

    def work() -> None:
        _shell(ingester.add, store, source, name)
        subprocess.run(["sync", "-f", store], check=True)

    return measured(work, lambda: disk_usage(store))


def measured(work: Callable[[], None], stored: Callable[[], int], cpu: Callable[[], float] | None = None) -> Cost:
    """`cpu`: seconds spent so far by processes that are not children of this one, if any take part."""
    size, spent = stored(), _children() + (cpu() if cpu else 0.0)
    seconds = seconds_of(work)
    return Cost(seconds, _children() + (cpu() if cpu else 0.0) - spent, stored() - size)


def apparent_size(root: Path) -> int:
    return sum(path.lstat().st_size for path in root.rglob("*") if not path.is_dir())


def disk_usage(root: Path) -> int:
    return sum(path.lstat().st_blocks * 512 for path in root.rglob("*"))


def _shell(line: str, store: Path, source: Path, name: str) -> None:
    told = {"STORE": os.fspath(store), "SOURCE": os.fspath(source), "NAME": name, **_ENVIRONMENT}
    subprocess.run(
        ["bash", "-c", line], env={**os.environ, **told}, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE
    )


def _children() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime
