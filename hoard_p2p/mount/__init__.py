"""A snapshot as a directory: our own end of the kernel's FUSE protocol, the processes that serve it, and how to end it.

The room is handed a catalog, a reader of local chunks and a channel for misses; it knows no store, peer or node.
A mount is one *supervisor*, which mounts, spawns and replaces, and several stateless *workers*, which answer.
"""
