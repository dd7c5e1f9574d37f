"""The sections of a catalog written one after the other (docs/formats.md, "Catalog"). Pure."""

from collections.abc import Iterable
from typing import BinaryIO, NamedTuple

from hoard_p2p.catalog import layout
from hoard_p2p.catalog.layout import Column
from hoard_p2p.catalog.spill import SpilledColumn


class Section(NamedTuple):
    """What one entry of the section table says, and the bytes."""

    column: Column
    length: int
    blocks: Iterable[bytes | memoryview]


def numbers(column: Column, kept: SpilledColumn) -> Section:
    """The section of a column of numbers."""
    return Section(column, len(kept) * layout.element_size(column), kept.blocks())


def write_sections(out: BinaryIO, sections: Iterable[Section], flags: int) -> None:
    """A whole catalog at the current position of `out`; each section's blocks are drawn once."""
    ordered = sorted(sections, key=lambda section: section.column)
    here = layout.HEADER.size + layout.SECTION.size * len(ordered)
    table = []
    for section in ordered:
        start = layout.aligned(here)
        table.append(layout.SECTION.pack(section.column, layout.element_size(section.column), start, section.length))
        here = start + section.length
    out.write(layout.HEADER.pack(layout.MAGIC, layout.VERSION, len(ordered), here, flags, 0) + b"".join(table))
    here = layout.HEADER.size + layout.SECTION.size * len(ordered)
    for section in ordered:
        out.write(bytes(layout.aligned(here) - here))
        here = layout.aligned(here) + section.length
        for block in section.blocks:
            out.write(block)
