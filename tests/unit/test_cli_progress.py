"""Progress lines."""

import io
import threading

from hoard_p2p.cli.progress import Lines, Repeating, Step

MIB = 1 << 20


def test_a_line_tells_files_bytes_rate_time_left_and_savings() -> None:
    out, now = io.StringIO(), [0.0]
    lines = Lines(out, lambda: now[0])
    lines.show(Step("reading", 0, 100 * MIB, files=0, total_files=10))
    now[0] = 2.0
    lines.show(Step("reading", 25 * MIB, 100 * MIB, files=3, total_files=10, saved=5 * MIB))
    assert out.getvalue().splitlines() == [
        "reading: 25.0 MiB of 100.0 MiB, 12.5 MiB/s, 6.00 s left, 3 of 10 files, 5.0 MiB saved by deduplication"
    ]


def test_lines_come_at_most_every_two_seconds_and_the_first_after_two() -> None:
    out, now = io.StringIO(), [0.0]
    lines = Lines(out, lambda: now[0])
    for tenth in range(61):
        now[0] = tenth / 10
        lines.show(Step("reading", tenth, None))
        assert (out.getvalue() == "") == (tenth < 20)
    assert len(out.getvalue().splitlines()) == 3


def test_a_phase_that_had_lines_ends_with_a_complete_one_and_a_quick_one_has_none() -> None:
    out, now = io.StringIO(), [0.0]
    lines = Lines(out, lambda: now[0])
    lines.show(Step("replicating", 0, 3, in_bytes=False))
    now[0] = 2.5
    lines.show(Step("replicating", 2, 3, in_bytes=False))
    lines.show(Step("replicating", 3, 3, in_bytes=False))
    lines.show(Step("naming", 0, 1, in_bytes=False))
    lines.close()
    assert out.getvalue().splitlines() == ["replicating: 2 of 3, 1.25 s left", "replicating: 3 of 3"]


def test_a_total_that_is_passed_is_dropped_with_the_time_left() -> None:
    out, now = io.StringIO(), [0.0]
    lines = Lines(out, lambda: now[0])
    lines.show(Step("reading", 0, 10 * MIB, files=0, total_files=2))
    now[0] = 2.0
    lines.show(Step("reading", 20 * MIB, 10 * MIB, files=3, total_files=2))
    assert out.getvalue() == "reading: 20.0 MiB, 10.0 MiB/s, 3 files\n"


def test_what_was_done_before_the_phase_began_does_not_count_as_speed() -> None:
    out, now = io.StringIO(), [0.0]
    lines = Lines(out, lambda: now[0])
    lines.show(Step("draining", 80 * MIB, 100 * MIB))
    now[0] = 2.0
    lines.show(Step("draining", 80 * MIB, 100 * MIB))
    now[0] = 4.0
    lines.show(Step("draining", 84 * MIB, 100 * MIB))
    assert out.getvalue().splitlines() == [
        "draining: 80.0 MiB of 100.0 MiB, 0 B/s",
        "draining: 84.0 MiB of 100.0 MiB, 1.0 MiB/s, 16.0 s left",
    ]


def test_a_step_is_shown_again_while_nothing_new_comes() -> None:
    class Seen:
        def __init__(self) -> None:
            self.steps: list[Step] = []
            self.thrice = threading.Event()

        def show(self, step: Step) -> None:
            self.steps.append(step)
            if len(self.steps) == 3:
                self.thrice.set()

        def close(self) -> None:
            self.steps.append(Step("closed", 0, None))

    seen, step = Seen(), Step("exporting", 7, None)
    shown = Repeating(seen, every=0.001)
    shown.show(step)
    assert seen.thrice.wait(30)
    shown.close()
    assert (seen.steps[0], seen.steps[2], seen.steps[-1].phase) == (step, step, "closed")
