"""Whatever happened to a tree: publishing it from what the last publish remembered gives what a full publish gives."""

import os
import random
import shutil
import stat
import tempfile
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.property.test_publish_property import PLANS, Plan, make_tree
from tests.unit.publish_stamps import Again
from tests.unit.publish_trees import can_have_xattrs, options

Edits = list[tuple[str, int]]
EDITS = st.lists(
    st.tuples(
        st.sampled_from([
            "rewrite", "rewrite and touch back", "append", "truncate", "extend", "chmod", "rename", "swap", "delete",
            "create", "link", "to symlink", "retarget", "attribute", "no attribute", "past", "future",
            "replace directory",
            "rename directory", "new directory", "to directory", "touch directory back", "copy over", "fifo",
        ]),
        st.integers(0, 10**6),
    ),
    max_size=6,
)  # fmt: skip


def paths(root: Path, *, directories: bool) -> list[bytes]:
    found = []
    for top, below, files in os.walk(os.fsencode(root)):
        names = below if directories else [name for name in files if os.path.isfile(os.path.join(top, name))]
        found += [os.path.join(top, name) for name in names if not os.path.islink(os.path.join(top, name))]
    return sorted(found)


def rewrite(path: bytes, rng: random.Random) -> None:
    """Other bytes, the same size; in place."""
    with open(path, "r+b") as file:
        file.write(rng.randbytes(os.path.getsize(path)))


def edit(root: Path, what: str, number: int) -> None:
    rng = random.Random(number)
    files, directories = paths(root, directories=False), paths(root, directories=True)
    file = rng.choice(files) if files else None
    other = rng.choice(files) if files else None
    directory = rng.choice(directories) if directories else None
    fresh = os.path.join(rng.choice([os.fsencode(root), *directories]), b"new-%d" % number)
    if what == "create":
        Path(os.fsdecode(fresh)).write_bytes(rng.randbytes(rng.randrange(5000)))
    elif what == "new directory":
        os.makedirs(os.path.join(fresh, b"sub"), exist_ok=True)
    elif what == "fifo" and not os.path.lexists(fresh):
        os.mkfifo(fresh)
    elif file is not None and other is not None:
        edit_file(file, other, fresh, what, rng)
    if directory is not None:
        edit_directory(directory, fresh, what)


def edit_file(file: bytes, other: bytes, fresh: bytes, what: str, rng: random.Random) -> None:
    before = os.stat(file)
    match what:
        case "rewrite":
            rewrite(file, rng)
        case "rewrite and touch back":
            rewrite(file, rng)
            os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns))
        case "append":
            with open(file, "ab") as end:
                end.write(b"more")
        case "truncate":
            os.truncate(file, before.st_size // 2)
        case "extend":
            os.truncate(file, before.st_size + 200_000)
        case "chmod":
            os.chmod(file, 0o600 | rng.randrange(0o1000))
        case "rename":
            os.replace(file, fresh) if not os.path.isdir(fresh) else None
        case "swap" if file != other:
            os.rename(file, fresh + b"~")
            os.rename(other, file)
            os.rename(fresh + b"~", other)
        case "copy over" if file != other:
            shutil.copy2(other, file + b"~")
            os.replace(file + b"~", file)
            os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns))
        case "delete":
            os.unlink(file)
        case "link" if not os.path.lexists(fresh):
            os.link(file, fresh)
        case "to symlink" | "retarget":
            os.unlink(file)
            os.symlink(b"%d" % rng.randrange(10), file)
        case "to directory":
            os.unlink(file)
            os.mkdir(file)
        case "past" | "future":
            os.utime(file, ns=(0, rng.randrange(10**18) + (3 * 10**18 if what == "future" else 0)))
        case "attribute" if can_have_xattrs(Path(tempfile.gettempdir())):
            os.setxattr(file, b"user.hoard-test", rng.randbytes(5))
        case "no attribute" if os.listxattr(file):
            os.removexattr(file, os.listxattr(file)[0])


def fresh_copy(source: str, target: str) -> None:
    """As `cp -p` does: with the old time, for special files too."""
    if stat.S_ISREG(os.lstat(source).st_mode):
        shutil.copy2(source, target)


def edit_directory(directory: bytes, fresh: bytes, what: str) -> None:
    match what:
        case "replace directory":
            shutil.copytree(
                os.fsdecode(directory), os.fsdecode(directory) + "~", symlinks=True, copy_function=fresh_copy
            )
            shutil.rmtree(directory)
            os.rename(directory + b"~", directory)
        case "rename directory" if not os.path.lexists(fresh) and not fresh.startswith(directory + b"/"):
            os.rename(directory, fresh)
        case "touch directory back":
            before = os.stat(directory)
            Path(os.fsdecode(os.path.join(directory, b"hidden"))).touch()
            os.utime(directory, ns=(0, before.st_mtime_ns))


TREES = given(
    plans=st.lists(PLANS, max_size=25),
    rounds=st.lists(EDITS, min_size=1, max_size=2),
    excluded=st.sampled_from([(), (b"*a*",), (b"new-*", b"x/")]),
    reproducible=st.booleans(),
)


@settings(max_examples=12, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@TREES
def test_publishing_from_what_is_remembered_equals_a_full_publish(
    plans: list[Plan], rounds: list[Edits], excluded: tuple[bytes, ...], reproducible: bool
) -> None:
    check(plans, rounds, excluded, reproducible)


@pytest.mark.soak
@pytest.mark.timeout(900)
@settings(max_examples=400, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@TREES
def test_the_same_for_many_trees(
    plans: list[Plan], rounds: list[Edits], excluded: tuple[bytes, ...], reproducible: bool
) -> None:
    check(plans, rounds, excluded, reproducible)


def check(plans: list[Plan], rounds: list[Edits], excluded: tuple[bytes, ...], reproducible: bool) -> None:
    with tempfile.TemporaryDirectory() as base:
        root = make_tree(Path(base), plans)
        chosen = replace(options(Path(base)), exclude=excluded, reproducible=reproducible)
        with closing(Again(root, chosen=chosen)) as again:
            first = again.publish()
            assert again.looks_equal() or not again.file.is_quick
            for edits in rounds:
                for what, number in edits:
                    edit(root, what, number)
                full = again.full()
                if again.file.is_quick and again.looks_equal():
                    assert full.snapshot == first.snapshot, edits
                first = again.publish()
                assert first.snapshot == full.snapshot, edits
                assert first.totals == full.totals
                assert first.skipped == full.skipped
                assert first.not_kept == full.not_kept
                assert first.unchanged <= full.totals.files
            same = again.publish()
            assert same.snapshot == full.snapshot
            assert same.unchanged == full.totals.files, "nothing was read"
            assert (same.stored, same.deduplicated) == (0, again.publish(rehash=True).deduplicated)
