"""What `hoard doctor` makes of what it finds."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from hoard_p2p.cli.doctor import findings_text
from hoard_p2p.errors import MountFailed
from hoard_p2p.mount.mountinfo import MountInfo
from hoard_p2p.mount.mountpoint import Life
from hoard_p2p.node import checks
from hoard_p2p.node.checkup import Check, Finding, Patient, Verdict, examine, failed
from hoard_p2p.storage.layout import DataDir

OK, WARNING, FAILED = Verdict.OK, Verdict.WARNING, Verdict.FAILED


@pytest.mark.parametrize(
    ("release", "verdict"),
    [("5.3.0", FAILED), ("5.4.0-1", WARNING), ("6.8.12", WARNING), ("6.9", OK), ("10.0.1-x", OK), ("odd", FAILED)],
)
def test_an_old_kernel_is_told_what_it_lacks(release: str, verdict: Verdict) -> None:
    found = checks.judge_kernel(release)
    assert found.verdict is verdict and release in found.says
    assert bool(found.advice) is (verdict is not OK)


def test_racks_whose_nodes_keep_more_than_their_share_are_named() -> None:
    (found,) = checks.judge_racks([{"rack": "r1", "load": 0.67}, {"rack": "r2", "load": 2.0}])
    assert found.verdict is WARNING and "r2 2 times" in found.says and "r1" not in found.says
    assert list(checks.judge_racks([{"rack": "r1", "load": 1.1}])) == []
    assert list(checks.judge_racks(None)) == []


@pytest.mark.parametrize(
    ("kind", "free", "verdict"),
    [
        ("ext4", 0.5, OK), ("xfs", 0.01, WARNING), ("tmpfs", 0.9, WARNING), ("overlay", 0.9, WARNING),
        ("nfs4", 0.9, FAILED), ("unknown", 0.9, OK),
    ],
)  # fmt: skip
def test_a_disk_that_loses_or_breaks_the_store_is_named(kind: str, free: float, verdict: Verdict) -> None:
    assert checks.judge_disk(kind, free).verdict is verdict


def test_what_caps_an_ordinary_users_mounts_does_not_bind_root() -> None:
    capped = {"max_user_bgreq": 128, "max_user_congthresh": 96}
    assert [checks.judge_background(capped, root).verdict for root in (True, False)] == [OK, WARNING]
    assert checks.judge_background({"max_user_bgreq": -1}, root=False).verdict is OK  # not known


def test_few_open_files_are_a_warning() -> None:
    assert [checks.judge_limits(files, 1 << 20).verdict for files in (1024, 4096, -1)] == [WARNING, OK, OK]


@pytest.mark.parametrize(("life", "verdict"), [(Life.SERVED, OK), (Life.SILENT, FAILED), (Life.DEAD, FAILED)])
def test_only_a_dead_mount_can_be_cleared(life: Life, verdict: Verdict) -> None:
    found = checks.judge_mount(MountInfo(Path("/m x"), "0123456789ab", "0:99", 1, 0), life)
    assert (found.verdict, found.cure is not None) == (verdict, life is Life.DEAD)
    assert "'/m x'" in found.advice or life is Life.SERVED


def test_a_data_directory_of_another_format_cannot_be_used(tmp_path: Path) -> None:
    def verdicts() -> list[Verdict]:
        return [found.verdict for found in checks.data_dir(Patient(tmp_path / "d", root=True))]

    assert verdicts() == [WARNING]
    DataDir(tmp_path / "d").make()
    assert verdicts() == [OK]
    (tmp_path / "d" / "format").write_text("hoard 99\n")
    assert verdicts() == [FAILED]


def _broken(_: Patient) -> Iterator[Finding]:
    yield Finding(OK, "seen")
    raise OSError("closed")


def _refuse() -> str:
    raise MountFailed("it is held")


def test_a_check_that_fails_is_a_finding_and_cures_are_applied_only_when_asked_for() -> None:
    ill = Finding(FAILED, "ill", "rest", lambda: "well again")
    table = [
        Check("broken", _broken),
        Check("curable", lambda _: [ill]),
        Check("held", lambda _: [Finding(FAILED, "ill", "rest", _refuse)]),
        Check("silent", lambda _: []),
    ]
    patient = Patient(Path("/nowhere"), root=False)
    seen = examine(table, patient, fix=False)
    assert [(line.name, line.finding.verdict) for line in seen] == [
        ("broken", FAILED), ("curable", FAILED), ("held", FAILED),
    ]  # fmt: skip
    fixed = [line.finding for line in examine(table[1:], patient, fix=True)]
    assert [(found.verdict, found.says, found.advice) for found in fixed] == [
        (OK, "ill; well again", ""),
        (FAILED, "ill; that could not be repaired: it is held", "rest"),
    ]
    assert failed(examine(table[1:2], patient, fix=False)) and not failed(examine(table[1:2], patient, fix=True))
    assert findings_text(seen).splitlines()[1:3] == ["failed   curable: ill", "         -> rest"]


def test_every_check_of_the_machine_says_something(tmp_path: Path) -> None:
    mounts = ("mount", "leftover processes")  # others' too: not for a unit test
    table = [check for check in checks.CHECKS if check.name not in mounts]
    lines = examine(table, Patient(tmp_path, root=True), fix=False)
    silent = {"room", "damage", "store", "reading", "readers", "lock", "temporary files", "log"}  # there is no store
    assert {line.name for line in lines} == {check.name for check in table} - silent
    node = next(line.finding for line in lines if line.name == "node")
    assert node.verdict is WARNING and "hoard up" in node.advice
