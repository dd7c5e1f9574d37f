"""What a store says of itself: ok, full, failing; asked often, it looks rarely. Read-only disks: tests/fault."""

from pathlib import Path

from hoard_p2p.config import parse_floor
from hoard_p2p.storage.condition import BELIEVED_SECONDS, Condition, State
from hoard_p2p.storage.layout import DataDir
from hoard_p2p.storage.room import Room

MIB = 1 << 20


def test_a_store_is_ok_then_full_then_failing_then_ok_again(tmp_path: Path) -> None:
    layout, now = DataDir(tmp_path), [0.0]
    layout.make()
    room = Room(layout, 64 * MIB, parse_floor("0"))
    condition = Condition(layout, room, clock=lambda: now[0])
    assert condition.look() == (State.OK, "")
    room.limit(capacity=MIB)
    assert condition.look().state is State.OK, "as of a moment ago"
    now[0] += BELIEVED_SECONDS
    assert condition.look().state is State.FULL
    layout.probe.unlink()
    layout.probe.mkdir()
    now[0] += BELIEVED_SECONDS
    seen = condition.look()
    assert seen.state is State.FAILING and str(tmp_path) in seen.why
    layout.probe.rmdir()
    room.limit(capacity=64 * MIB)
    now[0] += BELIEVED_SECONDS
    assert condition.look().state is State.OK
