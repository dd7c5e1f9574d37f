"""`hoard publish`: what reaches the node, and what reaches the user."""

import json
import os
import sys
from pathlib import Path

import pytest

from hoard_p2p.cli.doors import Body
from hoard_p2p.cli.main import run
from hoard_p2p.cli.progress import Lines
from hoard_p2p.cli.publishing import progress_step, warnings
from hoard_p2p.errors import SourceUnreadable
from tests.unit.cli_fakes import FakeNode

ID = "ab" * 32
RESULT: Body = {"snapshot": ID, "files": 3, "bytes": 3000, "stored": 2000, "deduplicated": 1000}


def test_the_id_stands_alone_on_the_last_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["publish", str(tmp_path)], FakeNode(publish=RESULT).doors()) == 0
    assert capsys.readouterr().out.splitlines()[-1] == ID


def test_json_is_one_object_instead(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["publish", "--json", str(tmp_path)], FakeNode(publish=RESULT).doors()) == 0
    assert json.loads(capsys.readouterr().out) == RESULT


def test_the_node_gets_an_open_directory_and_the_options(tmp_path: Path) -> None:
    seen = []

    def publish(_: Body) -> Body:
        seen.append(os.path.samestat(os.fstat(node.fds[0]), tmp_path.stat()))
        return RESULT

    node = FakeNode(publish=publish)
    options = ["--name", "set:1", "--exclude", "*.tmp", "--exclude", "a/", "--replicas", "3", "--chunker", "fixed"]
    assert run(["publish", f"file://{tmp_path}", *options, "--reproducible"], node.doors()) == 0
    assert seen == [True]
    assert node.asked == [
        (
            "publish",
            {
                "source": str(tmp_path),
                "name": "set:1",
                "replicas": 3,
                "pin": False,
                "keep": None,
                "exclude": ["*.tmp", "a/"],
                "chunker": "fixed",
                "preserve_owner": False,
                "reproducible": True,
                "rehash": False,
                "skip_unreadable": False,
                "shared_origin": None,
                "lazy": False,
                "skip_unmappable": False,
                "try": False,
            },
        )
    ]


@pytest.mark.parametrize(
    ("read", "unchanged", "told"),
    [
        (3, 0, "already known\n"),
        (1, 2, "already known; 1 file read, 2 unchanged\n"),
        (0, 3, "already known; nothing changed, no file was read\n"),
    ],
)
def test_the_summary_says_how_much_was_read(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], read: int, unchanged: int, told: str
) -> None:
    node = FakeNode(publish={**RESULT, "read": read, "unchanged": unchanged})
    assert run(["publish", str(tmp_path), "--rehash"], node.doors()) == 0
    assert capsys.readouterr().err.endswith(told)
    assert node.asked[0][1]["rehash"] is True


@pytest.mark.parametrize(("readers", "told"), [(1, True), (3, False)])
def test_nodes_that_could_not_read_the_origin_are_counted(
    capsys: pytest.CaptureFixture[str], readers: int, *, told: bool
) -> None:
    node = FakeNode(publish={**RESULT, "read": 1, "readers": readers, "nodes": 3})
    assert run(["publish", "s3://bucket/set"], node.doors()) == 0
    assert ("1 of 3 nodes could read the origin" in capsys.readouterr().err) is told


def test_the_directory_is_closed_afterwards_also_after_a_failure(tmp_path: Path) -> None:
    node = FakeNode(publish=SourceUnreadable(["a: permission denied"]))
    assert run(["publish", str(tmp_path)], node.doors()) == 1
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(node.fds[0])


def test_what_could_not_be_read_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    node = FakeNode(publish=SourceUnreadable(["a: permission denied", "b: input/output error"]))
    assert run(["publish", str(tmp_path)], node.doors()) == 1
    told = capsys.readouterr()
    assert "a: permission denied" in told.err and "b: input/output error" in told.err
    assert told.out == ""


def test_a_quick_publish_shows_no_progress_without_a_terminal(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    node = FakeNode(publish=RESULT)
    node.progress = [
        {"phase": "reading", "files": 1, "bytes": 1024, "total_files": 2, "total_bytes": 2048},
        {"phase": "placing", "segments": 4, "segments_done": 1},
    ]
    assert run(["publish", str(tmp_path)], node.doors()) == 0
    told = capsys.readouterr()
    assert told.out == ID + "\n"
    assert "reading" not in told.err and "3 files" in told.err


def test_progress_goes_to_standard_error_after_two_seconds(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shown = Lines(sys.stderr, iter(range(0, 100, 3)).__next__)
    for report in (
        {"phase": "reading", "files": 0, "bytes": 0},
        {"phase": "reading", "files": 1, "bytes": 1024, "total_files": 2, "total_bytes": 2048},
        {"phase": "placing", "segments": 4, "segments_done": 0},
        {"phase": "placing", "segments": 4, "segments_done": 3},
        {"phase": "placing", "segments": 4, "segments_done": 4},
    ):
        shown.show(progress_step(report))  # type: ignore[arg-type]  # literals of the right shape
    shown.close()
    lines = capsys.readouterr().err.splitlines()
    assert lines[0].startswith("reading: 1.0 KiB of 2.0 KiB") and lines[0].endswith("1 of 2 files")
    assert lines[-1] == "placing: 4 of 4"


def test_an_origin_reaches_the_node_as_its_url_and_nothing_else(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("AWS_ENDPOINT_URL_S3", "AWS_REGION", "AWS_DEFAULT_REGION"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://host:9000")
    node = FakeNode(publish={**RESULT, "lazy": True, "unmappable": ["a//b: has an empty part"], "unmappable_count": 1})
    assert run(["publish", "s3://bucket/set", "--lazy", "--skip-unmappable"], node.doors()) == 0
    ((_, asked),) = node.asked
    assert asked["source"] == "s3://bucket/set/?endpoint=http://host:9000"
    assert asked["lazy"] is True and asked["skip_unmappable"] is True and asked["chunker"] is None
    assert node.fds == []
    told = capsys.readouterr()
    assert told.out == ID + "\n"
    assert "1 names of the origin cannot be files" in told.err and "a//b" in told.err and "not read" in told.err


def test_options_of_s3_beside_a_directory_are_status_2(tmp_path: Path) -> None:
    assert run(["publish", str(tmp_path), "--region", "r"], FakeNode().doors()) == 2


def test_a_missing_directory_is_status_3_and_a_file_status_2(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"x")
    assert run(["publish", str(tmp_path / "none")], FakeNode().doors()) == 3
    assert run(["publish", str(tmp_path / "file")], FakeNode().doors()) == 2


def test_special_files_are_named_up_to_twenty() -> None:
    lines = warnings({"skipped_special": [f"fifo{i}" for i in range(30)], "skipped_special_count": 30})
    assert lines[0] == "warning: 30 special files (devices, sockets, FIFOs) were left out:"
    assert lines[1] == "  fifo0" and lines[20] == "  fifo19" and lines[21:] == ["  and 10 more"]


def test_a_clean_publish_has_no_warnings() -> None:
    assert warnings({**RESULT, "skipped_special": [], "skipped_special_count": 0, "under_replicated": 0}) == []
