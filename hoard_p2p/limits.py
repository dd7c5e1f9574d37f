"""Bounds that the format sets (docs/formats.md). Apart, since whoever reads a catalog needs these and no cutter."""

MAX_CHUNK = 4 << 20
"""No chunker makes a longer chunk, no catalog may name one. Holes have any length."""

MAX_SEGMENT = 64 << 20
"""A segment ends after the chunk with which it reaches this many bytes, so it has fewer than this plus one chunk."""

MAX_SEGMENT_CHUNKS = 16_384

PAGE = 4096
"""What ranges of pieces are rounded to: the kernel asks for whole pages."""

WHOLE_PIECE = 1 << 20
"""Pieces of a lazy snapshot that are longer come in the ranges that readers want; others as a whole."""
