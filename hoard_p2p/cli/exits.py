"""Exit statuses: the one table from errors to what a shell sees (docs/operations.md lists them for users)."""

from hoard_p2p import errors

DONE = 0
FAILED = 1
USAGE = 2
NOT_FOUND = 3
NO_NODE = 4
UNAVAILABLE = 5
INTEGRITY = 6
INTERRUPTED = 130
"""128 + SIGINT, as shells have it."""
PIPE_CLOSED = 141
"""128 + SIGPIPE: whoever read our output left, for instance `head`."""

_STATUS: tuple[tuple[type[BaseException], int], ...] = (
    (errors.BadRequest, USAGE),
    (errors.NotFound, NOT_FOUND),
    (errors.NoNode, NO_NODE),
    (errors.Unavailable, UNAVAILABLE),
    (errors.Corrupt, INTEGRITY),
)


def exit_status(error: BaseException) -> int:
    """The status for an error that ended a command."""
    return next((status for kind, status in _STATUS if isinstance(error, kind)), FAILED)
