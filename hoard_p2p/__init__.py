"""Hoard: a peer-to-peer, content-addressed, read-only cache for training sets."""

__version__ = "0.1.0"
