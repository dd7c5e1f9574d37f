"""Views that disagree: agreement costs nothing, forwarding saves the origin, rings are found."""

from simulations.disagreement import NOT_ASKED, Disagreement, chain_table, origin_table, rings, who_reads

SMALL = Disagreement(nodes=16, rack_size=4, segments=25, missing=(0.0, 0.1), streams=(16,))


def test_views_that_agree_read_once_and_cross_once() -> None:
    same = [row for row in origin_table(SMALL).rows if row[0] == 0.0]
    assert {row[3:] for row in same} == {(1.0, 1.0)}
    assert chain_table(SMALL).rows[0] == (0.0, 16, 1.0, 1.0, 1, 0.0)


def test_passing_questions_on_reads_the_origin_less_often_than_believing_the_asker() -> None:
    by_hops = {row[2]: float(row[3]) for row in origin_table(SMALL).rows if row[0] == 0.1}
    assert by_hops[0] > by_hops[1] >= by_hops[2] >= 1


def test_a_question_is_passed_on_so_often_and_then_answered() -> None:
    reader_of = [1, 2, 3, 3]
    assert who_reads(reader_of, iter([0]), 0) == {1}
    assert who_reads(reader_of, iter([0]), 1) == {2}
    assert who_reads(reader_of, iter([0, 3]), 2) == {3}


def test_rings_are_those_in_them_and_behind_them() -> None:
    assert rings([NOT_ASKED, 0, 1]) == 0
    assert rings([NOT_ASKED, 2, 1, 2]) == 3
