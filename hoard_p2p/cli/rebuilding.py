"""`hoard doctor --rebuild-index`."""

from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING

from hoard_p2p.cli import exits
from hoard_p2p.cli.output import complain, write_json
from hoard_p2p.cli.progress import Step, display
from hoard_p2p.printing import size_text

if TYPE_CHECKING:
    from hoard_p2p.node.rebuilding import Outcome


def rebuild_index(data_dir: Path, *, as_json: bool) -> int:
    """Status 0 also if something of the old index could not be had back: what that is, is said."""
    from hoard_p2p.node.rebuilding import rebuild_index as rebuild

    shown = display()
    try:
        outcome = rebuild(data_dir, lambda done, total: shown.show(Step("hashing", done, total)))
    finally:
        shown.close()
    if as_json:
        body = asdict(outcome)
        write_json({**body.pop("rebuilt"), **body})
        return exits.DONE
    for line in warnings(outcome):
        complain(line)
    print(summary(outcome, data_dir))
    return exits.DONE


def summary(outcome: "Outcome", data_dir: Path) -> str:
    done = outcome.rebuilt
    lines = [
        f"the index was made again: {done.chunks:,} chunks, {size_text(done.size)} in {done.slabs:,} slabs, "
        f"{done.snapshots:,} snapshots ({outcome.catalogs:,} with their catalogs), {done.refs:,} names"
    ]
    if done.aside:
        lines.append(f"the old one was put aside; remove it with: rm -r {quote(done.aside)}")
    lines.append(f"start the node with: hoard up --detach --data-dir {quote(str(data_dir))}")
    return "\n".join(lines)


def warnings(outcome: "Outcome") -> Iterator[str]:
    done = outcome.rebuilt
    if done.new_id:
        yield "warning: the journal does not tell the node's id, it has a new one"
    if not done.journal_whole:
        yield "warning: the journal is damaged or missing; names and snapshots are as far as it could be read"
    if done.torn:
        yield f"warning: {len(done.torn):,} sidecars are damaged in part, what they do not name is lost: " + _some(
            done.torn
        )
    if done.nameless:
        yield f"warning: {len(done.nameless):,} slabs have no readable sidecar and cannot be used: " + _some(
            done.nameless
        )
    if done.wrong:
        yield (
            f"{done.wrong:,} extents ({size_text(done.wrong_size)}) are not what their sidecars say, and are not "
            "listed: freed, never finished, or damaged"
        )
    if outcome.without:
        yield f"{len(outcome.without):,} snapshots have no whole catalog here; it is fetched when it is needed"


def _some(names: list[str]) -> str:
    return ", ".join(names[:5]) + (f" and {len(names) - 5:,} more" if len(names) > 5 else "")
