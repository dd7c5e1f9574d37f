"""When a peer brings so little that it is better left."""

from hoard_p2p.fetch.pace import DRAG_LEAST, DRAG_LONGEST, DRAG_TIMES, Drag
from hoard_p2p.testing.network import a_peer

SLOW, QUICK = a_peer(1).node_id, a_peer(2).node_id


def test_where_nothing_is_known_a_peer_gets_some_seconds_for_a_chunk() -> None:
    assert Drag().allowance(SLOW) == DRAG_LEAST


def test_where_all_are_slow_nobody_is_left() -> None:
    drag = Drag()
    for _ in range(10):
        drag.came(QUICK, 7.0)
    assert drag.allowance(SLOW) == DRAG_TIMES * 7.0
    drag = Drag()
    drag.came(QUICK, 1000.0)
    assert drag.allowance(SLOW) == DRAG_LONGEST


def test_who_was_left_gets_longer_each_time_until_it_brings_something() -> None:
    drag = Drag()
    drag.came(QUICK, 0.01)
    allowed = [drag.allowance(SLOW)]
    for time in range(10, 90, 10):
        for _ in range(3):  # several questions at the same time
            drag.broke_off(SLOW, time)
        allowed.append(drag.allowance(SLOW))
    assert allowed == [8.0, 16.0, *[32.0] * 7]
    assert drag.allowance(QUICK) == DRAG_LEAST
    drag.came(SLOW, 20.0)
    assert drag.allowance(SLOW) == max(DRAG_LEAST, DRAG_TIMES * (0.01 + 20.0) / 2)
