"""Progress lines."""

import io

from hoard_p2p.cli.progress import Lines, Step

MIB = 1 << 20


def test_a_line_tells_files_bytes_rate_time_left_and_savings() -> None:
    out, now = io.StringIO(), [0.0]
    lines = Lines(out, lambda: now[0])
    lines.show(Step("reading", 0, 100 * MIB, files=0, total_files=10))
    now[0] = 2.0
    lines.show(Step("reading", 25 * MIB, 100 * MIB, files=3, total_files=10, saved=5 * MIB))
    assert out.getvalue().splitlines()[1] == (
        "reading: 25.0 MiB of 100.0 MiB, 12.5 MiB/s, 6.00 s left, 3 of 10 files, 5.0 MiB saved by deduplication"
    )


def test_lines_come_at_most_every_two_seconds() -> None:
    out, now = io.StringIO(), [0.0]
    lines = Lines(out, lambda: now[0])
    for tenth in range(61):
        now[0] = tenth / 10
        lines.show(Step("reading", tenth, None))
    assert len(out.getvalue().splitlines()) == 4


def test_a_new_phase_has_a_line_at_once() -> None:
    out = io.StringIO()
    lines = Lines(out, lambda: 0.0)
    lines.show(Step("reading", 1, None))
    lines.show(Step("placing", 3, 10, in_bytes=False))
    assert out.getvalue().splitlines()[1] == "placing: 3 of 10"
