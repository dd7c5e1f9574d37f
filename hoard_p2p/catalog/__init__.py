"""The metadata of one snapshot: built in constant memory, used in place without parsing (docs/formats.md)."""

from hoard_p2p.catalog.layout import Totals, file_key

__all__ = ["Totals", "file_key"]
