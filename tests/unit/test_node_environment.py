"""What `hoard doctor` makes of the machine, its network and its clock."""

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest

from hoard_p2p.node import environment
from hoard_p2p.node.checkup import Patient, Verdict, examine
from hoard_p2p.node.environment import Skew

OK, WARNING, FAILED = Verdict.OK, Verdict.WARNING, Verdict.FAILED
GIB = 1 << 30


@pytest.mark.parametrize(
    ("path", "setuid", "root", "verdict"),
    [
        (None, False, True, OK), (None, False, False, FAILED), ("/f", False, False, FAILED),
        ("/f", False, True, OK), ("/f", True, False, OK),
    ],
)  # fmt: skip
def test_only_an_ordinary_user_needs_a_helper_that_is_setuid(
    path: str | None, setuid: bool, root: bool, verdict: Verdict
) -> None:
    found = environment.judge_helper(path, setuid=setuid, allowing=False, root=root)
    assert found.verdict is verdict and bool(found.advice) is (verdict is not OK)


def test_pages_limits_make_reads_small() -> None:
    assert [environment.judge_pages(pages, 4096).verdict for pages in (-1, 256, 1024, 32)] == [OK, OK, OK, WARNING]
    assert "128 KiB" in environment.judge_pages(32, 4096).says


def test_address_space_says_what_a_node_and_a_mount_become() -> None:
    limits = (-1, 100 * GIB, 4 * GIB, GIB)
    assert [environment.judge_space(limit, 64 * GIB).verdict for limit in limits] == [OK, OK, WARNING, FAILED]


def test_few_pids_are_a_warning() -> None:
    pairs = [(32768, -1), (-1, 4096), (4096, -1), (32768, 100)]
    assert [environment.judge_pids(*pair).verdict for pair in pairs] == [OK, OK, WARNING, WARNING]


def test_peers_with_another_time_are_named() -> None:
    found = environment.judge_clock(False, [Skew("one", 1.2), Skew("two", -75.0)])
    assert found.verdict is WARNING and "two -75 s" in found.says and "one" not in found.says
    assert environment.judge_clock(None, [Skew("one", -59.0)]).verdict is OK
    assert environment.judge_clock(True, []).verdict is WARNING


@contextmanager
def a_peer(date: str) -> Iterator[str]:
    class Answer(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.end_headers()

        def date_time_string(self, timestamp: float | None = None) -> str:
            return date

        def log_message(self, format: str, *args: object) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Answer) as server:
        thread = threading.Thread(target=server.handle_request)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        thread.join(10)


def test_a_peers_clock_is_read_from_its_answer() -> None:
    with a_peer("Thu, 01 Jan 2026 00:00:00 GMT") as url:
        skew = environment.skew_of({"name": "old", "url": url})
    assert skew is not None and skew.name == "old" and abs(skew.seconds) > 60
    assert environment.skew_of({"name": "gone", "url": "http://127.0.0.1:1"}) is None


@pytest.mark.parametrize(
    ("flags", "verdict"), [("0x1003", OK), ("0x1002", WARNING), ("0x1009", WARNING), ("", WARNING)]
)
def test_an_interface_that_is_up_and_can_multicast_is_wanted(tmp_path: Path, flags: str, verdict: Verdict) -> None:
    interface = tmp_path / "sys" / "class" / "net" / "eth7"
    interface.mkdir(parents=True)
    (interface / "flags").write_text(flags)
    (found,) = environment.multicast(Patient(tmp_path, root=True, root_dir=tmp_path))
    assert found.verdict is verdict or "cannot be shared" in found.says
    assert ("eth7" in found.says) is (found.verdict is OK)


def test_what_the_system_says_is_read_from_its_files(tmp_path: Path) -> None:
    (tmp_path / "proc/sys/fs/fuse").mkdir(parents=True)
    (tmp_path / "proc/sys/kernel").mkdir(parents=True)
    (tmp_path / "etc").mkdir()
    (tmp_path / "proc/sys/fs/fuse/max_pages_limit").write_text("16\n")
    (tmp_path / "proc/sys/kernel/pid_max").write_text("1000\n")
    (tmp_path / "etc/fuse.conf").write_text("# mount_max = 1\n user_allow_other\n")
    patient = Patient(tmp_path, root=True, root_dir=tmp_path)
    (pages,), (pids,), (helper,) = map(
        list, (f(patient) for f in (environment.largest_read, environment.pids, environment.helper))
    )
    assert f"{16 * os.sysconf('SC_PAGE_SIZE') >> 10} KiB" in pages.says
    assert "1,000" in pids.says
    assert "user_allow_other" not in helper.says


def test_every_check_of_the_machine_finds_something_on_this_one(tmp_path: Path) -> None:
    lines = examine(environment.CHECKS, Patient(tmp_path / "none", root=os.geteuid() == 0), fix=False)
    assert [line.name for line in lines] == [check.name for check in environment.CHECKS]
    assert not any("could not be checked" in line.finding.says for line in lines)
