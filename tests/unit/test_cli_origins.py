"""`hoard origin check`: what it asks of the node, and what it says."""

import json
from pathlib import Path

import pytest

from hoard_p2p.cli.doors import Body
from hoard_p2p.cli.main import run
from hoard_p2p.cli.origins import check_text
from hoard_p2p.errors import NoNode
from tests.unit.cli_fakes import FakeNode

GOOD: Body = {
    "url": "s3://bucket/set/",
    "credentials": "shared-credentials-file",
    "versions": "ETag",
    "reachable": True,
    "refused": False,
    "why": "",
    "skew": 1000.5,
    "entries": 10_000,
    "files": 9_990,
    "size": 5 << 30,
    "complete": False,
    "listing_rate": 12_345.6,
    "skipped": 0,
    "skipped_names": [],
    "samples": 16,
    "read_rate": 100e6,
    "first_byte": 0.02,
    "allowed": True,
    "allow_command": "hoard up --allow-origin s3://bucket/set/",
}


def test_the_outcome_is_told_in_lines() -> None:
    text = check_text(GOOD)
    assert (
        "listed:                           10,000 entries, 9,990 files of 5.0 GiB, and more; 12,345 entries/s" in text
    )
    assert "16 samples, 95.4 MiB/s, first byte after 0.02 s" in text
    assert "the server's is 16 min 40 s ahead of this node's" in text
    assert "can be in no snapshot" not in text
    other = check_text({**GOOD, "allowed": False, "skipped": 1, "skipped_names": ["a//b: has an empty name"]})
    assert "no, until hoard up --allow-origin s3://bucket/set/" in other
    assert other.splitlines()[-1] == "  a//b: has an empty name"


@pytest.mark.parametrize(
    ("answer", "status"),
    [({}, 0), ({"allowed": False}, 0), ({"skipped": 2}, 1), ({"why": "no credentials", "reachable": False}, 5)],
)
def test_the_exit_status_says_what_became_of_it(answer: Body, status: int, capsys: pytest.CaptureFixture[str]) -> None:
    node = FakeNode(origin_check={**GOOD, **answer})
    assert run(["origin", "check", "s3://bucket/set"], node.doors()) == status
    assert ("no credentials" in capsys.readouterr().err) is (status == 5)


def test_of_an_origin_that_is_not_reached_only_what_is_known_is_told() -> None:
    text = check_text({**GOOD, "reachable": False, "allowed": False, "entries": 0, "credentials": ""})
    assert text.splitlines() == [
        "origin:                           s3://bucket/set/",
        "reachable:                        no",
    ]


def test_without_a_node_nothing_is_checked() -> None:
    assert run(["origin", "check", "s3://bucket/set"], FakeNode(origin_check=NoNode("none")).doors()) == 4


def test_the_node_gets_the_url_with_what_options_and_environment_add(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://store:9000/")
    monkeypatch.delenv("AWS_REGION", raising=False)
    monkeypatch.delenv("AWS_DEFAULT_REGION", raising=False)
    node = FakeNode(origin_check=GOOD)
    assert run(["origin", "check", "s3://bucket/set", "--anonymous"], node.doors()) == 0
    assert node.asked == [("origin_check", {"source": "s3://bucket/set/?endpoint=http://store:9000&anonymous=1"})]


def test_a_directory_is_handed_over_open_and_json_is_the_answer(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    node = FakeNode(origin_check=GOOD)
    assert run(["origin", "check", "--json", str(tmp_path)], node.doors()) == 0
    assert json.loads(capsys.readouterr().out) == GOOD
    assert node.asked == [("origin_check", {"source": str(tmp_path)})]
    assert len(node.fds) == 1
    assert run(["origin", "check", str(tmp_path / "gone")], node.doors()) == 3
