"""What `hoard doctor` makes of a data directory."""

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from hoard_p2p.node import directory, framing
from hoard_p2p.node.checkup import Check, Finding, Patient, Verdict, examine
from hoard_p2p.storage.store import Store
from tests.node_thread import node_in_thread

OK, WARNING, FAILED = Verdict.OK, Verdict.WARNING, Verdict.FAILED
GIB = 1 << 30


def one(found: Iterator[Finding]) -> Finding:
    (finding,) = found
    return finding


def test_a_directory_that_anybody_may_write_to_is_bad_and_one_of_another_user_a_warning() -> None:
    verdicts = [
        directory.judge_permissions(Path("/d"), mode, owner, 7).verdict
        for mode, owner in ((0o40750, 7), (0o40770, 8), (0o40757, 7), (0o41777, 7))
    ]
    assert verdicts == [OK, WARNING, FAILED, OK]


def test_this_disk_is_tried_and_nothing_is_left_of_it(tmp_path: Path) -> None:
    found = one(directory.features(Patient(tmp_path, root=True)))
    assert found.verdict is OK and "punches holes" in found.says
    assert list(tmp_path.iterdir()) == []


@pytest.mark.root
def test_a_file_system_without_holes_is_a_warning(tmp_path: Path) -> None:
    if subprocess.run(["mount", "-t", "ramfs", "none", tmp_path], check=False, capture_output=True).returncode:
        pytest.skip("no ramfs can be mounted")
    try:
        found = one(directory.features(Patient(tmp_path, root=True)))
    finally:
        subprocess.run(["umount", "-l", tmp_path], check=False)
    assert found.verdict is WARNING and "cannot punch holes" in found.says


ORDINARY = """
import os, sys
from pathlib import Path
from hoard_p2p.node.checks import CHECKS
from hoard_p2p.node.checkup import Patient, examine
os.setgroups([])
os.setgid(65534)
os.setuid(65534)  # only now: the interpreter itself may lie where that user cannot go
wanted = ("owner", "file system", "reading", "readers", "lock", "log", "data directory")
checks = [check for check in CHECKS if check.name in wanted]
for line in examine(checks, Patient(Path(sys.argv[1]), root=False), fix=True):
    print(line.name, line.finding.verdict.value, line.finding.says, sep="|")
"""


@pytest.mark.root
@pytest.mark.parametrize("mode", [0o700, 0o755])
def test_another_user_is_told_what_could_not_be_looked_at(new_directory: Callable[[str], Path], mode: int) -> None:
    path = new_directory("d")
    Store.open(path).close()
    with framing.listen(path):
        pass
    path.chmod(mode)
    done = subprocess.run(
        [sys.executable, "-c", ORDINARY, path], capture_output=True, text=True, check=True, timeout=30
    )
    told = {name: (verdict, says) for name, verdict, says in (line.split("|") for line in done.stdout.splitlines())}
    assert told["owner"][0] == "warning"
    assert told["data directory"][0] == "failed"
    assert "by this user" in told["lock" if mode == 0o700 else "readers"][1]
    assert told["reading"][0] == "failed" and "neither" in told["reading"][1]


@pytest.mark.parametrize(
    ("free", "verdict"), [(90 * GIB, OK), (61 * GIB, OK), (59 * GIB, WARNING), (4 * GIB, WARNING)]
)  # capacity 100, used 40, floor 5
def test_a_capacity_that_the_disk_does_not_have_is_a_warning(free: int, verdict: Verdict) -> None:
    assert directory.judge_room(100 * GIB, 40 * GIB, 5 * GIB, free).verdict is verdict


def test_a_crowded_reader_table_names_who_fills_it() -> None:
    assert directory.judge_readers([4, 5]).verdict is OK
    found = directory.judge_readers([4] * 10 + [5] * 4000)
    assert found.verdict is WARNING and "kill 5" in found.advice


def test_of_a_running_node_the_lock_the_readers_and_the_way_to_read_are_told(tmp_path: Path) -> None:
    with node_in_thread(tmp_path):
        patient = Patient(tmp_path, root=True)
        assert f"pid {os.getpid()}" in one(directory.lock(patient)).says
        assert "read the index themselves" in one(directory.reading(patient)).says
        assert one(directory.room(patient)).verdict is OK
        (tmp_path / "node-lock").unlink()
        assert one(directory.lock(patient)).verdict is FAILED
    assert "no node" in one(directory.lock(patient)).says


def test_what_a_killed_node_left_is_removed_only_while_no_node_runs(tmp_path: Path) -> None:
    left = tmp_path / "tmp" / "ingest-x" / "file"
    checks = (Check("temporary files", directory.scratch),)
    patient = Patient(tmp_path, root=True)
    with Store.open(tmp_path):
        left.parent.mkdir(parents=True)
        left.write_bytes(bytes(9000))
        (line,) = examine(checks, patient, fix=True)
        assert (line.finding.verdict, left.exists()) == (OK, True)
    (line,) = examine(checks, patient, fix=False)
    assert (line.finding.verdict, left.exists()) == (WARNING, True)
    (line,) = examine(checks, patient, fix=True)
    assert (line.finding.verdict, left.exists()) == (OK, False)


def test_a_large_log_that_was_put_aside_can_be_removed(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.mkdir()
    (log / "node.log").write_bytes(b"")
    aside = log / "node.log.1"
    with aside.open("wb") as file:
        os.posix_fallocate(file.fileno(), 0, directory.MUCH_LOG + 4096)
    patient = Patient(tmp_path, root=True)
    assert one(directory.logs(patient)).verdict is WARNING
    examine((Check("log", directory.logs),), patient, fix=True)
    assert not aside.exists() and (log / "node.log").exists()


def test_what_this_user_may_not_look_at_is_a_warning_that_says_so() -> None:
    def closed(patient: Patient) -> Iterator[Finding]:
        raise PermissionError(13, "Permission denied", "/x")
        yield

    (line,) = examine((Check("closed", closed),), Patient(Path("/x"), root=False), fix=False)
    assert line.finding.verdict is WARNING and "by this user" in line.finding.says
