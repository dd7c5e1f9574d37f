"""Any tree, published into memory and read back through its catalog, equals its source."""

import os
import random
import tempfile
from dataclasses import dataclass, replace
from pathlib import Path

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hoard_p2p.chunking import FASTCDC, FIXED, MIB
from hoard_p2p.publish.exclude import Rules
from tests.unit.publish_trees import Node, can_have_xattrs, options, publish, tree_in, tree_on

NAMES = st.binary(min_size=1, max_size=12).filter(lambda name: not {0, 47} & set(name) and name not in (b".", b".."))
SIZES = st.one_of(
    st.integers(0, 300),
    st.sampled_from([4096, 65_535, 65_536, 65_537, 131_072, MIB - 1, MIB, MIB + 1, 2 * MIB + 5, 9 * MIB]),
)
TIMES = st.integers(-(2**60), 2**62)


@dataclass(frozen=True)
class Plan:
    """How to make one entry in a directory chosen by `where` among those made so far."""

    where: int
    name: bytes
    kind: str
    size: int
    holes: int
    mode: int
    mtime: int
    attribute: bytes | None


PLANS = st.builds(
    Plan,
    where=st.integers(0, 1000),
    name=NAMES,
    kind=st.sampled_from(["file", "file", "file", "directory", "directory", "symlink", "hard link", "fifo"]),
    size=SIZES,
    holes=st.integers(0, 3),
    mode=st.integers(0, 0o7777),
    mtime=TIMES,
    attribute=st.none() | st.binary(max_size=20),
)


def content(plan: Plan, seed: int) -> bytes:
    """Random bytes with some blocks of zeros."""
    rng = random.Random(seed)
    data = bytearray(rng.randbytes(plan.size))
    for _ in range(plan.holes):
        start = rng.randrange(plan.size + 1)
        length = rng.randrange(200_000)
        data[start : start + length] = bytes(len(data[start : start + length]))
    return bytes(data)


def make(root: Path, plans: list[Plan]) -> None:
    directories = [os.fsencode(root)]
    files: list[bytes] = []
    made: list[tuple[bytes, Plan]] = []
    attributes = can_have_xattrs(root)
    for seed, plan in enumerate(plans):
        path = os.path.join(directories[plan.where % len(directories)], plan.name)
        if os.path.lexists(path):
            continue
        if plan.kind == "directory":
            os.mkdir(path)
            directories.append(path)
        elif plan.kind == "symlink":
            os.symlink(plan.name * 3, path)
        elif plan.kind == "fifo":
            os.mkfifo(path)
        elif plan.kind == "hard link" and files:
            os.link(files[plan.where % len(files)], path)
        else:
            Path(os.fsdecode(path)).write_bytes(content(plan, seed))
            files.append(path)
        made.append((path, plan))
    for path, plan in reversed(made):  # children first, since they change their directory
        dress(path, plan, attributes)


def dress(path: bytes, plan: Plan, attributes: bool) -> None:
    if plan.kind != "symlink":
        # Without the read and search permissions an ordinary user could not publish it.
        os.chmod(path, plan.mode | (0o700 if os.path.isdir(path) else 0o600))
        if plan.attribute is not None and attributes and plan.kind != "fifo":
            os.setxattr(path, b"user.hoard-test", plan.attribute)
    os.utime(path, ns=(0, plan.mtime), follow_symlinks=False)


def make_tree(base: Path, plans: list[Plan]) -> Path:
    root = base / "tree"
    root.mkdir()
    make(root, plans)
    return root


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(plans=st.lists(PLANS, max_size=40), fixed=st.booleans(), threads=st.integers(1, 4))
def test_a_published_tree_equals_its_source(plans: list[Plan], fixed: bool, threads: int) -> None:
    with tempfile.TemporaryDirectory() as base:
        root = make_tree(Path(base), plans)
        chosen = replace(options(Path(base)), chunker=FIXED if fixed else FASTCDC, threads=threads)
        published = publish(root, chosen)
        assert tree_in(published) == tree_on(root)
        again = publish(root, replace(chosen, threads=1 + threads % 4), published.sink)
        assert again.id == published.id
        assert again.result.stored == 0
        special = published.result.skipped.special.count
        assert special == sum(stat_is_fifo(path) for path in root.rglob("*"))


def stat_is_fifo(path: Path) -> bool:
    return not path.is_symlink() and path.is_fifo()


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    plans=st.lists(PLANS, max_size=25),
    patterns=st.lists(
        st.one_of(
            NAMES.map(lambda name: name.replace(b"[", b"\\[").replace(b"\\", b"\\\\")),
            st.sampled_from([b"*", b"?", b"??", b"*/*", b"*/", b"**/*/", b"/?*", b"[a-z]*", b"*/**", b"\\?"]),
        ),
        max_size=3,
    ),
)
def test_exclusion_takes_away_what_matches_and_what_lies_below(plans: list[Plan], patterns: list[bytes]) -> None:
    with tempfile.TemporaryDirectory() as base:
        root = make_tree(Path(base), plans)
        published = publish(root, replace(options(Path(base)), exclude=tuple(patterns)))
        everything = tree_on(root)
        assert set(tree_in(published)) == {path for path in everything if survives(path, everything, Rules(patterns))}


def survives(path: bytes, tree: dict[bytes, Node], rules: Rules) -> bool:
    parts = path.split(b"/") if path else []
    above = [b"/".join(parts[: depth + 1]) for depth in range(len(parts))]
    return not any(
        rules.leaves_out(each, each.rpartition(b"/")[2], is_directory=tree[each].mode & 0o170000 == 0o040000)
        for each in above
    )
