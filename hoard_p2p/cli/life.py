"""How the life of a snapshot is shown in listings."""

from hoard_p2p.cli.answers import Fields
from hoard_p2p.cli.output import when_text


def life_text(snapshot: Fields) -> str:
    """Why it stays, or until when: `pinned`, `mounted` or `in use` on this node, `named`, or a time."""
    if snapshot.flag("pinned"):
        return "pinned"
    if snapshot.texts("mounted_on"):
        return "mounted"
    if snapshot.texts("users"):
        return "in use"
    if snapshot.texts("names"):
        return "named"
    expires = snapshot.number_or_none("expires")
    return "" if expires is None else f"until {when_text(expires / 10**9)[:16] or 'ever'}"
