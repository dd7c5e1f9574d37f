"""What lives and what goes: pin, unpin, evict, gc: operations of the unix socket (`node.operations`)."""

from collections.abc import Mapping

from hoard_p2p.node.asking import Operation

OPERATIONS: Mapping[str, Operation] = {}
