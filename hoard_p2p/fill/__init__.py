"""Bringing whole snapshots to nodes that want them: each byte crosses each link once."""
