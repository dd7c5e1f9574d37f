"""Libraries that read training data find on a mount what they find on a local read-only disk.

HOARD_TEST_PYTHON names the interpreter that has them (torch, for one, is large); without it this one is asked.
"""

import json
import os
import random
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e import ml_readers
from tests.e2e.disks import Disks, two_disks
from tests.system import IO_KINDS

pytestmark = [pytest.mark.root, pytest.mark.fuse, pytest.mark.timeout(240)]

PYTHON = os.environ.get("HOARD_TEST_PYTHON", sys.executable)
Found = dict[str, object]


def _run(verb: str, top: Path) -> str:
    command = [PYTHON, os.fspath(Path(ml_readers.__file__)), verb, os.fspath(top)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, f"{command}: status {done.returncode}\n{done.stderr}"
    return done.stdout


def _fill(source: Path) -> None:
    (source / "large").write_bytes(random.Random(7).randbytes(9 << 20))
    _run("write", source)


def _found(top: Path) -> Found:
    return dict(json.loads(line) for line in _run("read", top).splitlines())


@pytest.fixture(scope="module", params=IO_KINDS)
def disks(request: pytest.FixtureRequest) -> Iterator[Disks]:
    with two_disks(_fill, request.param, large="large") as made:
        yield made


@pytest.fixture(scope="module")
def found(disks: Disks) -> tuple[Found, Found]:
    """What each library finds on the local disk, and on the mount."""
    return _found(disks.local), _found(disks.mount)


@pytest.mark.parametrize("library", ml_readers.LIBRARIES)
def test_a_library_finds_on_the_mount_what_is_on_the_disk(found: tuple[Found, Found], library: str) -> None:
    local, mounted = found
    if local[library] is None:
        pytest.skip(f"{PYTHON} has no {library}")
    assert mounted[library] == local[library]
