"""The mount benchmark's table: ratios, verdicts, formatting."""

from collections.abc import Sequence

import pytest

from benchmarks.figures import moved, ratio
from benchmarks.mount import chosen
from benchmarks.sheet import BY_KEY, LINES, OURS, Sample, Sheet, markdown, plain, ratio_of


def sheet_of(key: str, pairs: Sequence[tuple[float, float | None]], subject: str = OURS) -> Sheet:
    sheet = Sheet()
    for figure, native in pairs:
        sheet.add(subject, key, figure, native)
    return sheet


def test_a_baseline_that_doubles_still_counts_and_one_that_moves_more_is_void() -> None:
    assert not moved([1.0, 2.0])
    assert moved([1.0, 2.01])
    assert ratio([2.0, 2.0], [1.0, 2.1]).startswith("void")
    assert ratio([2.0, 2.0], [1.0, 2.0]) == "0.75 x"


def test_a_ratio_is_the_median_of_the_pairs_and_not_a_quotient_of_medians() -> None:
    found = ratio_of([Sample(1.0, 1.0), Sample(1.0, 2.0), Sample(1.5, 1.5)])
    assert found is not None
    assert (found.value, found.void) == (1.0, False)


def test_without_native_figures_there_is_no_ratio() -> None:
    assert ratio_of([Sample(12.0)]) is None
    assert ratio_of([]) is None


def test_of_a_rate_more_is_better_and_of_a_time_less() -> None:
    assert sheet_of("large-sequential", [(9.7, 10.0)]).verdict(OURS, "large-sequential") == "met"
    assert sheet_of("large-sequential", [(9.6, 10.0)]).verdict(OURS, "large-sequential") == "missed"
    assert sheet_of("walk-find", [(20.0, 10.0)]).verdict(OURS, "walk-find") == "met"
    assert sheet_of("walk-find", [(21.0, 10.0)]).verdict(OURS, "walk-find") == "missed"


def test_a_void_ratio_meets_nothing_and_is_printed_as_void() -> None:
    sheet = sheet_of("large-sequential", [(10.0, 10.0), (10.0, 4.0)])
    assert sheet.verdict(OURS, "large-sequential") == "void"
    assert sheet.rows()[1][3] == "void"


def test_a_figure_with_a_bound_of_its_own_needs_no_native_one() -> None:
    assert sheet_of("start-large", [(90.0, None), (400.0, None), (95.0, None)]).verdict(OURS, "start-large") == "met"
    assert sheet_of("start-large", [(101.0, None)]).verdict(OURS, "start-large") == "missed"
    assert sheet_of("large-cpu", [(0.004, None)]).verdict(OURS, "large-cpu") == "met"
    assert sheet_of("large-cpu", [(0.01, None)]).verdict(OURS, "large-cpu") == "missed"


@pytest.mark.parametrize(("eight", "verdict"), [(9.5, "met"), (9.4, "missed")])
def test_eight_readers_are_judged_by_the_ratio_of_one_within_a_tolerance(eight: float, verdict: str) -> None:
    sheet = sheet_of("large-sequential", [(10.0, 10.0)])
    assert sheet.verdict(OURS, "large-eight") == ""
    sheet.add(OURS, "large-eight", eight, 10.0)
    assert sheet.verdict(OURS, "large-eight") == verdict


def test_the_table_has_a_line_for_what_was_measured_and_a_column_for_each_other_system() -> None:
    sheet = sheet_of("large-cold", [(0.9, 1.0), (1.0, 1.0)])
    sheet.add("squashfuse", "large-cold", 0.25, 1.0)
    sheet.add("squashfuse", "start-large", 27.0)
    heading, cold, first = sheet.rows()
    assert heading == ["", "native", OURS, "ratio", "target", "", "squashfuse"]
    assert cold[1:] == ["1.00 GB/s", "0.95 GB/s (0.90 - 1.00)", "0.95 x", ">= 0.90 x", "met", "0.25 x"]
    assert first[1:] == ["", "", "", "<= 100 ms", "", "27.0 ms"]


def test_what_is_printed_has_every_cell_aligned_or_as_markdown() -> None:
    rows = [["", "a"], ["long", "b"]]
    assert plain(rows) == "      a\nlong  b"
    assert markdown(rows) == "|  | a |\n|---|---|\n| long | b |"


def test_json_has_every_sample() -> None:
    told = {str(line["key"]): line for line in sheet_of("walk-find", [(20.0, 10.0)]).json()}
    assert told["walk-find"]["subjects"] == {
        OURS: {"native": [10.0], "figures": [20.0], "ratio": 2.0, "void": False, "verdict": "met"}
    }
    assert told["walk-ls"]["subjects"] == {}


def test_every_line_has_a_key_of_its_own_and_is_chosen_by_its_beginning() -> None:
    assert len(BY_KEY) == len(LINES)
    assert [line.key for line in LINES if chosen("walk-ls,start")(line.key)] == [
        "walk-ls", "walk-ls-again", "start-large", "start-small",
    ]  # fmt: skip
    assert all(chosen("")(line.key) for line in LINES)
