"""`hoard doctor`: the index against the slabs. Reads only, and beside a running node: what changes while it is looked
at is looked at again."""

import os
from collections.abc import Iterator, Sequence
from shlex import quote

from hoard_p2p.errors import HoardError, IndexLost, NoNode
from hoard_p2p.interfaces import SlabKind
from hoard_p2p.node.checkup import Check, Finding, Patient, Verdict
from hoard_p2p.storage.layout import DataDir
from hoard_p2p.storage.scrub import Scrubber, by_slab
from hoard_p2p.storage.soundness import is_cut, is_sound, refuse_lost
from hoard_p2p.storage.survey import Inventory, Slab, Stored, contents, slab_files

SAMPLE = 100
"""Chunks that are hashed: enough to see a disk that rots, few enough for a second."""

HEAL = "hoard scrub checks everything, and heals what it can"


def store(patient: Patient) -> Iterator[Finding]:
    layout = DataDir(patient.data_dir)
    try:
        if not layout.check_format():
            return
        refuse_lost(layout)
        if is_cut(layout.index / "data.mdb") and not is_sound(layout.index):
            raise IndexLost("the index is cut short")
        inventory = Inventory.open(patient.data_dir)
    except IndexLost as error:
        yield Finding(Verdict.FAILED, str(error), _rebuild(patient))
        return
    except NoNode:
        return
    except HoardError as error:
        yield Finding(Verdict.WARNING, f"the index was not looked at: {error}")
        return
    try:
        yield from _look(layout, inventory)
    finally:
        inventory.close()


def _rebuild(patient: Patient) -> str:
    return f"stop the node, then: hoard doctor --rebuild-index --data-dir {quote(str(patient.data_dir))}"


def _look(layout: DataDir, inventory: Inventory) -> Iterator[Finding]:
    slabs = inventory.slabs()
    bad = [*_slab_faults(inventory, slabs), *_strays(layout, inventory)]
    wrong = _sampled(inventory)
    for says in bad[:10]:
        yield Finding(Verdict.FAILED, says, HEAL)
    if len(bad) > 10:
        yield Finding(Verdict.FAILED, f"and {len(bad) - 10:,} faults more", HEAL)
    if wrong:
        yield Finding(Verdict.FAILED, f"{len(wrong)} of {SAMPLE} chunks that were looked at are damaged", HEAL)
    if not bad and not wrong:
        yield Finding(Verdict.OK, f"{len(slabs):,} slabs are as the index has them, and so are chunks taken at random")


def _slab_faults(inventory: Inventory, slabs: Sequence[Slab]) -> Iterator[str]:
    """Missing files, wrong lengths, damaged sidecars."""
    for slab in slabs:
        fault = _fault(slab)
        if (
            fault and inventory.slab(slab.number) == slab and (fault := _fault(slab))
        ):  # else it went, or came, meanwhile
            yield fault


def _fault(slab: Slab) -> str:
    try:
        size = slab.path.stat().st_size
    except FileNotFoundError:
        return f"slab {slab.path.name} is not there"
    if slab.record.kind is SlabKind.FILE and slab.record.size and size != slab.record.size:
        return f"slab {slab.path.name} has {size:,} bytes, its file has {slab.record.size:,}"
    if not contents(slab.path, slab.number).whole:
        return f"the sidecar of slab {slab.path.name} is damaged"
    return ""


def _strays(layout: DataDir, inventory: Inventory) -> Iterator[str]:
    """Slabs that the index does not list. A row comes before its files, and goes before them, too."""
    listed = {slab.path for slab in inventory.slabs()}
    for path in slab_files(layout):
        if path not in listed and path.exists() and path not in {slab.path for slab in inventory.slabs()}:
            yield f"slab {path.name} is not listed: nothing in it can be read, hoard gc gives its space back"


def _sampled(inventory: Inventory) -> list[Stored]:
    """Damaged ones among some chunks taken at random."""
    scrubber = Scrubber(inventory, lambda size: None)
    try:
        wrong: list[Stored] = []
        for number, stored in by_slab(inventory.sample([os.urandom(32) for _ in range(SAMPLE)])):
            slab = inventory.slab(number)
            if slab is not None:
                wrong += scrubber.places(slab, stored).wrong
        return wrong
    finally:
        scrubber.close()


CHECKS = (Check("store", store),)
