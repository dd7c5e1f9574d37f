"""What a user means by a text: a ref, a snapshot id, or a prefix of one. Pure."""

import re
from collections.abc import Callable, Sequence

from hoard_p2p.errors import BadRequest, SnapshotAmbiguous, SnapshotUnknown
from hoard_p2p.ids import MIN_PREFIX, SnapshotId, parse_snapshot_id
from hoard_p2p.node.names_wire import ref_name
from hoard_p2p.storage.records import RefRecord, SnapshotRecord

_DIGITS = re.compile(f"[0-9a-f]{{1,{MIN_PREFIX - 1}}}")
_PREFIX = re.compile(f"[0-9a-f]{{{MIN_PREFIX},64}}")


def new_ref_name(text: str) -> str:
    """`ref_name` for a name that is given now. Raises BadRequest also for one that could be taken for an id."""
    name = ref_name(text)
    bare = name.rpartition(":")[0]
    if _PREFIX.fullmatch(bare.lower()):
        raise BadRequest(f"{bare!r} looks like a snapshot id (6 - 64 hex digits); choose another name")
    return name


def resolve(text: str, refs: Sequence[RefRecord], snapshots: Callable[[], Sequence[SnapshotRecord]]) -> SnapshotId:
    """The snapshot that a user means. `refs`: living ones; `snapshots`: those that users see.

    An id needs not be known here. Raises SnapshotUnknown, SnapshotAmbiguous.
    """
    named = _named(text, refs)
    if named is not None:
        return named
    if not _PREFIX.fullmatch(text.lower()):
        digits = f"; an id prefix needs at least {MIN_PREFIX} digits" if _DIGITS.fullmatch(text.lower()) else ""
        raise SnapshotUnknown(f"{_no_such(text, refs)}{digits}; hoard ls and hoard refs list what there is")
    if len(text) == 64:
        return parse_snapshot_id(text.lower())
    return _by_prefix(text.lower(), snapshots())


def _no_such(text: str, refs: Sequence[RefRecord]) -> str:
    """That there is no such ref, and what else has its name."""
    try:
        name = ref_name(text)
    except BadRequest:
        return f"no ref is named {text!r}"
    bare = name.rpartition(":")[0]
    others = [ref.name for ref in refs if ref.name.rpartition(":")[0] == bare]
    there = f"; there is {', '.join(others[:8])}" + (" and more" if len(others) > 8 else "")
    return f"no ref is named {name}" + (there if others else "")


def _named(text: str, refs: Sequence[RefRecord]) -> SnapshotId | None:
    try:
        name = ref_name(text)
    except BadRequest:
        return None
    return next((ref.snapshot for ref in refs if ref.name == name), None)


def _by_prefix(prefix: str, snapshots: Sequence[SnapshotRecord]) -> SnapshotId:
    found = [record.id for record in snapshots if record.id.hex().startswith(prefix)]
    if not found:
        raise SnapshotUnknown(f"no snapshot begins with {prefix}; hoard ls lists what there is")
    if len(found) > 1:
        listed = ", ".join(identifier.hex()[:20] for identifier in found[:8])
        raise SnapshotAmbiguous(f"{len(found)} snapshots begin with {prefix}: {listed}; write more digits")
    return found[0]
